"""How many indices of a box add up to a number: points of a lattice, counted in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def count_sums(extents: Sequence[int], steps: Sequence[int], wanted: np.ndarray) -> np.ndarray:
    """Return, for each of ``wanted`` (int64), how many indices i of a box have ``sum(i * steps)`` equal to it.

    What it costs grows with the extent of the third longest axis alone. Steps may be 0 or negative.
    """
    values, place = np.unique(wanted, return_inverse=True)
    moving = sorted((n, abs(step)) for n, step in zip(extents, steps) if n > 1 and step)
    still = math.prod(n for n, step in zip(extents, steps) if n <= 1 or not step)
    # An axis of negative step, walked from its other end, has a positive one.
    low = sum(min(0, (n - 1) * step) for n, step in zip(extents, steps))
    high = low + _reach(moving)
    counts = np.zeros(len(values), dtype=np.int64)
    for at in np.flatnonzero((values >= max(low, -2**63)) & (values <= min(high, 2**63 - 1))):
        counts[at] = still * _count(moving, int(values[at]) - low)
    return counts[place.ravel()]


def _reach(axes: Sequence[tuple[int, int]]) -> int:
    return sum((n - 1) * step for n, step in axes)


def _count(axes: Sequence[tuple[int, int]], total: int) -> int:
    """The same for (extent, step) above 0, the shortest axis first."""
    if total % math.gcd(*(step for _, step in axes), 0) if axes else total:
        return 0
    if len(axes) > 2:
        (n, step), *inner = axes
        first, last = max(0, -(-(total - _reach(inner)) // step)), min(n - 1, total // step)
        return sum(_count(inner, total - i * step) for i in range(first, last + 1))
    (n, a), (m, b) = [(1, 1)] * (2 - len(axes)) + list(axes)
    common = math.gcd(a, b)
    a, b, total = a // common, b // common, total // common
    # a * x + b * y = total: x is known modulo b, and y is the rest.
    first, last = max(0, -(-(total - b * (m - 1)) // a)), min(n - 1, total // a)
    first += (total * pow(a, -1, b) - first) % b
    return max(0, (last - first) // b + 1)
