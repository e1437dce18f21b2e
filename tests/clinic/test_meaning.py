"""An address' meaning, against every byte of tiny maps, and the cases of public reports."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout.address import AddressMap
from kvlayout.clinic.meaning import explain_address, parse_address
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.plan import make_plan
from kvlayout.selection import Selection
from kvlayout.spec import FullAttentionSpec, MLAAttentionSpec
from tests.strategies import maps


def map_of(spec, layers, layout, num_blocks):
    group = KVCacheGroupSpec([f"layers.{i}" for i in range(layers)], spec)
    return AddressMap(get_kv_cache_config_from_groups([group], 0, layout, num_gpu_blocks_override=num_blocks))


def four_mla_layers():
    spec = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=584, dtype="uint8", alignment=576)
    return map_of(spec, 4, "BLHNC", 100)


def owners_of_all(address_map, group):
    """{offset: owner} of the group's bytes, in address order."""
    found = {offset: [o for o in address_map.owners(offset) if o.group == group]
             for offset in range(address_map.size_bytes)}
    return {offset: owners[0] for offset, owners in found.items() if owners}


@settings(max_examples=60)
@given(maps(), st.data())
def test_every_byte_of_tiny_maps_against_brute_force(address_map, data):
    group = data.draw(st.integers(0, len(address_map.config.kv_cache_groups) - 1))
    owned = owners_of_all(address_map, group)
    order = list(owned)
    edges = {axis: [None] for axis in ("layer", "block", "head")}
    for axis, starts in edges.items():  # where a stretch of equal values begins, by place in the order
        values = [getattr(owned[at], axis) for at in order]
        starts[:] = [0, *(i for i in range(1, len(order)) if values[i] != values[i - 1]), len(order)]
    step = max(1, address_map.size_bytes // 60)
    for offset in range(-2, address_map.size_bytes + 2, step):
        found = explain_address(offset, address_map)
        size = address_map.size_bytes
        assert found.where == ("before the base" if offset < 0 else "past the end" if offset >= size else "inside")
        assert [o for o in found.owners if o.group == group] == ([owned[offset]] if offset in owned else [])
        around = found.neighbours[group]
        place = int(np.searchsorted(order, offset))
        above = place + 1 if offset in owned else place
        assert (around.below_offset, around.below) == (
            (order[place - 1], owned[order[place - 1]]) if place else (None, None))
        assert (around.above_offset, around.above) == (
            (order[above], owned[order[above]]) if above < len(order) else (None, None))
        mine = {b.axis: b for b in found.nearest if b.group == group}
        assert set(mine) == (set(edges) if offset in owned else set())
        for axis, one in mine.items():
            cut = int(np.searchsorted(edges[axis], place, side="right"))
            first, behind = edges[axis][cut - 1], edges[axis][cut]
            assert (one.start, one.end) == (order[first], order[behind - 1] + 1)
            assert (one.below, one.above) == (offset - one.start, one.end - offset)
            assert one.before == (owned[order[first - 1]] if first else None)
            assert one.after == (owned[order[behind]] if behind < len(order) else None)
        assert all(p.start <= offset < p.end for p in found.padding_of)
        assert {p.group for p in found.padding_of}.isdisjoint(o.group for o in found.owners)
        assert found.sentences()


def test_vllm_54465_padding_is_named_after_its_page():
    address_map = four_mla_layers()
    right = explain_address(187_200, address_map)
    assert [(o.layer, o.block, o.state, o.byte) for o in right.owners] == [("layers.1", 1, 0, 0)]
    wrong = explain_address("74816", address_map)
    assert wrong.owners == ()
    padding, = wrong.padding_of
    assert (padding.layer, padding.block, padding.start, padding.end) == ("layers.1", 0, 74_816, 74_880)
    assert "padding inside the page of layers.1, block 0 (bytes 74,816 to 74,880)" in wrong.sentences()[1]
    around, = wrong.neighbours
    assert (around.below_offset, around.below.layer, around.below.state) == (74_815, "layers.1", 63)
    assert (around.above_offset, around.above.layer, around.above.block) == (74_880, "layers.2", 0)


def test_vllm_50276_the_wrong_end_of_a_span_lies_past_the_buffer():
    found = explain_address(14_938_560 + 149_760, four_mla_layers())
    assert (found.where, found.offset - found.size_bytes) == ("past the end", 112_320)
    assert [(b.layer, b.block, b.state) for b in found.beyond] == [("layers.3", 100, 0)]
    inside = explain_address(14_938_560, four_mla_layers())
    assert (inside.owners[0].layer, inside.owners[0].block) == ("layers.3", 99)
    block = next(one for one in inside.nearest if one.axis == "block")
    assert (block.start, block.end, block.after) == (99 * 149_760, 14_975_936, None)


def test_xpu_kernels_445_block_2066_is_named_from_below_the_base():
    spec = FullAttentionSpec(block_size=1_083, num_kv_heads=1, head_size=480, dtype="uint8")
    address_map = map_of(spec, 1, "LBNHC", 2_100)
    assert address_map.strides(0)[0] == 1_039_680
    found = explain_address(-2_146_988_416, address_map)
    assert found.where == "before the base"
    named = [(w.integer, w.unit, w.block, w.head, w.state, w.byte) for w in found.wrapped]
    assert named == [("int32", "bytes", 2_066, 0, 0, 0)]
    assert found.wrapped[0].product == 2_147_978_880
    assert "Block 2,066" in " ".join(found.sentences())
    below = explain_address(2_146_939_200, address_map)
    assert below.owners[0].block == 2_065
    # The same number seen from a real pointer.
    base = 0x7F0000000000
    assert explain_address(hex(base - 2_146_988_416), address_map, hex(base)).wrapped == found.wrapped


@pytest.mark.parametrize("layout", list(KVCacheLayout))
@given(st.data())
@settings(max_examples=40)
def test_every_wrapped_product_is_found_again(layout, data):
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    address_map = map_of(spec, 28, layout, 100_000)
    layer = data.draw(st.integers(0, 27))
    at = [data.draw(st.integers(0, n - 1)) for n in address_map.shape(layer)]
    size = data.draw(st.sampled_from([1, 2]))
    integer = data.draw(st.sampled_from(["int32", "uint32"]))
    product = at[0] * address_map.strides(layer)[0] // size
    wrapped = int(np.array(product).astype(integer))
    true = address_map.offset(layer, *at)
    found = explain_address(true + (wrapped - product) * size, address_map).wrapped
    mine = [(w.layer, w.block, w.head, w.state, w.byte) for w in found
            if (w.integer, w.unit) == (integer, ("", "bytes", "elements")[size])]
    assert ((f"layers.{layer}", *at) in mine) == (wrapped != product)
    for one in found:  # and nothing is claimed that isn't so
        unit = 1 if one.unit == "bytes" else 2
        if one.block >= 0:
            assert one.offset == address_map.offset(one.layer, one.block, one.head, one.state, one.byte)
        assert one.wrapped == int(np.array(one.product).astype(one.integer))
        assert one.offset + (one.wrapped - one.product) * unit == true + (wrapped - product) * size


def test_block_minus_1_is_named_before_the_base_and_as_uint32():
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="uint8")
    address_map = map_of(spec, 1, "LBHNC", 9)
    below = explain_address(-32_768, address_map)
    assert [(b.block, b.state) for b in below.beyond] == [(-1, 0)]
    above = explain_address((1 << 32) - 32_768, address_map)
    assert above.where == "past the end"
    assert [(w.integer, w.block, w.product) for w in above.wrapped] == [("uint32", -1, -32_768)]


