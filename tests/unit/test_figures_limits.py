"""The limits on the offsets figure: each line stands where the library's numbers say, between the right blocks."""

import time

import numpy as np
import pytest

from kvlayout.clinic import offset_limits
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.glyphs import Label
from kvlayout_widgets.figures.limits import limit_words
from kvlayout_widgets.figures.offsets import OffsetsFigure
from tests.figure_maps import KINDS, dense, hybrid, indexer, overlay, tiny
from tests.figure_reading import check_labels


@pytest.fixture(scope="module")
def drawing():
    return OffsetsFigure()


def lines_of(drawing):
    """[(x0, y0, x1, y1)] of the lines across the heatmap."""
    dark, light = (one.get_segments() for one in drawing.limits._lines)
    assert np.array_equal(dark, light)
    return [tuple(np.asarray(line).ravel().tolist()) for line in light]


def test_qwen_block_outermost_from_block_2341(drawing):
    address_map = dense("BLNHC", num_blocks=11632)
    drawing.update(address_map, first_column=2310)
    assert lines_of(drawing) == [(2340.5, -0.5, 2340.5, 27.5)]
    assert drawing.limits.words == ("2^31 bytes from block 1,171", "2^31 elements and 2^32 bytes from block 2,341",
                                    "2^32 elements from block 4,682")
    # What lies before the line is below the limit in each layer's own view, what lies behind it isn't.
    in_view = drawing.offsets - drawing.offsets[:, :1] + 2310 * 1835008
    assert (in_view[:, 2340 - 2310] // 2 < 2**31).all() and (in_view[:, 2341 - 2310] // 2 >= 2**31).all()
    # The views begin within one block, so that one mark beside the colours is true of all.
    mark = 2341 * 1835008
    assert np.asarray(drawing.limits._marks[0].get_segments()).tolist() == [[[0, mark], [1, mark]]]
    check_labels(drawing.figure)


def test_qwen_layer_outermost_from_block_65536(drawing):
    drawing.update(dense("LBNHC", num_blocks=70_000), first_column=65_500)
    assert lines_of(drawing) == [(65_535.5, -0.5, 65_535.5, 27.5)]
    assert "2^31 elements and 2^32 bytes from block 65,536" in drawing.limits.words
    assert drawing.limits._marks[0].get_segments() == []  # each layer passes it at an offset of its own
    drawing.update(dense("LBNHC", num_blocks=70_000), rows="B", columns="N", first_row=65_500,
                   selected=Coordinate("model.layers.3.self_attn.attn", 5))
    assert lines_of(drawing) == [(-0.5, 65_535.5, 15.5, 65_535.5)]
    mark = 3 * 70_000 * 65536 + 2**32
    assert drawing.limits._marks[0].get_segments()[0].tolist() == [[0, mark], [1, mark]]


def test_limits_out_of_the_window_are_said(drawing):
    drawing.update(dense("BLNHC", num_blocks=11632))
    said = ("A layer's view passes 2^31 bytes from block 1,171, 2^31 elements and 2^32 bytes from 2,341, "
            "2^32 elements from 4,682")
    assert lines_of(drawing) == [] and drawing.limits.words == (said,)
    assert f"{said}." in drawing.alt_text()
    drawing.update(dense("BLNHC", num_blocks=11632), rows="H", columns="N")
    assert lines_of(drawing) == [] and drawing.limits.words == (said,)
    drawing.update(dense("BLNHC", num_blocks=2000))
    assert drawing.limits.words == ("A layer's view passes 2^31 bytes from block 1,171",)


@pytest.mark.parametrize("make", [tiny, lambda: dense(num_blocks=1171), lambda: dense(num_blocks=0)])
def test_a_pool_that_passes_none_says_nothing(drawing, make):
    drawing.update(dense("BLNHC", num_blocks=11632), first_column=2310)
    drawing.update(make())
    assert lines_of(drawing) == [] and drawing.limits._marks[0].get_segments() == []
    assert drawing.limits.fact == "" and drawing.limits.words == ()


@pytest.mark.parametrize("first_column", [0, 2310])
def test_words_of_a_landing_keep_their_place(drawing, first_column):
    drawing.update(dense("BLNHC", num_blocks=11632), first_column=first_column)
    said = drawing.limits.words
    drawing._lit_words.set([Label(1, 1 + 9 / 316, "lit: 12,345 tokens of 100 requests", 8, "#000000", "right")])
    drawing._draw_limits()
    assert drawing.limits.words != said and drawing.limits.words
    check_labels(drawing.figure)
    drawing.update(dense("BLNHC", num_blocks=11632), first_column=first_column)
    assert drawing.limits.words == said


def test_a_limit_that_is_passed_past_the_last_blocks_start():
    """LHBNC: 2^31 bytes lie in the plane of a later head."""
    limits = offset_limits(dense("LHBNC", num_blocks=40_000))
    assert limit_words([one for one in limits if one.is_passed]) == \
        "A layer's view passes 2^31 bytes past the last block's start"
    assert limit_words([]) == ""


def test_head_planes_pass_at_blocks_of_their_own(drawing):
    """LHBNC: each head's plane lies behind all blocks of the one before it."""
    address_map = dense("LHBNC", num_blocks=100_000)
    layer, stride = address_map.layers[0], address_map.strides(0)
    assert stride[:2] == (8192, 8192 * 100_000)
    first = -(-(2**32 - 5 * stride[1]) // 8192)  # of head slot 5, 2^31 elements
    drawing.update(address_map, rows="H", columns="B", first_column=first - 30, selected=Coordinate(layer, 0))
    assert (first - 0.5, 4.5, first - 0.5, 5.5) in lines_of(drawing)
    assert drawing.limits._marks[0].get_segments() == []
    for x, low, _, high in lines_of(drawing):
        block, heads = int(x + 0.5), range(int(low + 0.5), int(high + 0.5))
        for head in heads:
            before, here = (address_map.offset(layer, one, head) for one in (block - 1, block))
            assert any(before < limit * size <= here for limit in (2**31, 2**32) for size in (1, 2))
    check_labels(drawing.figure)


def test_views_of_other_strides_have_lines_of_their_own(drawing):
    address_map = indexer("LBNHC")  # pages of 41,984 and 8,448 bytes, in tensors of their own
    large = type(address_map)(*_grown(address_map, 200_000))
    limits = [one for one in offset_limits(large) if one.unit == "bytes" and one.limit == 2**31 and one.is_reached]
    assert sorted(one.first_block for one in limits) == [51_151]
    drawing.update(large, first_column=51_120)
    assert lines_of(drawing) == [(51_150.5, -0.5, 51_150.5, 8.5)]  # the nine attention layers alone
    check_labels(drawing.figure)


def _grown(address_map, num_blocks):
    config = get_kv_cache_config_from_groups(address_map.config.kv_cache_groups, 0, address_map.layout,
                                             num_gpu_blocks_override=num_blocks)
    return config, address_map.layout


@pytest.mark.parametrize("kind", ["huge", "overlay", "hybrid", "mla"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("rows, columns", [("L", "B"), ("B", "L"), ("H", "B"), ("B", "C"), ("N", "H")])
def test_no_text_lies_over_another(kind, theme, rows, columns):
    makers = {"overlay": overlay, "hybrid": hybrid}
    address_map = KINDS[kind]()
    if kind in makers:
        address_map = type(address_map)(*_grown(address_map, 90_000))
    drawing = OffsetsFigure(theme)
    firsts = {one.first_block for one in offset_limits(address_map) if one.is_reached} or {0}
    for first in (0, *(max(0, block - 20) for block in firsts)):
        window = {"first_column" if columns == "B" else "first_row": first} if "B" in (rows, columns) else {}
        drawing.update(address_map, rows=rows, columns=columns, selected=Coordinate(address_map.layers[1], first),
                       title="Model", **window)
        check_labels(drawing.figure)


def test_it_costs_little_for_any_pool(drawing):
    address_map = dense("BLNHC", num_blocks=80_000)
    drawing.update(address_map)
    start = time.process_time()
    for _ in range(20):
        drawing._draw_limits()
    assert (time.process_time() - start) / 20 < 0.02
