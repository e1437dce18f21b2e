"""Do strides that don't nest give two coordinates one byte? They needn't: their steps may interleave."""

from __future__ import annotations

import numpy as np

from kvlayout.strided import StridedSet

_MOST_RUNS = 1 << 18


def meets_itself(addresses: StridedSet) -> bool | None:
    """Return whether two indices of a set share an address; None where its runs are too many to compare.

    The longest axis outside of a run isn't listed: all else repeats by its stride.
    """
    if addresses.is_empty or addresses.is_nested:
        return False
    if any(addresses.strides[axis] == 0 for axis in addresses.walk):
        return True
    extents, strides = list(addresses.extents), addresses.strides
    # The outermost axis whose step clears all that is inside it can't make anything meet.
    walk = list(addresses.walk)
    while _span(extents, strides, walk[1:]) <= strides[walk[0]]:
        extents[walk.pop(0)] = 1
    outside = [axis for axis in walk if strides[axis] >= addresses.run_length]
    if not outside:
        return True
    longest = max(outside, key=lambda axis: extents[axis])
    steps, stride = extents[longest], strides[longest]
    extents[longest] = 1
    rest = StridedSet(0, extents, strides)
    if rest.num_runs > _MOST_RUNS:
        return None
    starts, length = rest.runs([None] * len(extents))
    if length > stride:
        return True
    starts = np.sort(starts)
    if np.any(np.diff(starts) < length):
        return True
    # Inside one stride: a run that is d steps behind another meets it where their places differ by less than a run.
    order = np.argsort(starts % stride, kind="stable")
    place, turn = (starts % stride)[order], (starts // stride)[order]
    place, turn = np.concatenate([place, place + stride]), np.concatenate([turn, turn - 1])
    for ahead in range(1, len(order)):
        near = place[ahead:ahead + len(order)] - place[:len(order)] < length
        if not near.any():
            return False
        if ahead > 64:
            return None
        if np.any(near & (np.abs(turn[ahead:ahead + len(order)] - turn[:len(order)]) < steps)):
            return True
    return False


def _span(extents: list[int], strides: tuple[int, ...], axes: list[int]) -> int:
    return 1 + sum((extents[axis] - 1) * strides[axis] for axis in axes)
