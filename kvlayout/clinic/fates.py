"""What became of each page and cell of a transfer's target: written rightly, not at all, twice, or wrongly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvlayout.address import Owner
from kvlayout.arrays import distinct, integers
from kvlayout.clinic.exchanges import Exchange
from kvlayout.clinic.landed import depth_at, writer_at
from kvlayout.clinic.sides import Side
from kvlayout.errors import check_type
from kvlayout.strided import StridedSet

KINDS = ("right", "missing", "twice", "wrong")


class Fates:
    """The bytes of a target by what happened to them, counted over any of its pages and cells.

    ``found``: what was copied; ``meant``: what should have been, the result of the same request without a mistake;
    ``sources``, ``target``: the sides of both. Raises LayoutError for anything else.
    """

    def __init__(self, found: Exchange, meant: Exchange, sources: Sequence[Side], target: Side):
        for name, value in (("found", found), ("meant", meant)):
            check_type(name, value, Exchange)
        for one in (*sources, target):
            check_type("sources, target", one, Side)
        self._done, self._sources, self._map = found.segments, tuple(sources), target.address_map
        copies = [found.segments] if meant.segments is found.segments else [found.segments, meant.segments]
        edges = [edge for one in copies for edge in (one.target_offset, one.target_offset + one.length)]
        # Before the first cut and behind the last nothing is written.
        self._cuts = distinct(np.concatenate([[-1], *edges]).astype(np.int64))
        depth = depth_at(self._cuts, self._done.target_offset, self._done.target_offset + self._done.length)
        by, origin = writer_at(self._cuts, self._done)
        should, proper = (by, origin) if len(copies) == 1 else writer_at(self._cuts, meant.segments)
        self._kinds = np.select([depth == 0, depth > 1, (by == should) & (origin == proper)], [1, 2, 0], 3)
        widths = np.append(np.diff(self._cuts), 0)
        sums = np.where(self._kinds == np.arange(len(KINDS))[:, None], widths, 0).cumsum(axis=1)
        self._before = np.concatenate([np.zeros((len(KINDS), 1), dtype=np.int64), sums[:, :-1]], axis=1)

    def pages(self, layers: list[str], blocks) -> np.ndarray:
        """Return the bytes of each kind, int64 [kinds, layers, blocks], of whole pages of the target.

        Raises LayoutError for a layer or a block of the target's map that isn't there.
        """
        blocks = integers("blocks", blocks, ndim=1)
        found = np.zeros((len(KINDS), len(layers), len(blocks)), dtype=np.int64)
        for row, name in enumerate(layers):
            shape, strides = (part[1:] for part in (self._map.region(name).geometry.shape,
                                                    self._map.region(name).geometry.strides))
            # A page's bytes are the same whatever order its interior keeps them in.
            starts, length = StridedSet(0, (1, *shape[1:]), strides).runs([None] * 4)
            bases = self._map.offset(name, blocks) - self._first(name)
            found[:, row] = self._count(bases[:, None] + starts, length).sum(axis=2)
        return found

    def cells(self, layer: str, block: int) -> np.ndarray:
        """Return the bytes of each kind, int64 [kinds, head slots, states], of one page; LayoutError as above."""
        region = self._map.region(layer)
        _, heads, states, content = self._map.shape(layer)
        head, state, byte = np.ogrid[:heads, :states, :content]
        if region.interior.scope == "state" and (content == 1 or region.geometry.strides[4] == 1):
            return self._count(self._map.offset(layer, block, head[..., 0], state[..., 0]), content)
        return self._count(self._map.offset(layer, block, head, state, byte), 1).sum(axis=3)

    def written(self, offset: int) -> tuple[int, int, Owner | None] | None:
        """Return (the source's index, its byte offset, whose byte that is) of what lies at a byte of the target.

        None where nothing was written; no owner where a source's padding, or what is beyond its end, was taken.
        """
        source, origin = writer_at(np.array([offset], dtype=np.int64), self._done)
        if source[0] < 0:
            return None
        side = self._sources[int(source[0])]
        owners = side.address_map.owners(int(origin[0]))
        # Another group's layer may overlay the byte.
        owner = next((one for one in owners if one.layer in side.layers), None)
        return int(source[0]), int(origin[0]), owner

    def _first(self, layer: str) -> int:
        """Bytes from a page's begin to its first coordinate, which an interior may keep elsewhere."""
        region = self._map.region(layer)
        zero = np.zeros(1, dtype=np.int64)
        return int(region.inner_offsets(zero, zero, zero)[0])

    def _count(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Bytes of each kind in stretches of ``length`` bytes, on a new first axis."""
        return self._until(starts + length) - self._until(starts)

    def _until(self, offsets: np.ndarray) -> np.ndarray:
        at = np.searchsorted(self._cuts, offsets, side="right") - 1
        found = self._before[:, at]
        np.put_along_axis(found, self._kinds[at][None], np.take_along_axis(found, self._kinds[at][None], 0)
                          + (offsets - self._cuts[at])[None], 0)
        return found
