"""What a KV cache's bytes were at one moment, in bounded memory, and which of them differ between two moments.

The allocation is cut into granules of a few KiB. A granule of zeros costs nothing, others are held as they are up
to a limit, and what lies beyond the limit is known by a 64-bit digest only: that it changed, not which bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from kvlayout.errors import LayoutError, check_int, check_type

GRANULE_BYTES = 4096
_BATCH = 1024  # granules that are compared at once


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The bytes of an allocation at one moment.

    Attributes:
        size_bytes: bytes of the allocation
        granule_bytes: bytes of a granule; the last one may reach behind the allocation, with zeros
        kept, content: numbers of the granules that are held (sorted int64), and their bytes (uint8, one row each)
        digested, digests: numbers of the granules that are known by digest only, and their digests (int64)

    All other granules were zeros.
    """

    size_bytes: int
    granule_bytes: int
    kept: np.ndarray
    content: np.ndarray
    digested: np.ndarray
    digests: np.ndarray

    def __post_init__(self):
        if check_int("granule_bytes", self.granule_bytes, minimum=8) % 8:
            raise LayoutError("granule_bytes", self.granule_bytes, "must be a multiple of 8 bytes")
        if self.content.shape != (len(self.kept), self.granule_bytes) or len(self.digested) != len(self.digests):
            raise LayoutError("content", self.content.shape, "must have one row of granule_bytes a kept granule")

    @property
    def nbytes(self) -> int:
        """Bytes that the snapshot itself takes."""
        return sum(part.nbytes for part in (self.kept, self.content, self.digested, self.digests))

    def holds(self, offsets: np.ndarray) -> np.ndarray:
        """Return whether the bytes at ``offsets`` (int64) weren't zero; True where only a digest is kept."""
        granule, inside = np.divmod(np.asarray(offsets, dtype=np.int64), self.granule_bytes)
        found = np.isin(granule, self.digested)
        if len(self.kept):
            place = np.minimum(np.searchsorted(self.kept, granule), len(self.kept) - 1)
            found |= (self.kept[place] == granule) & (self.content[place, inside] != 0)
        return found

    def to_dict(self) -> dict:
        """Return plain numbers and bytes, to be sent between processes; inverse of :meth:`from_dict`."""
        return {"size_bytes": self.size_bytes, "granule_bytes": self.granule_bytes, "kept": self.kept.tobytes(),
                "content": self.content.tobytes(), "digested": self.digested.tobytes(),
                "digests": self.digests.tobytes()}

    @classmethod
    def from_dict(cls, data: dict) -> Snapshot:
        """Return the snapshot of such a dict."""
        def numbers(name):
            return np.frombuffer(data[name], dtype=np.int64)

        content = np.frombuffer(data["content"], dtype=np.uint8).reshape(-1, data["granule_bytes"])
        return cls(data["size_bytes"], data["granule_bytes"], numbers("kept"), content, numbers("digested"),
                   numbers("digests"))


