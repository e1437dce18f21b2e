"""The Clinic's formula panel: what it draws and says is what compare_formula says, and nothing typed breaks it."""

import html
import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.capture.config_json import config_to_dict
from kvlayout.clinic import CLASSICS, NAMES, compare_formula, right_formula
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout_widgets import Explorer
from kvlayout_widgets.figures.common import Coordinate, render_png
from kvlayout_widgets.figures.divergence import MOST_COLUMNS, DivergenceFigure, divergence_figure
from tests.figure_reading import check_labels

NUMBERS = itertools.count(1)
QWEN = {"model": "Qwen/Qwen3-0.6B", "num_blocks": 64, "layout": "LBNHC"}


def opened(**choices):
    shown = Explorer(**(QWEN | choices))
    shown.show("Clinic")
    shown.tabs["Clinic"].show("Formula")
    return shown, shown.tabs["Clinic"].panels["Formula"]


def words(widget) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", widget.value)).split())


def send(panel, name, **values):
    panel.picture.set_state({name: {**values, "n": next(NUMBERS)}})


def mla_50276() -> dict:
    spec = kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=584, dtype="uint8", page_size_padded=37_440)
    groups = [kv.KVCacheGroupSpec([f"layers.{i}.attn" for i in range(4)], spec)]
    config = get_kv_cache_config_from_groups(groups, 0, kv.KVCacheLayout.BLNHC, num_gpu_blocks_override=100)
    return {"model": {"kvlayout": 1, "kv_cache_config": config_to_dict(config)}, "num_blocks": None, "layout": None}


def test_empty_says_what_to_type_and_lists_the_names():
    shown, panel = opened()
    assert "Type the byte offset" in words(panel.text) and panel._picture_box.layout.display == "none"
    assert panel.drawing is None and panel.select.disabled and panel.complaint.value == ""
    assert all(name in words(panel.names) for name in NAMES)
    assert right_formula(shown.plan.address_map) in words(panel.names)
    assert "block_stride bytes 65,536" in words(panel.names)
    shown.choose(layout="BLNHC")
    assert "block_stride bytes 1,835,008" in words(panel.names)


def test_a_classic_fills_the_fields_and_typing_makes_it_my_own():
    shown, panel = opened()
    panel.classic.value = "nhd-as-hnd"
    assert panel.formula.value == CLASSICS["nhd-as-hnd"].formula and panel.length.value == ""
    assert "98.4% of all coordinates diverge, estimated from the 903,168 that were checked" in words(panel.text)
    assert "it lies at 4,096, the formula gives 512" in words(panel.text)
    assert "NHD read as HND" in panel.drawing.headline and "vllm#42740" in words(panel.says)
    panel.classic.value = "block-stride-length"
    assert panel.length.value == "block_stride" and "✓ Right at all" in words(panel.text)
    panel.formula.value += " + 1"
    assert panel.classic.value == panel.says.value == "" and "✗ 100%" in words(panel.text)
    panel.classic.value = "right"
    assert panel.length.value == "" and "✓ Right" in words(panel.text)
    shown.choose(model="deepseek-ai/DeepSeek-V3.2-Exp", layout=None)
    assert panel.formula.value == right_formula(shown.plan.address_map) and "✓ Right" in words(panel.text)


def test_the_map_and_the_cells_are_the_librarys():
    shown, panel = opened()
    panel.classic.value = "nhd-as-hnd"
    found = compare_formula(panel.formula.value, shown.plan.address_map)
    np.testing.assert_array_equal(panel.drawing.pages.filled(-1), np.where(np.isnan(found.map), -1, found.map))
    np.testing.assert_array_equal(panel.drawing.cells, found.cells)
    assert panel.drawing.cells[0, 0] == panel.drawing.cells[7, 15] == 0 and panel.drawing.cells.sum() == 126
    assert "18 checked of 64" in panel.drawing.rulers[0][1].title
    check_labels(panel.drawing.figure)
    assert "98.4 %" in panel.drawing.alt_text()


