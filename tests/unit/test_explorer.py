"""The explorer as a whole, driven by its traits: choices, selection, real memory, errors, files."""

import csv
import io
import itertools
import json
import logging

import pytest
from PIL import Image

from kvlayout import KVCacheLayout, LayoutError, Selection, make_plan
from kvlayout_widgets import Explorer

NUMBERS = itertools.count(1)
LAYER = "model.layers.0.self_attn.attn"


def explorer(**choices):
    return Explorer(**({"model": "llama-tiny", "num_blocks": 8} | choices))


def choose(shown, argument, value, part=0):
    shown.controls.by_argument[argument].parts[part].value = value


def tab_picture(shown):
    return shown.visible.picture


def event(shown, name, **values):
    tab_picture(shown).set_state({name: {**values, "n": next(NUMBERS)}})


def test_it_opens_on_a_real_models_offsets():
    shown = Explorer()
    assert shown.selection == Selection(num_blocks=64)
    assert shown.visible.title == "Offsets"
    assert Image.open(io.BytesIO(tab_picture(shown).png)).size == (960, 460)
    assert "LBNHC" in shown._header.value.replace("</span>", "") or 'aria-label="LBNHC"' in shown._header.value
    assert "1,835,008 B (1.75 MiB)" in shown._header.value
    assert "117,440,512 B (112 MiB) in 64 blocks" in shown._header.value
    assert "64 KiB" in shown._header.value
    assert "free" in shown._header.value
    assert shown._status.value == ""


def test_arguments_by_name_by_selection_and_by_json_are_the_same():
    selection = Selection(model="llama-tiny", layout="BLNHC", num_blocks=5)
    by_name = Explorer(model="llama-tiny", layout="BLNHC", num_blocks=5)
    by_json = Explorer.from_json(by_name.to_json())
    assert by_name.selection == Explorer(selection).selection == by_json.selection == selection
    assert Explorer(selection, num_blocks=6).selection.num_blocks == 6


def test_what_can_not_be_planned_is_refused_at_once():
    with pytest.raises(LayoutError, match="tp_size"):
        explorer(tp_size=3)
    with pytest.raises(LayoutError, match="colour"):
        explorer(colour="red")


def test_changing_the_layout_changes_plan_header_and_picture():
    shown = explorer()
    before = tab_picture(shown).png
    choose(shown, "layout", "BLNHC")
    assert shown.plan.layout is KVCacheLayout.BLNHC
    assert 'aria-label="BLNHC"' in shown._header.value
    assert tab_picture(shown).png != before
    assert "BLNHC" in tab_picture(shown).alt


@pytest.mark.parametrize(("argument", "value"), [("tp_size", 3), ("block_size", "x"), ("requested", "BLNHC")])
def test_a_wrong_choice_keeps_the_last_picture_and_says_why_twice(argument, value):
    shown = explorer(backend="FLASHINFER", machine={"platform": "cuda", "cuda_major": 10})
    plan, png = shown.plan, tab_picture(shown).png
    choose(shown, argument, value)
    assert shown.plan is plan
    assert tab_picture(shown).png == png
    reason = shown.controls.by_argument[argument].refusal
    assert reason
    assert "all tabs still show the last ones" in shown._status.value
    assert "kvl-status-bad" in shown._status.value
    assert shown.choose(tp_size=1, requested=None, block_size=None) or argument == "block_size"
    if argument == "block_size":
        choose(shown, argument, "auto")
    assert shown._status.value == ""


def test_a_click_selects_a_page_and_says_its_exact_offset():
    shown = explorer(layout="BLNHC")
    event(shown, "click", axes=0, x=5.2, y=0.9)
    at = shown.state.coordinate
    assert (shown.plan.address_map.layer_index(at.layer), at.block) == (1, 5)
    offset = shown.plan.address_map.offset(at.layer, 5)
    assert f"{offset:,} B = {offset:#x}" in shown.selection_bar.readout.value
    assert f"{offset:,} B" in tab_picture(shown).alt
    assert [slider.value for slider in shown.selection_bar.axes.values()] == [1, 5, 0, 0, 0]


