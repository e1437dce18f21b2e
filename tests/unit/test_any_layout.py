"""All 120 orders of the axes: the address map, its inverse and its runs against an array of byte numbers."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.captured import captured_selection
from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.geometry import layer_views, view_dtype
from kvlayout.interior import Field, Interior
from kvlayout.layout import all_layouts
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec import FullAttentionSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec

ALL = all_layouts()
NAMES = [layout.name for layout in ALL]
layouts = st.sampled_from(ALL)


@st.composite
def specs(draw):
    kind = draw(st.sampled_from(["full", "mla", "mamba"]))
    if kind == "mamba":
        return MambaSpec(4, ((draw(st.integers(1, 3)), 2),), ("int8",))
    fields = dict(block_size=draw(st.sampled_from([1, 2, 4])), head_size=draw(st.integers(1, 3)),
                  dtype=draw(st.sampled_from(["int8", "bfloat16"])))
    if kind == "mla":
        return MLAAttentionSpec(num_kv_heads=1, **fields)
    return FullAttentionSpec(num_kv_heads=draw(st.integers(1, 3)), **fields)


def dense(layout, shape):
    """The number of each byte, [L, B, H, N, C], where nothing lies between the axes."""
    order = layout.stride_order
    numbers = np.arange(math.prod(shape)).reshape([shape[axis] for axis in order])
    return numbers.transpose(np.argsort(order))


def runs_of(bytes_, size):
    """Runs of a set of byte numbers, by marking each."""
    marks = np.zeros(size + 2, dtype=np.int8)
    marks[np.asarray(bytes_).ravel() + 1] = 1
    edges = np.flatnonzero(np.diff(marks))
    return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2])]


def placed(spec, layout, layers=2, blocks=3, **rest):
    names = [f"layers.{i}" for i in range(layers)]
    config = get_kv_cache_config_from_groups([KVCacheGroupSpec(names, spec)], 0, layout,
                                             num_gpu_blocks_override=blocks)
    return kv.AddressMap(config, **rest)


def test_there_are_120_and_the_six_come_first():
    assert len(set(NAMES)) == 120 and ALL[:6] == list(kv.KVCacheLayout)
    assert NAMES[6:] == sorted(NAMES[6:], key=lambda name: ["LBHNC".index(letter) for letter in name])


@given(layouts, specs(), st.integers(1, 3), st.integers(1, 4), st.data())
def test_offsets_owners_and_runs(layout, spec, layers, blocks, data):
    address_map = placed(spec, layout, layers, blocks)
    shape = (layers, *address_map.shape(0))
    expected, indices = dense(layout, shape), np.indices(shape)
    assert address_map.config.kv_cache_layout == layout.name and address_map.layout == layout
    assert np.array_equal(address_map.offset(*indices), expected)
    found = address_map.locate(expected)
    assert all(np.array_equal(part, index) for part, index in
               zip((found.layer, found.block, found.head, found.state, found.byte), indices))
    chosen = {}
    for axis, name in enumerate(("layer", "block", "head", "state")):
        if data.draw(st.booleans()):
            chosen[name] = data.draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, unique=True))
            expected = np.take(expected, chosen[name], axis)
    assert address_map.runs(**chosen) == runs_of(expected, address_map.size_bytes)


@given(layouts, st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2]), st.integers(1, 3), st.integers(1, 3))
def test_kernel_blocks_fill_their_own_block_or_are_refused(layout, layers, blocks, kernel, heads, content):
    spec = FullAttentionSpec(block_size=4, num_kv_heads=heads, head_size=content, dtype="int8")
    whole = placed(spec, layout, layers, blocks)
    try:
        split = placed(spec, layout, layers, blocks, kernel_block_sizes=[kernel])
    except LayoutError as error:
        assert error.argument == "kernel_block_size"
        assert layout.name not in ("LBHNC", "LBNHC")
        return
    for layer in range(layers):
        for block in range(blocks):
            parts = list(range(block * 4 // kernel, (block + 1) * 4 // kernel))
            assert split.runs(layer, parts) == whole.runs(layer, block)
            covered = [length for part in parts for _, length in split.runs(layer, part)]
            assert sum(covered) == 4 * heads * 2 * content  # no byte is in two kernel blocks


@given(layouts, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3))
def test_padded_pages_lie_apart_or_are_refused(layout, layers, blocks, heads, padding):
    plain = FullAttentionSpec(block_size=2, num_kv_heads=heads, head_size=1, dtype="int8")
    spec = replace(plain, page_size_padded=plain.page_size_bytes + padding)
    try:
        address_map = placed(spec, layout, layers, blocks)
    except LayoutError:
        assert not layout.is_block_compact
        return
    shape = (layers, *address_map.shape(0))
    offsets = address_map.offset(*np.indices(shape))
    assert len(np.unique(offsets)) == math.prod(shape) and offsets.max() < address_map.size_bytes
    pages = offsets.reshape(layers * blocks, -1)
    starts = np.unique(pages.min(axis=1))
    assert np.array_equal(starts, np.arange(layers * blocks) * spec.page_size_bytes)
    assert (pages.max(axis=1) - pages.min(axis=1) == plain.page_size_bytes - 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_view_is_in_the_specs_dtype_only_where_strides_can_say_so(name):
    address_map = placed(FullAttentionSpec(block_size=4, num_kv_heads=3, head_size=2, dtype="bfloat16"), name)
    (region,) = address_map.regions
    typed = region.geometry.strides[4] == 1
    assert typed == name.endswith("C")
    dtype = view_dtype(region.spec, region.geometry)
    assert dtype == ("bfloat16" if typed else "int8")
    views = layer_views(region.geometry, region.tensor.layers, dtype, address_map.size_bytes)
    item = 2 if typed else 1
    assert views[1].shape == (3, 3, 4, 8 // item)
    strides = [step * item for step in views[1].stride_elements]
    assert strides[:3] == list(address_map.strides(1)[:3])
    assert views[1].storage_offset_elements * item == address_map.offset(1, 0)
    if not typed:
        assert strides == list(address_map.strides(1))
        with pytest.raises(LayoutError, match="scatters the bytes of one bfloat16 element"):
            layer_views(region.geometry, region.tensor.layers, "bfloat16", address_map.size_bytes)


@given(layouts, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_an_interior_of_a_cell_moves_bytes_inside_the_cell_only(layout, heads, states, content):
    spec = FullAttentionSpec(block_size=states, num_kv_heads=heads, head_size=content, dtype="int8")
    size = spec.state_content_size_bytes
    turned = Interior((Field("packed", 0, size, state_stride=1, element_stride=states),), "cell")
    address_map = placed(spec, layout, interiors={"layers.0": turned, "layers.1": turned})
    plain = dense(layout, (2, 3, heads, states, size))
    for layer, block, head, state, byte in np.ndindex(plain.shape):
        row, column = divmod(byte * states + state, size)
        offset = address_map.offset(layer, block, head, state, byte)
        assert offset == plain[layer, block, head, row, column]
        owner = address_map.owners(offset)[0]
        assert (owner.block, owner.head, owner.state, owner.byte) == (block, head, state, byte)


@pytest.mark.parametrize("name", NAMES)
def test_groups_of_equal_pages_overlay_in_any_layout(name):
    full = FullAttentionSpec(block_size=2, num_kv_heads=2, head_size=1, dtype="int8")
    window = SlidingWindowSpec(block_size=2, num_kv_heads=2, head_size=1, dtype="int8", sliding_window=4)
    config = get_kv_cache_config_from_groups(
        [KVCacheGroupSpec(["a", "b"], full), KVCacheGroupSpec(["c", "d"], window)], 0, kv.PhysicalLayout(name),
        num_gpu_blocks_override=3)
    address_map = kv.AddressMap(config)
    assert config.size_bytes == 2 * 3 * full.page_size_bytes
    assert [one.is_legal for one in address_map.overlaps()] == [True]
    for offset in range(config.size_bytes):
        assert [owner.group for owner in address_map.owners(offset)] == [0, 1]


@pytest.mark.parametrize("name", NAMES)
def test_any_order_can_be_forced_on_a_model_and_saved(name):
    selection = kv.Selection(model="gemma3-hybrid-tiny", layout=name, num_blocks=4)
    assert kv.Selection.from_json(selection.to_json()) == selection
    try:
        plan = kv.make_plan(selection)
    except LayoutError as error:  # a page that the layout can't hold, as with vLLM's own LHBNC
        assert "page" in str(error)
        return
    assert plan.layout.name == name and plan.address_map.layout.name == name
    captured = kv.make_plan(captured_selection(plan.config))
    assert captured.layout.name == name
    assert captured.address_map.runs(0, 1, 0) == kv.AddressMap(plan.config).runs(0, 1, 0)


def test_what_is_no_order_is_still_refused():
    for wrong in ("LLHNC", "hblnc", "", "HBLN", 5):
        with pytest.raises(LayoutError) as caught:
            kv.Selection(layout=wrong)
        assert caught.value.argument == "layout"
    with pytest.raises(LayoutError):
        kv.Selection(requested="HBLNC")  # vLLM's own variable takes vLLM's own names
    with pytest.raises(LayoutError, match="HBLNC"):
        kv.resolve([["LBNHC"]], [], pinned="HBLNC")