def test_clicks_select_a_page_then_a_cell():
    shown, panel = opened()
    panel.classic.value = "nhd-as-hnd"
    send(panel, "click", axes=0, x=17, y=4)
    at = shown.state.coordinate
    assert (at.layer, at.block) == (shown.plan.address_map.layers[4], 63) and panel.cells_of.value == "selected"
    send(panel, "click", axes=1, x=1, y=0)
    at = shown.state.coordinate
    assert (at.block, at.head, at.state) == (63, 0, 1)
    page = 4 * 4_194_304 + 63 * 65_536
    assert f"lies at {page + 4_096:,}, the formula gives {page + 512:,}" in panel.drawing.footer
    assert "Selected page, layer 4 · block 63: 98.4% of the 32,768" in words(panel.text)
    send(panel, "hover", axes=1, x=15, y=7)
    assert "0 % diverges" in panel.picture.readout and "and so says the formula" in panel.picture.readout
    send(panel, "hover", axes=0, x=0, y=0)
    assert "98.4 % diverges" in panel.picture.readout
    panel.select.click()
    assert tuple(vars(shown.state.coordinate).values()) == (shown.plan.address_map.layers[0], 0, 0, 1, 0)


def test_vllm_50276_as_a_stranger_would():
    shown, panel = opened(**mla_50276())
    panel.classic.value = "block-stride-length"
    shown.select("layers.3.attn", 99)
    page = words(panel.text).split("Selected page")[1]
    assert "it begins at 14,938,560, as it must" in page and "112,320 bytes that it touches lie outside" in page
    shown.select("layers.3.attn", 98, 0, 5, 7)
    assert "block 98 · head slot 0 · state 0 · element 0:   lies at 14,788,800, there the formula begins" in (
        panel.drawing.footer)
    panel.cells_of.value = "selected"
    assert panel.page.outside == 0 and {hit.layer for hit in panel.page.victims} == {
        "layers.0.attn", "layers.1.attn", "layers.2.attn", None}
    assert "whole" not in panel.drawing.headline and "(all 64 at once)" in panel.drawing.rulers[1][1].title
    panel.length.value = "page_bytes"
    assert "✓ Right at all 400 coordinates" in words(panel.text)


def test_vllm_54465_lands_in_padding():
    _, panel = opened(**mla_50276())
    panel.formula.value = "layer_offset + slot * 584 + element"
    assert "padding of layers.0.attn, block 0" in words(panel.text)
    assert "nobody's" in words(panel.text) and "padding behind layers.0.attn, block 0" in words(panel.text)


@pytest.mark.parametrize("formula", ["block * strde", "block.x", "1 / 2", "block // 0", "1 << 62", "(" * 500, "2**9",
                                     "<script>alert(1)</script>", "9" * 3000, "lambda: 0", "\0", "é"])
@pytest.mark.parametrize("field", ["formula", "length"])
def test_what_is_no_formula_is_refused_below_it(field, formula):
    shown, panel = opened()
    panel.classic.value = "flat-slot"
    getattr(panel, field).value = formula
    assert "✗" in panel.complaint.value and field in panel.complaint.value
    assert panel.text.value == "" and panel._picture_box.layout.display == "none" and panel.drawing is None
    assert "<script" not in panel.complaint.value and "kvl-status-bad" not in shown._status.value
    panel.classic.value = "int32-bytes"
    assert panel.complaint.value == "" and panel._picture_box.layout.display is None and panel.drawing is not None


SHOWN = opened(model="gemma3-hybrid-tiny", num_blocks=5, layout=None)


@given(text=st.text(max_size=80) | st.lists(st.sampled_from([
    *NAMES, "+", "*", "//", "(", ")", "1", "4096", "<", "if", "else", "int32"]), max_size=12).map(" ".join))
@settings(max_examples=40, deadline=None)
def test_any_text_is_answered_or_refused(text):
    shown, panel = SHOWN
    panel.formula.value = text
    assert "kvl-status-bad" not in shown._status.value
    assert bool(panel.complaint.value) + bool(panel.text.value) == 1


@pytest.mark.parametrize("choices", [
    *({"model": model, "num_blocks": 40, "layout": None} for model in kv.presets()),
    {"model": "gemma3-hybrid-tiny", "num_blocks": 5, "layout": "BHLNC"}, {"block_size": 64, "kernel_block_size": 16},
    {"num_blocks": 3_000_000, "layout": "BLNHC"}, {"model": "llama-tiny", "num_blocks": 0}], ids=str)
