"""vLLM's own cache writes in Triton, put to the kernel test: in an interpreter on the CPU, or recorded from there."""

import importlib.util
import json
import os
import re
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
WRITERS = {"reshape_and_cache_flash", "reshape_and_cache_flash_diffkv"}
# A process of its own: the environment must be so before anything imports triton.
CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from kvlayout.upstream.triton_writer import verdicts
print(json.dumps(verdicts(cases=120)))
"""


def check(verdict: dict, cases: int) -> None:
    assert set(verdict["writers"]) == WRITERS
    for name, one in verdict["writers"].items():
        assert one["ok"] and one["failed"] == 0, f"{name}: {one['sentences']}"
        assert (one["cases"], one["far_cases"]) == (cases, 6)
        assert set(one["by_layout"]) == set(KVCacheLayout.__members__)
        assert {"kernel blocks", "page padding", "mixed pages", "ignored tokens"} <= set(one["by_feature"])
    assert "head_size_v ≠ head_size" in verdict["writers"]["reshape_and_cache_flash_diffkv"]["by_feature"]


@pytest.mark.vllm
def test_vllms_own_writers_are_right_in_all_six_layouts():
    if found()[1] == "cpu":
        pytest.skip("vLLM's CPU build has Triton switched off; the official build's verdict is recorded")
    apart = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", CODE, str(ROOT)], capture_output=True, text=True, timeout=900,
                          env=apart)
    assert done.returncode == 0, done.stderr[-3000:]
    check(json.loads(done.stdout.splitlines()[-1]), 120)


def test_the_recorded_verdict():
    verdict = json.loads(RECORDED.read_text())
    assert verdict["vllm"] == "0.33.0"
    check(verdict, 500)


@pytest.mark.vllm
def test_a_build_without_triton_says_so():
    if found()[1] != "cpu":
        pytest.skip("the official build has Triton")
    with pytest.raises(LayoutError, match="has Triton switched off here"):
        triton_writer.verdicts()


@pytest.mark.vllm
def test_the_record_of_the_notebook_is_what_its_command_makes(tmp_path):
    if found()[1] == "cpu":
        pytest.skip("vLLM's CPU build has Triton switched off; the official build's verdict is recorded")
    path = tmp_path / "record.json"
    apart = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "kvlayout.upstream.kernel_verdicts", str(path)], capture_output=True,
                          text=True, timeout=500, env=apart)
    assert done.returncode == 0, done.stderr[-3000:]
    kept = json.loads((ROOT / "notebooks" / "data" / "kernel-verdicts.json").read_text())
    # All but the seconds is the same.
    old, new = ({name: [re.sub(r"[0-9.]+ s\)", "", line) for line in one["text"]]
                 for name, one in found["verdicts"].items()} for found in (kept, json.loads(path.read_text())))
    assert old == new


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_it_says_so():
    nothing = torch.zeros(1, 1, 8)
    for write in (triton_writer.reshape_and_cache_flash, triton_writer.reshape_and_cache_flash_diffkv):
        with pytest.raises(LayoutError, match="can't be imported: No module named 'vllm'"):
            write(nothing, nothing, torch.zeros(1, 1, 1, 16), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(LayoutError, match="can't be imported"):
        triton_writer.verdicts()
