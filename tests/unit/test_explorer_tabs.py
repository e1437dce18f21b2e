"""Each tab by its traits: what it draws, how it is moved, what a point of it means."""

import itertools
import re

import numpy as np
import pytest

from kvlayout import KVCacheLayout
from kvlayout_widgets import Explorer
from kvlayout_widgets.memory_window import Window, window_of
from kvlayout_widgets.stride_table import stride_rows, worked_example
from kvlayout_widgets.tiny import tiny_map

NUMBERS = itertools.count(1)


def opened(title, **choices):
    shown = Explorer(**({"model": "llama-tiny", "num_blocks": 8} | choices))
    shown.show(title)
    return shown, shown.tabs[title]


def send(tab, name, **values):
    tab.picture.set_state({name: {**values, "n": next(NUMBERS)}})


class TestOffsets:
    def test_any_two_axes(self):
        shown, tab = opened("Offsets")
        tab.columns.value = "N"
        tab.rows.value = "H"
        at, address_map = shown.state.coordinate, shown.plan.address_map
        assert (tab.drawing.rows, tab.drawing.columns) == ("H", "N")
        assert tab.drawing.offsets[1, 3] == address_map.offset(at.layer, at.block, 1, 3)

    def test_choosing_the_other_ones_axis_swaps_them(self):
        _, tab = opened("Offsets")
        tab.rows.value = "B"
        assert (tab.rows.value, tab.columns.value) == ("B", "L")
        assert (tab.drawing.rows, tab.drawing.columns) == ("B", "L")

    def test_a_click_keeps_the_axes_that_are_not_drawn(self):
        shown, tab = opened("Offsets")
        shown.select(0, 0, 1, 2, 3)
        send(tab, "click", axes=0, x=4, y=1)
        at = shown.state.coordinate
        assert (at.block, at.head, at.state, at.byte) == (4, 1, 2, 3)

    @pytest.mark.parametrize(("key", "block", "layer"), [
        ("ArrowRight", 4, 1), ("ArrowLeft", 2, 1), ("ArrowUp", 3, 0), ("ArrowDown", 3, 2), ("Home", 0, 1),
        ("End", 7, 1), ("PageDown", 7, 1), ("PageUp", 0, 1), ("Escape", 3, 1)])
    def test_keys(self, key, block, layer):
        shown, tab = opened("Offsets")
        shown.select(1, 3)
        send(tab, "key", key=key, shift=False)
        at = shown.state.coordinate
        assert (at.block, shown.plan.address_map.layer_index(at.layer)) == (block, layer)

    def test_the_window_follows_a_selection_from_elsewhere_and_can_be_moved_away(self):
        shown, tab = opened("Offsets", num_blocks=1000)
        assert tab.first_column.widget.layout.display is None
        shown.select(0, 700)
        assert tab.drawing.first_column <= 700 < tab.drawing.first_column + tab.drawing.num_columns
        tab.first_column.slider.value = 100
        assert tab.drawing.first_column == 100
        assert shown.state.coordinate.block == 700
        send(tab, "click", axes=0, x=110, y=0)
        assert (tab.drawing.first_column, shown.state.coordinate.block) == (100, 110)
        shown.choose(num_blocks=8)
        assert tab.first_column.widget.layout.display == "none"


class TestPage:
    def test_a_click_selects_the_field_under_it(self):
        shown, tab = opened("Page")
        send(tab, "click", axes=0, x=2.4, y=1.0)
        at = shown.state.coordinate
        field, element = shown.plan.address_map.region(at.layer).interior.field_of(at.head, at.byte)
        assert (at.head, at.state, field, element) == (1, 2, "V", 0)

    def test_a_click_on_the_strip_selects_by_address(self):
        shown, tab = opened("Page")
        at = shown.state.coordinate
        start = shown.plan.address_map.offset(at.layer, at.block)
        send(tab, "click", axes=1, x=100.5, y=0.5)
        assert shown.state.coordinate.offset(shown.plan.address_map) == start + 100

    def test_the_legend_is_no_page(self):
        shown, tab = opened("Page")
        before = shown.state.coordinate
        send(tab, "click", axes=2, x=0.5, y=0.5)
        assert shown.state.coordinate == before

    def test_keys_go_to_the_next_state_head_and_block(self):
        shown, tab = opened("Page")
        shown.select(0, 3)
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "PageDown", "PageUp", "PageUp", "Home"):
            send(tab, "key", key=key, shift=False)
        at = shown.state.coordinate
        assert (at.block, at.head, at.state) == (2, 1, 1)

    def test_a_large_page_is_drawn_in_part_around_the_selection(self):
        shown, tab = opened("Page", block_size=256)
        shown.select(0, 0, 0, 200)
        assert tab.drawing.first_state <= 200 < tab.drawing.first_state + tab.drawing.num_states < 256 + 1
        assert tab.first_state.widget.layout.display is None


