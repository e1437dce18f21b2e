"""What became of each page and cell of a target, against the totals and against single bytes."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvlayout.clinic import Fates, Side, exchange, mistaken
from kvlayout.clinic.fates import KINDS
from kvlayout.errors import LayoutError
from tests.clinic.test_exchange import NOBODY, codes, copied, qwen, transfers
from tests.strategies import layouts


@given(transfers(), layouts, st.sampled_from(["source", "target"]), st.sampled_from(["first", "all"]))
def test_every_cell_against_a_real_copy(drawn, layout, side, replicas):
    sources, target, source_blocks, target_blocks = drawn
    request = dict(source_blocks=source_blocks, target_blocks=target_blocks, replicas=replicas)
    meant = exchange(sources, target, **request)
    try:
        found = mistaken(sources, target, assumed_layout=layout, side=side, **request)
    except LayoutError as error:  # the other layout can't split or hold these pages
        assume(False)
        raise error
    fates = Fates(found, meant, sources, target)
    layers = list(target.layers)
    pages = fates.pages(layers, target_blocks)
    assert pages.sum() == found.target_bytes
    assert dict(zip(KINDS[1:], pages.sum(axis=(1, 2))[1:])) == {
        "missing": found.missing, "twice": found.twice, "wrong": found.wrong}
    ends = found.segments.target_offset + found.segments.length
    size = max(target.address_map.size_bytes, int(ends.max(initial=0)))
    buffers = [np.full(max(one.address_map.size_bytes, size), NOBODY) for one in sources]
    for buffer, one in zip(buffers, sources):
        buffer[:one.address_map.size_bytes] = codes(one, source_blocks)
    buffer, times = copied(found.segments, buffers, size)
    want = codes(target, target_blocks)
    for row, layer in enumerate(layers):
        _, heads, states, content = target.address_map.shape(layer)
        for column, block in enumerate(target_blocks):
            cells = fates.cells(layer, block)
            assert (cells.sum(axis=(1, 2)) == pages[:, row, column]).all()
            at = target.address_map.offset(layer, block, *np.ogrid[:heads, :states, :content])
            once = times[at] == 1
            equal = buffer[at] == want[at]
            expected = [once & equal, times[at] == 0, times[at] > 1, once & ~equal]
            assert (cells == [kind.sum(axis=2) for kind in expected]).all()


def test_vllm_42740_two_cells_of_a_page_are_right():
    side = Side(qwen(1, "LBNHC"), 0, 1, 8)
    request = dict(source_blocks=[5, 9], target_blocks=[0, 1])
    meant = exchange([side], side, **request)
    fates = Fates(mistaken([side], side, assumed_layout="LBHNC", side="source", **request), meant, [side], side)
    layer = side.layers[3]
    cells = fates.cells(layer, 1)
    assert np.argwhere(cells[0] == 512).tolist() == [[0, 0], [7, 15]]
    assert (cells[3] == 512).sum() == 126
    assert (fates.pages([layer], [0, 1])[:, 0] == [[1024, 1024], [0, 0], [0, 0], [64512, 64512]]).all()
    source, offset, owner = fates.written(side.address_map.offset(layer, 1, 1, 0))
    assert (source, owner.block, owner.head, owner.state) == (0, 9, 0, 2)
    assert offset == side.address_map.offset(layer, 9, 0, 2)
    assert fates.written(side.address_map.size_bytes - 1) is None


@pytest.mark.parametrize("wrong", [dict(found=None), dict(meant=3), dict(sources=["x"]), dict(target="y")])
def test_bad_arguments(wrong):
    side = Side(qwen(1, "LBNHC"), 0, 1, 8)
    done = exchange([side], side, source_blocks=[1], target_blocks=[2])
    with pytest.raises(LayoutError):
        Fates(**{**dict(found=done, meant=done, sources=[side], target=side), **wrong})


@pytest.mark.parametrize("ask", [lambda f: f.pages(["no"], [0]), lambda f: f.pages(["no"], "0"),
                                 lambda f: f.cells(0, 16), lambda f: f.cells("no", 0),
                                 lambda f: f.pages([f._map.layers[0]], [99])])
def test_pages_that_are_not_there(ask):
    side = Side(qwen(1, "LBNHC"), 0, 1, 8)
    done = exchange([side], side, source_blocks=[1], target_blocks=[2])
    with pytest.raises(LayoutError):
        ask(Fates(done, done, [side], side))
