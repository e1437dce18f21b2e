"""Proof by memory in all 120 orders of the axes: views reach the map's bytes, and wrong views are found."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import kvlayout as kv  # noqa: E402
from kvlayout.config import KVCacheGroupSpec  # noqa: E402
from kvlayout.layout import all_layouts  # noqa: E402
from kvlayout.placement import get_kv_cache_config_from_groups  # noqa: E402
from kvlayout.spec import FullAttentionSpec  # noqa: E402

SPEC = FullAttentionSpec(block_size=4, num_kv_heads=3, head_size=2, dtype="bfloat16")


def allocate(layout, kernel_block_sizes=None):
    config = get_kv_cache_config_from_groups([KVCacheGroupSpec(["a", "b"], SPEC)], 0, layout,
                                             num_gpu_blocks_override=5)
    return kv.allocate_kv_cache(config, "cpu", kernel_block_sizes=kernel_block_sizes)


@pytest.mark.parametrize("layout", all_layouts(), ids=lambda layout: layout.name)
def test_the_proof(layout):
    with allocate(layout) as cache:
        report = kv.verify(cache)
        assert report.ok, report.summary
        assert (report.bytes_checked, report.padding_bytes) == (cache.nbytes, 0) == (2 * 5 * 3 * 4 * 8, 0)
        view = cache.views["b"]
        assert view.dtype == (torch.bfloat16 if layout.name.endswith("C") else torch.int8)
        # One value written through the view lies where the map says, every byte of it.
        cache.buffer.zero_()
        view[3, 2, 1] = -1
        where = np.flatnonzero(cache.buffer.numpy()).tolist()
        reached = sorted(cache.address_map.offset("b", 3, 2, 1, np.arange(8)).tolist())
        assert where == reached


@pytest.mark.parametrize("layout", all_layouts()[::7], ids=lambda layout: layout.name)
def test_a_view_that_begins_elsewhere_is_found(layout):
    with allocate(layout) as cache:
        view = cache.views["b"]
        cache.views["b"] = view.as_strided(view.shape, view.stride(), cache.views["a"].storage_offset())
        wrong = kv.verify(cache)
        assert not wrong.ok and wrong.mismatched_bytes > 0


def test_split_kernel_blocks_are_proven_where_they_can_be():
    proven = []
    for layout in all_layouts():
        try:
            cache = allocate(layout, [2])
        except kv.LayoutError:
            continue
        with cache:
            assert kv.verify(cache).ok
            proven.append(layout.name)
    assert {"LBHNC", "LBNHC"} <= set(proven)
    assert proven == [name for name in proven if name.startswith("LB")] and len(proven) == 6
