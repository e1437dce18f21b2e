"""Fingerprints of places: a number for each element, written as bit patterns that every kernel carries unchanged.

A pattern is a positive, finite, normal number of the element's type, so that a cast to float32 and back is harmless,
and never 0. Where there are more numbers than patterns, a kernel runs several times and each turn shows one digit.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from kvlayout.errors import LayoutError

# Element bytes -> (first pattern, how many): of one byte, those that are no NaN or infinity in any fp8 type; of two,
# those that are normal in both bfloat16 and float16.
_PATTERNS = {1: (1, 123), 2: (0x0400, 0x7700), 4: (0x00800000, 1 << 30), 8: (1 << 52, 1 << 30)}
_TYPES = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
# A prime that scatters the numbers: a value that was doubled, or is one off, is mostly no other element's.
_SCATTER = 1_000_003


class Codes:
    """The patterns of numbers below ``count``, for elements of ``item_bytes``."""

    def __init__(self, item_bytes: int, count: int):
        if item_bytes not in _PATTERNS:
            raise LayoutError("item_bytes", item_bytes, f"must be one of {', '.join(map(str, _PATTERNS))}")
        self.count = count
        self.dtype = np.dtype(_TYPES[item_bytes])
        self._first, self._base = _PATTERNS[item_bytes]
        self.turns = 1
        while self._base ** self.turns < count:
            self.turns += 1

    def patterns(self, numbers: np.ndarray, turn: int) -> np.ndarray:
        """Return the elements that stand for ``numbers`` in one turn, of the same shape."""
        digit = numbers if self.turns == 1 else numbers // self._base ** turn % self._base
        if self.dtype.itemsize <= 2:
            return _tables(self.dtype.itemsize)[0][digit]
        return (self._first + digit * _SCATTER % self._base).astype(self.dtype)

    def numbers(self, turns: list[np.ndarray]) -> np.ndarray:
        """Return the numbers that the elements of all turns stand for, int64; -1 where they are none of ours."""
        found = np.zeros(turns[0].shape, dtype=np.int64)
        known = np.ones(turns[0].shape, dtype=bool)
        for turn, elements in enumerate(turns):
            digit = self._digits(elements)
            known &= digit >= 0
            found += digit * self._base ** turn
        known &= found < self.count
        return np.where(known, found, -1)

    def _digits(self, elements: np.ndarray) -> np.ndarray:
        """The digit that each element stands for, -1 for none."""
        if self.dtype.itemsize <= 2:
            return _tables(self.dtype.itemsize)[1][elements]
        place = elements.astype(np.int64) - self._first
        inside = (place >= 0) & (place < self._base)
        # Outside, a product could leave 63 bits.
        return np.where(inside, np.where(inside, place, 0) * pow(_SCATTER, -1, self._base) % self._base, -1)


@cache
def _tables(item_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """The pattern of each digit, and the digit of each pattern, negative ones counted from the end."""
    first, base = _PATTERNS[item_bytes]
    patterns = (first + np.arange(base) * _SCATTER % base).astype(_TYPES[item_bytes])
    digits = np.full(1 << 8 * item_bytes, -1, dtype=np.int64)
    digits[patterns] = np.arange(base)
    return patterns, digits
