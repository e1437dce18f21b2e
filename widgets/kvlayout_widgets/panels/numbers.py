"""Numbers as a user types them: whole ones, and block tables with ranges. What they can't be is refused in words."""

from __future__ import annotations

from kvlayout.as_typed import MOST_IDS, block_ids, whole_number
from kvlayout.errors import LayoutError

MOST_BLOCKS = MOST_IDS
_MOST = 10**19


def whole(argument: str, text: str, example: str) -> int | None:
    """Return the whole number in ``text``, with or without commas; None for an empty text; else LayoutError."""
    if not text.strip():
        return None
    number = whole_number(text)
    if number is None or abs(number) >= _MOST:
        raise LayoutError(argument, text, "is not a whole number", f"Write one such as {example}")
    return number


def block_table(text: str) -> list[int]:
    """Return the block ids in text such as "[5, 9, 12-15]", in order; an empty list for an empty text.

    Raises LayoutError for anything else and for more than 65,536 ids.
    """
    return block_ids(text, "block table", MOST_BLOCKS)
