"""A config whose strides contradict the layout that it names, or is read under."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

import kvlayout as kv
from kvlayout.capture.pasted import parse
from kvlayout.captured import captured_selection
from kvlayout.clinic.claimed import lint_claim
from kvlayout.clinic.linting import lint
from kvlayout.facts.models import presets
from tests.strategies import maps

LOG = Path(__file__).parents[2] / "notebooks/data/cases/vllm-54465.log"
SIX = [layout.name for layout in kv.KVCacheLayout]


def test_strides_of_another_layout_are_an_error_and_give_no_note_on_counts():
    rules = {one.rule: one for one in lint(kv.make_plan(captured_selection(parse(
        LOG.read_text().replace("'BLHNC'", "'LBHNC'")))))}
    assert rules["layout-strides"].is_error and rules["layout-strides"].numbers["layer_stride"] == 37_440
    assert "B-outermost" in rules["layout-strides"].message
    assert "block-count-in-strides" not in rules


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC"])
def test_so_for_a_layout_that_is_forced(layout):
    text = LOG.read_text().replace(", kv_cache_layout='BLHNC'", "")
    assert "kv_cache_layout" not in text
    forced = captured_selection(parse(text), layout=layout)
    assert "layout-strides" in {one.rule for one in lint(kv.make_plan(forced))}
    assert "layout-strides" not in {one.rule for one in lint(kv.make_plan(replace(forced, layout="BLNHC")))}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(maps())
def test_what_vllm_places_is_not_accused(address_map):
    assert lint_claim(address_map) == []


@pytest.mark.parametrize("layout", SIX)
def test_no_preset_is_accused(layout):
    seen = 0
    for name in presets():
        for size in (None, 16):
            try:
                plan = kv.make_plan(kv.Selection(model=name, layout=layout, num_blocks=40, kernel_block_size=size))
            except kv.LayoutError:
                continue
            seen += 1
            assert lint_claim(plan.address_map) == [], name
    assert seen
