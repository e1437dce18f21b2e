"""The Compare tab: what it draws is what the reader library says, in any layout, and what can't be is explained."""

import itertools
import time

import numpy as np
import pytest

import kvlayout as kv
from kvlayout.bench import PrototypeBackend
from kvlayout.layout import KVCacheLayout
from kvlayout.readers import compare_readers
from kvlayout_widgets import Explorer
from kvlayout_widgets.figures.common import Coordinate, render_png
from kvlayout_widgets.figures.compare import CompareFigure
from kvlayout_widgets.figures.glyphs import text_width
from tests.figure_reading import check_labels

NUMBERS = itertools.count(1)


def opened(**choices):
    shown = Explorer(**({"model": "Qwen/Qwen3-0.6B", "num_blocks": 64} | choices))
    shown.show("Compare")
    return shown, shown.tabs["Compare"]


def send(tab, name, **values):
    tab.picture.set_state({name: {**values, "n": next(NUMBERS)}})


@pytest.mark.parametrize("layout", KVCacheLayout.__members__)
def test_a_layout_against_any_other(layout):
    shown, tab = opened(layout=layout)
    for read in KVCacheLayout.__members__:
        tab.reads.value = read
        found = compare_readers(shown.plan, read)
        np.testing.assert_allclose(tab.drawing.shares, found.shares(np.arange(28), np.arange(64)))
        at = shown.state.coordinate
        np.testing.assert_allclose(tab.drawing.cells, found.cells(at.layer, at.block))
        assert (". 0 % of the bytes" in tab.drawing.alt_text()) == (layout == read)
        check_labels(tab.drawing.figure)


def test_the_counterpart_is_taken_first_and_follows_the_plan():
    shown, tab = opened(layout="LBNHC")
    assert tab.reader.reader.layout.name == "LBHNC"
    shown.choose(layout="BLHNC")
    assert tab.reader.reader.layout.name == "BLNHC"


def test_a_click_selects_a_page_then_a_cell_and_says_whose_byte_is_read():
    shown, tab = opened(layout="LBNHC")
    send(tab, "click", axes=0, x=9, y=4)
    assert (shown.state.coordinate.layer, shown.state.coordinate.block) == (shown.plan.address_map.layers[4], 9)
    send(tab, "click", axes=1, x=1, y=0)
    assert (shown.state.coordinate.block, shown.state.coordinate.head, shown.state.coordinate.state) == (9, 0, 1)
    # Page 4 * 64 + 9 of 65,536 bytes: state 1 was written 8 cells on, and is read 1 cell on.
    assert "written at 17,371,136, read at 17,367,552, where head slot 1 · state 0 lies" in tab.drawing.footer
    send(tab, "hover", axes=1, x=15, y=7)
    assert "the right byte" in tab.picture.readout
    send(tab, "hover", axes=0, x=0, y=0)
    assert "98.44 % is read wrongly" in tab.picture.readout


def test_real_memory_confirms_it():
    shown, tab = opened(layout="LBNHC")
    assert tab.confirm.disabled
    shown.allocation.allocate.click()
    try:
        assert not tab.confirm.disabled
        tab.confirm.click()
        assert "✓ Real memory says the same: 126 of 128 cells" in tab._said.value
        shown.choose(layout="BLNHC")
        assert tab.confirm.disabled  # the cache is another plan's
    finally:
        shown.state.free()


def test_a_layout_that_cannot_express_the_pages_is_refused_beside_the_choice():
    small, large = (kv.FullAttentionSpec(16, num_kv_heads=heads, head_size=128, dtype="bfloat16") for heads in (2, 8))
    groups = [kv.KVCacheGroupSpec(["a"], small), kv.KVCacheGroupSpec(["b"], large)]
    config = kv.get_kv_cache_config_from_groups(groups, 0, "BLHNC", num_gpu_blocks_override=8)
    shown = Explorer(config)
    shown.show("Compare")
    tab = shown.tabs["Compare"]
    tab.reads.value = "LBNHC"
    assert "✗" in tab._complaint.value and "LBNHC" in tab._complaint.value
    assert tab.picture.layout.display == "none" and tab.drawing is None
    tab.reads.value = "BLNHC"
    assert tab._complaint.value == "" and tab.picture.layout.display is None and tab.drawing is not None


def test_kernel_blocks_that_the_reader_cannot_split_are_shown_whole():
    shown, tab = opened(layout="LBNHC", block_size=64, kernel_block_size=16)
    shown.select(0, 5, 1, 2)
    tab.reads.value = "BLNHC"
    assert tab.drawing.total_columns == 64 and tab.reader.writer.shape(0)[0] == 64
    send(tab, "click", axes=0, x=2, y=1)
    assert shown.state.coordinate.block == 8  # block 2 begins with kernel block 8


def test_it_costs_the_same_for_any_pool_and_draws_in_both_themes():
    for theme in ("light", "dark"):
        drawing = CompareFigure(theme)
        for blocks in (3, 2_000_000):
            plan = kv.make_plan(kv.Selection(model="Qwen/Qwen3-0.6B", layout="BHLNC", num_blocks=blocks))
            at = Coordinate(plan.address_map.layers[2], blocks - 1, 3, 5)
            drawing.update(compare_readers(plan, "LHBNC"), selected=at, first_column=blocks)
            assert drawing.shares.shape == (28, min(64, blocks))
            assert len(render_png(drawing.figure)) > 5000

def test_a_confirmation_that_fails_says_so_in_its_place_and_an_old_one_goes():
    shown, tab = opened(layout="LBNHC")
    shown.allocation.allocate.click()
    tab.confirm.click()
    assert "✓" in tab._said.value
    with shown.state.cache.exclusive():
        tab.confirm.click()
        assert "✗" in tab._said.value and "✓" not in tab._said.value
    tab.confirm.click()
    other = Explorer(model="llama-tiny", num_blocks=8)
    other.allocation.free_others.click()
    assert tab.confirm.disabled and tab._said.value == ""


@pytest.mark.parametrize("blocks", [1, 5, 12, 24, 40])
def test_numbers_in_pages_stand_apart_and_are_large_enough(blocks):
    _, tab = opened(model="llama-tiny", layout="LBNHC", num_blocks=blocks)
    numbers = tab.drawing._numbers[0].labels
    sizes = {one.size for one in numbers}
    assert bool(numbers) == (blocks <= 12) and all(size >= 6.5 for size in sizes)
    for one in numbers:  # pages are drawn 420 pixels wide
        assert text_width(one.text, one.size) <= 0.8 * (420) / blocks


@pytest.mark.parametrize("size", [2**22, 2**40])
def test_kernel_blocks_of_any_size_are_compared_in_bounded_time(size):
    class Long(PrototypeBackend):
        kernel_block_sizes = (size,)

    shown = Explorer(kv.Selection(model="Qwen/Qwen3-0.6B", num_blocks=1, block_size=size), backends=[Long])
    shown.state.try_change(backend="Long")
    started = time.process_time()
    shown.show("Compare")
    assert time.process_time() - started < 1
    tab = shown.tabs["Compare"]
    assert shown._status.value == "" and tab.drawing.cells.shape == (8, 64)
    assert shown.plan.kernel_block_sizes == (size,) and tab.reader.writer.shape(0)[2] == size
    # Heads and states swapped: the first and the last state of a page are where they were, all others elsewhere.
    assert tab.drawing.cells[0, 0] == 0 and tab.drawing.cells.sum() == 8 * 64 - 1
