"""What a kernel did in one case, place by place: where each element of K and V should lie, and where it was found."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvlayout.bench.case import Case

# In place of a byte offset: none. (Offsets below 0 lie before the allocation.)
NOWHERE = np.iinfo(np.int64).min
OLD, UNKNOWN = -2, -1


@dataclass(frozen=True, eq=False)
class Rows:
    """The tokens of a case: ``slot`` of each, and for a reader its ``request`` and ``position`` (else None)."""

    slot: np.ndarray
    request: np.ndarray | None = None
    position: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Observation:
    """All elements of K and V that a kernel was to write or to read; offsets are bytes from the allocation's start.

    Attributes:
        expected, found: one entry an element, token by token, K before V; NOWHERE for an ignored token and for what
            isn't found
        held: what lies at the expected place of each: the index of an element, or OLD or UNKNOWN; None for a reader
        stray, stray_held: offsets that were written and shouldn't have been, and what lies there
    """

    case: Case
    rows: Rows
    expected: np.ndarray
    found: np.ndarray
    held: np.ndarray | None = None
    stray: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    stray_held: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def ignored(self) -> np.ndarray:
        """Whether each element is one of an ignored token."""
        return self.expected == NOWHERE

    @property
    def wrong(self) -> np.ndarray:
        """Whether each element was to be written or read and wasn't, or not at its place."""
        return ~self.ignored & (self.found != self.expected)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, and nothing else was touched."""
        return not (self.found != self.expected).any() and not len(self.stray)


def expected_offsets(case: Case, slots: np.ndarray) -> np.ndarray:
    """Return [rows, elements of K and V] byte offsets of the tokens in ``slots``; NOWHERE for negative slots."""
    key, value = case.sides
    slot, byte = np.concatenate([key.slot, value.slot]), np.concatenate([key.byte, value.byte])
    block, state = np.divmod(np.maximum(slots, 0), case.block_size)
    layer = case.address_map.layer_index(case.layer)
    found = case.address_map.offset(layer, block[:, None], slot, state[:, None], byte)
    return np.where(slots[:, None] < 0, NOWHERE, found)


def observe_writes(case: Case, changed: np.ndarray, ids: np.ndarray) -> Observation:
    """Return the observation of a writer from the offsets that it ``changed``, in order, and the elements there."""
    rows = Rows(case.requests.slots)
    expected = expected_offsets(case, rows.slot).ravel()
    held = np.full(len(expected), OLD, dtype=np.int64)
    place = np.searchsorted(changed, expected)
    hit = place < len(changed)
    hit[hit] = changed[place[hit]] == expected[hit]
    held[hit] = ids[place[hit]]
    found = np.full(len(expected), NOWHERE, dtype=np.int64)
    known = ids >= 0
    found[ids[known][::-1]] = changed[known][::-1]  # of several places the first one
    right = held == np.arange(len(expected))
    found[right] = expected[right]
    stray = np.ones(len(changed), dtype=bool)
    stray[place[hit]] = False
    return Observation(case, rows, expected, found, held, changed[stray], ids[stray])


def reader_rows(case: Case) -> Rows:
    """Return every token of every request, in order, with the slot that its block table gives it."""
    table, lengths = case.requests.block_table, case.requests.seq_lens
    request = np.repeat(np.arange(len(lengths)), lengths)
    position = np.concatenate([np.arange(length) for length in lengths])
    index, row = np.divmod(position, case.block_size)
    return Rows(table[request, index].astype(np.int64) * case.block_size + row, request, position)
