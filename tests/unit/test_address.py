"""Laws of the address map on random configs: its two directions agree, and every byte is accounted for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.address import AddressMap
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec
from tests.strategies import maps, scales_at_tail


def all_coordinates(address_map: AddressMap, layer: int):
    blocks, heads, states, content = address_map.shape(layer)
    return np.meshgrid(np.arange(blocks), np.arange(heads), np.arange(states), np.arange(content), indexing="ij")


def group_offsets(address_map: AddressMap, group: int) -> np.ndarray:
    """The offset of every coordinate of every layer of a group."""
    names = address_map.config.kv_cache_groups[group].layer_names
    found = [address_map.offset(name, *all_coordinates(address_map, name)).ravel() for name in names]
    return np.concatenate(found)


@given(maps(), st.data())
def test_owners_invert_offset(address_map, data):
    layer = data.draw(st.integers(0, len(address_map.layers) - 1))
    at = [data.draw(st.integers(0, n - 1)) for n in address_map.shape(layer)]
    offset = address_map.offset(layer, *at)
    group = address_map.config.group_of(address_map.layers[layer])
    mine = [owner for owner in address_map.owners(offset) if owner.group == group]
    assert [(o.layer, o.block, o.head, o.state, o.byte) for o in mine] == [(address_map.layers[layer], *at)]
    interior = address_map.region(layer).interior
    assert (mine[0].field, mine[0].element) == interior.field_of(at[1], at[3])


@given(maps())
def test_locate_inverts_offset_everywhere(address_map):
    for layer in range(len(address_map.layers)):
        grid = all_coordinates(address_map, layer)
        group = address_map.config.group_of(address_map.layers[layer])
        found = address_map.locate(address_map.offset(layer, *grid), group)
        assert (found.layer == layer).all()
        for part, expected in zip((found.block, found.head, found.state, found.byte), grid):
            assert (part == expected).all()


@given(maps())
def test_every_byte_is_owned_once_in_a_group_or_named_padding(address_map):
    everywhere = np.arange(address_map.size_bytes)
    for group in range(len(address_map.config.kv_cache_groups)):
        offsets = group_offsets(address_map, group)
        assert len(np.unique(offsets)) == len(offsets)
        found = address_map.locate(everywhere, group)
        owned = np.zeros(address_map.size_bytes, dtype=bool)
        owned[offsets] = True
        assert ((found.layer >= 0) == owned).all()
        gaps = np.flatnonzero(~owned)
        for offset in gaps[:: max(1, len(gaps) // 7)].tolist():
            named = [p for p in address_map.padding_of(offset) if p.group == group]
            assert len(named) == 1
            assert named[0].start <= offset < named[0].end
            assert not owned[named[0].start:named[0].end].any()
            assert named[0].start == 0 or owned[named[0].start - 1]
            assert named[0].end == address_map.size_bytes or owned[named[0].end]


@given(maps(), st.data())
def test_runs_cover_exactly_the_selection(address_map, data):
    layer = data.draw(st.integers(0, len(address_map.layers) - 1))
    selection = [data.draw(st.one_of(st.none(), st.lists(st.integers(0, n - 1), min_size=1, max_size=3)))
                 for n in address_map.shape(layer)[:3]]
    runs = address_map.runs(layer, *selection)
    index = [np.arange(n) if chosen is None else np.unique(chosen)
             for n, chosen in zip(address_map.shape(layer), [*selection, None])]
    expected = np.unique(address_map.offset(layer, *np.meshgrid(*index, indexing="ij")))
    covered = np.concatenate([np.arange(start, start + length) for start, length in runs])
    assert (covered == expected).all()
    assert all(a + n < b for (a, n), (b, _) in zip(runs, runs[1:])), "runs are merged and in address order"


@given(maps())
def test_runs_of_everything_are_the_union_of_all_groups(address_map):
    groups = range(len(address_map.config.kv_cache_groups))
    expected = np.unique(np.concatenate([group_offsets(address_map, group) for group in groups]))
    covered = np.concatenate([np.arange(start, start + n) for start, n in address_map.runs()])
    assert (covered == expected).all()


@given(maps())
def test_only_different_groups_share_bytes(address_map):
    found = {(o.first, o.second): o for o in address_map.overlaps()}
    bytes_of = [set() for _ in address_map.config.kv_cache_tensors]
    for layer, name in enumerate(address_map.layers):
        region = address_map.region(name)
        bytes_of[region.tensor_index].update(address_map.offset(layer, *all_coordinates(address_map, layer)).ravel())
    for a in range(len(bytes_of)):
        for b in range(a + 1, len(bytes_of)):
            shared = bytes_of[a] & bytes_of[b]
            assert bool(shared) == ((a, b) in found)
            if shared:
                assert found[a, b].offset in shared
                assert found[a, b].is_legal


RUNS = {  # 28 layers, 8 KV heads, block 16, head 128, bf16: number of runs x bytes
    "1 block, all layers": (dict(block=5), "28x65536 28x65536 224x8192 1x1835008 1x1835008 1x1835008"),
    "1 block, 1 layer": (dict(block=5, layer=3), "1x65536 1x65536 8x8192 1x65536 1x65536 8x8192"),
    "1 block, all layers, 1 head": (dict(block=5, head=2), "28x8192 448x512 28x8192 28x8192 448x512 1x229376"),
    "1 block, 1 layer, 1 head": (dict(block=5, layer=3, head=2), "1x8192 16x512 1x8192 1x8192 16x512 1x8192"),
    "1 token, 1 layer": (dict(block=5, layer=3, state=7), "8x512 1x4096 8x512 8x512 1x4096 8x512"),
    "1 layer, all of it": (dict(layer=3), "1x4194304 1x4194304 1x4194304 64x65536 64x65536 512x8192"),
}


@pytest.mark.parametrize("selection", RUNS)
def test_contiguity_of_a_real_model(selection):
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    group = KVCacheGroupSpec([f"model.layers.{i}.self_attn.attn" for i in range(28)], spec)
    chosen, expected = RUNS[selection]
    found = []
    for layout in KVCacheLayout:
        config = get_kv_cache_config_from_groups([group], 0, layout, num_gpu_blocks_override=64)
        runs = AddressMap(config).runs(**chosen)
        lengths = {length for _, length in runs}
        assert len(lengths) == 1
        found.append(f"{len(runs)}x{lengths.pop()}")
    assert " ".join(found) == expected


def test_offsets_beyond_32_bits():
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    group = KVCacheGroupSpec([f"layers.{i}" for i in range(28)], spec)
    address_map = AddressMap(get_kv_cache_config_from_groups([group], 140 << 30, KVCacheLayout.BLNHC))
    last = address_map.shape(0)[0] - 1
    offset = address_map.offset("layers.27", last, 7, 15, 511)
    assert offset == address_map.size_bytes - 1 == 150_323_855_359
    assert address_map.owners(offset)[0].block == last == 81_919
    located = address_map.locate(np.array([offset, 2**31, 2**32 + 5]))
    assert located.block.tolist() == [last, 2**31 // 1_835_008, (2**32 + 5) // 1_835_008]


def test_padding_is_named_after_its_page_and_block():
    # Four MLA layers of 584 bytes a state, pages of 37,376 bytes aligned to 37,440 (vllm#50276).
    spec = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=584, dtype="uint8", alignment=576)
    assert spec.page_size_bytes == 37_440
    group = KVCacheGroupSpec([f"layers.{i}" for i in range(4)], spec)
    address_map = AddressMap(get_kv_cache_config_from_groups([group], 0, "BLHNC", num_gpu_blocks_override=100))
    assert address_map.offset("layers.3", 99) == 14_938_560
    assert address_map.offset("layers.1", 1) == 187_200
    padding = address_map.padding_of(74_816)[0]
    assert (padding.kind, padding.layer, padding.block, padding.start, padding.end) == (
        "page", "layers.1", 0, 74_816, 74_880)
    assert address_map.owners(74_816) == []


def test_overlaid_groups_give_one_owner_each():
    full = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
    sliding = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", sliding_window=64)
    groups = [KVCacheGroupSpec(["full.0", "full.1"], full), KVCacheGroupSpec(["window.0"], sliding)]
    address_map = AddressMap(get_kv_cache_config_from_groups(groups, 0, "LBHNC", num_gpu_blocks_override=4))
    assert [owner.layer for owner in address_map.owners(0)] == ["full.0", "window.0"]
    second = address_map.offset("full.1", 0)
    assert [owner.layer for owner in address_map.owners(second)] == ["full.1"]
    padding = address_map.padding_of(second)
    assert [(p.group, p.kind, p.end) for p in padding] == [(1, "pool", address_map.size_bytes)]


def test_scales_at_the_tail_of_the_page():
    # vllm#40991: 64 states of 128 fp8 bytes, then 64 fp32 scales.
    from kvlayout.interior import Field, Interior
    spec = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=132, dtype="uint8")
    data, scale = Field("latent", 0, 128, state_stride=128), Field("scale", 8192, 1, 32, state_stride=4)
    interior = Interior((data, scale), "page")
    config = get_kv_cache_config_from_groups([KVCacheGroupSpec(["k_cache"], spec)], 0, "LBNHC",
                                             num_gpu_blocks_override=3)
    address_map = AddressMap(config, interiors={"k_cache": interior})
    assert address_map.offset("k_cache", 0, 0, 1, 0) == 128
    assert address_map.offset("k_cache", 0, 0, 1, 128) == 8_196
    owner = address_map.owners(8_448 + 8_196)[0]
    assert (owner.block, owner.state, owner.field, owner.element) == (1, 1, "scale", 0)


def test_a_broken_config_shows_both_owners_and_is_an_illegal_overlap():
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=2, dtype="int8")
    other = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=4, dtype="int8")
    tensors = [KVCacheTensor(64, ("a",), 16, 16), KVCacheTensor(64, ("b",), 32, 32, offset=8)]
    from kvlayout.spec import UniformTypeKVCacheSpecs
    group = KVCacheGroupSpec(("a", "b"), UniformTypeKVCacheSpecs(4, {"a": spec, "b": other}))
    address_map = AddressMap(KVCacheConfig(1, tensors, [group], "LBHNC"))
    assert [o.layer for o in address_map.owners(8)] == ["a", "b"]
    assert [(o.first, o.second, o.is_legal) for o in address_map.overlaps()] == [(0, 1, False)]


def test_blocks_that_lie_on_each_other_have_several_owners():
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=2, dtype="int8")
    config = KVCacheConfig(3, [KVCacheTensor(64, ("a",), 64, 8)], [KVCacheGroupSpec(("a",), spec)], "LBHNC")
    address_map = AddressMap(config)
    assert [(o.block, o.state) for o in address_map.owners(8)] == [(0, 2), (1, 0)]
    with pytest.raises(LayoutError, match="several coordinates the same byte"):
        address_map.locate(np.array([8]))


@pytest.mark.parametrize(("arguments", "named"), [
    (("nothing", 0), "layer"), ((9, 0), "layer"), ((0, 5), "block"), ((0, -1), "block"), ((0, 0, 3), "head"),
    ((0, 0, 0, 16), "state"), ((0, 0, 0, 0, 512), "byte"), ((0, 1.5), "block"), ((0, "2"), "block"),
])
def test_a_coordinate_out_of_range_is_named(arguments, named):
    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=128, dtype="bfloat16")
    group = KVCacheGroupSpec(["a", "b"], spec)
    address_map = AddressMap(get_kv_cache_config_from_groups([group], 0, "LBHNC", num_gpu_blocks_override=4))
    with pytest.raises(LayoutError) as error:
        address_map.offset(*arguments)
    assert error.value.argument == named


def test_a_page_wide_interior_needs_contiguous_pages():
    spec = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=4, dtype="int8")
    config = get_kv_cache_config_from_groups([KVCacheGroupSpec(["a"], spec)], 0, "BHLNC", num_gpu_blocks_override=2)
    with pytest.raises(LayoutError, match="interior needs it contiguous"):
        AddressMap(config, interiors={"a": scales_at_tail(spec)})


def test_kernel_blocks_that_would_share_bytes_are_refused():
    # One layer in BHLNC: its block is one dense page, yet a head slot's states lie between the kernel blocks.
    spec = FullAttentionSpec(block_size=2, num_kv_heads=2, head_size=1, dtype="int8")
    config = get_kv_cache_config_from_groups([KVCacheGroupSpec(["a"], spec)], 0, "BHLNC", num_gpu_blocks_override=1)
    with pytest.raises(LayoutError, match="can't be expressed in BHLNC") as error:
        AddressMap(config, kernel_block_sizes=[1])
    assert error.value.argument == "kernel_block_size"


def test_a_tensor_without_layers_is_refused():
    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="bfloat16")
    config = get_kv_cache_config_from_groups([KVCacheGroupSpec(["a"], spec)], 0, "LBNHC", num_gpu_blocks_override=2)
    (tensor,) = config.kv_cache_tensors
    with pytest.raises(LayoutError, match=r"kv_cache_tensors\[1\].*has no layers"):
        AddressMap(replace(config, kv_cache_tensors=(tensor, replace(tensor, layers=()))))


@pytest.mark.parametrize("size", [2**63, 2**64 + 5, 10**30])
def test_an_allocation_that_63_bits_dont_hold_is_refused(size):
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    tensor = KVCacheTensor(size, ("a",), 65_536, 65_536)
    config = KVCacheConfig(2, (tensor,), (KVCacheGroupSpec(["a"], spec),))
    with pytest.raises(LayoutError, match="2\\^63") as error:
        AddressMap(config, KVCacheLayout.LBNHC)
    assert error.value.argument == "kv_cache_tensors"
