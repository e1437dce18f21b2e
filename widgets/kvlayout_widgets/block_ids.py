"""Block ids as a person types them: "5, 9" or "0-3"."""

from __future__ import annotations

import re

from kvlayout.errors import LayoutError

MOST = 1 << 16


def parse_block_ids(text: str, argument: str, most: int = MOST) -> list[int]:
    """Return the block ids in ``text``, in its order: numbers and ranges (both ends count) with commas or spaces.

    LayoutError naming ``argument`` for anything else, and for more than ``most`` of them.
    """
    cure = "Write block ids such as 5, 9, or a range such as 0-3"
    found: list[int] = []
    for part in re.sub(r"\s*[-–]\s*", "-", text.strip()).replace(",", " ").split():
        ends = re.fullmatch(r"(0|[1-9]\d{0,17})(?:-(0|[1-9]\d{0,17}))?", part)
        if ends is None:
            raise LayoutError(argument, text, f"has {part[:40]!r}, which is no block id", cure)
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first:
            raise LayoutError(argument, text, f"has the range {part}, which runs backwards", cure)
        if len(found) + last - first + 1 > most:
            raise LayoutError(argument, text, f"is more than {most:,} blocks", "Give fewer")
        found.extend(range(first, last + 1))
    return found


def ids_words(ids: list[int]) -> str:
    """Return block ids for a title: "blocks 5 and 9", "blocks 0 to 3", "12 blocks (5, 9, 7 …)"."""
    if len(ids) == 1:
        return f"block {ids[0]:,}"
    if len(ids) > 2 and ids == list(range(ids[0], ids[0] + len(ids))):
        return f"blocks {ids[0]:,} to {ids[-1]:,}"
    if len(ids) <= 4:
        return f"blocks {', '.join(f'{one:,}' for one in ids[:-1])} and {ids[-1]:,}"
    return f"{len(ids):,} blocks ({', '.join(f'{one:,}' for one in ids[:3])} …)"
