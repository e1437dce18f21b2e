"""A cache's own views against pasted shapes and strides, and against readings."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given

import kvlayout as kv
from kvlayout.captured import captured_selection
from kvlayout.clinic import find_readings, match_views, own_views
from kvlayout.clinic.readings import contiguous_strides
from tests import figure_maps
from tests.strategies import maps


def test_every_layer_is_in_one_view_and_its_own_shape_is_equal():
    for kind in figure_maps.KINDS.values():
        address_map = kind()
        views = own_views(address_map)
        assert sorted(name for view in views for name in view.layers) == sorted(address_map.layers)
        for view in views:
            assert match_views(views, view.shape, view.strides) == ("equal", view)
            assert match_views(views, view.shape)[0] == "shape"
            blocks, heads, states, content = address_map.shape(view.layers[0])
            assert view.shape == (blocks, heads, states, content // view.itemsize)
            assert tuple(one * view.itemsize for one in view.strides[:3]) == address_map.strides(view.layers[0])[:3]


@given(maps())
def test_another_block_stride_is_told(address_map):
    views = own_views(address_map)
    for view in views:
        moved = (view.strides[0] + 1, *view.strides[1:])
        others = any(one.shape == view.shape and one.strides[1:] == view.strides[1:] for one in views if one != view)
        if view.shape[0] > 1 and not others:
            assert match_views(views, view.shape, moved) == ("strides", view)


def test_a_lone_head_may_be_left_out_and_a_stride_of_one_element_does_not_matter():
    views = own_views(figure_maps.mla())
    assert match_views(views, (500, 64, 576), contiguous_strides((500, 64, 576)))[0] == "equal"
    assert match_views(views, (500, 1, 64, 576), (36_864, 7, 576, 1))[0] == "equal"
    assert match_views(views, (500, 64, 576), (36_865, 576, 1))[0] == "strides"
    assert match_views(own_views(figure_maps.dense()), (64, 16, 256))[0] == "other"


def test_a_layer_by_name():
    views = own_views(figure_maps.indexer())
    name = views[1].layers[0]
    assert match_views(views, views[0].shape, layer=name) == ("other", views[1])
    assert match_views(views, views[1].shape, layer="nothing") == ("shape", views[1])


@pytest.mark.parametrize(("shape", "differences"), [
    ((64, 8, 16, 256), []), ((100, 8, 16, 256), ["blocks 100, not 64"]), ((64, 16, 8, 128), []),
    ((2, 64, 16, 8, 128), []), ((64, 2, 16, 4, 128), ["heads 4, not 8"]),
    ((64, 64, 576), ["heads 1, not 8", "tokens 64, not 16", "elements a state 576, not 256"])])
def test_what_a_reading_has_otherwise(shape, differences):
    view, = own_views(figure_maps.dense())
    assert view.differences(find_readings(shape)[0]) == differences


def test_no_blocks_and_no_layers():
    empty = kv.make_plan(kv.Selection(num_blocks=0)).address_map
    view, = own_views(empty)
    assert view.shape[0] == 0 and match_views([], (1, 2, 3)) == ("other", None)
    with pytest.raises(kv.LayoutError):
        own_views(None)


def test_a_view_with_its_axes_in_another_order_is_this_caches():
    view, = own_views(figure_maps.dense())
    for order in itertools.permutations(range(4)):
        shape, strides = ([of[axis] for axis in order] for of in (view.shape, view.strides))
        assert match_views([view], shape, strides) == ("equal" if order == (0, 1, 2, 3) else "permuted", view)
        assert view.order(tuple(shape), tuple(strides)) == order
    assert match_views([view], (64, 16, 8, 256), (32_768, 2_048, 257, 1))[0] == "other"


def test_nothing_is_halved_where_there_is_no_v():
    text = (Path(__file__).parents[2] / "notebooks/data/cases/vllm-17023.json").read_text()
    plan = kv.make_plan(captured_selection(json.loads(text)))
    reading = find_readings((1_591, 16, 4, 128))[0]
    assert any(view.differences(reading) == [] for view in own_views(plan.address_map))
