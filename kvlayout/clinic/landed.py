"""What copies do to the bytes they are meant for: written once and rightly, missing, twice, wrongly, elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.arrays import distinct
from kvlayout.clinic.segments import Segments


@dataclass(frozen=True)
class Landed:
    """Bytes of the target by what happened to them, and the first offset of each kind (-1 where there is none).

    ``right + missing + twice + wrong`` are all wanted bytes; ``stray`` bytes are written though nobody wants them
    there, ``outside`` of them past the end of the allocation.
    """

    wanted: int
    right: int
    missing: int
    twice: int
    wrong: int
    stray: int
    outside: int
    first_missing: int
    first_twice: int
    first_wrong: int
    first_stray: int
    wrong_from: tuple[int, int] | None


def judge(done: Segments, meant: Segments, starts: np.ndarray, lengths: np.ndarray, size_bytes: int) -> Landed:
    """Return what ``done`` does to the wanted bytes (runs, in order), where ``meant`` would write them rightly.

    ``wrong_from``: (source, source offset) of what lies at the first wrong byte.
    """
    edges = [starts, starts + lengths, [0, size_bytes]]
    for one in [done] if done is meant else [done, meant]:
        edges += [one.target_offset, one.target_offset + one.length]
    cuts = distinct(np.concatenate([np.asarray(edge, dtype=np.int64) for edge in edges]))
    at, width = cuts[:-1], np.diff(cuts)
    wanted = depth_at(at, starts, starts + lengths) > 0
    depth = depth_at(at, done.target_offset, done.target_offset + done.length)
    by, origin = writer_at(at, done)
    should, proper = (by, origin) if done is meant else writer_at(at, meant)
    right = wanted & (depth == 1) & (by >= 0) & (by == should) & (origin == proper)
    kinds = {"right": right, "missing": wanted & (depth == 0), "twice": wanted & (depth > 1),
             "wrong": wanted & (depth == 1) & ~right, "stray": ~wanted & (depth > 0)}
    sizes = {name: int(width[here].sum()) for name, here in kinds.items()}
    first = {f"first_{name}": int(at[here][0]) if here.any() else -1 for name, here in kinds.items()
             if name != "right"}
    wrong = np.flatnonzero(kinds["wrong"])
    found = (int(by[wrong[0]]), int(origin[wrong[0]])) if len(wrong) else None
    return Landed(int(width[wanted].sum()), **sizes, outside=int(width[kinds["stray"] & (at >= size_bytes)].sum()),
                  **first, wrong_from=found)


def depth_at(at: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """How many of the intervals hold each offset."""
    return np.searchsorted(np.sort(starts), at, side="right") - np.searchsorted(np.sort(ends), at, side="right")


def writer_at(at: np.ndarray, copies: Segments) -> tuple[np.ndarray, np.ndarray]:
    """(source, source offset) of the copy that writes each offset and reaches furthest, -1 where none does."""
    nobody = np.full(len(at), -1, dtype=np.int64)
    if not len(copies):
        return nobody, nobody
    order = np.argsort(copies.target_offset, kind="stable")
    starts = copies.target_offset[order]
    ends = starts + copies.length[order]
    reach = np.maximum.accumulate(ends)
    furthest = np.maximum.accumulate(np.where(ends == reach, np.arange(len(ends)), 0))
    last = np.searchsorted(starts, at, side="right") - 1
    one = furthest[np.maximum(last, 0)]
    inside = (last >= 0) & (at < ends[one])
    row = order[one]
    return (np.where(inside, copies.source[row], -1),
            np.where(inside, copies.source_offset[row] + at - starts[one], -1))
