"""Numbers as a person types them: a whole number, a decimal one, and a list of block ids with ranges."""

from __future__ import annotations

import re
from fractions import Fraction

from kvlayout.errors import LayoutError

MOST_IDS = 1 << 16
_MOST_TEXT = 1 << 20
_MOST_DIGITS = 100
# Separators stand between groups of three, and are alike: "1,2,3" is a list and "12,34" a slip, not a number.
_DECIMAL = re.compile(r"([+-]?)([0-9]+|[0-9]{1,3}([,_ '])[0-9]{3}(?:\3[0-9]{3})*)")
_HEXADECIMAL = re.compile(r"([+-]?)0[xX](_*[0-9a-fA-F][0-9a-fA-F_]*)")
_RANGE = re.compile(r"\s*[-\u2012\u2013\u2212]\s*")
_PART = re.compile(r"(0|[1-9][0-9]{0,18})(?:-(0|[1-9][0-9]{0,18}))?")


def whole_number(text: str, *, hexadecimal: bool = False) -> int | None:
    """Return the whole number that ``text`` is; None where it is none.

    A decimal may have groups of three: 1,024 or 1_024 or 1 024. ``hexadecimal``: 0x400 is one too.
    """
    if len(text) > _MOST_DIGITS:
        return None
    plain = text.strip().replace("\u2212", "-")
    found, base = _DECIMAL.fullmatch(plain), 10
    if found is None and hexadecimal:
        found, base = _HEXADECIMAL.fullmatch(plain), 16
    return None if found is None else int(found[1] + re.sub("[,_ ']", "", found[2]), base)


def decimal_number(text: str) -> Fraction | None:
    """Return the number that ``text`` is, with or without a decimal point (1,024.5 or .5); None where it is none.

    What stands before the point is a whole number as :func:`whole_number` reads it, behind it are digits alone.
    """
    whole, _, rest = text.strip().partition(".")
    number = None if whole != whole.rstrip() else whole_number(whole or "0")
    if number is None or len(rest) > _MOST_DIGITS or not re.fullmatch("[0-9]*", rest) or not whole + rest:
        return None
    part = Fraction(int(rest or "0"), 10 ** len(rest))
    return number - part if whole.startswith(("-", "\u2212")) else number + part


def block_ids(text: str, argument: str, most: int = MOST_IDS, noun: str = "block id") -> list[int]:
    """Return the block ids in ``text``, in its order: numbers and ranges (both ends count) such as "[5, 9, 12-15]".

    Commas, semicolons or spaces stand between them, brackets around them may stay; none for an empty text. ``noun``:
    what they are, in an error. LayoutError naming ``argument`` for anything else, and for more than ``most`` of them.
    """
    cure = f"Write {noun}s such as 5, 9, or a range such as 0-3"
    if len(text) > _MOST_TEXT:
        raise LayoutError(argument, f"{len(text):,} characters", f"is longer than {_MOST_TEXT:,}", cure)
    found: list[int] = []
    for part in re.split(r"[\s,;]+", _RANGE.sub("-", re.sub(r"[\[\](){}]", " ", text)).strip(" \t\r\n,;")):
        if not part:
            continue
        ends = _PART.fullmatch(part)
        if ends is None:
            raise LayoutError(argument, text, f"has {part[:40]!r}, which is no {noun}", cure)
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first:
            raise LayoutError(argument, text, f"has the range {part}, which runs backwards", cure)
        number = len(found) + last - first + 1
        if number > most:
            raise LayoutError(argument, f"{number:,} {noun.removesuffix(' id')}s",
                              f"is longer than the {most:,} that are taken here", "Give fewer")
        found.extend(range(first, last + 1))
    return found
