"""A formula against the address map, on random caches: the same as going through every coordinate and byte."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout.clinic.classics import CLASSICS, right_formula
from kvlayout.clinic.counting import count_below
from kvlayout.clinic.formula import compare_formula
from kvlayout.clinic.formula_call import Formula
from kvlayout.clinic.formula_names import AXES, NAMES, item_bytes, layer_values
from kvlayout.errors import LayoutError
from kvlayout.strided import StridedSet
from tests.strategies import maps


class Brute:
    """Every byte's owner in every group, from the coordinates' side."""

    def __init__(self, address_map):
        self.map = address_map
        self.owners = [{} for _ in address_map.config.kv_cache_groups]
        for layer in range(len(address_map.layers)):
            group = address_map.region(layer).group
            for at in product(*map(range, address_map.shape(layer))):
                self.owners[group][address_map.offset(layer, *at)] = (layer, *at)

    def manager(self, layer, block):
        return block // (self.map.shape(layer)[0] // self.map.config.num_blocks)

    def compare(self, formula, length):
        work, span = Formula("formula", formula), length and Formula("length", length)
        named = set(AXES) if span is None else work.axes | span.axes
        wrong, outside, victims, total = [], set(), Counter(), 0
        for layer in range(len(self.map.layers) if "layer" in named else 1):
            region = self.map.region(layer)
            item = item_bytes(region)
            blocks, heads, states, content = self.map.shape(layer)
            extents = (blocks, heads, states, content // item)
            axes = [range(n) if axis in named else range(min(1, n)) for axis, n in zip(AXES[1:], extents)]
            mesh = tuple(np.array(axis, dtype=np.int64) for axis in axes)
            shape = tuple(map(len, axes))
            begins, sizes = (np.full(shape, item) if one is None else
                             one(layer_values(self.map, layer, mesh, one.used), shape) for one in (work, span))
            for at, begin, size in zip(product(*axes), begins.ravel().tolist(), sizes.ravel().tolist()):
                total += 1
                touched = range(begin, begin + size)
                is_right = begin == self.map.offset(layer, *at[:3], at[3] * item)
                if span is not None:
                    is_right = is_right and all(self.may(byte, layer, at, named) for byte in touched)
                inside = [byte for byte in touched if 0 <= byte < self.map.size_bytes]
                outside |= set(touched) - set(inside)
                if not is_right:
                    wrong.append((self.map.layers[layer], *at))
                    for byte in inside:
                        victims.update(self.victims(byte, layer, at, named, span is not None))
        return wrong, len(outside), victims, total

    def is_own(self, byte, layer, at, named):
        owner = self.owners[self.map.region(layer).group].get(byte)
        if owner is None:
            return False
        mine = (owner[0], *owner[1:4], owner[4] // item_bytes(self.map.region(owner[0])))
        return all(mine[i] == (layer, *at)[i] for i, axis in enumerate(AXES) if axis in named)

    def is_own_padding(self, byte, layer, at, named):
        own = self.map.region(layer)
        if byte in self.owners[own.group]:
            return False
        regions = [r for r in self.map.regions if r.group == own.group] if "layer" not in named else [own]
        strides = {region.geometry.strides[1] for region in regions}
        if "layer" not in named and self.map.layout.is_block_outermost and len(strides) == 1:
            inside = 0 <= byte < self.map.size_bytes
            return inside and ("block" not in named or byte // min(strides) == at[0])
        if not self.map.layout.is_block_compact:
            return False
        for region in regions:
            for local, one in enumerate(region.layers.tolist()):
                for block in range(region.geometry.shape[1]):
                    start = region.geometry.offset + np.dot((local, block), region.geometry.strides[:2])
                    if start <= byte < start + region.page_size_bytes and ("block" not in named or block == at[0]) \
                            and ("layer" not in named or one == layer):
                        return True
        return False

    def may(self, byte, layer, at, named):
        return self.is_own(byte, layer, at, named) or self.is_own_padding(byte, layer, at, named)

    def victims(self, byte, layer, at, named, has_length):
        group = self.map.region(layer).group
        for other, owners in enumerate(self.owners):
            owner = owners.get(byte)
            if other == group:
                if owner is None and not (has_length and self.is_own_padding(byte, layer, at, named)):
                    yield group, None
                elif owner is not None and not self.is_own(byte, layer, at, named):
                    yield group, self.map.layers[owner[0]]
            elif owner is not None and "block" in named and self.manager(*owner[:2]) != self.manager(layer, at[0]):
                yield other, self.map.layers[owner[0]]


def check(address_map, formula, length=None):
    found = compare_formula(formula, address_map, length=length)
    wrong, outside, victims, total = Brute(address_map).compare(formula, length)
    assert found.checked == total and not found.sampled
    assert found.share == (len(wrong) / total if total else 0)
    assert (None if found.first is None else tuple(found.first)) == (wrong[0] if wrong else None)
    assert found.outside == outside
    assert {(hit.group, hit.layer): hit.bytes for hit in found.victims} == dict(victims)
    for hit in found.victims:
        if hit.layer is not None:
            assert hit.example in address_map.owners(hit.offset) and hit.example.layer == hit.layer
        else:
            assert hit.example.start <= hit.offset < hit.example.end
        assert hit.by in wrong
    pages = Counter((one[0], one[1]) for one in wrong)
    for row, name in enumerate(found.layers):
        for column, block in enumerate(found.blocks.tolist()):
            assert (found.map[row, column] > 0) == ((name, block) in pages) or np.isnan(found.map[row, column])
    if wrong:
        assert found.cells[found.first.head, found.first.token] > 0
        assert (found.map[0, 0] > 0) == ((found.layers[0], 0) in pages)
    return found


@given(maps())
def test_the_right_formula_never_diverges(address_map):
    for formula in (right_formula(address_map), "layer_offset + block * block_stride + inner_offset"):
        found = compare_formula(formula, address_map)
        assert found.is_right and found.share == found.outside == 0 and found.victims == ()
    for layer in address_map.layers:
        assert compare_formula(right_formula(address_map, layer), address_map, layers=[layer]).is_right


strides = st.integers(-3, 40).map(str) | st.sampled_from([
    "block_stride", "manager_block_stride", "page_bytes", "page_content_bytes", "head_stride", "state_stride",
    "content_bytes", "element_size", "layer_stride", "num_heads"])


@st.composite
def formulas(draw):
    terms = [draw(st.sampled_from(["layer_offset", "layer_offset", "0", "tensor_offset", "layer * 7"]))]
    for index, usual in (("block", "block_stride"), ("manager_block", "block_stride"), ("head", "head_stride"),
                         ("token", "state_stride"), ("slot", "content_bytes"), ("element", "element_stride"),
                         ("inner_offset", "1"), ("field_offset", "1")):
        if draw(st.integers(0, 2)) == 0:
            terms.append(f"{index} * {draw(st.just(usual) | strides)}")
    return " + ".join([*terms, draw(st.sampled_from(["0", "0", "1", "(-5)"]))])


@settings(max_examples=25)
@given(maps(), formulas())
def test_a_wrong_formula_is_told_as_going_through_every_element_tells_it(address_map, formula):
    check(address_map, formula)


@settings(max_examples=25)
@given(maps(), st.sampled_from(sorted(CLASSICS)))
def test_classics_too(address_map, slug):
    check(address_map, CLASSICS[slug].formula, CLASSICS[slug].length)


@settings(max_examples=25)
@given(maps(), formulas() | st.just("layer_offset + block * block_stride") | st.just("block * block_stride"),
       strides.filter(lambda text: not text.startswith("-")) | st.just("block_stride - 2 * (block_stride > 2)"))
def test_spans_are_told_as_going_through_every_byte_tells_it(address_map, formula, length):
    try:
        compare_formula(formula, address_map, length=length)
    except LayoutError as error:
        assert "Name layer_offset and block too" in str(error)
        return
    check(address_map, formula, length)


@given(st.integers(0, 9), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), min_size=1, max_size=4))
def test_bytes_below_an_address(offset, axes):
    one = StridedSet(offset, *zip(*axes))
    addresses = [offset + sum(i * s for i, (_, s) in zip(index, axes))
                 for index in product(*(range(n) for n, _ in axes))]
    at = np.arange(-3, 140)
    if not one.is_nested and not one.is_empty:
        with pytest.raises(LayoutError):
            count_below(one, at)
    else:
        assert count_below(one, at).tolist() == [sum(a < x for a in addresses) for x in at]


def test_every_name_is_explained_and_given():
    assert all(unit in ("index", "bytes", "count") and text for unit, text in NAMES.values())
