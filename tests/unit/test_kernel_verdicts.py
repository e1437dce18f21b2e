"""Verdicts on Triton kernels: run where they can be, otherwise recorded and marked so, and never made up."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from kvlayout.errors import LayoutError
from kvlayout.upstream import kernel_verdicts
from kvlayout.upstream.kernel_verdicts import NAMES, kernel_verdict, main, triton_device, why_not

RECORD = Path(__file__).parents[2] / "notebooks" / "data" / "kernel-verdicts.json"
OWN = NAMES[2:]


@pytest.fixture
def without_triton(monkeypatch):
    monkeypatch.setattr(kernel_verdicts, "find_spec", lambda name: None)


def test_the_record_has_every_kernel_and_says_when_and_with_what():
    record = json.loads(RECORD.read_text())
    assert "vllm 0.33.0" in record["made_with"] and record["date"].startswith("20")
    assert {name: one["ok"] for name, one in record["verdicts"].items()} == {
        "triton_writer": True, "triton_flat_writer": False, "reshape_and_cache_flash": True,
        "reshape_and_cache_flash_diffkv": True}


@pytest.mark.parametrize("kernel", NAMES)
def test_what_cant_be_run_is_shown_as_recorded(kernel, without_triton):
    found = kernel_verdict(kernel, RECORD)
    missing = "vllm" if kernel in OWN else "triton"
    assert found.is_recorded and why_not(kernel) == f"{missing} isn't installed here"
    assert found.lines[0].startswith(f"{kernel} · RECORDED on ")
    assert found.lines[0].endswith(f"not run now, as {missing} isn't installed here")
    shapes = "Wrong in 88 of 126" if kernel == "triton_flat_writer" else "Right in all 126"
    assert found.ok != shapes.startswith("Wrong") and found.lines[1].startswith(f"{shapes} shapes (LBHNC, LBNHC")


BROKEN = (None, "", "\0", "[]", "{}", '{"verdicts": {"triton_writer": {"ok": true}}}',
          '{"date": 1, "made_with": 2, "verdicts": {"triton_writer": {"text": []}}}')


@pytest.mark.parametrize("text", BROKEN)
def test_a_record_without_it_is_refused(text, tmp_path, without_triton):
    path = tmp_path / "record.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(LayoutError, match="holds no verdict on triton_writer"):
        kernel_verdict("triton_writer", path)
    with pytest.raises(LayoutError, match="can't be run: triton isn't installed here"):
        kernel_verdict("triton_writer")


@pytest.mark.parametrize("kernel", ["nope", "", None, ["triton_writer"], 3])
def test_an_unknown_kernel(kernel):
    with pytest.raises(LayoutError) as error:
        kernel_verdict(kernel, RECORD)
    assert error.value.argument == "kernel"


def test_a_broken_installation_is_a_reason_and_no_verdict(monkeypatch):
    def broken(name):
        raise RuntimeError("libcuda.so.1")

    monkeypatch.setattr(kernel_verdicts, "find_spec", lambda name: object())
    monkeypatch.setattr(kernel_verdicts, "triton_device", lambda: "cpu")
    monkeypatch.setattr(kernel_verdicts, "import_module", broken)
    found = kernel_verdict("reshape_and_cache_flash", RECORD)
    assert found.is_recorded and "can't be imported: RuntimeError: libcuda.so.1" in found.source


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU there is nothing to settle")
def test_triton_that_was_imported_too_early_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", object())
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(LayoutError, match="Restart Python"):
        triton_device()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert triton_device() == "cpu"


@pytest.mark.skipif(find_spec("triton") is None, reason="triton isn't installed here; pip install 'kvlayout[triton]'")
def test_the_examples_are_run_where_triton_is():
    # In a process of its own: here something may have imported triton already, for a GPU.
    code = f"""
from kvlayout.upstream.kernel_verdicts import kernel_verdict
found = kernel_verdict("triton_writer", {str(RECORD)!r}, cases=6)
assert found.ok and not found.is_recorded and "run now with triton " in found.lines[0], found
assert found.lines[1].startswith("Right in all 12 shapes"), found
assert kernel_verdict("triton_flat_writer", cases=6).ok is False
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif(find_spec("vllm") is not None and find_spec("triton") is not None, reason="here they can be run")
def test_a_record_is_only_made_where_all_can_be_run(tmp_path, capsys):
    assert main([str(tmp_path / "record.json"), "--cases", "1"]) == 2
    assert "can't be run" in capsys.readouterr().err and not list(tmp_path.iterdir())
