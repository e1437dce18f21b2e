"""What a pasted shape can mean: the cases of public reports, real layouts' own views, and hostile text."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.clinic.descriptor import read_descriptor
from kvlayout.clinic.pasted_shapes import parse_shapes
from kvlayout.clinic.readings import contiguous_strides, describe_readings, find_readings
from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.geometry import layer_views
from kvlayout.layout import KVCacheLayout
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec import FullAttentionSpec, MLAAttentionSpec
from tests.strategies import maps

TODAY = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


@pytest.mark.parametrize(("shape", "axes", "blocks", "heads", "states", "head_size"), [
    ((100, 64, 576), "BNC", 100, 1, 64, 576),
    ((2, 100, 16, 8, 128), "2BNHC", 100, 8, 16, 128),
    ((100, 2, 16, 8, 128), "B2NHC", 100, 8, 16, 128),
    ((100, 8, 16, 256), "BHNC", 100, 8, 16, 128),
    ((2, 111_680, 16, 1, 128), "2BNHC", 111_680, 1, 16, 128),
    ((2, 100, 65_536), "2BC", 100, None, None, None),
    ((1_591, 4, 16, 16, 8), "BHCNC", 1_591, 4, 16, 128),
    ((28, 2, 100, 16, 8, 128), "L2BNHC", 100, 8, 16, 128),
    ((61, 2_001, 64, 576), "LBNC", 2_001, 1, 64, 576),
    ((28, 1_000, 8, 16, 256), "LBHNC", 1_000, 8, 16, 128),
    ((100, 4, 528, 512), "BHNC", 100, 4, 528, 256),
])
def test_shapes_whose_axes_were_guessed(shape, axes, blocks, heads, states, head_size):
    reading, = find_readings(shape)
    assert (reading.axes, reading.num_blocks, reading.num_heads, reading.num_states, reading.head_size) == (
        axes, blocks, heads, states, head_size)
    assert describe_readings([reading])[0] == "One reading fits."


def test_two_by_two_is_ambiguous_by_shape_alone_and_strides_decide_or_nothing_does():
    shape = (2, 2, 16, 2, 128)
    assert [r.axes for r in find_readings(shape)] == ["2BNHC", "B2NHC"]
    assert [r.axes for r in find_readings(shape, contiguous_strides(shape))] == ["2BNHC", "B2NHC"]
    # K and V of a block side by side, though their axis comes first: the other reading would have no such memory.
    decided = find_readings(shape, (4_096, 8_192, 256, 128, 1))
    assert [r.axes for r in decided] == ["2BNHC"]
    assert describe_readings(find_readings(shape))[0].startswith("Ambiguous: 2 readings fit")


def test_lmcache_4463_the_axis_of_2_is_heads_or_k_and_v():
    for strides in (None, contiguous_strides((1_000, 2, 16, 128))):
        found = find_readings((1_000, 2, 16, 128), strides)
        assert [r.axes for r in found] == ["BHNC", "B2NC"]
        assert "Ambiguous" in describe_readings(found)[0]


def test_vllm_17023_dim_0_is_blocks():
    for strides in (None, contiguous_strides((1_591, 16, 4, 128))):
        reading, = find_readings((1_591, 16, 4, 128), strides)
        assert (reading.axes, reading.num_blocks) == ("BNHC", 1_591)
        assert reading.locate(1_661) == (103, 13, 850_432)
        assert reading.locate(1_661, head=3)[2] == 850_432 + 3 * 128


def test_strides_tell_todays_layouts_apart():
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    group = KVCacheGroupSpec([f"layers.{i}" for i in range(28)], spec)
    for layout in KVCacheLayout:
        config = get_kv_cache_config_from_groups([group], 0, layout, num_gpu_blocks_override=64)
        view = views_of(config)[3]
        reading, = find_readings(view.shape, view.stride_elements, "bfloat16")
        assert reading.layouts == (layout.name,), (layout, reading)
        assert reading.if_one_layer == (("BLHNC", "BHLNC") if layout.name == "LBHNC" else
                                        ("BLNHC",) if layout.name == "LBNHC" else ())
        assert reading.locate(37)[:2] == (2, 5)
    assert find_readings((100, 8, 16, 256))[0].layouts == TODAY


def views_of(config):
    from kvlayout.address import AddressMap
    region = AddressMap(config).regions[0]
    return layer_views(region.geometry, region.tensor.layers, region.spec.dtype, config.size_bytes)


@given(maps())
def test_the_true_layout_is_among_those_of_every_real_view(address_map):
    for region in address_map.regions:
        try:
            views = layer_views(region.geometry, region.tensor.layers, "int8", address_map.size_bytes)
        except LayoutError:
            continue
        view = views[-1]
        if 0 in view.shape:
            continue
        found = [r for r in find_readings(view.shape, view.stride_elements, every=True) if r.axes == "BHNC"]
        assert any(address_map.layout.name in (*r.layouts, *r.if_one_layer) for r in found)
        plain = next(r for r in found)
        if plain.head_size is not None and plain.content == view.shape[3]:
            slot = view.shape[0] * view.shape[2] - 1
            assert plain.locate(slot, view.shape[1] - 1)[2] == sum(
                (n - 1) * s for n, s in zip(view.shape[:3], view.stride_elements))


def test_mla_in_packed_blocks_and_in_padded_pages():
    spec = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=584, dtype="uint8", alignment=576)
    group = KVCacheGroupSpec([f"layers.{i}" for i in range(4)], spec)
    for layout, expected in (("BLHNC", ("BLNHC", "BLHNC", "BHLNC")), ("LBNHC", ("LBNHC", "LBHNC", "LHBNC"))):
        view = views_of(get_kv_cache_config_from_groups([group], 0, layout, num_gpu_blocks_override=100))[1]
        shape, strides = (view.shape[0], *view.shape[2:]), (view.stride_elements[0], *view.stride_elements[2:])
        reading, = find_readings(shape, strides, 1)
        assert set(expected) <= set(reading.layouts)
        assert reading.locate(64)[2] == strides[0]


def test_half_of_a_packed_page_is_told():
    strides = contiguous_strides((100, 8, 16, 256))
    reading, = (r for r in find_readings((100, 8, 16, 128), strides) if r.axes == "BHNC")
    assert "half of each packed state" in reading.note
    assert (reading.layouts, reading.head_size) == (("LBHNC",), 128)


def test_strides_that_no_cache_has():
    assert find_readings((100, 8, 16, 256), (1, 100, 800, 12_800)) == []
    assert find_readings((7,)) == []
    assert describe_readings([]) == ["No known cache has such a shape and such strides."]


def test_an_unlikely_shape_is_read_with_its_doubts():
    reading = find_readings((3, 3, 3))[0]
    assert reading.doubts and "Unlikely" in reading.sentence


def test_kvcached_321_a_pasted_tma_descriptor():
    pasted, = parse_shapes("TMA dims (128, 64, 1, 49408, 1) inner first, byte strides (2, 256, 256, 2064384, 0)")
    found = read_descriptor(pasted.dims, pasted.byte_strides, 2)
    assert (found.page_bytes, found.block_stride, found.num_blocks) == (16_384, 2_064_384, 49_408)
    assert (found.pages_per_block, found.num_layers) == (126, 63)
    assert found.extent_bytes == 49_408 * 2_064_384 and round(found.extent_bytes / 2**30) == 95
    assert found.first_blocks["2^31 bytes"] == 1_041
    assert found.first_blocks["2^31 elements"] == 2_081
    text = " ".join(found.sentences())
    assert "63 layers" in text and "95.0 GiB" in text and "from block 1,041 on" in text
    assert [r.axes for r in found.readings] == ["BNC"]
    assert not found.notes


def test_a_descriptor_as_cutlass_prints_it():
    text = """TMA Desc Addr:   0x7ffd2a3c
