"""The course's tables, exercises and the token that is followed: every number is the address map's."""

import re

import pytest

from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.course import FollowToken, Predict, layout_table, real_map, runs_table, stride_table, tiny_map


def test_the_layout_table_says_what_the_layouts_say():
    table = layout_table()
    assert [row[0] for row in table.rows] == list(KVCacheLayout.__members__)
    assert dict(zip(table.header, table.rows[5])) == {
        "layout": "BHLNC", "each layer is one region": "no", "all bytes of a block lie together": "yes",
        "a page is one run": "no", "ends in H, N, C": "no"}
    assert "BHLNC" in repr(table) and 'aria-label="BHLNC"' in table._repr_html_()


def test_the_stride_table_of_the_tiny_cache():
    rows = {row[0]: row[1:] for row in stride_table(tiny_map).rows}
    assert rows["LBNHC"] == ("192", "64", "16", "32", "1")
    assert rows["BLHNC"] == ("64", "128", "32", "16", "1")
    assert rows["BHLNC"] == ("32", "128", "64", "16", "1")


def test_the_runs_table_of_a_real_model():
    table = runs_table(real_map, {"1 block, all layers": dict(block=5), "1 token": dict(block=5, layer=3, state=7)})
    assert table.rows[0] == ("1 block, all layers", "28 × 64 KiB", "28 × 64 KiB", "224 × 8 KiB", "1 × 1.75 MiB",
                             "1 × 1.75 MiB", "1 × 1.75 MiB")
    assert table.rows[1][1:3] == ("8 × 512 B", "1 × 4 KiB")


def test_runs_of_several_lengths_give_their_range():
    assert runs_table(tiny_map, {"two of three": dict(block=[0, 1, 2], layer=0, head=0)}).rows[0][2] == "6 × 16 B"
    mixed = runs_table(tiny_map, {"": dict(block=[0, 1], layer=[0], state=[0, 1])}).rows[0]
    assert mixed[1] == "1 × 128 B"


@pytest.mark.parametrize("layout", KVCacheLayout.__members__)
def test_the_followed_token_is_at_the_maps_offset(layout):
    follow = FollowToken()
    follow.layer.value, follow.head.value, follow.layout_choice.value = 12, 3, layout
    expected = real_map(layout).offset(12, 2, 3, 5)
    assert follow.answer == expected
    assert f"{expected:,}" in follow.words.value and "<b>2</b>, row 37 % 16 = <b>5</b>" in follow.words.value
    for other in KVCacheLayout:
        assert f"<td>{real_map(other).offset(12, 2, 3, 5):,}</td>" in follow.table.value
    assert follow.picture.png.startswith(b"\x89PNG") and follow.reason.value == ""


def test_a_click_moves_the_token_to_that_page():
    follow = FollowToken()
    follow.picture.click = {"axes": 0, "x": 4.0, "y": 7.0, "n": 1}
    assert (follow.layer.value, follow.slot.value) == (7, 4 * 16 + 5)
    assert follow.answer == real_map("LBNHC").offset(7, 4, 0, 5)


def test_predictions_have_one_right_answer_and_explain_the_wrong_ones():
    predict = Predict(seed=3)
    for asked in range(1, 9):
        values = [value for _, value in predict.choice.options]
        assert len(set(values)) == 4 and values == sorted(values)
        layer, block, head, token = map(int, re.findall(r"(?:layer|block|head|token) (\d)", predict.question.value))
        assert predict.truth == tiny_map(predict.layout_name).offset(layer, block, head, token)
        wrong = next(value for value in values if value != predict.truth)
        predict.choice.value = wrong
        predict.reveal.click()
        assert f"No: {wrong} would be right for" in predict.verdict.value
        named = re.search(r"right for ([A-Z, ]+)\.", predict.verdict.value)[1].split(", ")
        assert all(tiny_map(name).offset(layer, block, head, token) == wrong for name in named)
        assert f"0 of {asked} predicted" in predict.verdict.value and predict.reveal.disabled
        predict.another.click()
    predict.choice.value = predict.truth
    predict.reveal.click()
    assert "Right." in predict.verdict.value and "1 of 9" in predict.verdict.value