def test_clicks_beside_the_map_change_nothing():
    shown = explorer()
    before = shown.state.coordinate
    event(shown, "click", axes=1, x=0.0, y=0.0)
    event(shown, "click", axes=0, x=-7.0, y=0.0)
    assert shown.state.coordinate == before


def test_hovering_says_owner_and_address_without_a_redraw():
    shown = explorer()
    png = tab_picture(shown).png
    event(shown, "hover", axes=0, x=3.0, y=1.0)
    offset = shown.plan.address_map.offset(1, 3)
    assert tab_picture(shown).readout == (
        f"layer 1 · block 3 · head slot 0 · state 0 · byte 0\noffset {offset:,} B = {offset:#x}\nK, element 0")
    event(shown, "hover", axes=1, x=3.0, y=1.0)
    assert tab_picture(shown).readout == ""
    tab_picture(shown).set_state({"hover": None})
    assert tab_picture(shown).png == png


@pytest.mark.parametrize("written", ["{:,}", "{}", "{:#x}", " {:#X} "])
def test_an_address_leads_to_its_owner(written):
    shown = explorer(layout="BLHNC")
    offset = shown.plan.address_map.offset(LAYER, 3, 1, 2, 5)
    shown.selection_bar.address.value = written.format(offset)
    at = shown.state.coordinate
    assert (at.layer, at.block, at.head, at.state, at.byte) == (LAYER, 3, 1, 2, 5)
    assert shown.selection_bar.note.value == ""


def test_an_address_that_is_wrong_says_why_and_the_selection_stays():
    shown = explorer()
    before = shown.state.coordinate
    for text, fact in (("here", "is not an address"), ("-1", "at least 0"), ("999,999,999,999", "past the end")):
        shown.selection_bar.address.value = text
        assert fact in shown.selection_bar.note.value
        assert shown.state.coordinate == before
    shown.select(LAYER, 1)
    assert shown.selection_bar.note.value == ""


def test_an_address_that_nobody_owns_is_named():
    shown = Explorer(model="Qwen/Qwen3-Next-80B-A3B-Instruct", num_blocks=4)
    address_map = shown.plan.address_map
    group = next(g for g, owned in enumerate(address_map.config.kv_cache_groups))
    region = next(r for r in address_map.regions if r.page_size_bytes > r.spec.unpadded_page_size_bytes)
    free = region.geometry.offset + region.spec.unpadded_page_size_bytes
    owners = address_map.owners(free)
    shown.selection_bar.address.value = str(free)
    if owners:
        assert shown.state.coordinate.offset(address_map) == free
    else:
        assert "padding" in shown.selection_bar.note.value
    assert group == 0


def test_sliders_move_the_selection():
    shown = explorer()
    shown.selection_bar.axes["B"].slider.value = 6
    shown.selection_bar.axes["N"].text.value = 3
    assert (shown.state.coordinate.block, shown.state.coordinate.state) == (6, 3)
    assert shown.selection_bar.axes["B"].text.value == 6
    assert shown.selection_bar.axes["N"].slider.value == 3


def test_a_selection_that_a_new_plan_lacks_moves_to_the_nearest():
    shown = explorer()
    shown.select(1, 7, 1, 3, 4)
    shown.choose(num_blocks=4)
    assert (shown.state.coordinate.block, shown.state.coordinate.state) == (3, 3)
    shown.choose(num_blocks=0)
    assert shown.state.coordinate is None
    assert "no bytes" in shown.selection_bar.readout.value
    for title in shown.tabs:
        shown.show(title)
        assert shown._status.value == "", title
    shown.choose(num_blocks=4)
    assert shown.state.coordinate is not None


def test_allocate_shows_the_cache_and_free_gives_it_back():
    shown = explorer()
    assert shown.allocation.free.disabled
    shown.allocation.allocate.click()
    cache = shown.state.cache
    assert cache.nbytes == shown.plan.config.size_bytes
    assert f"{cache.nbytes:,} bytes on cpu" in shown.allocation.text.value
    assert not shown.allocation.free.disabled
    shown.allocation.free.click()
    assert cache.buffer is None
    assert shown.state.cache is None
    assert "Freed" in shown.allocation.proof.value
    assert shown.allocation.free.disabled


