"""Real memory for one case: the cache in the middle, and on both sides room that nobody may write to.

A kernel that works with addresses can leave its cache; the room makes that a finding, not a crash. Places are
elements of the whole memory, of the cache's own element size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from kvlayout.bench.case import Case
from kvlayout.bench.codes import Codes
from kvlayout.bench.holes import Holes
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.memory.cache import KVCache
from kvlayout.memory.device import memory_info

_ROOM_BYTES = 1 << 14  # at most, with fingerprints, on each side
_MOST_MARKED_BYTES = 1 << 26
_RESERVE_BYTES = 1 << 32  # of zeros behind the room, on each side, where memory can be reserved
_DEVICE_RESERVE_BYTES = 1 << 26  # on a GPU, whose memory is taken, but is quickly looked through
_ALIGNMENT_BYTES = 4096
_CHUNK_ELEMENTS = 1 << 28
_NEAR_ELEMENTS = 256  # that hold fingerprints together around a token's place in a far case
_MOST_NEAR = 256  # such stretches, and for each the eight beside it and in the blocks beside


class Arena:
    """The memory of one case.

    Attributes:
        first: the place where the allocation begins
        marked: (begin, end) of the places that hold fingerprints; those around are zero before each call
        cache: the KVCache; ``view``: what vLLM hands to the kernel of the case's layer, [B, H, N, C]
        codes: the fingerprints
    """

    def __init__(self, case: Case, memory: torch.Tensor, first_byte: int, marked: tuple[int, int], codes: Codes,
                 holes: Holes | None = None):
        item = codes.dtype.itemsize
        self.case, self.codes, self.marked, self._holes = case, codes, marked, holes
        self.first = first_byte // item
        self.cache = KVCache(memory[first_byte:first_byte + case.address_map.size_bytes], case.address_map)
        self.view = self.cache.views[case.layer]
        self._elements = memory.view(integer_type(codes.dtype))
        # NumPy works on a CPU's memory without waiting for torch's threads, which on a busy machine takes long.
        self._host = self._elements.numpy() if memory.device.type == "cpu" else None

    @property
    def size(self) -> int:
        """Places there are."""
        return len(self._elements)

    def write(self, numbers: np.ndarray, turn: int, places: np.ndarray | slice) -> None:
        """Write the patterns of ``numbers``."""
        patterns = self.codes.patterns(numbers, turn)
        if self._host is not None:
            self._host[places] = patterns
            return
        self._elements[self._index(places)] = torch.from_numpy(patterns).to(self._elements.device)

    def read(self, places: np.ndarray | slice) -> np.ndarray:
        """Return a copy of the elements, as integers."""
        if self._host is not None:
            return np.array(self._host[places])
        return self._elements[self._index(places)].cpu().numpy()

    def clear(self) -> None:
        """Make every byte zero."""
        if self._holes is not None:
            self._holes.clear()
        else:
            self._elements.zero_()

    def nonzero_around(self) -> np.ndarray:
        """Return the places outside the marked ones that aren't zero, in order."""
        item, found = self.codes.dtype.itemsize, [np.zeros(0, dtype=np.int64)]
        for begin, end in self._outside():
            if self._holes is not None:
                stretches = [(max(begin, start // item), min(end, stop // item))
                             for start, stop in self._holes.touched()]
            else:
                stretches = [(start, min(end, start + _CHUNK_ELEMENTS))
                             for start in range(begin, end, _CHUNK_ELEMENTS)]
            found += [start + self._nonzero(slice(start, stop)) for start, stop in stretches if start < stop]
        return np.concatenate(found)

    def _outside(self) -> list[tuple[int, int]]:
        begin, end = self.marked
        return [(0, begin), (end, self.size)]

    def _nonzero(self, places: slice) -> np.ndarray:
        if self._host is not None:
            return np.flatnonzero(self._host[places])
        return torch.nonzero(self._elements[places]).flatten().cpu().numpy()

    def _index(self, places: np.ndarray | slice) -> torch.Tensor | slice:
        return places if isinstance(places, slice) else torch.from_numpy(places).to(self._elements.device)


def integer_type(kind: np.dtype) -> torch.dtype:
    """Return torch's dtype of a NumPy integer type."""
    return torch.from_numpy(np.empty(0, kind)).dtype


def sorted_once(places: np.ndarray) -> np.ndarray:
    """Return the places in order, each once."""
    places = np.sort(places)  # np.unique hashes, which takes several times as long
    first = np.ones(len(places), dtype=bool)
    first[1:] = places[1:] != places[:-1]
    return places[first]


def neighbourhood(case: Case, offsets: np.ndarray) -> np.ndarray:
    """Return elements around byte ``offsets``, and around the same places of the blocks before and after, in order.

    They are counted from where the allocation begins; not all are near where there are very many offsets.
    """
    item, amap = dtype_size_bytes(case.spec.dtype), case.address_map
    stride = amap.offset(case.layer, 1) - amap.offset(case.layer, 0)
    here = sorted_once(offsets // (item * _NEAR_ELEMENTS))
    here = here[::-(-len(here) // _MOST_NEAR)]
    chunks = np.concatenate([here + shift for step in (-1, 0, 1) for shift in
                             step * stride // (item * _NEAR_ELEMENTS) + np.arange(-1, 2)])
    return (sorted_once(chunks)[:, None] * _NEAR_ELEMENTS + np.arange(_NEAR_ELEMENTS)).ravel()


def without(places: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the places that are none of ``others``, which are in order."""
    index = np.minimum(np.searchsorted(others, places), len(others) - 1)
    return places[others[index] != places] if len(others) else places


def has_background(case: Case) -> bool:
    """Whether a case's memory is small enough to hold a fingerprint in each place."""
    return not case.is_far and case.address_map.size_bytes <= _MOST_MARKED_BYTES


@contextmanager
def near_arena(case: Case, device: torch.device, extra: int) -> Iterator[Arena]:
    """An arena whose cache and room are marked, with codes for all those places and ``extra`` numbers more."""
    size, item = case.address_map.size_bytes, dtype_size_bytes(case.spec.dtype)
    room = min(_ROOM_BYTES, _aligned(size))
    holes = _reserve(2 * _RESERVE_BYTES + _aligned(2 * room + size)) if device.type == "cpu" else None
    start = _RESERVE_BYTES if holes is not None else _DEVICE_RESERVE_BYTES if device.type != "cpu" else 0
    whole = 2 * (start + room) + size
    memory = torch.zeros(whole, dtype=torch.int8, device=device) if holes is None else holes.tensor
    marked = start // item, (start + 2 * room + size) // item
    try:
        yield Arena(case, memory, start + room, marked, Codes(item, marked[1] - marked[0] + extra), holes)
    finally:
        if holes is not None:
            holes.close()


@contextmanager
def far_arena(case: Case, device: torch.device, count: int) -> Iterator[Arena | str]:
    """An arena of zeros of any size, in which an offset that wraps at 32 bits stays inside; ``count`` numbers.

    Where the machine can't: the reason, as one clause.
    """
    item, size, free = dtype_size_bytes(case.spec.dtype), case.address_map.size_bytes, memory_info(device)[0]
    room = (1 << 31) * item
    whole, codes, holes = room + _aligned(size) + _ALIGNMENT_BYTES, Codes(item, count), None
    if device.type != "cpu":
        if free < 2 * whole:
            yield f"{2 * whole:,} bytes must be free on {device}, in case the kernel copies its cache; {free:,} are"
            return
        memory = torch.zeros(whole, dtype=torch.int8, device=device)
    else:
        # Only what is touched is taken; but a kernel that copies its cache needs as much as the cache has.
        if free < 2 * size:
            yield f"{2 * size:,} bytes must be free, in case the kernel copies its cache; {free:,} are"
            return
        try:
            holes = Holes(whole)
        except OSError as error:
            yield str(error)
            return
        memory = holes.tensor
    try:
        yield Arena(case, memory, room, (0, 0), codes, holes)
    finally:
        if holes is not None:
            holes.close()


def _reserve(size_bytes: int) -> Holes | None:
    try:
        return Holes(size_bytes)
    except OSError:
        return None


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
