"""What an address map says of bytes: their owner, the padding that they are, and tensors that share them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Owner:
    """Whose byte it is: layer (name), block, head slot, token state, byte inside the state, and what it holds."""

    layer: str
    block: int
    head: int
    state: int
    byte: int
    field: str
    element: int
    tensor: int
    group: int


@dataclass(frozen=True)
class Padding:
    """Bytes ``start`` to ``end`` that no layer of ``group`` owns, behind the page of ``layer`` and ``block``.

    ``kind``: "page" within that page's padded size; "block" behind the last page of a packed block; "pool"
    where the group has nothing: an alignment gap, a missing layer's region, or the rest of the allocation.
    """

    group: int
    kind: str
    layer: str | None
    block: int
    start: int
    end: int


@dataclass(frozen=True)
class Overlap:
    """Two tensors (indices) that share bytes, one byte that they share, and whether they may: groups overlay."""

    first: int
    second: int
    offset: int
    is_legal: bool


@dataclass(frozen=True)
class Located:
    """Owners of many offsets: one array a coordinate; ``layer`` is -1, and the rest no meaning, where unowned."""

    layer: np.ndarray
    block: np.ndarray
    head: np.ndarray
    state: np.ndarray
    byte: np.ndarray
    tensor: np.ndarray