class TestMemory:
    def test_it_opens_on_the_whole_pool(self):
        shown, tab = opened("Memory")
        assert (tab.window.start, tab.window.length) == (0, shown.plan.config.size_bytes)
        assert tab.start.value == "0x0"
        assert tab.length.value == f"{shown.plan.config.size_bytes:,} B"

    @pytest.mark.parametrize("layout", list(KVCacheLayout.__members__))
    def test_the_zoom_buttons_are_in_physical_order_and_each_is_inside_the_one_before(self, layout):
        shown, tab = opened("Memory", layout=layout)
        shown.select(1, 5, 1, 3, 7)
        shown.show("Memory")
        buttons = [button for button in tab._buttons.children if button in tab.zooms.values()]
        assert "".join(button.description[0] for button in buttons) == layout
        offset, outer = shown.state.coordinate.offset(shown.plan.address_map), range(shown.plan.config.size_bytes)
        for button in buttons:
            button.click()
            window = range(tab.window.start, tab.window.start + tab.window.length)
            assert offset in window
            assert window.start in outer
            assert window[-1] in outer
            assert (tab.drawing.start, tab.drawing.length) == (window.start, len(window))
            outer = window
        assert len(outer) == shown.plan.address_map.shape(1)[3]
        tab.whole.click()
        assert tab.window.length == shown.plan.config.size_bytes

    def test_a_click_selects_the_byte_and_hovering_says_whose_it_is(self):
        shown, tab = opened("Memory")
        tab.length.value = "64 KiB"
        x, y = 300.5, 0.5
        offset = tab.drawing.offset_at(x, y)
        send(tab, "hover", axes=0, x=x, y=y)
        assert tab.picture.readout.startswith(f"{offset:,} B = {offset:#x}\n")
        send(tab, "click", axes=0, x=x, y=y)
        assert shown.state.coordinate.offset(shown.plan.address_map) == offset

    def test_dragging_zooms_to_the_bytes_in_between(self):
        _, tab = opened("Memory")
        ends = [tab.drawing.offset_at(x, 0.5) for x in (2000.0, 100.0)]
        send(tab, "drag", axes=0, x0=2000.0, y0=0.5, x1=100.0, y1=0.5)
        assert (tab.window.start, tab.window.length) == (ends[1], ends[0] - ends[1] + 1)

    def test_wheel_and_keys(self):
        shown, tab = opened("Memory")
        whole = tab.window.length
        at = tab.drawing.offset_at(500.0, 1.5)
        send(tab, "wheel", axes=0, x=500.0, y=1.5, delta=-1)
        assert tab.window.length == round(whole / 1.6)
        assert tab.window.start <= at < tab.window.start + tab.window.length
        send(tab, "wheel", axes=0, x=1.0, y=0.5, delta=1)
        send(tab, "key", key="+", shift=False)
        assert abs(tab.window.length - whole / 2) <= 2
        start = tab.window.start
        send(tab, "key", key="ArrowRight", shift=False)
        assert tab.window.start > start
        send(tab, "key", key="ArrowLeft", shift=False)
        assert abs(tab.window.start - start) <= 1
        send(tab, "key", key="Escape", shift=False)
        assert tab.window == Window.whole(shown.plan.config.size_bytes)

    def test_text_boxes_and_fold(self):
        _, tab = opened("Memory")
        tab.start.value = "0x1000"
        tab.length.value = "32 KiB"
        tab.fold.value = "4,096"
        assert (tab.drawing.start, tab.drawing.length) == (0x1000, 32 * 1024)
        assert "4,096 B" in tab.drawing.alt_text()
        png = tab.picture.png
        tab.length.value = "much"
        assert "is not a size" in tab._complaint.value
        assert tab.length.value == "much"
        assert tab.picture.png == png
        tab.length.value = "16 KiB"
        assert tab._complaint.value == ""
        assert tab.drawing.length == 16 * 1024

    def test_the_tiny_example_spells_the_layout_and_leaves_the_selection(self):
        shown, tab = opened("Memory", layout="BLNHC")
        before = shown.state.coordinate
        tab.tiny.value = True
        assert tab.drawing.mode == "tiny"
        assert "B · L · N · H · C" in tab.drawing.alt_text()
        assert tab.window.length == tiny_map(KVCacheLayout.BLNHC).size_bytes == 48
        axes = tab.picture.axes[0]
        points = itertools.product(np.linspace(*axes["xlim"], 200), np.linspace(*axes["ylim"], 40))
        x, y = next((x, y) for x, y in points if tab.drawing.offset_at(x, y) == 26)
        send(tab, "hover", axes=0, x=x, y=y)
        assert tab.picture.readout == "26 B = 0x1a\nlayer 0 · block 1 · head slot 1 · state 0 · byte 0 · K, element 0"
        send(tab, "click", axes=0, x=x, y=y)
        assert shown.state.coordinate == before
        tab.tiny.value = False
        assert tab.window.length == shown.plan.config.size_bytes

    def test_groups_that_overlay_each_other_can_be_chosen(self):
        shown, tab = opened("Memory", model="gemma3-hybrid-tiny")
        groups = len(shown.plan.groups)
        assert groups > 1
        assert len(tab.group.options) == groups
        for group in range(groups):
            tab.group.value = group
            assert tab.drawing.group == group
        layer = shown.plan.groups[0].layer_names[0]
        shown.select(layer, 1)
        assert tab.group.value == 0
        shown.choose(model="llama-tiny")
        assert tab.group.layout.display == "none"


