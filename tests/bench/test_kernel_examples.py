"""The shipped kernels: right ones pass, the wrong one fails where its docstring says, attention is attention."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kvlayout import FullAttentionSpec, KVCacheLayout, PhysicalLayout
from kvlayout.bench import VARY, check_reader, check_writer
from kvlayout.bench.examples import paged_decode, torch_writer
from kvlayout.bench.kernel_map import STRAY
from kvlayout.bench.requests import draw_requests
from kvlayout.bench.shapes import Shapes
from kvlayout.memory.cache import KVCache
from tests.far_cases import is_far

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPEC = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=16, dtype="bfloat16")
PROTOTYPES = [PhysicalLayout(name) for name in ("HBLNC", "NBLHC", "BNHLC")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_the_torch_writer_and_reader(device):
    layouts = [*KVCacheLayout, *PROTOTYPES]
    assert check_writer(torch_writer.write, SPEC, cases=60, layouts=layouts, device=device).ok
    assert check_reader(paged_decode.gather, SPEC, cases=60, layouts=layouts, device=device).ok


@pytest.fixture(scope="module")
def writers():
    """The Triton examples: made for the GPU or for the interpreter when they are imported."""
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip("triton", reason="triton isn't installed here; pip install 'kvlayout[triton]'")
        from kvlayout.bench.examples import triton_flat_writer, triton_writer

        yield triton_writer.write, triton_flat_writer.write


def test_the_triton_writer(writers):
    report = check_writer(writers[0], SPEC, cases=90, layouts=[*KVCacheLayout, *PROTOTYPES], device=DEVICE)
    assert report.ok and (is_far(report, 9) or report.cases == 90)


def test_the_triton_writer_with_the_classic_mistake(writers):
    # Without padding LBNHC is right.
    assert check_writer(writers[1], SPEC, cases=12, vary=[], layouts=["LBNHC"], device=DEVICE).ok
    # On a GPU an address out of all memory spoils the process, so no far blocks there.
    vary = VARY if DEVICE == "cpu" else VARY[:-1]
    report = check_writer(writers[1], SPEC, cases=60, vary=vary, device=DEVICE)
    assert not report.ok
    failed = {layout: share[0] / share[1] for layout, share in report.by_layout.items()}
    assert failed["LBNHC"] < 0.35 < min(failed[name] for name in ("LBHNC", "LHBNC", "BLHNC", "BHLNC"))
    assert report.first.kind == "written-elsewhere" and STRAY in report.map.cells and "!" in str(report.map)


@pytest.mark.parametrize("layout", KVCacheLayout)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_paged_decode_is_scaled_dot_product_attention(layout, dtype):
    spec = FullAttentionSpec(block_size=16, num_kv_heads=3, head_size=32, head_size_v=16, dtype=dtype)
    case = Shapes(spec, [layout], None, VARY, 0).case(0)
    amap = case.address_map
    num_blocks = amap.config.num_blocks
    kind = getattr(torch, dtype)
    torch.manual_seed(1)
    cache = KVCache(torch.zeros(amap.size_bytes, dtype=torch.int8), amap)
    # What no request wrote is NaN: it must not get into anybody's attention.
    for view in cache.views.values():
        view.fill_(float("nan"))
    asked = draw_requests(np.random.default_rng(5), num_blocks, 16, 16)
    table, lengths = torch.from_numpy(asked.block_table), torch.from_numpy(asked.seq_lens)
    query = torch.randn(len(lengths), 6, 32, dtype=kind)
    wanted = []
    for request, length in enumerate(lengths.tolist()):
        key, value = torch.randn(length, 3, 32, dtype=kind), torch.randn(length, 3, 16, dtype=kind)
        position = torch.arange(length)
        slots = table[request, position // 16].long() * 16 + position % 16
        torch_writer.write(key, value, cache.views[case.layer], slots)
        wanted.append(scaled_dot_product_attention(
            query[request, :, None], key.transpose(0, 1).repeat_interleave(2, 0),
            value.transpose(0, 1).repeat_interleave(2, 0))[:, 0])
    found = paged_decode.decode(query, cache.views[case.layer], table, lengths)
    assert found.shape == (len(lengths), 6, 16) and found.dtype == kind
    torch.testing.assert_close(found, torch.stack(wanted))