@dataclass(frozen=True, eq=False)
class Changes:
    """Which bytes differ between two snapshots.

    Attributes:
        size_bytes, granule_bytes: as in the snapshots
        granules: numbers of the granules that differ (sorted int64)
        masks: one bit a byte of each such granule, packed as by ``numpy.packbits``; all ones where it isn't exact
        exact: whether the differing bytes of a granule are known; False where one of the two was a digest
    """

    size_bytes: int
    granule_bytes: int
    granules: np.ndarray
    masks: np.ndarray
    exact: np.ndarray

    def to_dict(self) -> dict:
        """Return plain numbers and bytes, to be sent between processes; inverse of :meth:`from_dict`."""
        return {"size_bytes": self.size_bytes, "granule_bytes": self.granule_bytes,
                "granules": self.granules.tobytes(), "masks": self.masks.tobytes(), "exact": self.exact.tobytes()}

    @classmethod
    def from_dict(cls, data: dict) -> Changes:
        """Return the changes of such a dict."""
        masks = np.frombuffer(data["masks"], dtype=np.uint8).reshape(-1, data["granule_bytes"] // 8)
        return cls(data["size_bytes"], data["granule_bytes"], np.frombuffer(data["granules"], dtype=np.int64), masks,
                   np.frombuffer(data["exact"], dtype=bool))

    @property
    def is_exact(self) -> bool:
        """Whether every differing byte is known."""
        return bool(self.exact.all())

    @property
    def changed_bytes(self) -> int:
        """Bytes that differ; all bytes of a granule of which only that is known."""
        return sum(int(bits.sum()) for _, bits in self._batches())

    def at(self, offsets: np.ndarray) -> np.ndarray:
        """Return whether the bytes at ``offsets`` (int64, any shape) differ; bool, same shape."""
        granule, inside = np.divmod(np.asarray(offsets, dtype=np.int64), self.granule_bytes)
        if not len(self.granules):
            return np.zeros(granule.shape, dtype=bool)
        place = np.minimum(np.searchsorted(self.granules, granule), len(self.granules) - 1)
        bits = self.masks[place, inside >> 3] >> (7 - (inside & 7)).astype(np.uint8) & 1
        return (self.granules[place] == granule) & bits.astype(bool)

    def is_exact_at(self, offsets: np.ndarray) -> np.ndarray:
        """Return whether it is known of each byte at ``offsets`` if it differs; bool, same shape."""
        return ~np.isin(np.asarray(offsets, dtype=np.int64) // self.granule_bytes, self.granules[~self.exact])

    def offsets(self) -> Iterator[np.ndarray]:
        """Yield the offsets of differing bytes, in order, as int64 arrays of bounded length."""
        for numbers, bits in self._batches():
            row, column = np.nonzero(bits)
            found = numbers[row] * self.granule_bytes + column
            yield found[found < self.size_bytes]

    def _batches(self):
        for start in range(0, len(self.granules), _BATCH // 4):
            part = slice(start, start + _BATCH // 4)
            yield self.granules[part], np.unpackbits(self.masks[part], axis=1).astype(bool)


def changed(before: Snapshot, after: Snapshot) -> Changes:
    """Return which bytes differ between two snapshots of one allocation; LayoutError where they don't fit."""
    check_type("before", before, Snapshot)
    check_type("after", after, Snapshot)
    if (before.size_bytes, before.granule_bytes) != (after.size_bytes, after.granule_bytes):
        raise LayoutError("after", (after.size_bytes, after.granule_bytes), "must have the size and granules of "
                          f"before, {before.size_bytes:,} and {before.granule_bytes:,} bytes",
                          "Take both snapshots of the same cache with the same granule_bytes")
    digested = np.union1d(before.digested, after.digested)
    plain = np.setdiff1d(np.union1d(before.kept, after.kept), digested)
    granules, masks = [np.zeros(0, np.int64)], [np.zeros((0, before.granule_bytes // 8), np.uint8)]
    for start in range(0, len(plain), _BATCH):
        numbers = plain[start:start + _BATCH]
        differs = _content(before, numbers) != _content(after, numbers)
        hit = differs.any(axis=1)
        granules.append(numbers[hit])
        masks.append(np.packbits(differs[hit], axis=1))
    exact = np.ones(sum(map(len, granules)), dtype=bool)
    for start in range(0, len(digested), _BATCH):
        numbers = digested[start:start + _BATCH]
        hit = numbers[_digests(before, numbers) != _digests(after, numbers)]
        granules.append(hit)
        masks.append(np.full((len(hit), before.granule_bytes // 8), 255, np.uint8))
    numbers = np.concatenate(granules)
    exact = np.concatenate([exact, np.zeros(len(numbers) - len(exact), dtype=bool)])
    order = np.argsort(numbers)
    return Changes(before.size_bytes, before.granule_bytes, numbers[order], np.concatenate(masks)[order],
                   exact[order])


def digest(words, salt):
    """Return a 64-bit digest of each row of ``words`` (int64 [rows, words a granule], NumPy or torch).

    ``salt``: :func:`salts` in the same library, so that a word's place counts. Sums and products wrap around.
    """
    mixed = (words ^ salt) * -7046029254386353131
    mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
    return (mixed ^ (mixed >> 32)).sum(1)


@cache
def salts(granule_bytes: int) -> np.ndarray:
    """Return one fixed random int64 for each word of a granule."""
    return np.random.default_rng(0).integers(-2**63, 2**63 - 1, granule_bytes // 8, dtype=np.int64)


def _place(numbers: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (which of ``wanted`` are in sorted ``numbers``, where those are)."""
    if not len(numbers):
        return np.zeros(len(wanted), dtype=bool), np.zeros(0, dtype=np.int64)
    place = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    found = numbers[place] == wanted
    return found, place[found]


def _content(snapshot: Snapshot, numbers: np.ndarray) -> np.ndarray:
    rows = np.zeros((len(numbers), snapshot.granule_bytes), dtype=np.uint8)
    found, place = _place(snapshot.kept, numbers)
    rows[found] = snapshot.content[place]
    return rows


def _digests(snapshot: Snapshot, numbers: np.ndarray) -> np.ndarray:
    found, place = _place(snapshot.digested, numbers)
    result = np.empty(len(numbers), dtype=np.int64)
    result[found] = snapshot.digests[place]
    words = _content(snapshot, numbers[~found]).view(np.int64)
    result[~found] = digest(words, salts(snapshot.granule_bytes))
    return result
