"""Numbers and block ids as a person types them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.as_typed import block_ids, decimal_number, whole_number
from kvlayout.capture import read
from kvlayout.cli.source import whole as cli_whole
from kvlayout.clinic import parse_address
from kvlayout_widgets.control import parse_integer, parse_size
from kvlayout_widgets.panels.numbers import whole

READERS = {"rule": whole_number, "panels": lambda text: whole("slot", text, "3"),
           "controls": lambda text: parse_integer(text, "blocks"), "command": lambda text: cli_whole("slot", text),
           "address": parse_address}
SIZES = {"rule": decimal_number, "bare": lambda text: Fraction(parse_size(text, unit="KiB"), 1024),
         "unit": lambda text: Fraction(parse_size(f"{text} MiB"), 1 << 20),
         "joined": lambda text: Fraction(parse_size(f"{text}gib"), 1 << 30)}
SLIPS = ["1,2,3", "12,34", "1,0000", "1234,567", "1,234_567", "1,,234", ",123", "123,", "1_0", "1 2", "_1", "--1",
         "1e3", "\u0663", "\u00bd", "9" * 101, "+", "0x"]


@pytest.mark.parametrize("reader", READERS)
@given(number=st.integers(-10**17, 10**17), separator=st.sampled_from([",", "_", " ", "'", ""]))
def test_groups_of_three_are_one_number_for_all(reader, number, separator):
    assert READERS[reader](f" {number:,} ".replace(",", separator)) == number


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", [*SLIPS, "1.5"])
def test_misplaced_separators_are_refused_by_all(reader, text):
    if reader == "rule":
        assert whole_number(text) is None
    else:
        with pytest.raises(kv.LayoutError):
            READERS[reader](text)


@pytest.mark.parametrize("reader", SIZES)
@given(whole=st.integers(0, 10**12), eighths=st.integers(0, 7), separator=st.sampled_from([",", "_", " ", "'", ""]))
def test_sizes_have_the_same_groups_and_a_point(reader, whole, eighths, separator):
    text = f" {whole:,}".replace(",", separator) + f"{eighths / 8:g}".removeprefix("0")
    assert SIZES[reader](text) == whole + Fraction(eighths, 8)


@pytest.mark.parametrize("reader", SIZES)
@pytest.mark.parametrize("text", [*SLIPS, "", ".", "1,2", "1,234.5,6", "12,34.5", "1.2.3", "1.\u0663", "1 .5"])
def test_misplaced_separators_in_sizes_are_refused_by_all(reader, text):
    if reader == "rule":
        assert decimal_number(text) is None
    else:
        with pytest.raises(kv.LayoutError, match="is not a size"):
            SIZES[reader](text)


def test_the_sign_of_a_decimal_number():
    assert [decimal_number(one) for one in ("-0.5", "\u22121.25", "+3.", "-.5")] == [
        Fraction(-1, 2), Fraction(-5, 4), 3, None]


@pytest.mark.parametrize("text, tokens", [("1,234", 1234), ("1234", 1234), ("1234,567", None), ("12,34", None),
                                          ("1,2345", None), ("1,234,56", None)])
def test_a_log_line_s_groups_are_the_same(text, tokens):
    found = [fact.values["tokens"] for fact in read(f"GPU KV cache size: {text} tokens").facts]
    assert found == ([] if tokens is None else [tokens])


@pytest.mark.parametrize("text, number", [("0x10", 16), ("0XfF", 255), ("-0x7f00_0000", -0x7F000000)])
def test_hexadecimal_where_it_is_asked_for(text, number):
    assert whole_number(text) is None
    assert whole_number(text, hexadecimal=True) == cli_whole("slot", text) == parse_address(text) == number


@pytest.mark.parametrize("text, ids", [
    ("5, 9", [5, 9]), ("0-3", [0, 1, 2, 3]), ("0\u20132,7", [0, 1, 2, 7]), ("3 1", [3, 1]), ("", []), ("7,7", [7, 7]),
    (" 4 - 5 ,, 9 ", [4, 5, 9]), ("[0, 7, 9]", [0, 7, 9]), ("(1; 2)", [1, 2]), ("12 \u2212 14", [12, 13, 14]),
    ("[]", []), (",", [])])
def test_block_ids_as_typed(text, ids):
    assert block_ids(text, "ids") == ids


@pytest.mark.parametrize("text", ["a", "3-1", "1-2-3", "01", "1e3", "\u00bd", "\u0663", "1-", "0-99999999999999999",
                                  "1,024", "-5", "<b>", "1" * (1 << 21)])
def test_block_ids_that_are_none(text):
    with pytest.raises(kv.LayoutError) as caught:
        block_ids(text, "ids")
    assert caught.value.argument == "ids" and len(str(caught.value)) < 600


def test_other_lists_are_called_by_their_name():
    with pytest.raises(kv.LayoutError, match="'x', which is no rank. Write ranks such as"):
        block_ids("0, x", "Source: ranks", noun="rank")