def test_kvcached_330_a_wrong_id_at_the_planes_end():
    spec = FullAttentionSpec(block_size=528, num_kv_heads=4, head_size=128, dtype="bfloat16")  # K: 256 values
    group = KVCacheGroupSpec(["k"], spec)
    config = get_kv_cache_config_from_groups([group], 0, "LBNHC", num_gpu_blocks_override=2_699)
    address_map = AddressMap(config, kernel_block_sizes=[16])
    wrong = 2_699 * 528 * 2_048  # kernel id x the manager block's stride
    assert wrong == address_map.size_bytes
    found = explain_address(wrong, address_map)
    assert found.where == "past the end"
    assert [(b.layer, b.block) for b in found.beyond] == [("k", 89_067)]


def test_a_pointer_in_hex_with_its_base():
    address_map = four_mla_layers()
    found = explain_address("0x7f32a0012440", address_map, base="0x7F32_A000_0000")
    assert (found.offset, found.padding_of[0].layer, found.padding_of[0].block) == (74_816, "layers.1", 0)
    assert "0x7f32a0012440" in found.sentences()[0]


def test_both_groups_of_a_hybrid_model_own_a_byte():
    plan = make_plan(Selection(model="google/gemma-3-27b-it", num_blocks=10))
    address = plan.address_map.offset(0, 3, 1, 2, 5)
    found = explain_address(address, plan.address_map)
    assert len(found.owners) + len(found.padding_of) == len(plan.config.kv_cache_groups) > 1
    assert len(found.nearest) == 3 * len(found.owners)


def test_overlaid_blocks_have_no_order_to_step_in():
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=2, dtype="int8")
    config = KVCacheConfig(3, [KVCacheTensor(64, ("a",), 64, 8)], [KVCacheGroupSpec(("a",), spec)], "LBHNC")
    found = explain_address(8, AddressMap(config))
    assert len(found.owners) == 2 and found.nearest == ()
    assert found.sentences()


def test_a_large_cache_is_fast():
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    for layout in KVCacheLayout:
        address_map = map_of(spec, 80, layout, 100_000)
        begin = time.process_time()
        for offset in (-2_000_000_000, 0, 123_456_789_012, address_map.size_bytes + 5):
            assert explain_address(offset, address_map).sentences()
        assert time.process_time() - begin < 1


@pytest.mark.parametrize(("text", "value"), [
    ("74816", 74_816), (" 74,816 ", 74_816), ("74_816", 74_816), ("0x12440", 0x12440), ("0XfF", 255), ("-5", -5),
    ("-0x10", -16), (17, 17), (np.int64(3), 3), ("0", 0), ("0xffffffffffffffff", 2**64 - 1)])
def test_addresses_as_text(text, value):
    assert parse_address(text) == value


@pytest.mark.parametrize("text", [
    "", "7f3a", "0x", "0xg", "1e5", "1.5", "--1", "1 2", "٣", None, 1.5, True, float("nan"), [1], b"1", 2**64,
    "9" * 1_000_000, "0x" + "f" * 1_000_000, " " * 1_000_000, "0x1" + "0" * 17, "_1", ",", "__import__('os')"])
def test_what_is_no_address_is_one_clear_error(text):
    with pytest.raises(LayoutError) as error:
        parse_address(text)
    assert error.value.argument == "address"
    with pytest.raises(LayoutError) as error:
        explain_address(0, four_mla_layers(), base=text)
    assert error.value.argument == "base"


def test_no_map_is_a_clear_error():
    with pytest.raises(LayoutError, match="address_map"):
        explain_address(0, None)


def test_an_empty_allocation():
    empty = AddressMap(KVCacheConfig(0, [], [], "LBHNC"))
    found = explain_address(0, empty)
    assert (found.where, found.owners, found.neighbours) == ("past the end", (), ())
