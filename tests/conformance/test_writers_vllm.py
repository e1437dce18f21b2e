"""vLLM's own cache writes in Triton, put to the kernel test: in an interpreter on the CPU, or on a GPU.

A process of its own: TRITON_INTERPRET must be set before anything imports triton, and no GPU be seen there.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from kvlayout import FullAttentionSpec
from kvlayout.bench import VARY, check_writer
from kvlayout.upstream import triton_writer
spec = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=32, dtype="bfloat16")
vary = [name for name in VARY if name != sys.argv[3]]
report = check_writer(getattr(triton_writer, sys.argv[2]), spec, cases=120, vary=vary)
print(json.dumps([report.ok, report.far_cases, report.by_layout, str(report)]))
"""


@pytest.mark.vllm
@pytest.mark.parametrize(("writer", "fixed"), [("reshape_and_cache_flash", "head_size_v"),
                                               ("reshape_and_cache_flash_diffkv", "")])
def test_vllms_own_writer_is_right_in_all_six_layouts(writer, fixed):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("this build of vLLM comes without triton")
    apart = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", CODE, str(ROOT), writer, fixed], capture_output=True, text=True,
                          timeout=500, env=apart)
    assert done.returncode == 0, done.stderr[-3000:]
    ok, far_cases, by_layout, text = json.loads(done.stdout.splitlines()[-1])
    assert ok, text
    assert by_layout == dict.fromkeys(("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"), [0, 21])
    assert far_cases == 6


def test_without_vllm_it_says_so():
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed here")
    import torch

    from kvlayout import LayoutError
    from kvlayout.upstream import triton_writer

    nothing = torch.zeros(1, 1, 8)
    for write in (triton_writer.reshape_and_cache_flash, triton_writer.reshape_and_cache_flash_diffkv):
        with pytest.raises(LayoutError, match="can't be imported: No module named 'vllm'"):
            write(nothing, nothing, torch.zeros(1, 1, 1, 16), torch.zeros(1, dtype=torch.int64))
