"""A byte map's fingerprint: equal exactly where every coordinate has the same offset."""

import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given

from kvlayout.address import AddressMap
from kvlayout.clinic.byte_map import fingerprint
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError
from kvlayout.interior import Field, Interior
from kvlayout.layout import KVCacheLayout
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec import FullAttentionSpec
from tests.strategies import maps, transposed_cell


def every_offset(address_map: AddressMap) -> dict:
    """{layer: offsets of all its coordinates, [B, H, N, C]}."""
    found = {}
    for name in address_map.layers:
        grid = np.meshgrid(*(np.arange(n) for n in address_map.shape(name)), indexing="ij")
        found[name] = address_map.offset(name, *grid)
    return found


def same_bytes(a: AddressMap, b: AddressMap) -> bool:
    one, other = every_offset(a), every_offset(b)
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def plain(layout="LBNHC", heads=2, block_size=2, head_size=1, blocks=2, layers=("a", "b"), interiors=None):
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype="int8")
    config = get_kv_cache_config_from_groups([KVCacheGroupSpec(layers, spec)], 0, KVCacheLayout[layout],
                                             num_gpu_blocks_override=blocks)
    return AddressMap(config, interiors=interiors and {name: interiors(spec) for name in layers})


def test_equal_exactly_where_all_offsets_are():
    """All pairs of 576 small maps, with axes of extent 1 and 2: as many fingerprints as different byte maps."""
    pairs = set()
    for chosen in product([one.name for one in KVCacheLayout], *[(1, 2)] * 4, [("a",), ("a", "b"), ("b", "a")],
                          [None, transposed_cell]):
        address_map = plain(*chosen)
        offsets = tuple((name, array.shape, array.tobytes()) for name, array in
                        sorted(every_offset(address_map).items()))
        pairs.add((fingerprint(address_map), offsets))
    assert len(pairs) == len({mark for mark, _ in pairs}) == len({offsets for _, offsets in pairs})


@given(maps(), maps())
def test_equal_exactly_where_all_offsets_are_in_any_config(a, b):
    assert (fingerprint(a) == fingerprint(b)) == same_bytes(a, b)


@given(maps())
def test_every_layout_of_one_config(address_map):
    for layout in KVCacheLayout:
        try:
            other = AddressMap(replace(address_map.config, kv_cache_layout=layout.name))
            whole = AddressMap(address_map.config)
        except LayoutError:
            continue
        assert (fingerprint(other) == fingerprint(whole)) == same_bytes(other, whole)


def test_vllm_55904_equal_sizes_but_other_bytes():
    written, loaded = (plain(layout, heads=8, block_size=16, head_size=128) for layout in ("LBNHC", "LBHNC"))
    assert written.size_bytes == loaded.size_bytes
    assert fingerprint(written) != fingerprint(loaded)


def test_how_the_config_was_written_does_not_matter():
    spec = FullAttentionSpec(block_size=2, num_kv_heads=2, head_size=1, dtype="int8")
    groups = [KVCacheGroupSpec(("a", "b"), spec)]
    together = KVCacheConfig(2, [KVCacheTensor(32, ("a", "b"), 16, 8)], groups, "LBNHC")
    apart = KVCacheConfig(2, [KVCacheTensor(32, ("b",), 16, 8, 16), KVCacheTensor(32, ("a",), 16, 8)],
                          [KVCacheGroupSpec(("b",), spec), KVCacheGroupSpec(("a",), spec)], "LBNHC")
    swapped = KVCacheConfig(2, [KVCacheTensor(32, ("b", "a"), 16, 8)], groups, "LBNHC")
    assert fingerprint(AddressMap(together)) == fingerprint(AddressMap(apart))
    assert fingerprint(AddressMap(together)) != fingerprint(AddressMap(swapped))


def test_an_interior_that_says_what_the_layout_says():
    def declared(spec):
        return Interior((Field("K", 0, 2, state_stride=4), Field("V", 2, 2, state_stride=4)), "cell")

    assert fingerprint(plain(head_size=2, interiors=declared)) == fingerprint(plain(head_size=2))


def test_one_head_makes_two_layouts_one_map():
    assert fingerprint(plain("LBNHC", heads=1)) == fingerprint(plain("LBHNC", heads=1))


def test_milliseconds_for_a_large_cache():
    layers = tuple(f"model.layers.{i}.attn" for i in range(80))
    large = plain("BLHNC", heads=8, block_size=16, head_size=128, blocks=100_000, layers=layers)
    start = time.process_time()
    fingerprint(large)
    assert time.process_time() - start < 0.05


@pytest.mark.parametrize("wrong", [None, "LBNHC", 3, float("nan"), []])
def test_what_is_no_map(wrong):
    with pytest.raises(LayoutError, match="address_map"):
        fingerprint(wrong)
