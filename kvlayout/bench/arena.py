"""Real memory for one case: the cache in the middle, and on both sides room that nobody may write to.

A kernel that works with addresses can leave its cache; the room makes that a finding, not a crash.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch

from kvlayout.bench.codes import Codes
from kvlayout.bench.shapes import Case
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.memory.cache import KVCache
from kvlayout.memory.device import memory_info

_MOST_ROOM_BYTES = 1 << 16
_ALIGNMENT_BYTES = 4096
_CHUNK_ELEMENTS = 1 << 28


class Arena:
    """Elements 0 to ``count`` in one stretch; those of the allocation begin at ``first``, the rest is room.

    ``cache``: the KVCache that lies in the middle; ``view``: what vLLM hands to the kernel of the case's layer,
    [B, H, N, C] in the spec's dtype.
    """

    def __init__(self, case: Case, memory: torch.Tensor, room_bytes: int, codes: Codes):
        item = dtype_size_bytes(case.spec.dtype)
        self.case, self.codes, self.count = case, codes, memory.numel() // item
        self.first = room_bytes // item
        self.cache = KVCache(memory[room_bytes:room_bytes + case.address_map.size_bytes], case.address_map)
        self.view = self.cache.views[case.layer]
        self._elements = memory.view(torch.from_numpy(np.empty(0, codes.dtype)).dtype)
        # NumPy works on a CPU's memory without waiting for torch's threads, which on a busy machine takes long.
        self._host = self._elements.numpy() if memory.device.type == "cpu" else None

    def write(self, numbers: np.ndarray, turn: int, places: np.ndarray | slice = slice(None)) -> None:
        """Write the patterns of ``numbers`` at ``places`` (elements of the arena)."""
        patterns = self.codes.patterns(numbers, turn)
        if self._host is not None:
            self._host[places] = patterns
            return
        self._elements[self._index(places)] = torch.from_numpy(patterns).to(self._elements.device)

    def read(self, places: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return a copy of the elements at ``places``, as integers."""
        if self._host is not None:
            return np.array(self._host[places])
        return self._elements[self._index(places)].cpu().numpy()

    def _index(self, places: np.ndarray | slice) -> torch.Tensor | slice:
        return places if isinstance(places, slice) else torch.from_numpy(places).to(self._elements.device)

    def clear(self) -> None:
        """Make every byte zero."""
        self._elements.zero_()

    def nonzero(self) -> np.ndarray:
        """Return the places of the elements that aren't zero, in order."""
        found = [start + torch.nonzero(self._elements[start:start + _CHUNK_ELEMENTS]).flatten().cpu().numpy()
                 for start in range(0, self.count, _CHUNK_ELEMENTS)]
        return np.concatenate(found)


class SparseArena(Arena):
    """An arena of any size on the CPU, in a file of holes: memory is taken where it is touched (Linux only)."""

    def __init__(self, case: Case, size_bytes: int, room_bytes: int, codes: Codes):
        self._file = os.memfd_create("kvlayout-bench")
        try:
            os.ftruncate(self._file, size_bytes)
            mapped = mmap.mmap(self._file, size_bytes)
        except OSError:
            os.close(self._file)
            raise
        self._size_bytes = size_bytes
        super().__init__(case, torch.from_numpy(np.frombuffer(mapped, dtype=np.int8)), room_bytes, codes)

    def close(self) -> None:
        """Give the memory back once nothing holds the view any more."""
        self.clear()
        os.close(self._file)

    def clear(self) -> None:
        """Make every byte zero, by giving all memory back."""
        os.ftruncate(self._file, 0)
        os.ftruncate(self._file, self._size_bytes)

    def nonzero(self) -> np.ndarray:
        """Return the places of the elements that aren't zero, in order; only touched memory is looked at."""
        item, found, end = self.codes.dtype.itemsize, [np.zeros(0, dtype=np.int64)], 0
        while end < self._size_bytes:
            try:
                start = os.lseek(self._file, end, os.SEEK_DATA)
            except OSError:  # nothing but a hole from here on
                break
            end = os.lseek(self._file, start, os.SEEK_HOLE)
            found.append(start // item + np.flatnonzero(self.read(slice(start // item, end // item))))
        return np.concatenate(found)


def near_arena(case: Case, device: torch.device, extra: int) -> Arena:
    """Return an arena whose codes tell all its elements apart, and ``extra`` numbers more."""
    size, item = case.address_map.size_bytes, dtype_size_bytes(case.spec.dtype)
    room = min(_MOST_ROOM_BYTES, -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
    memory = torch.empty(room + size + room, dtype=torch.int8, device=device)
    return Arena(case, memory, room, Codes(item, memory.numel() // item + extra))


def far_arena(case: Case, device: torch.device, count: int) -> Arena | str:
    """Return a zeroed arena in which an offset that wraps at 32 bits stays inside; codes for ``count`` numbers.

    Where the machine can't: the reason, as one clause.
    """
    item = dtype_size_bytes(case.spec.dtype)
    room = (1 << 31) * item
    size = room + -(-case.address_map.size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES + _ALIGNMENT_BYTES
    free = memory_info(device)[0]
    codes = Codes(item, count)
    if device.type == "cpu":
        # Only what is touched is taken; but a kernel that copies its cache needs as much as the cache has.
        if free < 2 * case.address_map.size_bytes:
            return f"a kernel may copy its cache of {case.address_map.size_bytes:,} bytes, and {free:,} are free"
        if not hasattr(os, "memfd_create"):
            return "this system has no files of holes in memory"
        return SparseArena(case, size, room, codes)
    if free < 2 * size:
        return f"{2 * size:,} bytes are needed for it on {device}, and {free:,} are free"
    return Arena(case, torch.zeros(size, dtype=torch.int8, device=device), room, codes)
