"""Layouts: the six of vLLM, any other permutation, and their names."""

import itertools
import pickle

import pytest

from kvlayout.errors import LayoutError
from kvlayout.layout import AXES, KVCacheLayout, PhysicalLayout, as_layout, layout_from_name

PERMUTATIONS = ["".join(order) for order in itertools.permutations(AXES)]


def test_the_six_are_named_by_their_order():
    for layout in KVCacheLayout:
        assert "".join(AXES[axis] for axis in layout.stride_order) == layout.name


def test_properties_of_the_six():
    def having(name):
        return [layout.name for layout in KVCacheLayout if getattr(layout, name)]

    assert having("is_layer_compact") == ["LBHNC", "LBNHC", "LHBNC"]
    assert having("is_block_outermost") == ["BLHNC", "BLNHC", "BHLNC"]
    assert having("is_block_compact") == ["LBHNC", "LBNHC", "BLHNC", "BLNHC"]
    assert having("is_block_contiguous") == ["LBHNC", "BLHNC"]
    assert KVCacheLayout.BHLNC.layer_view_order == (0, 1, 2, 3)
    assert KVCacheLayout.LHBNC.layer_view_order == (1, 0, 2, 3)
    assert KVCacheLayout.LBNHC.layer_view_order == (0, 2, 1, 3)


@pytest.mark.parametrize("name", PERMUTATIONS)
def test_any_permutation_has_the_same_properties(name):
    layout = PhysicalLayout(name)
    assert sorted(layout.layer_view_order) == [0, 1, 2, 3]
    assert layout.is_block_outermost == name.startswith("B")
    assert layout.is_layer_compact == name.startswith("L")
    assert layout.is_block_compact == (set(name[:2]) == {"L", "B"})
    assert layout.is_block_contiguous == name.endswith("HNC")
    assert pickle.loads(pickle.dumps(layout)) == layout
    if name in KVCacheLayout.__members__:
        member = KVCacheLayout[name]
        assert layout == member and member == layout and len({layout, member}) == 1
    else:
        assert layout not in list(KVCacheLayout)


def test_names_and_aliases():
    assert layout_from_name("NHD") is KVCacheLayout.LBNHC
    assert layout_from_name("HND") is KVCacheLayout.LBHNC
    assert as_layout("BHLNC") is as_layout(KVCacheLayout.BHLNC) is KVCacheLayout.BHLNC


@pytest.mark.parametrize("name", ["lbnhc", "", "LBNH", "XYZ", None, 3, "LBNHC "])
def test_an_unknown_name_lists_the_valid_ones(name):
    with pytest.raises(LayoutError, match="BHLNC.*NHD") as error:
        layout_from_name(name)
    assert error.value.argument == "layout" and error.value.value == name


@pytest.mark.parametrize("name", ["LBHN", "LBHNN", "LBHNCX", "", None, 7])
def test_a_prototype_names_each_axis_once(name):
    with pytest.raises(LayoutError, match="exactly once"):
        PhysicalLayout(name)
    with pytest.raises(LayoutError):
        as_layout(object())


def test_a_prototype_can_not_be_changed():
    with pytest.raises(AttributeError, match="immutable"):
        PhysicalLayout("HBLNC").name = "LBHNC"
