"""A captured config opens as it is: same addresses, nothing resolved anew, and what isn't open is refused."""

import json

import pytest

from kvlayout import LayoutError, Selection, make_plan
from kvlayout.capture.config_json import config_to_dict
from kvlayout.captured import captured_selection
from kvlayout_widgets import Explorer
from kvlayout_widgets.figures.resolver import ResolverFigure

PLANS = [("Qwen/Qwen3-0.6B", "BLNHC"), ("Qwen/Qwen3-0.6B", None), ("google/gemma-3-27b-it", None),
         ("deepseek-ai/DeepSeek-V3", None)]


def plan_of(model, layout=None):
    return make_plan(Selection(model=model, layout=layout, num_blocks=4))


@pytest.mark.parametrize("model, layout", PLANS)
def test_a_captured_config_has_the_addresses_of_its_plan(model, layout):
    plan = plan_of(model, layout)
    selection = captured_selection(plan.config)
    captured = make_plan(Selection.from_json(selection.to_json()))
    assert captured.config == plan.config
    assert captured.layout is plan.layout
    for name in plan.address_map.layers:
        assert captured.address_map.offset(name, 3) == plan.address_map.offset(name, 3)
    assert "captured config says" in captured.resolution.why


def test_a_config_without_a_layout_is_shown_in_one_that_fits():
    plan = plan_of("Qwen/Qwen3-0.6B", "BLNHC")
    model = {"kvlayout": 1, "kv_cache_config": {**config_to_dict(plan.config), "kv_cache_layout": None}}
    resolution = make_plan(Selection(model=model)).resolution
    assert resolution.layout.is_block_outermost
    assert "names no layout" in resolution.why
    assert make_plan(Selection(model=model, layout="BLNHC")).layout is plan.layout


def test_a_file_opens_in_the_explorer(tmp_path):
    plan = plan_of("Qwen/Qwen3-0.6B")
    path = tmp_path / "capture.json"
    path.write_text(json.dumps({"kvlayout": 1, "kv_cache_config": config_to_dict(plan.config)}))
    explorer = Explorer(path)
    assert explorer.plan.config == plan.config
    assert explorer.controls.by_argument["tp_size"].parts[0].disabled
    assert explorer.choose(model="llama-tiny")
    assert not explorer.controls.by_argument["tp_size"].parts[0].disabled


@pytest.mark.parametrize("choice", [{"tp_size": 2}, {"num_blocks": 8}, {"connector": "NixlConnector"},
                                    {"layout": "BHLNC"}])
def test_what_a_capture_does_not_leave_open_is_refused(choice):
    selection = captured_selection(plan_of("Qwen/Qwen3-0.6B").config, **choice)
    with pytest.raises(LayoutError) as caught:
        make_plan(selection)
    assert caught.value.argument in choice


@pytest.mark.parametrize("subject", ["/no/such/file.json", {"a": 1}, 5, None])
def test_what_is_no_capture_is_refused(subject):
    with pytest.raises(LayoutError):
        captured_selection(subject)


def test_a_captured_layout_is_chosen_not_what_is_left():
    drawing = ResolverFigure()
    drawing.update(make_plan(captured_selection(plan_of("Qwen/Qwen3-0.6B").config)).resolution)
    assert sorted(drawing.states[0]) == ["chosen", *["passed"] * 5]
