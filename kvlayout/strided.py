"""Sets of byte addresses ``offset + i0*s0 + i1*s1 + ...``: from indices to an address and back.

This is plain arithmetic on strides in bytes; what the axes mean is :mod:`kvlayout.address`'s business. A set is
*nested* where each stride is at least the span of all smaller ones, so that no two indices share an address: true
of every layout that vLLM plans. The inverse of a nested set is a chain of divisions, done for whole arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from kvlayout.errors import LayoutError

_MOST_RUNS = 1 << 22  # of each of two sets that are compared run by run
_CHUNK = 1 << 15  # addresses handled at a time, so that the chain's temporaries stay in the cache


class StridedSet:
    """The addresses of an array of ``extents`` with byte ``strides``, starting at byte ``offset``."""

    def __init__(self, offset: int, extents: Sequence[int], strides: Sequence[int]):
        self.offset, self.extents, self.strides = offset, tuple(extents), tuple(strides)
        self.is_empty = 0 in self.extents
        # Axes that move the address, outermost first; a singleton axis never does.
        self.walk = sorted((axis for axis, n in enumerate(self.extents) if n > 1),
                           key=lambda axis: (-self.strides[axis], self.extents[axis]))
        self._spans = [1]  # bytes from the first to behind the last address of the axes inside each position
        for axis in reversed(self.walk):
            self._spans.insert(0, self._spans[0] + (self.extents[axis] - 1) * self.strides[axis])

    @property
    def end(self) -> int:
        """Address behind the last byte."""
        return self.offset + (0 if self.is_empty else self._spans[0])

    @cached_property
    def is_nested(self) -> bool:
        """No two indices share an address, and division by the strides finds the indices."""
        return all(self.strides[axis] >= self._spans[i + 1] for i, axis in enumerate(self.walk))

    @cached_property
    def _tail(self) -> tuple[int, int]:
        """(number of walked axes outside the contiguous run, bytes of that run)."""
        length = 1
        for i in range(len(self.walk) - 1, -1, -1):
            axis = self.walk[i]
            if self.strides[axis] != length:
                return i + 1, length
            length *= self.extents[axis]
        return 0, length

    @property
    def run_length(self) -> int:
        """Bytes of one maximal contiguous run."""
        return 0 if self.is_empty else self._tail[1]

    @property
    def num_runs(self) -> int:
        """How many runs of :attr:`run_length` there are."""
        return 0 if self.is_empty else math.prod(self.extents[axis] for axis in self.walk[:self._tail[0]])

    @property
    def runs_are_apart(self) -> bool:
        """No two of the runs touch or overlap, so that :attr:`num_runs` and :attr:`run_length` say all of them."""
        return all(self.strides[axis] > self._spans[i + 1] for i, axis in enumerate(self.walk[:self._tail[0]]))

    @property
    def is_dense(self) -> bool:
        """All addresses form one run."""
        return not self.is_empty and self._tail[0] == 0

    def indices(self, addresses: np.ndarray, out: Sequence[np.ndarray]) -> np.ndarray:
        """Write each address' index along every axis into ``out`` (one 1-D array an axis); return who is in the set.

        Only for nested sets. Where an address isn't in the set, ``out`` holds no meaning.
        """
        inside = np.empty(len(addresses), dtype=bool)
        for start in range(0, len(addresses), _CHUNK):
            part = slice(start, start + _CHUNK)
            self._indices_of_chunk(addresses[part], [array[part] for array in out], inside[part])
        return inside

    def _indices_of_chunk(self, addresses, out, inside):
        rest = addresses - self.offset
        np.greater_equal(rest, 0, out=inside)
        inside &= rest < self.end - self.offset
        for axis, array in enumerate(out):
            if self.extents[axis] <= 1:
                array[:] = 0
        room = None  # bytes that the axis outside leaves for the current one; None: the set's own span
        for axis in self.walk:
            stride, extent = self.strides[axis], self.extents[axis]
            if stride == 1:
                index, rest = rest, None
            else:
                index = rest // stride
                rest = rest - index * stride
            if room is not None and room > stride * extent:
                inside &= index < extent
            out[axis][:] = index
            room = stride
        if rest is not None:  # nothing has stride 1: an address is hit only exactly
            inside &= rest == 0

    def floor(self, address: int) -> tuple[int, ...] | None:
        """Return the indices of the greatest address in the set that is <= ``address``; None if there is none."""
        rest = address - self.offset
        if self.is_empty or rest < 0:
            return None
        index = [0] * len(self.extents)
        for axis in self.walk:
            index[axis] = min(rest // self.strides[axis], self.extents[axis] - 1)
            rest -= index[axis] * self.strides[axis]
        return tuple(index)

    def ceil(self, address: int) -> int | None:
        """Return the smallest address in the set that is >= ``address``; None if there is none."""
        below = self.floor(address)
        if below is None:
            return None if self.is_empty else self.offset
        found = self.at(below)
        if found >= address:
            return found
        index = list(below)
        for axis in reversed(self.walk):  # the next one in address order: an odometer's step
            if index[axis] + 1 < self.extents[axis]:
                index[axis] += 1
                return self.at(index)
            index[axis] = 0
        return None

    def at(self, index: Sequence[int]) -> int:
        """Return the address of one index tuple."""
        return self.offset + sum(i * s for i, s in zip(index, self.strides))

    def all_indices(self, address: int) -> Iterator[tuple[int, ...]]:
        """Yield every index tuple whose address is ``address``: at most one where the set is nested."""
        if not self.is_empty:
            yield from self._search(address - self.offset, 0, [0] * len(self.extents))

    def _search(self, rest, position, index):
        if position == len(self.walk):
            if rest == 0:
                yield tuple(index)
            return
        axis, inner = self.walk[position], self._spans[position + 1]
        stride, extent = self.strides[axis], self.extents[axis]
        if stride == 0:
            candidates = range(extent)
        else:
            candidates = range(max(0, -(-(rest - inner + 1) // stride)), min(extent - 1, rest // stride) + 1)
        for candidate in candidates:
            index[axis] = candidate
            yield from self._search(rest - candidate * stride, position + 1, index)
        index[axis] = 0

    def count_runs(self, chosen: Sequence[np.ndarray | None]) -> int:
        """Return how many runs :meth:`runs` would list."""
        length, dense, count = 1, True, 1
        for axis in reversed(self.walk):
            dense = dense and chosen[axis] is None and self.strides[axis] == length
            if dense:
                length *= self.extents[axis]
            else:
                count *= self.extents[axis] if chosen[axis] is None else len(chosen[axis])
        return 0 if self.is_empty else count

    def runs(self, chosen: Sequence[np.ndarray | None]) -> tuple[np.ndarray, int]:
        """Return (start addresses, bytes of each run) of the chosen indices; None chooses a whole axis.

        Runs aren't merged beyond whole innermost axes; see :func:`merge_runs`.
        """
        starts, length, dense = np.zeros(1, dtype=np.int64), 1, True
        if self.is_empty or any(c is not None and len(c) == 0 for c in chosen):
            return starts[:0], 0
        fixed = self.offset
        for axis, choice in enumerate(chosen):
            if self.extents[axis] == 1 and choice is not None:
                fixed += int(choice[0]) * self.strides[axis]
        for axis in reversed(self.walk):
            stride = self.strides[axis]
            if chosen[axis] is None and dense and stride == length:
                length *= self.extents[axis]
                continue
            dense = False
            steps = np.arange(self.extents[axis]) if chosen[axis] is None else np.asarray(chosen[axis])
            starts = (steps.astype(np.int64)[:, None] * stride + starts).ravel()
        return starts + fixed, length


def merge_runs(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the runs in address order, with touching and overlapping ones joined."""
    if len(starts) == 0:
        return starts, lengths
    if np.any(starts[1:] < starts[:-1]):
        order = np.argsort(starts, kind="stable")
        starts, lengths = starts[order], lengths[order]
    ends = np.maximum.accumulate(starts + lengths)
    first = np.ones(len(starts), dtype=bool)
    first[1:] = starts[1:] > ends[:-1]
    heads = np.flatnonzero(first)
    lasts = np.append(heads[1:], len(starts)) - 1
    return starts[heads], ends[lasts] - starts[heads]


