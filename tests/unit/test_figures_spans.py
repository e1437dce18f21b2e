"""Ranges on one axis, and owners above them: exact against a byte-by-byte look-up, and readable."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout import LayoutError
from kvlayout_widgets.course.cases import CASES, captured_selection, make_plan
from kvlayout_widgets.figures.reach import ReachFigure, owner_spans
from kvlayout_widgets.figures.spans import Span, SpansFigure
from tests.figure_maps import KINDS, mla, overlay
from tests.figure_reading import check_labels, owner_in, png_size
from tests.strategies import maps


def case(name):
    return make_plan(captured_selection(CASES[name]())).address_map


def index_of(address_map, owner, axes):
    whole = {"L": owner.layer, "B": owner.block, "H": owner.head, "N": owner.state, "F": owner.field}
    return tuple(whole[axis] for axis in axes)


@settings(max_examples=40)
@given(maps(), st.data())
def test_bars_against_every_byte(address_map, data):
    group = data.draw(st.integers(0, len(address_map.config.kv_cache_groups) - 1))
    first = data.draw(st.integers(-5, address_map.size_bytes - 1))
    window = first, data.draw(st.integers(first + 1, min(first + 250, address_map.size_bytes + 5)))
    spans, axes = owner_spans(address_map, window, group)
    inside = range(max(0, window[0]), min(window[1], address_map.size_bytes))
    if spans and "too many" in spans[0].text:  # even owned from not changes too often
        owned = [owner_in(address_map, at, group) is not None for at in inside]
        assert len(spans) == 1 and axes == "" and sum(a != b for a, b in zip(owned, owned[1:])) >= 20
        return
    # Side by side, from end to end.
    assert [at for span in spans for at in range(span.start, span.end)] == list(inside)
    for span in spans:
        owners = [owner_in(address_map, at, group) for at in range(span.start, span.end)]
        if span.look == "padding":
            assert owners == [None] * len(owners) and not span.text
        else:
            assert len({index_of(address_map, owner, axes) for owner in owners}) == 1
    for one, other in zip(spans, spans[1:]):
        assert one.look != other.look


@settings(max_examples=30)
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_ends_are_exact_where_owners_are_sampled(kind, data):
    address_map = KINDS[kind]()
    group = data.draw(st.integers(0, len(address_map.config.kv_cache_groups) - 1))
    wide = data.draw(st.integers(min(2_000, address_map.size_bytes), address_map.size_bytes))
    first = data.draw(st.integers(0, address_map.size_bytes - wide))
    spans, axes = owner_spans(address_map, (first, first + wide), group)
    assert spans[0].start == first and spans[-1].end == first + wide
    if "too many" in spans[0].text:
        assert len(spans) == 1
    for one, other in zip(spans, spans[1:]):
        assert one.end == other.start
        before, after = (owner_in(address_map, at, group) for at in (other.start - 1, other.start))
        assert (before and index_of(address_map, before, axes)) != (after and index_of(address_map, after, axes))


def test_the_64_bytes_of_padding_that_a_flat_formula_hits_are_a_bar_of_their_own():
    spans, axes = owner_spans(case("vllm-50276"), (67_756, 194_844))
    assert Span(74_816, 74_880, "", "padding") in spans  # 163 bytes a pixel
    assert axes == "LBH" and "layer 2 · block 0" in [span.text for span in spans]


def test_where_words_have_no_room_letters_stand_and_where_they_have_none_the_owners_are_told_less_finely():
    texts = [span.text for span in owner_spans(KINDS["dense"]("LBNHC"), (0, 5_120))[0]]
    assert texts[:3] == ["H 0 · N 0", "H 1 · N 0", "H 2 · N 0"]
    spans, _ = owner_spans(case("vllm-55431"), (3_468_228, 3_471_028))
    assert [span.text for span in spans] == ["model.layers.22.indexer · block 0", "model.layers.0.attn · block 1"]
    assert owner_spans(case("xpu-kernels-445"), (0, 2_183_328_000)) == (
        [Span(0, 2_183_328_000, "layer 0", "plain")], "L")


def test_a_window_outside_of_the_allocation_has_no_owners():
    assert owner_spans(mla(), (-500, -3)) == ([], "")


def test_reach_draws_right_and_wrong_with_the_end_of_the_allocation():
    drawing = ReachFigure()
    drawing.reach(case("vllm-50276"), {"right": (14_938_560, 14_975_936), "wrong": (14_938_560, 15_088_320)},
                  title="block 99")
    assert list(drawing.rows) == ["owner", "right", "wrong"]
    assert drawing.rows["wrong"] == (Span(14_938_560, 15_088_320, "14,938,560 to 15,088,320", "wrong"),)
    assert drawing.window[1] > 15_088_320 and "block 99" in drawing.headline
    for fact in ("14,938,560 to 15,088,320", "layer 3 · block 99", "14,976,000 B"):
        assert fact in drawing.alt_text()
    check_labels(drawing.figure)


def test_each_overlaid_group_has_its_row():
    drawing = ReachFigure("dark")
    address_map = overlay()
    drawing.reach(address_map, {"here": {"the first page": (0, 4_096)}})
    assert list(drawing.rows)[:-1] == [f"group {g}" for g in range(len(address_map.config.kv_cache_groups))]
    assert drawing.rows["here"][0].text == "the first page"
    assert drawing.window[0] == 0, "no room is left where nothing can lie"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_labels_are_apart_and_the_size_is_every_figures(theme):
    drawing = SpansFigure(theme)
    drawing.update({"right": [Span(5, 9, "five to nine", "right"), Span(0, 3, "none to three", "right")],
                    "thin": [Span(50, 50, "a point"), Span(99, 100, "the last")]},
                   marks={"here": 20, "close by, and long": 21}, inside=(0, 60), window=(-10, 110), title="t")
    check_labels(drawing.figure)
    assert png_size(drawing.figure) == (960, 460)
    assert "A line at 21: close by, and long." in drawing.alt_text()
    drawing.update({})
    assert drawing.rows == {} and drawing.window[0] < drawing.window[1]


def test_numbers_beyond_what_floats_hold_exactly_keep_their_places():
    drawing = SpansFigure()
    drawing.update({"far": [Span(2**60 + 1, 2**60 + 3, "two")]}, window=(2**60, 2**60 + 8))
    bar = drawing._bars[-1]
    assert (bar.get_x(), bar.get_width()) == (1, 2)


@pytest.mark.parametrize(("rows", "named"), [
    ({"a": [Span(3, 2)]}, "a: end"), ({"a": [Span(0, 1, "", "red")]}, "a: look"),
    ({"a": [Span(1.5, 2)]}, "a: start")])
def test_bad_spans_are_named(rows, named):
    with pytest.raises(LayoutError, match=named):
        SpansFigure().update(rows)
    with pytest.raises(LayoutError, match="window"):
        SpansFigure().update({}, window=(3, 3))


@pytest.mark.parametrize("given", ["0 to 4", 7, (1, 1), (4, 2), [(1, 2, 3)], {"x": 3}, [None]])
def test_bad_ranges_are_named(given):
    with pytest.raises(LayoutError, match="mine"):
        ReachFigure().reach(mla(), {"mine": given})
