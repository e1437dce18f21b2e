"""Whole numbers that a caller gives, as int64 arrays."""

from __future__ import annotations

import numpy as np

from kvlayout.errors import LayoutError

_MOST = 2**63 - 1


def integers(name: str, value: object, *, ndim: int | None = None) -> np.ndarray:
    """Return ``value`` as an int64 array, with ``ndim`` axes where that is given.

    Raises LayoutError naming the argument for what isn't whole numbers (floats too) that 63 bits hold.
    """
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.size and (array.dtype.kind not in "iu" or (array.dtype.kind == "u" and array.max() > _MOST)):
        raise LayoutError(name, value, "must be whole numbers, at most 2^63 - 1", "Give ints, or an array of them")
    if ndim is not None and array.ndim != ndim:
        raise LayoutError(name, value, f"must be an array with {ndim} axes, not {array.ndim}",
                          "Give a list, such as [0, 1]" if ndim == 1 else "")
    return array.astype(np.int64, copy=False)


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the different ``values`` of an array, in order; np.unique hashes, at times ten times as slow."""
    values = np.sort(values, axis=None)
    return values[np.concatenate([[True], values[1:] != values[:-1]])] if len(values) else values
