"""Lints against brute force on tiny configs: every byte and every start looked at one by one."""

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.clinic.alignment import alignments, power_of_two
from kvlayout.clinic.bounds import block_span, tensor_overlaps
from kvlayout.clinic.contained import containment
from kvlayout.clinic.limits import unwrapped, wrapped
from kvlayout.clinic.linting import lint
from kvlayout.clinic.shares import padding_shares
from tests.strategies import configs, maps

tiny = settings(max_examples=80, deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def pages(address_map) -> dict[tuple, set[int]]:
    """{(layer, kernel block): its bytes}."""
    found = {}
    for layer in address_map.layers:
        blocks, *inner = address_map.shape(layer)
        for block in range(blocks):
            offsets = address_map.offset(layer, block, *np.ix_(*map(np.arange, inner)))
            found[layer, block] = set(np.ravel(offsets).tolist())
    return found


def manager_block(address_map, layer, block):
    return block // (address_map.shape(layer)[0] // address_map.config.num_blocks)


@st.composite
def moved_maps(draw):
    """Maps some of whose tensors were moved or given other strides, so that nothing holds for sure."""
    config = draw(configs())
    index = draw(st.integers(0, len(config.kv_cache_tensors) - 1))
    tensor = config.kv_cache_tensors[index]
    field = draw(st.sampled_from(["offset", "layer_stride", "block_stride"]))
    value = max(1, getattr(tensor, field) + draw(st.integers(-40, 40)))
    tensors = [*config.kv_cache_tensors]
    tensors[index] = replace(tensor, **{field: value})
    try:
        return kv.AddressMap(replace(config, kv_cache_tensors=tuple(tensors)))
    except kv.LayoutError:
        assume(False)


@tiny
@given(maps())
def test_what_vllm_plans_gives_no_error(address_map):
    found = lint(address_map)
    # Pages of odd bytes can be placed, though nobody could view them in their type.
    assert {one.rule for one in found if one.is_error} <= {"view-dtype"}
    assert containment(address_map).is_contained
    ranks = [("error", "warning", "note").index(one.severity) for one in found]
    assert ranks == sorted(ranks)


@tiny
@given(st.one_of(maps(), moved_maps()))
def test_containment_is_what_every_byte_says(address_map):
    owned = {}
    meets = False
    for (layer, block), found in pages(address_map).items():
        mine = (layer, manager_block(address_map, layer, block))
        for byte in found:
            for other in owned.get(byte, ()):
                meets |= other[1] != mine[1]
            owned.setdefault(byte, set()).add(mine)
    answer = containment(address_map)
    assert answer.is_contained is (not meets)
    for one in answer.crossings:
        assert {(one.layer, one.block), (one.other_layer, one.other_block)} <= owned[one.offset]
        assert one.block != one.other_block


@tiny
@given(st.one_of(maps(), moved_maps()))
def test_overlaps_and_views_outside_are_what_every_byte_says(address_map):
    assert [(one.first, one.second, one.is_legal) for one in tensor_overlaps(address_map)] == [
        (one.first, one.second, one.is_legal) for one in address_map.overlaps()]
    outside = {layer for (layer, _), found in pages(address_map).items()
               if found and max(found) >= address_map.size_bytes}
    rules = [one for one in lint(address_map) if one.rule == "view-outside"]
    assert bool(rules) is bool(outside)
    for one in rules:
        first = pages(address_map)
        layer, manager = one.coordinate["layer"], one.coordinate["block"]
        assert max(first[layer, manager]) >= address_map.size_bytes
        others = address_map.region(layer).tensor.layers
        assert all(max(first[name, block]) < address_map.size_bytes for name in others for block in range(manager))


@tiny
@given(maps(), st.data())
def test_a_span_and_its_victims_are_what_every_byte_says(address_map, data):
    layer = data.draw(st.sampled_from(address_map.layers))
    block = data.draw(st.integers(0, address_map.shape(layer)[0] - 1))
    span, owned = block_span(address_map, layer, block), pages(address_map)
    mine = owned[layer, block]
    assert span.start == min(mine) and span.end == max(mine) + 1
    assert span.is_contiguous is (len(mine) == span.end - span.start)
    wiped = set(range(span.end, min(span.wrong_end, address_map.size_bytes)))
    expected = {key for key, found in owned.items() if found & wiped}
    told = {(name, b) for one in span.victims for name in one.layers
            for b in range(one.first_block, one.last_block + 1)}
    assert told == expected


@tiny
@given(maps(), st.sampled_from([2, 16, 24]))
def test_residues_are_those_of_every_start(address_map, modulus):
    entries = alignments(address_map, modulus)
    for one in entries:
        if one.what == "row":
            starts = [address_map.offset(layer, block, head, state) for layer in one.layers
                      for block in range(address_map.shape(layer)[0]) for head in range(address_map.shape(layer)[1])
                      for state in range(address_map.shape(layer)[2])]
        else:
            starts = []
            for layer in one.layers:
                interior, (blocks, heads, states, _) = address_map.region(layer).interior, address_map.shape(layer)
                begin, field = next((b, f) for b, f in interior.slot_fields(0) if f.name == one.what)
                starts += [address_map.offset(layer, block, head, state, begin) for block in range(blocks)
                           for head in range(heads)
                           for state in range(states if field.element_stride is None else 1)]
        assert one.residues == tuple(sorted({start % modulus for start in starts}))
        assert one.aligned_to == min(power_of_two(start) for start in starts)
        if one.first is None:
            assert one.residues == (0,)
        else:
            begin = 0 if one.what == "row" else next(
                b for b, f in address_map.region(one.first["layer"]).interior.slot_fields(0) if f.name == one.what)
            assert address_map.offset(*one.first.values(), begin) % modulus


@tiny
@given(maps())
def test_padding_shares_count_the_bytes(address_map):
    config = address_map.config
    owned = {}
    for (layer, block), found in pages(address_map).items():
        if manager_block(address_map, layer, block) == 0:
            owned.setdefault(config.group_of(layer), set()).update(found)
    *groups, everything = padding_shares(address_map)
    assert [one.content_bytes for one in groups] == [len(owned[index]) for index in range(len(groups))]
    assert everything.content_bytes == len(set().union(*owned.values()))
    assert everything.block_bytes == config.size_bytes // config.num_blocks


@given(st.integers(0, 2**40), st.integers(1, 2**33), st.integers(2, 34))
def test_wrapping_and_back(block, stride, bits):
    offset = block * stride
    value = wrapped(offset, bits)
    assert -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) and (value - offset) % 2**bits == 0
    if value != offset and (block + 1) * stride < 2**bits * 1000:
        assert (block, 0) in unwrapped(value, stride, block + 1, bits)


def test_tensors_of_two_and_of_three_layers_are_told_apart():
    spec = kv.FullAttentionSpec(block_size=1, num_kv_heads=1, head_size=1, dtype="int8", state_content_bytes=4)
    tensors = [kv.KVCacheTensor(size=12, layers=names, layer_stride=4, block_stride=4)
               for names in (("a", "b"), ("c", "d", "e"))]
    groups = [kv.KVCacheGroupSpec(one.layers, spec) for one in tensors]
    found = alignments(kv.AddressMap(kv.KVCacheConfig(1, tensors, groups), "LBNHC"))
    assert {(one.layers, one.residues) for one in found} == {(("a", "b"), (0, 4)), (("c", "d", "e"), (0, 4, 8))}
