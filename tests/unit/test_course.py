"""The course's tables, exercises and the token that is followed: every number is the address map's."""

import json
import re

import pytest

from kvlayout import LayoutError
from kvlayout.clinic import find_readings
from kvlayout.finding import Finding
from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.course import (
    FollowToken,
    Predict,
    findings_table,
    layout_table,
    open_pool,
    readings_table,
    real_map,
    runs_table,
    says,
    stride_table,
    tiny_map,
    versus,
)
from kvlayout_widgets.course.cases import CASES, pasted_log


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


def test_right_against_wrong():
    table = versus({"block": (4_740, 18_962), "ids": (range(10, 12), None)}, "slot 75,849")
    assert table.rows == (("block", "4,740", "18,962"), ("ids", "10, 11", "not said"))
    assert repr(table).splitlines()[:2] == ["slot 75,849", "       right   wrong"]
    for given in ({"block": (1, 2, 3)}, {"block": "ab"}):
        with pytest.raises(LayoutError, match="block"):
            versus(given)


def test_findings_and_sentences_are_escaped():
    table = findings_table([Finding("rule", "error", "<b>", cure="mend it")])
    assert table.rows == (("error: rule", "<b>", "mend it."),)
    assert "&lt;b&gt;" in table._repr_html_() and "<b>" not in table._repr_html_()
    assert findings_table([]).rows == (("none", "", ""),)
    lines = says(["<script>", 5])
    assert repr(lines) == "<script>\n5" and "<script>" not in lines._repr_html_()


def test_every_reading_of_a_shape_has_its_row():
    shapes = (100, 64, 576), (1_000, 2, 16, 128)
    rows = readings_table({shape: find_readings(shape) for shape in shapes}).rows
    assert rows[0] == ("(100, 64, 576)", "B, N, C", "100", "1", "64", "576", "the only one")
    assert [row[0] for row in rows[1:]] == ["(1000, 2, 16, 128)", "or"]
    assert [row[-1] for row in rows[1:]] == ["ambiguous"] * 2 and rows[2][3] == "not said"


def test_a_pool_opens_from_json_and_from_a_log(tmp_path):
    (tmp_path / "server.log").write_text(pasted_log())
    (tmp_path / "vllm-50276.json").write_text(json.dumps(CASES["vllm-50276"]()))
    opened = [open_pool(tmp_path / name) for name in ("server.log", "vllm-50276.json")]
    assert [one.offset("model.layers.1.attn", 1) for one in opened] == [187_200] * 2
    for name, text in (("none.log", None), ("empty.log", "nothing"), ("bad.json", "{"), ("raw.log", b"\xff\xfe")):
        if text is not None:
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(LayoutError):
            open_pool(tmp_path / name)
