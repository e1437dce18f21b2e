"""The real view of memory: a long strip folded into rows, each pixel the owner of the one byte under it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap, Located
from kvlayout.layout import AXES
from kvlayout.region import Region
from kvlayout.rounding import ceil_div
from kvlayout_widgets.figures.fields import field_table
from kvlayout_widgets.figures.theme import exact_bytes
from kvlayout_widgets.figures.wording import count, physical_axes

MOST_ROWS = 64
_SEEN, _SEEN_HATCHED = 2.5, 5  # pixels that a band must be wide to be seen, and to be told by its hatch


@dataclass(frozen=True)
class Folded:
    """A sampled window.

    Attributes:
        start, length: the window, bytes
        offsets: byte under each pixel, int64 [rows, width]; ``inside`` is False past the window's end
        fold: bytes of a row; of ``total_rows`` the first ones are drawn
        located, fields: whose each byte is, and what it holds
        extents: indices of each axis
        colour: the innermost thing whose bands are wide enough to be seen: "field" or an axis
        band: pixels of one index of it; where even the outermost axis is too fine to be seen, ``colour`` is that one
        fold_words: what a row is
    """

    start: int
    length: int

    offsets: np.ndarray
    inside: np.ndarray
    fold: int
    total_rows: int
    located: Located
    fields: np.ndarray
    extents: dict[str, int]
    colour: str
    band: float
    fold_words: str

    def extent(self, axis: str) -> int:
        """Return how many indices an axis has in this group; for layers, in the whole map."""
        return self.extents[axis]

    def index(self, axis: str) -> np.ndarray:
        """Return each pixel's index along an axis, -1 where nobody owns the byte."""
        found = {"L": self.located.layer, "B": self.located.block, "H": self.located.head, "N": self.located.state,
                 "C": self.located.byte}[axis]
        return np.where(self.owned, found, -1)

    @property
    def is_seen(self) -> bool:
        """Whether single bands of the coloured axis can be seen."""
        return self.band >= _SEEN

    @property
    def alternates(self) -> bool:
        """Whether neighbours are told apart by alternating shades: only where there are too many for a ramp."""
        return self.band >= _SEEN_HATCHED and self.colour != "field" and self.extents[self.colour] > 12

    @property
    def owned(self) -> np.ndarray:
        """Whether the byte under each pixel has an owner."""
        return self.located.layer >= 0


def folded(address_map: AddressMap, start: int, length: int, fold: int | None, group: int, width: int) -> Folded:
    """Return ``length`` bytes from ``start`` as rows of ``fold`` bytes, sampled at ``width`` pixels a row."""
    # Rows follow the layers that most bytes belong to.
    region = max((region for region in address_map.regions if region.group == group), default=None,
                 key=lambda region: len(region.layers) * region.page_size_bytes)
    if fold is None:
        fold = _natural_fold(address_map, region, length)
    fold = min(fold, length)
    total = ceil_div(length, fold)
    columns = ((np.arange(width) + 0.5) * fold / width).astype(np.int64)
    offsets = np.arange(min(total, MOST_ROWS), dtype=np.int64)[:, None] * fold + columns
    inside = offsets < length
    offsets = start + np.minimum(offsets, length - 1)
    located = address_map.locate(offsets, group)
    fields = field_table(address_map).codes(located)
    colour, band = _colour(address_map, region, fold / width)
    shapes = [r.geometry.shape[1:] for r in address_map.regions if r.group == group]
    extents = {"L": len(address_map.layers), **{axis: max((shape[i] for shape in shapes), default=0)
                                                for i, axis in enumerate("BHNC")}}
    return Folded(start, length, offsets, inside, fold, total, located, fields, extents, colour, band,
                  _fold_words(address_map, region, fold))


def _steps(address_map: AddressMap, region: Region | None) -> list[tuple[int, str]]:
    """Return (stride in bytes, axis) of the axes that have more than one index, outermost first."""
    if region is None:
        return []
    extents, strides = dict(zip(AXES, region.geometry.shape)), dict(zip(AXES, region.geometry.strides))
    return [(strides[axis], axis) for axis in physical_axes(address_map) if extents[axis] > 1]


def _natural_fold(address_map: AddressMap, region: Region | None, length: int) -> int:
    """Return the smallest stride, or multiple of the largest, that gives at most MOST_ROWS rows."""
    steps = [stride for stride, axis in _steps(address_map, region) if axis != "C"]
    enough = [stride for stride in steps if length <= stride * MOST_ROWS]
    if enough:
        return min(enough)
    largest = max(steps, default=ceil_div(length, 16))
    return largest * ceil_div(length, largest * MOST_ROWS)


def _colour(address_map: AddressMap, region: Region | None, pixel_bytes: float) -> tuple[str, float]:
    """Return what to colour by, and the pixels of one band of it, at ``pixel_bytes`` a pixel."""
    steps = _steps(address_map, region)
    if region is not None:
        wide = {"state": 1, "cell": region.geometry.shape[3],
                "page": region.geometry.shape[3] * region.geometry.shape[2]}[region.interior.scope]
        step = region.geometry.strides[4] if region.geometry.shape[4] > 1 else 1
        band = max(field.size_bytes for field in region.interior.fields) * wide * step / pixel_bytes
        if band >= _SEEN_HATCHED:
            return "field", band
    bands = [(axis, stride / pixel_bytes) for stride, axis in steps if axis != "C"]
    seen = [(axis, band) for axis, band in bands if band >= _SEEN]
    return seen[-1] if seen else bands[0] if bands else ("B", 0.0)


def _fold_words(address_map: AddressMap, region: Region | None, fold: int) -> str:
    fits = [f"{count(fold // stride, axis)}, " for stride, axis in reversed(_steps(address_map, region))
            if axis != "C" and fold % stride == 0]
    return f"{fits[-1] if fits else ''}{exact_bytes(fold)}"