format         9
dim            5
gmem_address   0x7f32a0000000
globalDim      (128,64,8,100,1)
globalStrides  (256,32768,262144,0)
boxDim         (64,64,1,1,1)
elementStrides (1,1,1,1,1)"""
    pasted, = parse_shapes(text)
    found = read_descriptor(pasted.dims, pasted.byte_strides, "bfloat16")
    assert found.byte_strides == (2, 256, 32_768, 262_144, 0)
    assert (found.num_blocks, found.page_bytes, found.pages_per_block) == (100, 131_072, 2)
    assert all(block is None for block in found.first_blocks.values())


def test_a_descriptor_that_tma_would_refuse():
    found = read_descriptor((92, 16, 100), (2, 184, 2_944), 2)
    assert any("must be multiples of 16" in note for note in found.notes)
    shared = read_descriptor((128, 16, 100), (2, 256, 2_048), 2)
    assert any("share bytes" in note for note in shared.notes)
    assert any("same bytes" in note for note in read_descriptor((128, 16, 4), (2, 256, 0), 2).notes)


@pytest.mark.parametrize(("text", "expected"), [
    ("torch.Size([2, 100, 16, 8, 128])", [((2, 100, 16, 8, 128), None, None, "")]),
    ("shape=(1591, 16, 4, 128)", [((1591, 16, 4, 128), None, None, "")]),
    ("tensor.shape=torch.Size([100, 8, 16, 256]), stride()=(32768, 4096, 256, 1), dtype=torch.bfloat16",
     [((100, 8, 16, 256), (32768, 4096, 256, 1), 2, "")]),
    ("kv.shape = torch.Size([9, 8, 16, 256])\nkv.stride() = (32768, 4096,\n   256, 1)",
     [((9, 8, 16, 256), (32768, 4096, 256, 1), None, "")]),
    ("strides: (36864, 576, 1), shape: (100, 64, 576)", [((100, 64, 576), (36864, 576, 1), None, "")]),
    ('{"layers.0": ((3, 4, 16, 64), (4096, 1024, 64, 1)), "layers.1": ((3, 2, 16, 64), (2048, 1024, 64, 1))}',
     [((3, 4, 16, 64), (4096, 1024, 64, 1), None, "layers.0"),
      ((3, 2, 16, 64), (2048, 1024, 64, 1), None, "layers.1")]),
    ("layers.0: shape (3, 4, 16, 64) strides (4096, 1024, 64, 1) fp32\nlayers.1: shape (3, 4, 16, 64)",
     [((3, 4, 16, 64), (4096, 1024, 64, 1), 4, "layers.0"), ((3, 4, 16, 64), None, None, "layers.1")]),
    ("(100,64,576) (36864,576,1)", [((100, 64, 576), (36864, 576, 1), None, "")]),
    ("(100, 64, 576)\n(2, 2, 16, 2, 128)", [((100, 64, 576), None, None, ""), ((2, 2, 16, 2, 128), None, None, "")]),
    ("(2,100,16,8,128)\n(100,2,16,8,128)", [((2, 100, 16, 8, 128), None, None, ""),
                                            ((100, 2, 16, 8, 128), None, None, "")]),
    ("(EngineCore pid=1) INFO 03-07 08:18:10 [file.py:1314] (1, 2)", []),
    ("", []),
])
def test_text_as_it_is_pasted(text, expected):
    assert [(one.shape, one.strides, one.itemsize, one.name) for one in parse_shapes(text)] == expected


def test_a_connectors_registration_line():
    text = ("(EngineCore pid=1) INFO 03-07 08:18:10 [file.py:1314] Registering KV_Caches: use_mla: False, "
            "num_blocks: 111680, block_shape: torch.Size([16, 1, 128]), per_layer_kv_cache_shape: "
            "torch.Size([2, 111680, 16, 1, 128])")
    one, = parse_shapes(text)
    assert (one.kind, one.shape) == ("registered", (2, 111_680, 16, 1, 128))
    assert find_readings(one.shape)[0].axes == "2BNHC"


def test_vllm_54877_a_bounds_check_is_read():
    text = ("RuntimeError: setStorage: sizes [8, 1, 64, 256], strides [40960, 16384, 256, 1], storage offset 0, and "
            "itemsize 2 requiring a storage size of 606208 are out of bounds for storage of size 327680")
    one, = parse_shapes(text)
    assert (one.kind, one.shape, one.strides) == ("storage", (8, 1, 64, 256), (40_960, 16_384, 256, 1))
    assert (one.itemsize, one.storage_offset, one.required_bytes, one.storage_bytes) == (2, 0, 606_208, 327_680)
    assert 2 * (1 + sum((n - 1) * s for n, s in zip(one.shape, one.strides))) == 606_208
    assert "278,528 too many" in one.sentence


@pytest.mark.parametrize("unit", [
    "(", "[", "(1", "(1,", "(1 ,", "( ", "1", "1,", "torch.Size([", "shape", "strides (", "\"a\": (",
    "(1,1,1,1,1,1,1,1,1", "(3,4,16,64)", "shape (3,4,16,64) strides (1,2,3,4)\n",
    "dims (1,2,3) byte strides (1,2,3) ", "a.", "_", "\n", "'",
    "bfloat16", "storage offset ", "__import__('os').system('x') (1,2,3)", "(9" + "9" * 30 + ",1,1)"])
def test_a_megabyte_of_hostile_text_doesnt_hang(unit):
    begin = time.process_time()
    parse_shapes(unit * (1_000_000 // len(unit)))
    parse_shapes("shape (1" + unit * (1_000_000 // len(unit)))
    assert time.process_time() - begin < 20


@given(st.text(alphabet="()[]{},:= 0123456789\n'\"shapetridTorch.Size", max_size=300))
def test_fuzzed_text_gives_tensors_or_nothing(text):
    for one in parse_shapes(text):
        assert one.shape or one.dims
        if one.shape and all(one.shape):
            describe_readings(find_readings(one.shape, one.strides, one.itemsize))


@given(st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=8), st.data())
def test_any_numbers_are_read_or_refused(shape, data):
    strides = data.draw(st.one_of(st.none(), st.lists(st.integers(0, 2**63 - 1), min_size=len(shape),
                                                      max_size=len(shape))))
    for reading in find_readings(shape, strides, every=True):
        assert reading.sentence and math.prod(reading.shape) == math.prod(shape)
    try:
        assert read_descriptor(shape, strides or shape, 2).sentences()
    except LayoutError as error:
        assert "63 bits" in str(error)


@pytest.mark.parametrize("shape", [
    None, 5, "abc", (), [1.5], [True, 2], [0, 3], [-1], [2**63], ["a"], [None], [float("nan")], range(9), {1: 2}, {3},
    [[1, 2]]])
def test_what_is_no_shape_is_one_clear_error(shape):
    with pytest.raises(LayoutError):
        find_readings(shape)
    with pytest.raises(LayoutError):
        read_descriptor(shape, (2,), 2)


@pytest.mark.parametrize("call", [
    lambda: find_readings((1, 2, 3), (1, 2)), lambda: find_readings((1, 2, 3), (1, 2, -3)),
    lambda: find_readings((1, 2, 3), None, 0), lambda: find_readings((1, 2, 3), None, "float7"),
    lambda: find_readings((1, 2, 3), None, 1.5), lambda: parse_shapes(None), lambda: parse_shapes(b"(1,2,3)"),
    lambda: parse_shapes("(9999999999999999999, 1, 1)"),
    lambda: read_descriptor((1, 2, 3), (1,), 2), lambda: read_descriptor((1, 2, 3), None, 2),
    lambda: read_descriptor((1, 2, 3), (2, 3), None), lambda: read_descriptor((1, 2, 3), (1, 2, 3), "x"),
    lambda: find_readings((1_591, 16, 4, 128))[0].locate(-1),
    lambda: find_readings((1_591, 16, 4, 128))[0].locate(1_591 * 16),
    lambda: find_readings((1_591, 16, 4, 128))[0].locate(0, head=4),
    lambda: find_readings((2, 100, 65_536))[0].locate(0),
])
def test_bad_input_is_one_clear_error(call):
    with pytest.raises(LayoutError):
        call()