def first_shared(a: StridedSet, b: StridedSet) -> int | None:
    """Return an address that is in both sets, the lowest where one of them is a single run; None if there is none."""
    if a.is_empty or b.is_empty or a.end <= b.offset or b.end <= a.offset:
        return None
    for run, other in ((a, b), (b, a)):
        if run.is_dense:
            found = other.ceil(run.offset)
            return found if found is not None and found < run.end else None
    if a.walk and b.walk and a.strides[a.walk[0]] == b.strides[b.walk[0]] and a.is_nested and b.is_nested:
        return _first_shared_by_period(a, b)
    a, b = _one_period(a, b)
    if a.is_empty or b.is_empty:
        return None
    if max(a.num_runs, b.num_runs) > _MOST_RUNS:
        raise LayoutError("kv_cache_tensors", f"{a.num_runs:,} and {b.num_runs:,} runs", "are too many to say "
                          f"whether they share a byte; at most {_MOST_RUNS:,} are compared", "Plan fewer blocks")
    starts_a, length_a = a.runs([None] * len(a.extents))
    starts_b, length_b = b.runs([None] * len(b.extents))
    starts_a, starts_b = np.sort(starts_a), np.sort(starts_b)
    behind = np.searchsorted(starts_b, starts_a, side="right")
    before = np.where(behind > 0, starts_b[np.maximum(behind - 1, 0)] + length_b > starts_a, False)
    nearest = starts_b[np.minimum(behind, len(starts_b) - 1)]
    after = np.where(behind < len(starts_b), nearest < starts_a + length_a, False)
    hits = np.flatnonzero(before | after)
    if len(hits) == 0:
        return None
    hit = hits[0]
    return int(starts_a[hit]) if before[hit] else int(starts_b[behind[hit]])