def test_a_write_through_the_view_is_read_at_the_offset_shown():
    shown = explorer(layout="BHLNC")
    shown.allocation.allocate.click()
    shown.select(1, 3, 1, 5, 3)
    shown.allocation.poke.click()
    start = shown.plan.address_map.offset(1, 3, 1, 5, 2)
    assert f"{start:,} B" in shown.allocation.proof.value
    touched = shown.state.cache.buffer.nonzero().flatten().tolist()
    assert touched == [start, start + 1]
    shown.allocation.poke.click()
    assert "Wrote" in shown.allocation.proof.value


def test_a_write_that_can_not_be_is_refused_beside_the_button():
    shown = explorer(device="meta")
    shown.allocation.allocate.click()
    shown.allocation.poke.click()
    assert "has no bytes on meta" in shown.allocation.proof.value


def test_another_plan_than_the_allocated_one_is_said_and_replaced():
    shown = explorer()
    shown.allocation.allocate.click()
    first = shown.state.cache
    choose(shown, "device", "meta")
    assert "another plan" not in shown.allocation.text.value
    choose(shown, "device", "cpu")
    choose(shown, "layout", "BLNHC")
    assert "another plan" in shown.allocation.text.value
    assert "LBNHC" in shown.allocation.text.value
    shown.allocation.allocate.click()
    assert first.buffer is None
    assert shown.state.cache.layout is KVCacheLayout.BLNHC
    assert "another plan" not in shown.allocation.text.value
    shown.allocation.free.click()


def test_what_an_explorer_left_behind_is_seen_and_can_be_freed():
    old = explorer()
    old.state.free_others()
    old.allocation.allocate.click()
    new = explorer()
    assert "Other explorers of this kernel hold 128 KiB" in new.allocation.text.value
    assert new.allocation.free_others.layout.display is None
    new.allocation.free_others.click()
    assert old.state.cache is None
    assert "Nothing is allocated" in old.allocation.text.value
    assert "Other explorers" not in new.allocation.text.value
    assert new.allocation.free_others.layout.display == "none"


def test_too_large_a_pool_is_refused_beside_the_button():
    shown = explorer(num_blocks=None, available_memory=1 << 50)
    shown.allocation.allocate.click()
    assert shown.state.cache is None
    assert "GiB" in shown.allocation.proof.value
    assert "✗" in shown.allocation.proof.value


def test_no_error_leaves_a_callback(monkeypatch, caplog):
    shown = explorer()
    shown.widget.log.propagate = True

    def fail(*args):
        raise ZeroDivisionError("nobody expected <this>")
    monkeypatch.setattr(shown.state, "select", fail)
    with caplog.at_level(logging.ERROR):
        shown.selection_bar.axes["B"].slider.value = 2
    assert "ZeroDivisionError: nobody expected &lt;this&gt;" in shown._status.value
    monkeypatch.undo()
    shown.selection_bar.axes["B"].slider.value = 3
    assert shown._status.value == ""


def test_no_error_leaves_a_redraw(monkeypatch):
    shown = explorer()
    png = tab_picture(shown).png

    def fail(theme):
        raise MemoryError("no room")
    monkeypatch.setattr(shown.visible, "draw", fail)
    choose(shown, "layout", "BLNHC")
    assert "MemoryError: no room" in shown._status.value
    assert tab_picture(shown).png == png
    monkeypatch.undo()
    shown.refresh()
    assert tab_picture(shown).png != png


def test_only_the_visible_tab_is_drawn():
    shown = explorer()
    drawn = []
    for tab in shown.tabs.values():
        tab.draw = lambda theme, title=tab.title: drawn.append(title)
    shown.choose(layout="BLNHC")
    assert drawn == ["Offsets"]
    shown.show("Page")
    shown.show("Offsets")
    assert drawn == ["Offsets", "Page"]
    with pytest.raises(LayoutError, match="Offsets, Page"):
        shown.show("Nothing")


