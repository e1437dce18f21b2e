"""Numbers and block ids as a person types them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.as_typed import block_ids, whole_number
from kvlayout.cli.source import whole as cli_whole
from kvlayout.clinic import parse_address
from kvlayout_widgets.control import parse_integer
from kvlayout_widgets.panels.numbers import whole

READERS = {"rule": whole_number, "panels": lambda text: whole("slot", text, "3"),
           "controls": lambda text: parse_integer(text, "blocks"), "command": lambda text: cli_whole("slot", text),
           "address": parse_address}


@pytest.mark.parametrize("reader", READERS)
@given(number=st.integers(-10**17, 10**17), separator=st.sampled_from([",", "_", " ", "'", ""]))
def test_groups_of_three_are_one_number_for_all(reader, number, separator):
    assert READERS[reader](f" {number:,} ".replace(",", separator)) == number


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", ["1,2,3", "12,34", "1,0000", "1234,567", "1,234_567", "1,,234", ",123", "123,",
                                  "1_0", "1 2", "_1", "--1", "1.5", "1e3", "\u0663", "\u00bd", "9" * 101, "+", "0x"])
def test_misplaced_separators_are_refused_by_all(reader, text):
    if reader == "rule":
        assert whole_number(text) is None
    else:
        with pytest.raises(kv.LayoutError):
            READERS[reader](text)


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