def _one_period(a: StridedSet, b: StridedSet) -> tuple[StridedSet, StridedSet]:
    """The steps of both outer axes amid which two nested sets meet first, if they meet at all.

    From where both have begun on, what they do repeats with the least common multiple of their outer strides.
    """
    if not (a.walk and b.walk and a.is_nested and b.is_nested):
        return a, b
    begin = max(a.offset, b.offset)
    end = begin + math.lcm(a.strides[a.walk[0]], b.strides[b.walk[0]])
    return _amid(a, begin, end), _amid(b, begin, end)


def _amid(s: StridedSet, begin: int, end: int) -> StridedSet:
    """The outer steps of a nested set that reach between two addresses."""
    axis = s.walk[0]
    stride, extents = s.strides[axis], list(s.extents)
    first = max(0, (begin - s.offset) // stride - 1)
    extents[axis] = max(0, min(extents[axis], (end - s.offset) // stride + 1) - first)
    return StridedSet(s.offset + first * stride, extents, s.strides)


def _first_shared_by_period(a: StridedSet, b: StridedSet) -> int | None:
    """Both step by the same outer stride, so only neighbouring steps can meet."""
    outer_a, outer_b = a.walk[0], b.walk[0]
    stride = a.strides[outer_a]
    inner_a, inner_b = _without(a, outer_a), _without(b, outer_b)
    nearest = (a.offset - b.offset) // stride
    for step in range(nearest - 1, nearest + 3):  # how many steps b is moved against a
        low, high = max(0, step), min(b.extents[outer_b] - 1, a.extents[outer_a] - 1 + step)
        if low > high:
            continue
        moved = StridedSet(inner_b.offset + step * stride, inner_b.extents, inner_b.strides)
        found = first_shared(inner_a, moved)
        if found is not None:
            return found + (low - step) * stride
    return None


def _without(s: StridedSet, axis: int) -> StridedSet:
    extents = list(s.extents)
    extents[axis] = 1
    return StridedSet(s.offset, extents, s.strides)