def test_pictures_follow_jupyterlabs_theme_unless_told():
    following, fixed = explorer(), explorer(theme="light")
    for shown in (following, fixed):
        tab_picture(shown).is_dark = True
    assert following.visible.drawing.theme.name == "dark"
    assert fixed.visible.drawing.theme.name == "light"
    with pytest.raises(LayoutError, match="theme"):
        explorer(theme="pink")


def test_files_of_what_is_shown():
    shown = explorer(layout="BLHNC")
    sent = {}
    shown.exports.carrier.download = lambda name, data, mime: sent.update({name: data})
    for button in shown.exports.buttons.values():
        button.click()
    assert sorted(sent) == ["llama-tiny-BLHNC-offsets.csv", "llama-tiny-BLHNC-offsets.png",
                            "llama-tiny-BLHNC-offsets.svg", "llama-tiny-BLHNC.json"]
    assert Image.open(io.BytesIO(sent["llama-tiny-BLHNC-offsets.png"])).size == (1920, 920)
    assert b"<svg" in sent["llama-tiny-BLHNC-offsets.svg"]
    assert Selection.from_json(sent["llama-tiny-BLHNC.json"]) == shown.selection
    lines = list(csv.DictReader(io.StringIO(sent["llama-tiny-BLHNC-offsets.csv"].decode())))
    address_map = shown.plan.address_map
    assert len(lines) == len(address_map.layers) * 8
    for line in lines:
        assert int(line["offset_bytes"]) == address_map.offset(line["layer"], int(line["block"]))


def test_a_tab_without_a_picture_says_so_when_asked_to_save_one():
    shown = explorer()
    shown.show("Code")
    shown.exports.buttons["PNG"].click()
    assert "has no picture to save" in shown._status.value


def test_text_of_the_user_is_never_html():
    evil = "<img src=x onerror=alert(1)>"
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "hidden_size": 64, "torch_dtype": "bfloat16", "max_position_embeddings": 128, "_name_or_path": evil}
    shown = explorer(model=config)
    shown.allocation.allocate.click()
    shown.choose(layout="BLNHC")
    choose(shown, "block_size", evil)
    shown.selection_bar.address.value = evil
    for title in shown.tabs:
        shown.show(title)
    html = [shown._header.value, shown._status.value, shown.allocation.text.value, shown.selection_bar.note.value,
            shown.selection_bar.readout.value, shown.tabs["Code"].texts.value, shown.tabs["Resolver"].table.value,
            shown.tabs["Strides"].text.value, *(control.message.value for control in shown.controls.all)]
    assert not [text for text in html if "<img" in text]
    assert [text for text in html if "&lt;img" in text]
    shown.state.free()


class MyBackend:
    """A backend of the user's own."""

    @classmethod
    def supported_kv_cache_layouts(cls):
        return (KVCacheLayout.BLHNC,)


def test_a_backend_of_ones_own():
    shown = explorer(backends=[MyBackend])
    choose(shown, "backend", "MyBackend")
    assert shown.plan.layout is KVCacheLayout.BLHNC
    assert shown.plan.layout is make_plan(shown.selection, backends=[MyBackend]).layout
    shown.show("Code")
    assert "make_plan(selection, backends=[MyBackend])" in shown.tabs["Code"].texts.value


def test_without_a_kernel_the_still_picture_is_there():
    shown = explorer()
    data, _ = shown._repr_mimebundle_(include=None, exclude=None)
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == shown.widget.model_id
    assert data["image/png"]
    assert "Heatmap" in data["text/plain"]
    shown.show("Code")
    data, _ = shown._repr_mimebundle_()
    assert "image/png" not in data


def test_the_selection_of_a_wrong_choice_is_still_the_last_good_one():
    shown = explorer()
    shown.choose(tp_size=3)
    assert json.loads(shown.to_json())["model"] == "llama-tiny"
    assert "tp_size" not in json.loads(shown.to_json())
    shown.allocation.allocate.click()
    assert "doesn&#x27;t divide" in shown.allocation.proof.value
    assert shown.state.cache is None
