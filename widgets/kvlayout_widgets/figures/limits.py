"""Where offsets inside one layer's view pass 2^31 or 2^32, as lines across a heatmap and in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from kvlayout.address import AddressMap
from kvlayout.clinic import OffsetLimit, offset_limits
from kvlayout_widgets.figures.glyphs import Glyphs, Label, fit, text_width
from kvlayout_widgets.figures.theme import Theme

_SIZE, _GAP = 8, 10  # points of the words, pixels between two of them
_FAR = 1 << 62  # a block that no pool has


class LimitLines:
    """Lines between the block before a limit and the first one beyond it, and words above the heatmap.

    Attributes:
        words: what stands above the heatmap, from the left
        fact: all limits that the pool passes, as a sentence for the alt text; "" where there is none
        marked: first blocks at which a line is drawn
    """

    def __init__(self, axes: Axes, bar: Axes, theme: Theme):
        box = axes.get_window_extent()
        self._axes, self._wide, self._high, self._ink = axes, box.width, box.height, theme.ink
        # A light line on a dark one is seen on every colour.
        looks = (("#101418", 2.6, "solid"), ("#FFFFFF", 1.3, (0, (4, 2.5))))
        self._lines = [self._collection(axes, *look) for look in looks]
        self._marks = [self._collection(bar, *look) for look in looks]
        self._glyphs = Glyphs(axes, transform=axes.transAxes)
        self._map: AddressMap | None = None
        self.words: tuple[str, ...] = ()
        self.fact, self.marked = "", ()

    @staticmethod
    def _collection(axes: Axes, colour: str, width: float, style) -> LineCollection:
        lines = LineCollection([], colors=colour, linewidths=width, linestyles=[style], zorder=3.5)
        axes.add_collection(lines, autolim=False)
        return lines

    def update(self, address_map: AddressMap, rows: str, columns: str, first: tuple[int, int],
               shape: tuple[int, int], layer: int, taken: float = 0) -> None:
        """Draw the limits that lie in the window, and say which others the pool passes.

        ``rows``, ``columns``: the axes drawn; ``first``, ``shape``: the window of both; ``layer``: the index of the
        layer, where layers aren't an axis; ``taken``: pixels at the right end of the line of words.
        """
        self._take(address_map)
        self.fact = limit_words(self._limits)
        found = []  # (first block, its words, segments)
        if self._limits and "B" in (rows, columns) and min(shape) > 0:
            found = self._crossings(rows, columns, first, shape, layer)
        flat = columns == "B"
        segments = [line if flat else [point[::-1] for point in line] for _, _, lines in found for line in lines]
        for collection in self._lines:
            collection.set_segments(segments)
        self.marked = tuple(block for block, _, _ in found)
        # Where each head has a line of its own, no one mark is true of all.
        self._mark_bar(rows, columns, first, shape, layer, {block for block, words, _ in found if words})
        self._write([(block, words) for block, words, _ in found] if flat else [], first[1], shape[1], taken)

    def _take(self, address_map: AddressMap) -> None:
        """Keep what depends on the map alone: the limits that it passes, and each layer's first block of each."""
        if address_map is self._map:
            return
        self._map = address_map
        self._limits = [one for one in offset_limits(address_map) if one.is_passed]
        self._kinds = sorted({(one.unit, one.limit) for one in self._limits}, key=lambda kind: (kind[1], kind[0]))
        self._first = np.full((len(address_map.layers), len(self._kinds)), _FAR, dtype=np.int64)
        for one in self._limits:
            layers = [address_map.layer_index(name) for name in one.layers]
            self._first[layers, self._kinds.index((one.unit, one.limit))] = one.first_block

    def _crossings(self, rows: str, columns: str, first, shape, layer: int) -> list[tuple[int, str, list]]:
        """(first block, words, line segments across the other axis) of what is crossed inside the window."""
        other, along, across = (rows, 1, 0) if columns == "B" else (columns, 0, 1)
        index = np.arange(first[across], first[across] + shape[across])
        if other == "L":
            at = self._first[index]
        else:
            at = np.broadcast_to(self._first[layer], (len(index), len(self._kinds)))
            if other == "H":
                at = self._by_head(layer, index)
        inside = (at > first[along]) & (at < first[along] + shape[along])
        found: dict[int, tuple[list[int], np.ndarray]] = {}
        for kind in range(len(self._kinds)):
            for block in np.unique(at[inside[:, kind], kind]).tolist():
                names, here = found.setdefault(block, ([], np.zeros(len(index), dtype=bool)))
                names.append(kind)
                here |= at[:, kind] == block
        moves = other == "H" and (at != at[:1]).any()
        result = []
        for block, (kinds, here) in sorted(found.items()):
            words = "" if moves else f"{_kind_words(self._kinds[kind] for kind in kinds)} from block {block:,}"
            edges = np.flatnonzero(np.diff(np.concatenate([[0], here.astype(int), [0]])))
            lines = [[(block - 0.5, first[across] + low - 0.5), (block - 0.5, first[across] + high - 0.5)]
                     for low, high in zip(edges[::2].tolist(), edges[1::2].tolist())]
            result.append((block, words, lines))
        return result

    def _by_head(self, layer: int, heads: np.ndarray) -> np.ndarray:
        """As ``_first``, a row a head slot: where H lies outside of B, each head's plane begins further on."""
        block_stride, head_stride = self._map.strides(layer)[:2]
        if head_stride < block_stride:
            return np.broadcast_to(self._first[layer], (len(heads), len(self._kinds)))
        units = {one.unit: one.unit_bytes for one in self._limits if self._map.layers[layer] in one.layers}
        limits = np.array([limit * units.get(unit, 0) for unit, limit in self._kinds], dtype=np.int64)
        at = -((heads[:, None] * head_stride - limits) // block_stride)
        return np.where(limits > 0, np.maximum(at, 0), _FAR)

    def _mark_bar(self, rows: str, columns: str, first, shape, layer: int, crossed: set[int]) -> None:
        """Mark them beside the colours too, where the drawn views begin so near that one mark is true of all."""
        marks = []
        if crossed:
            layers = [layer]
            if "L" in (rows, columns):
                axis = (rows, columns).index("L")
                layers = range(first[axis], first[axis] + shape[axis])
            starts = [self._map.offset(one, 0) for one in layers]
            strides = {self._map.strides(one)[0] for one in layers}
            if len(strides) == 1 and max(starts) - min(starts) < min(strides):
                marks = [min(starts) + block * min(strides) for block in crossed]
        for collection in self._marks:
            collection.set_segments([[(0, at), (1, at)] for at in marks])

    def _write(self, crossed: Sequence[tuple[int, str]], first: int, columns: int, taken: float) -> None:
        """Each crossing's words above its line; the other limits to their left, or right, if there is room."""
        room = self._wide - taken
        placed: list[tuple[float, float, str]] = []
        for block, words in crossed:
            wide = text_width(words, _SIZE)
            left = min(max(0.0, (block - first) / columns * self._wide - wide / 2), room - wide)
            is_free = all(left > end + _GAP or left + wide < start - _GAP for start, end, _ in placed)
            if words and left >= 0 and is_free:
                placed.append((left, left + wide, words))
        shown = {block for block, words in crossed if words}
        rest = [one for one in self._limits if one.first_block not in shown]
        if not placed:
            words = limit_words(rest)
            placed.append((0.0, 0.0, fit(words, room, _SIZE)))
        else:
            # Those of blocks before the window stand on the left, those behind it on the right.
            words = limit_words([one for one in rest if one.first_block <= first], "")
            if (wide := text_width(words, _SIZE)) < min(placed)[0] - _GAP:
                placed.append((0.0, wide, words))
            words = limit_words([one for one in rest if one.first_block > first], "")
            if (wide := text_width(words, _SIZE)) < room - max(end for _, end, _ in placed) - _GAP:
                placed.append((room - wide, room, words))
        placed.sort()
        placed = [one for one in placed if one[2]]
        self.words = tuple(words for _, _, words in placed)
        y = 1 + 9 / self._high
        self._glyphs.set([Label(left / self._wide, y, words, _SIZE, self._ink, "left") for left, _, words in placed])


def limit_words(limits: Sequence[OffsetLimit], start: str | None = None) -> str:
    """Return the first block beyond each limit, the least of all views: "A layer's view passes 2^31 bytes from block
    1,171"; "" where none is passed. ``start``: other words to begin with."""
    kinds: dict[int, list[tuple[str, int]]] = {}
    ends: list[tuple[str, int]] = []
    for unit, limit in sorted({(one.unit, one.limit) for one in limits}, key=lambda kind: (kind[1], kind[0])):
        blocks = [one.first_block for one in limits if (one.unit, one.limit) == (unit, limit) and one.is_reached]
        if blocks:
            kinds.setdefault(min(blocks), []).append((unit, limit))
        else:
            ends.append((unit, limit))
    parts = [f"{_kind_words(names)} from {'' if index else 'block '}{block:,}"
             for index, (block, names) in enumerate(sorted(kinds.items()))]
    if ends:
        parts.append(f"{_kind_words(ends)} past the last block's start")
    if not parts:
        return ""
    return ("A layer's view passes " if start is None else start) + ", ".join(parts)


def _kind_words(kinds: Iterable[tuple[str, int]]) -> str:
    *names, last = (f"2^{limit.bit_length() - 1} {unit}" for unit, limit in kinds)
    return f"{', '.join(names)} and {last}" if names else last