class TestWindow:
    def test_a_window_stays_inside_the_allocation(self):
        for start, length in ((-5, 10), (95, 10), (0, 1000), (50, 0), (1000, 1)):
            window = Window.of(start, length, 100)
            assert 0 <= window.start <= window.start + window.length <= 100
            assert window.length >= 1

    def test_zooming_in_and_out_keeps_the_byte_in_the_window(self):
        window = Window.whole(10_000)
        for _ in range(30):
            window = window.zoomed(1234, 0.5)
            assert window.start <= 1234 < window.start + window.length
        assert window.length == 16
        for _ in range(30):
            window = window.zoomed(1234, 2)
        assert window == Window.whole(10_000)

    def test_the_window_of_a_block_is_all_that_lies_in_it(self):
        shown = Explorer(layout="BLNHC")
        window = window_of(shown.plan.address_map, shown.state.coordinate, "B")
        assert (window.start, window.length) == (37 * 1_835_008, 1_835_008)


class TestResolver:
    def test_every_step_is_in_the_table(self):
        shown, tab = opened("Resolver", requested="BLHNC")
        for step in shown.plan.resolution.steps:
            assert f"<code>{step.rule}</code>" in tab.table.value
        assert tab.table.value.count("<tr>") == len(shown.plan.resolution.steps) + 1

    def test_a_failed_resolution_shows_the_steps_until_then(self):
        shown, tab = opened("Resolver", backend="FLASHINFER", machine={"platform": "cuda", "cuda_major": 10})
        good = tab.table.value
        shown.choose(requested="BLNHC")
        assert shown.state.problem is not None
        assert tab.table.value != good
        assert "none left" in tab.table.value
        assert tab.steps == shown.state.problem.steps
        shown.choose(requested=None)
        assert tab.table.value == good


class TestStrides:
    @pytest.mark.parametrize("choices", [
        {}, {"layout": "BLNHC"}, {"layout": "LHBNC"}, {"layout": "BHLNC"}, {"model": "gemma3-hybrid-tiny"},
        {"model": "Qwen/Qwen3-Next-80B-A3B-Instruct"},
        {"model": "deepseek-ai/DeepSeek-V3.2-Exp", "kv_cache_dtype": "fp8_ds_mla"},
        {"kv_cache_dtype": "int8_per_token_head", "backend": "TRITON_ATTN"}], ids=str)
    def test_the_sum_is_the_offset_and_the_table_the_strides(self, choices):
        shown, tab = opened("Strides", **choices)
        at, address_map = shown.state.coordinate, shown.plan.address_map
        rows = stride_rows(address_map, at.layer)
        assert "".join(row.axis for row in rows) == shown.plan.layout.name
        assert {row.axis: row.stride_bytes for row in rows if row.axis != "L"} == dict(
            zip("BHNC", address_map.strides(at.layer)))
        first, *others, last = worked_example(address_map, at)
        terms = [int(re.search(r"[\d,]{1,}", line.lstrip("+ "))[0].replace(",", "")) for line in (first, *others)]
        assert sum(terms) == at.offset(address_map)
        assert f"{at.offset(address_map):,}" in last
        for row in rows:
            assert f"{row.stride_bytes:,} B" in tab.text.value
