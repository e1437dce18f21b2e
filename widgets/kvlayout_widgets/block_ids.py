"""Block ids in words."""

from __future__ import annotations


def ids_words(ids: list[int]) -> str:
    """Return block ids for a title: "blocks 5 and 9", "blocks 0 to 3", "12 blocks (5, 9, 7 …)"."""
    if len(ids) == 1:
        return f"block {ids[0]:,}"
    if len(ids) > 2 and ids == list(range(ids[0], ids[0] + len(ids))):
        return f"blocks {ids[0]:,} to {ids[-1]:,}"
    if len(ids) <= 4:
        return f"blocks {', '.join(f'{one:,}' for one in ids[:-1])} and {ids[-1]:,}"
    return f"{len(ids):,} blocks ({', '.join(f'{one:,}' for one in ids[:3])} …)"
