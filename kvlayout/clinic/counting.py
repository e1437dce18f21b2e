"""How many bytes of a strided set lie below an address, for many addresses at once: no byte is ever listed."""

from __future__ import annotations

import math

import numpy as np

from kvlayout.errors import LayoutError
from kvlayout.strided import StridedSet


def count_below(addresses: StridedSet, at: np.ndarray) -> np.ndarray:
    """Return how many bytes of a nested set lie below each of ``at`` (int64 byte addresses).

    Raises LayoutError where the set gives two indices one address.
    """
    rest = at - addresses.offset
    found = np.zeros(rest.shape, dtype=np.int64)
    if addresses.is_empty:
        return found
    if not addresses.is_nested:
        raise LayoutError("kv_cache_tensors", addresses.strides, "gives several coordinates the same byte",
                          "Mend the strides")
    inside = np.ones(rest.shape, dtype=bool)
    size = math.prod(addresses.extents[axis] for axis in addresses.walk)
    for axis in addresses.walk:
        stride, extent = addresses.strides[axis], addresses.extents[axis]
        size //= extent
        index = np.clip(rest // stride, 0, extent)
        found += np.where(inside, index * size, 0)
        inside &= index < extent  # behind the axis' end, nothing more counts
        rest = rest - index * stride
    return found + (inside & (rest > 0))


def count_within(addresses: StridedSet, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return how many bytes of the set lie in [begin, end), for arrays of bounds."""
    return count_below(addresses, np.maximum(begin, end)) - count_below(addresses, begin)
