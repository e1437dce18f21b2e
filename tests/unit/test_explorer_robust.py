"""What a reviewer broke, each as a test of its kind: events on every tab, absent devices, absurd sizes, deep JSON."""

import pytest

from kvlayout import LayoutError, Selection, make_plan
from kvlayout_widgets import Explorer
from kvlayout_widgets.tabs.base import PictureTab

EVENTS = {"hover": {"x": 1.0, "y": 1.0, "axes": 0, "n": 1}, "click": {"x": 1.0, "y": 1.0, "axes": 0, "n": 1},
          "wheel": {"x": 1.0, "y": 1.0, "axes": 0, "delta": 1, "n": 1},
          "drag": {"x0": 0.0, "y0": 0.0, "x1": 1.0, "y1": 1.0, "axes": 0, "n": 1},
          "key": {"key": "ArrowRight", "shift": False, "n": 1}}


@pytest.mark.parametrize("title", ["Offsets", "Page", "Memory", "Resolver", "Strides"])
@pytest.mark.parametrize("event", EVENTS)
def test_no_event_fails_on_any_tab(title, event):
    explorer = Explorer(model="llama-tiny", num_blocks=8)
    explorer.show(title)
    assert isinstance(explorer.visible, PictureTab)
    explorer.visible.picture.set_state({event: EVENTS[event]})
    assert explorer._status.value == ""


def test_a_selection_of_a_machine_with_a_gpu_is_shown_here():
    explorer = Explorer(model="llama-tiny", num_blocks=8, device="cuda:99")
    assert "is not on this machine" in explorer._header.value
    assert explorer.visible.picture.png
    explorer.allocation.allocate.click()
    assert "cuda:99" in explorer.allocation.proof.value


def test_sizes_beyond_63_bits_are_refused_and_said():
    with pytest.raises(LayoutError, match="63 bits"):
        make_plan(Selection(model="llama-tiny", num_blocks=2**50))
    explorer = Explorer(model="llama-tiny", num_blocks=8)
    assert not explorer.choose(num_blocks=2**50)
    assert explorer.controls.by_argument["num_blocks"].refusal
    assert explorer.plan.config.num_blocks == 8


@pytest.mark.parametrize("text", ['{"a":' * 5000 + "1" + "}" * 5000, None, 5])
def test_json_that_cannot_be_read_is_one_error(text):
    with pytest.raises(LayoutError):
        Selection.from_json(text)


def test_there_is_nothing_to_write_where_nothing_is_selected():
    explorer = Explorer(model="llama-tiny", num_blocks=8)
    explorer.allocation.allocate.click()
    assert not explorer.allocation.poke.disabled
    explorer.choose(num_blocks=0)
    assert explorer.state.coordinate is None
    assert explorer.allocation.poke.disabled
    explorer.state.free()


@pytest.mark.parametrize("model, pp_size", [("gemma3-hybrid-tiny", 4)])
def test_the_code_of_a_stage_without_some_groups_layers(model, pp_size):
    explorer = Explorer(model=model, pp_size=pp_size, pp_rank=pp_size - 1, num_blocks=8)
    assert any(not group.layer_names for group in explorer.plan.groups)
    explorer.show("Code")
    assert explorer._status.value == ""
    assert "KVCacheGroupSpec([], " in explorer.visible.texts.value


@pytest.mark.parametrize("choices", [
    {"num_blocks": 2**50}, {"layout": "HBLNC", "backend": "nobody"},
    {"model": {"kvlayout": 1, "kv_cache_config": {"num_blocks": 4}}}], ids=["blocks", "backend", "capture"])
def test_above_every_tab_stands_whose_plan_is_still_shown(choices):
    explorer = Explorer(model="llama-tiny", num_blocks=8, layout="LBNHC")
    assert not explorer.choose(**choices)
    for title in explorer.tabs:
        explorer.show(title)
        assert "still show the last ones that can (" in explorer._status.value
        assert f"({explorer.plan.model.title}, LBNHC, 8 blocks)." in explorer._status.value
    assert ("but the panel Lints" in explorer._status.value) == ("model" in choices)
    explorer.act(lambda: explorer.state.select(99, 0))  # another error stands beside it, not in its place
    assert "99" in explorer._status.value and "still show the last ones" in explorer._status.value
    assert explorer.choose(model="llama-tiny", backend=None, num_blocks=9, layout="LBNHC")
    assert explorer._status.value == ""
