"""Typed formulas: the same numbers as Python's own, on arrays; hostile text is refused at once."""

import operator
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.clinic.expression import parse_expression
from kvlayout.errors import LayoutError

NAMES = ("a", "b", "block")
numbers = st.integers(-2**63, 2**63 - 1) | st.integers(-70, 70) | st.sampled_from([2**31, 2**32, 2**62])
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
             "&": operator.and_, "|": operator.or_, "^": operator.xor, "<": operator.lt, ">=": operator.ge,
             "==": operator.eq, "<<": operator.lshift, ">>": operator.rshift}


@given(st.sampled_from(sorted(OPERATORS)), numbers, numbers)
def test_each_operator_is_pythons_own_or_is_refused(sign, a, b):
    expression = parse_expression(f"a {sign} b", NAMES)
    defined = not (sign in ("//", "%") and b == 0) and not (sign in ("<<", ">>") and not 0 <= b <= 62)
    expected = OPERATORS[sign](a, b) if defined else None
    if expected is None or not -2**63 <= expected < 2**63:
        with pytest.raises(LayoutError, match="passes 63 bits|divides by zero|shifts by"):
            expression(a=a, b=b)
    else:
        assert expression(a=a, b=b) == expected


trees = st.recursive(
    st.sampled_from(["a", "b", "3", "0x10", "1_000"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "&", "|", "^", "<", "!="]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"max({t[0]}, {t[1]})"),
        inner.map(lambda t: f"(-{t})"), inner.map(lambda t: f"(~{t})"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]} and {t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} < {t[1]} <= {t[2]})")), max_leaves=8)


@given(trees, st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=5))
def test_arrays_give_what_python_gives_point_by_point(text, points):
    expression = parse_expression(text, NAMES)
    a, b = (np.array(axis) for axis in zip(*points))
    expected = [int(eval(text, {"__builtins__": {"max": max}}, {"a": x, "b": y})) for x, y in points]
    assert np.broadcast_to(expression(a=a, b=b), a.shape).tolist() == expected


def test_casts_wrap_as_32_bits_do():
    wrap = parse_expression("int32(block * 1039680)", NAMES)
    assert wrap(block=[2_065, 2_066]).tolist() == [2_146_939_200, -2_146_988_416]
    assert parse_expression("uint32(-1)", ())() == 2**32 - 1
    assert parse_expression("int32(2147483648) + abs(-3)", ())() == -2**31 + 3


def test_a_step_that_is_not_taken_is_not_judged():
    expression = parse_expression("a // b if b != 0 else (a if a < 5 else 2 + a)", NAMES)
    assert expression(a=[6, 4, 9], b=[2, 0, 0]).tolist() == [3, 4, 11]
    assert parse_expression("b != 0 and a // b > 2", NAMES)(a=[9, 9], b=[0, 3]).tolist() == [0, 1]
    with pytest.raises(LayoutError, match=r"divides by zero: 4 // 0"):
        parse_expression("a // b", NAMES)(a=[6, 4], b=[2, 0])


@pytest.mark.parametrize("text, said", [
    ("a // 0", "divides by zero: 6 // 0"), ("a % (b - b)", "divides by zero: 6 % 0"), ("a << 63", "6 << 63"),
    ("a >> (0 - 1)", "6 >> -1"), ("a * (1 << 62)", "passes 63 bits: 6"),
])
def test_a_number_that_meets_an_array_is_named_with_its_first(text, said):
    with pytest.raises(LayoutError, match=said):
        parse_expression(text, NAMES)(a=[[6, 4], [2, 1]], b=3)


@pytest.mark.parametrize("text, named", [
    ("", "can't be read|one expression"), ("   ", "one expression"), ("a +", "can't be read"),
    ("a b", "can't be read"),
    ("a.real", r"'\.' at character 2"), ("a[0]", r"'\[' at character 2"), ("'x' * 9", 'has "\'"'),
    ("lambda: 1", "'lambda'"), ("[b for b in a]", r"'\['"), ("__import__('os')", "'__import__'"),
    ("().__class__", r"'\.'"), ("c + 1", "name 'c'"), ("2 ** 99999999", r"'\*\*' at character 3"),
    ("a / 2", "'/'.*Divide with //"), ("a = 2", "'='"), ("(a := 2)", "':'"), ("a; b", "';'"), ("a # b", "'#'"),
    ("block(3)", "calls block"), ("min", "without a call"), ("min(a)", "1 arguments"), ("min(*a)", "Starred"),
    ("min(a, b)(a)", "calls min"), ("1.5", r"'\.'"), ("1e5", "'e5' right behind"), ("True", "'True'"),
    ("a in b", "'in'"), ("a is b", "'is'"), ("a, b", "comma"), ("\u0430 + 1", "'\u0430' at character 1"),
    ("a\0", r"x00"),
    ("\uff11", "\uff11"), ("9" * 30, "below 2"), ("9" * 1_999, "below 2"), ("f'{a}'", "'f'"), ("yield", "'yield'"),
    ("(" * 10_000 + "a" + ")" * 10_000, "characters"), ("(" * 900 + "a" + ")" * 900, "deeper than 60"),
    ("-" * 1_900 + "a", "deep"), ("not " * 490 + "a", "deep"), ("a+" * 900 + "a", "deep"),
    ("1" * 1_000_000, "characters"), ("a" * 1_900, "not known"), ("a @ b", "'@'"), ("a\\\n+b", "at character 2"),
])
def test_hostile_text_is_refused_by_name(text, named):
    began = time.process_time()
    with pytest.raises(LayoutError, match=named):
        parse_expression(text, NAMES)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("text", [None, 3, b"a", ["a"], True])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(LayoutError, match="must be a str"):
        parse_expression(text, NAMES)


@pytest.mark.parametrize("value", [1.5, "x", None, 2**63, [[1], [2, 3]], float("nan")])
def test_values_must_be_whole_numbers(value):
    with pytest.raises(LayoutError, match="^a="):
        parse_expression("a + 1", NAMES)(a=value)
    with pytest.raises(LayoutError, match="no value is given"):
        parse_expression("a + 1", NAMES)(b=1)


@given(st.text(max_size=60) | st.lists(st.sampled_from(
    ["a", "(", ")", "+", "if", "else", "not", "min", ",", "3", "<<", "//", " ", "<", "~", "-", "**", "__class__"]),
    max_size=14).map(" ".join))
def test_any_text_gives_numbers_or_one_clear_error(text):
    try:
        found = parse_expression(text, NAMES)(a=[0, 5], b=[3, 2**40], block=1)
    except LayoutError as error:
        assert error.argument == "formula"
    else:
        assert found.dtype == np.int64


@pytest.mark.parametrize(("text", "cure"), [
    ("block / 2", "Divide with //"), ("block;", "without ;"), ("(int64_t)block", r"int64\(block\)"),
    ("(unsigned int) block", r"uint32\(block\)"), ("(size_t)block * 2", r"int64\(block\)"),
    ("offset = block", "right of the ="), ("block * 10,000", "10_000"), ("10,000", "10_000"),
    ("block && head", "Write and"), ("block || head", "Write or"), ("!block", "Write not"),
    ("block ? 1 : 2", "if c else b"),
])
def test_what_other_languages_write_is_told_how_to_write_here(text, cure):
    with pytest.raises(LayoutError, match=cure) as error:
        parse_expression(text, ["block", "head"])
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("text", ["block != 1", "block == 1", "min(block, 10,200)", "(head)", "int64(block) // 2"])
def test_what_only_looks_like_another_language_is_read(text):
    assert parse_expression(text, ["block", "head"])(block=7, head=3).shape == ()
