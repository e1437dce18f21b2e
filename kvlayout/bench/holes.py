"""Memory of any size that is only reserved: a file of holes, which takes memory where it is touched (Linux only)."""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch


class Holes:
    """``size_bytes`` of zeros on the CPU; ``tensor`` is all of it, int8. OSError where the system can't."""

    def __init__(self, size_bytes: int):
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no files of holes in memory")
        self.size_bytes = size_bytes
        self._file = os.memfd_create("kvlayout-bench")
        try:
            os.ftruncate(self._file, size_bytes)
            mapped = mmap.mmap(self._file, size_bytes)
        except (OSError, ValueError) as error:
            os.close(self._file)
            raise OSError(f"{size_bytes:,} bytes can't be reserved: {error}") from error
        self.tensor = torch.from_numpy(np.frombuffer(mapped, dtype=np.int8))

    def clear(self) -> None:
        """Make every byte zero, by giving all memory back."""
        os.ftruncate(self._file, 0)
        os.ftruncate(self._file, self.size_bytes)

    def touched(self) -> list[tuple[int, int]]:
        """Return (start, end) of the stretches that may hold anything but zeros, in bytes, in order."""
        found, end = [], 0
        while end < self.size_bytes:
            try:
                start = os.lseek(self._file, end, os.SEEK_DATA)
            except OSError:  # nothing but a hole from here on
                break
            end = os.lseek(self._file, start, os.SEEK_HOLE)
            found.append((start, end))
        return found

    def close(self) -> None:
        """Give the memory back; what still views it sees zeros."""
        self.clear()
        os.close(self._file)
