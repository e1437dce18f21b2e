"""vLLM's own cache writes in Triton, put to the kernel test: in an interpreter on the CPU, or recorded from there."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvlayout import KVCacheLayout, LayoutError
from kvlayout.upstream import triton_writer
from kvlayout.upstream.release import found

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "recorded" / "writers" / "0.33.0.json"
NOTEBOOKS = ROOT / "notebooks" / "data" / "kernel-verdicts.json"
WRITERS = {"reshape_and_cache_flash", "reshape_and_cache_flash_diffkv"}


def check(verdicts: dict, cases: int) -> None:
    for name in WRITERS:
        one = verdicts[name]
        assert one["ok"] and one["failed"] == 0, f"{name}: {one['text']}"
        assert (one["cases"], one["far_cases"]) == (cases, 6)
        assert set(one["by_layout"]) == set(KVCacheLayout.__members__)
        assert {"kernel blocks", "page padding", "mixed pages", "ignored tokens"} <= set(one["by_feature"])
    assert "head_size_v ≠ head_size" in verdicts["reshape_and_cache_flash_diffkv"]["by_feature"]


@pytest.mark.parametrize(("path", "cases"), [(RECORDED, 500), (NOTEBOOKS, 120)], ids=["tests", "notebook"])
def test_the_recorded_verdict(path, cases):
    record = json.loads(path.read_text())
    assert "vllm 0.33.0" in record["made_with"]
    check(record["verdicts"], cases)


@pytest.mark.vllm
def test_a_build_without_triton_says_so():
    if found()[1] != "cpu":
        pytest.skip("the official build has Triton")
    with pytest.raises(LayoutError, match="has Triton switched off here"):
        triton_writer.reshape_and_cache_flash(*[torch.zeros(1, 1, 8)] * 2, torch.zeros(1, 1, 1, 16), torch.zeros(1))


@pytest.mark.vllm
def test_the_record_of_the_notebook_is_what_its_command_makes(tmp_path):
    if found()[1] == "cpu":
        pytest.skip("vLLM's CPU build has Triton switched off; the official build's verdict is recorded")
    path = tmp_path / "record.json"
    apart = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "kvlayout.upstream.kernel_verdicts", str(path)], capture_output=True,
                          text=True, timeout=500, env=apart)
    assert done.returncode == 0, done.stderr[-3000:]
    kept, made = (json.loads(one.read_text())["verdicts"] for one in (NOTEBOOKS, path))
    for one in (*made.values(), *kept.values()):  # a machine with less memory says so, and tries as many shapes
        one["text"] = [line for line in one["text"] if "must be free" not in line]
    assert made == kept


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_it_says_so():
    nothing = torch.zeros(1, 1, 8)
    for write in (triton_writer.reshape_and_cache_flash, triton_writer.reshape_and_cache_flash_diffkv):
        with pytest.raises(LayoutError, match="can't be imported: No module named 'vllm'"):
            write(nothing, nothing, torch.zeros(1, 1, 1, 16), torch.zeros(1, dtype=torch.int64))
