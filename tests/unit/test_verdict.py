"""Verdicts of the judge as data: JSON, comparison leaf by leaf, sentences, reproducers."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.errors import LayoutError
from kvlayout.upstream.verdict import Check, Verdict, compare, flatten, reproducer
from kvlayout.versions import VLLM_VERSIONS

json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                           lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner,
                                                                                       max_size=3), max_leaves=8)
checks = st.builds(Check, st.text(min_size=1), st.sampled_from([True, False, None]), st.integers(0), json_values,
                   json_values, st.text(), st.text())
verdicts = st.builds(Verdict, st.sampled_from(VLLM_VERSIONS), st.sampled_from(["official", "cpu"]),
                     st.lists(checks, max_size=4).map(tuple))


@given(verdicts)
def test_a_verdict_survives_json(verdict):
    again = Verdict.from_dict(json.loads(json.dumps(verdict.to_dict())))
    assert again == verdict
    assert again.summary == verdict.summary and again.summary.endswith(".")


@given(verdicts)
def test_a_verdict_is_ok_only_if_something_agrees_and_nothing_differs(verdict):
    oks = [check.ok for check in verdict.checks]
    assert verdict.ok == (True in oks and False not in oks)
    assert (verdict.first is None) == (False not in oks)
    assert len(verdict.not_judged) == oks.count(None)


@pytest.mark.parametrize("data", [None, [], {}, {"vllm_version": "0.33.0", "build": "cpu", "checks": [{"name": 1}]}])
def test_what_is_no_verdict_is_refused(data):
    with pytest.raises(LayoutError, match="verdict"):
        Verdict.from_dict(data)


@given(json_values)
def test_equal_values_agree_leaf_by_leaf(value):
    check = compare("all", value, json.loads(json.dumps(value)))
    assert check.ok and check.compared == len(flatten(value))


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.integers(), min_size=1, max_size=3), min_size=1),
       st.data())
def test_one_changed_leaf_is_found_with_both_values_and_its_place(value, data):
    key = data.draw(st.sampled_from(sorted(value)))
    index = data.draw(st.integers(0, len(value[key]) - 1))
    other = {name: list(leaves) for name, leaves in value.items()}
    other[key][index] += 1
    check = compare("all", value, other)
    assert (check.ok, check.where) == (False, f"{key}[{index}]")
    assert (check.ours, check.theirs) == (value[key][index], value[key][index] + 1)


@pytest.mark.parametrize(("ours", "theirs", "where"), [
    ({"a": [1, 2]}, {"a": [1]}, "a[1]"), ({"a": 1}, {"a": 1, "b": 2}, "b"), ({"a": 1}, {"a": True}, "a"),
    ({"a": []}, {"a": [0]}, "a"), ({"a": "1"}, {"a": 1}, "a")])
def test_what_only_one_side_has_or_has_otherwise_differs(ours, theirs, where):
    assert compare("all", ours, theirs).where == where
    assert compare("all", theirs, ours).ok is False


def test_the_sentences_say_both_numbers_and_the_place():
    check = Check("placement", False, 12, 4096, 1 << 20, "kv_cache_tensors[0].block_stride")
    absent = Check("omni", None, reason="isn't installed")
    verdict = Verdict("0.33.0", "cpu", (Check("specs", True, 3), check, absent))
    for words in ("0.33.0", "cpu", "placement", "kv_cache_tensors[0].block_stride", "4,096", "1,048,576"):
        assert words in verdict.summary
    agreed = replace(verdict, checks=(verdict.checks[0], verdict.checks[2]))
    assert "3 values of 1 checks" in agreed.summary and "not judged: omni" in agreed.summary
    assert "judged nothing" in replace(verdict, checks=()).summary


def test_a_reproducer_holds_the_selection_and_both_numbers():
    plan = kv.make_plan(kv.Selection(num_blocks=3, layout="BLNHC"))
    wrong = Check("placement", False, 12, 4096, 8192, "kv_cache_tensors[0].block_stride")
    data = json.loads(json.dumps(reproducer(plan, Verdict("0.33.0", "official", (Check("specs", True), wrong)))))
    assert kv.Selection.from_dict(data["selection"]) == plan.selection
    assert (data["check"]["ours"], data["check"]["theirs"]) == (4096, 8192)
    assert data["check"]["where"] == wrong.where and data["vllm_version"] == "0.33.0"
    with pytest.raises(LayoutError, match="no difference"):
        reproducer(plan, Verdict("0.33.0", "official", (Check("specs", True),)))
