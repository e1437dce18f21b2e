"""What a worker's backends have in common, and who dropped the rest."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout, PhysicalLayout
from kvlayout.resolve import ResolutionError, common_layouts, get_supported_kv_cache_layouts, resolve

NAMES = tuple(KVCacheLayout.__members__)
declarations = st.none() | st.lists(st.sampled_from(NAMES), min_size=1, unique=True)


class Named:
    @staticmethod
    def get_name():
        return "NAMED"

    @staticmethod
    def supported_kv_cache_layouts():
        return ("BLHNC", KVCacheLayout.LBNHC)


class Unnamed:
    @staticmethod
    def get_name():
        raise NotImplementedError

    @staticmethod
    def supported_kv_cache_layouts():
        return (KVCacheLayout.LBHNC,)


def names(layouts):
    return [layout.name for layout in layouts]


@given(st.lists(declarations, max_size=4))
def test_candidates_are_common_and_every_other_layout_names_who_refuses_it(declared):
    pairs = [(f"B{index}", layouts) for index, layouts in enumerate(declared)]
    common = set(NAMES).intersection(*(layouts for layouts in declared if layouts is not None))
    try:
        steps = (found := common_layouts(pairs)).steps
        assert set(names(found.layouts)) == common
        assert steps[0].after == steps[1].before
        assert list(steps[1].after) == names(found.layouts)
    except ResolutionError as error:
        assert not common
        steps = error.steps
    assert steps[0].before == NAMES
    assert set(steps[0].dropped) == set(NAMES) - common
    for name, reason in steps[0].dropped.items():
        assert reason.removeprefix("is not supported by ").split(", ") == [
            backend for backend, layouts in pairs if layouts is not None and name not in layouts]


def test_nobody_declares():
    assert names(get_supported_kv_cache_layouts([])) == ["LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC"]
    assert names(common_layouts({"A": None}).layouts) == names(get_supported_kv_cache_layouts([]))


def test_equal_declarations_keep_their_order():
    assert names(common_layouts({"A": ("BLHNC", "LBNHC"), "B": None, "C": ["BLHNC", "LBNHC"]}).layouts) == [
        "BLHNC", "LBNHC"]


def test_the_layout_that_most_put_first_leads_and_other_preferences_are_lost():
    found = common_layouts({"A": ("BLNHC", "BLHNC", "LBHNC"), "B": ("BLNHC", "LBHNC", "BLHNC"),
                            "C": ("BLHNC", "BLNHC", "LBHNC")})
    assert names(found.layouts) == ["BLNHC", "BLHNC", "LBHNC"]
    assert "(BLNHC 2, BLHNC 1, LBHNC 0)" in found.steps[1].sentence
    assert names(common_layouts({"A": ("BHLNC", "BLHNC", "LBHNC"), "B": ("BLNHC", "BLHNC", "LBHNC")}).layouts) == [
        "LBHNC", "BLHNC"], "ties stand in the order of the enum"


def test_the_steps_of_candidates_lead_into_those_of_the_resolution():
    found = common_layouts({"A": ("BLHNC", "LBNHC")})
    assert resolve([names(found.layouts)], None).steps[0].before == found.steps[-1].after


def test_names_of_backends():
    assert names(get_supported_kv_cache_layouts([Named])) == ["BLHNC", "LBNHC"]
    with pytest.raises(ResolutionError) as caught:
        get_supported_kv_cache_layouts([Named, Unnamed, Named])
    assert caught.value.value == ["NAMED", "Unnamed", "NAMED"]
    assert "support no layout in common" in str(caught.value)
    dropped = caught.value.steps[-1].dropped
    assert dropped["LBHNC"] == "is not supported by NAMED"
    assert dropped["LHBNC"] == "is not supported by NAMED, Unnamed"


@pytest.mark.parametrize("declared", [(), "LBNHC", 5, ("lbnhc",), (PhysicalLayout("HBLNC"),)])
def test_what_is_no_declaration(declared):
    with pytest.raises(LayoutError) as caught:
        common_layouts({"MINE": declared})
    assert caught.value.argument == "supported_kv_cache_layouts of MINE"


def test_what_is_no_backend():
    with pytest.raises(LayoutError, match=r"has no supported_kv_cache_layouts\(\)"):
        get_supported_kv_cache_layouts([SimpleNamespace()])
