"""A window of an allocation cut into pieces: maximal runs of bytes of one cell and one kind of content.

Nothing is sampled: pieces are exact. Bytes are looked at only where a boundary may be, at the greatest common
divisor of all steps, so that a window of large pieces costs no more than one of small ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.region import Region
from kvlayout.rounding import ceil_div
from kvlayout_widgets.figures.fields import field_table
from kvlayout_widgets.figures.wording import physical_axes

MOST_LOOKED_AT = 1 << 16


@dataclass(frozen=True)
class Pieces:
    """Pieces in address order: ``offset`` and ``length`` in bytes, whose they are (layer -1: nobody's), what they
    hold (a code of ``field_table``, -1: nothing), and each axis' index: ``keys[axis]``, -1 outside of it."""

    offset: np.ndarray
    length: np.ndarray
    layer: np.ndarray
    field: np.ndarray
    byte: np.ndarray
    keys: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.offset)


def cut(
    address_map: AddressMap, start: int, length: int, group: int, most: int, by_byte: bool = False
) -> Pieces | None:
    """Return the pieces of ``length`` bytes from ``start`` as ``group`` owns them; None if they are over ``most``.

    ``by_byte`` makes each byte a piece; bytes are pieces too where a prototype puts C outside of other axes.
    """
    regions = [region for region in address_map.regions if region.group == group]
    single = by_byte or physical_axes(address_map)[-1] != "C"
    grain = 1 if single else math.gcd(*(_grain(region) for region in regions)) if regions else length
    first = ceil_div(start, grain) * grain
    if (start + length - first) // grain > MOST_LOOKED_AT:
        return None
    looked_at = np.unique(np.concatenate([[start], np.arange(first, start + length, grain, dtype=np.int64)]))
    located = address_map.locate(looked_at, group)
    field = field_table(address_map).codes(located)
    parts = [located.layer, located.block, located.head, located.state, field]
    if single:
        parts.append(located.byte)
    owned = located.layer >= 0
    changes = np.zeros(len(looked_at) - 1, dtype=bool)
    for part in parts:
        changes |= part[1:] != part[:-1]
    changes = (changes & (owned[1:] | owned[:-1])) | (owned[1:] != owned[:-1]) | by_byte
    heads = np.concatenate([[0], np.flatnonzero(changes) + 1])
    if len(heads) > most:
        return None
    offset = looked_at[heads]
    keys = {"L": located.layer, "B": located.block, "H": located.head, "N": located.state, "C": located.byte}
    keys = {axis: np.where(owned, part, -1)[heads].astype(np.int64) for axis, part in keys.items()}
    pieces = Pieces(offset, np.diff(np.append(offset, start + length)), located.layer[heads], field[heads],
                    keys["C"], keys)
    _place_padding(address_map, pieces, group)
    return pieces


def _grain(region: Region) -> int:
    """Return a number of bytes that every boundary in the region is a multiple of."""
    geometry, interior = region.geometry, region.interior
    steps = [geometry.offset, region.tensor.size, *geometry.strides[:4], region.page_size_bytes, geometry.shape[4]]
    if interior.scope != "state":
        for field in interior.fields:
            steps += [field.offset, field.state_stride, field.head_stride, *field.unit]
    for head in range(geometry.shape[2]):
        for begin, field in interior.slot_fields(head):
            steps += [begin, field.size_bytes]
    return math.gcd(*steps)


def _place_padding(address_map: AddressMap, pieces: Pieces, group: int) -> None:
    """Give padding the indices of the page or the block that it belongs to."""
    for index in np.flatnonzero(pieces.layer < 0):
        padding = next((p for p in address_map.padding_of(int(pieces.offset[index])) if p.group == group), None)
        if padding is None or padding.kind == "pool":
            continue
        pieces.keys["B"][index] = padding.block
        if padding.kind == "page":
            pieces.keys["L"][index] = address_map.layer_index(padding.layer)


def nesting(address_map: AddressMap, by_byte: bool = False) -> str:
    """Return the axes that brackets are drawn for, outermost first: C only where it isn't the boxes themselves."""
    order = physical_axes(address_map)
    return order if by_byte or order[-1] != "C" else order[:-1]


def change_levels(pieces: Pieces, axes: str) -> np.ndarray:
    """Return, between each piece and the next, the position in ``axes`` of the outermost index that changes.

    len(axes) where only the content changes.
    """
    levels = np.full(max(0, len(pieces) - 1), len(axes))
    for position in range(len(axes) - 1, -1, -1):
        index = pieces.keys[axes[position]]
        levels[index[1:] != index[:-1]] = position
    return levels
