"""Numbers as a user types them: whole ones, and block tables with ranges. What they can't be is refused in words."""

from __future__ import annotations

import re

from kvlayout.errors import LayoutError

MOST_BLOCKS = 1 << 16
_MOST_TEXT = 1 << 20
_GROUPED = re.compile(r"(?<=[0-9])[,_ '](?=[0-9])")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_PART = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_WIDE_RANGE = re.compile(r"(?<=[0-9]) +- +(?=[0-9])")
_TABLE_CURE = "Write block ids and ranges, such as 5, 9, 12-15"


def whole(argument: str, text: str, example: str) -> int | None:
    """Return the whole number in ``text``, with or without commas; None for an empty text; else LayoutError."""
    plain = _GROUPED.sub("", text.strip().replace("\u2212", "-"))
    if not plain:
        return None
    if not _WHOLE.fullmatch(plain):
        raise LayoutError(argument, text, "is not a whole number", f"Write one such as {example}")
    return int(plain)


def block_table(text: str) -> list[int]:
    """Return the block ids in text such as "[5, 9, 12-15]", in order; an empty list for an empty text.

    Raises LayoutError for anything else and for more than 65,536 ids.
    """
    if len(text) > _MOST_TEXT:
        raise LayoutError("block table", f"{len(text):,} characters", f"is longer than {_MOST_TEXT:,}", _TABLE_CURE)
    plain = re.sub(r"[\[\](){}]", " ", text.replace("\u2212", "-").replace("\u2013", "-"))
    ids: list[int] = []
    for part in re.split(r"[\s,;]+", _WIDE_RANGE.sub("-", plain).strip()):
        if not part:
            continue
        found = _PART.fullmatch(part)
        if found is None:
            raise LayoutError("block table", part, "is neither a block id nor a range of them", _TABLE_CURE)
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise LayoutError("block table", part, "ends before it begins", _TABLE_CURE)
        if len(ids) + last - first + 1 > MOST_BLOCKS:
            raise LayoutError("block table", f"{len(ids) + last - first + 1:,} blocks", "is longer than the "
                              f"{MOST_BLOCKS:,} that are counted here", "Give a part of it")
        ids.extend(range(first, last + 1))
    return ids