def test_every_kind_of_cache(choices):
    shown, panel = opened(**choices)
    for slug in ("right", "kv-split-in-block", "block-stride-length", "kernel-id-manager-stride"):
        panel.classic.value = slug
        assert panel.complaint.value == "" and "kvl-status-bad" not in shown._status.value
        if panel.drawing is not None:
            check_labels(panel.drawing.figure)
            assert panel.found.is_right or slug != "right"
    assert (panel.drawing is None) == (choices.get("num_blocks") == 0)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_many_checked_blocks_share_columns(theme):
    address_map = kv.make_plan(kv.Selection(layout="BLNHC", num_blocks=100_000)).address_map
    page = "layer_offset + block * block_stride"
    found = compare_formula(page, address_map, length="block_stride if block == 99999 else 16")
    assert len(found.blocks) > MOST_COLUMNS
    drawing = DivergenceFigure(theme)
    drawing.update(found, address_map, selected=Coordinate(address_map.layers[3], 99_999))
    rows, columns = drawing.pages.shape
    assert columns <= MOST_COLUMNS and f"{drawing.blocks_a_column} a column" in drawing.rulers[0][1].title
    assert (drawing.pages[:, -1] == 1).all() and (drawing.pages[:, :-1] == 0).all()
    assert drawing.coordinate_at(columns - 1, 3) == Coordinate(address_map.layers[3], 99_999)
    assert drawing.share_at(Coordinate(address_map.layers[3], 99_999), 0) == 1
    assert drawing.coordinate_at(columns, 3) is None and drawing.coordinate_at(0, 0, 1) is None
    check_labels(drawing.figure)
    assert len(render_png(drawing.figure)) > 5000


def test_the_window_of_cells_holds_the_first_that_diverges():
    spec = kv.FullAttentionSpec(block_size=512, num_kv_heads=2, head_size=8, dtype="int8")
    groups = [kv.KVCacheGroupSpec(["a"], spec)]
    address_map = kv.AddressMap(get_kv_cache_config_from_groups(groups, 0, kv.KVCacheLayout.LBNHC,
                                                                num_gpu_blocks_override=2))
    found = compare_formula(f"{right_formula(address_map)} + (token == 300)", address_map)
    figure = divergence_figure(found, address_map, selected=Coordinate("a", 0, 0, 300))
    check_labels(figure)
    drawing = DivergenceFigure()
    drawing.update(found, address_map, page=("a", 0), cells=found.cells)
    row, column = drawing.first_cell
    assert row == 0 and column <= 300 < column + drawing.cells.shape[1] and drawing.cells[0, 300 - column] == 1
    assert drawing.coordinate_at(300, 1, 1) == Coordinate("a", 0, 1, 300)


def test_choosing_again_clears_what_was_said_before():
    shown, panel = opened()
    shown.act(lambda: 1 / 0)
    assert "ZeroDivisionError" in words(shown._status)
    assert shown.choose(num_blocks=32) and words(shown._status) == ""
    shown.act(lambda: 1 / 0)
    assert not shown.choose(num_blocks=-1) and "num_blocks" in words(shown._status)


def test_an_enormous_pool_is_drawn():
    shown, panel = opened(num_blocks=10**10)
    panel.classic.value = "int32-bytes"
    assert panel.drawing is not None and "kvl-status-bad" not in shown._status.value
    assert "estimated" in words(panel.text) and "bytes hit by the sample" in words(panel.text)
    check_labels(panel.drawing.figure)


def test_kernel_blocks_are_called_so_and_no_length_isnt_right():
    shown, panel = opened(block_size=64, kernel_block_size=16)
    panel.classic.value = "manager-id-kernel-stride"
    assert "kernel block 1 (manager block 0, part 2 of 4)" in words(panel.text)
    panel.formula.value, panel.length.value = "layer_offset + block * block_stride", "0"
    assert "The length is 0 at all" in words(panel.text) and "✓ Right" not in words(panel.text)
