"""The tiny view of memory: one box a piece, in address order, under brackets that spell the layout.

Gaps grow with the physical level, so that nesting is seen before it is read. Data coordinates are pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from kvlayout.address import AddressMap
from kvlayout.layout import AXES
from kvlayout_widgets.figures.fields import field_table
from kvlayout_widgets.figures.glyphs import Glyphs, Label, text_width
from kvlayout_widgets.figures.pieces import Pieces, change_levels
from kvlayout_widgets.figures.raster import Palette, Raster, field_look
from kvlayout_widgets.figures.theme import AXIS_COLOURS, AXIS_TITLES, Theme, field_style, ink_on, step_bytes
from kvlayout_widgets.figures.wording import layer_number

MOST_BOXES = 192
_GAPS = (2, 5, 9, 15, 22)  # pixels, innermost level first
_MOST_ROWS, _WIDEST, _GUTTER = 3, 46, 92


@dataclass(frozen=True)
class Bracket:
    """One bracket: its axis and index, pieces ``first`` to before ``end``, and its height in pixels."""

    axis: str
    index: int
    first: int
    end: int
    y: float


class Ribbon:
    """The boxes and brackets in one axes of ``width`` x ``height`` pixels.

    Attributes:
        pieces: what the boxes are, in order
        left, right: their edges, pixels; ``row`` the line of boxes each stands in
        brackets: all brackets drawn
    """

    def __init__(self, axes: Axes, width: int, height: int, theme: Theme):
        self.axes, self.raster, self.glyphs = axes, Raster(axes), Glyphs(axes)
        self._width, self._height, self._theme = width, height, theme
        self._lines = LineCollection([], linewidths=1.6, zorder=3)
        self._outline = LineCollection([], colors=theme.ink, linewidths=2.4, zorder=6, joinstyle="miter")
        for lines in (self._lines, self._outline):
            axes.add_collection(lines, autolim=False)
        self.brackets: list[Bracket] = []

    def draw(self, address_map: AddressMap, pieces: Pieces, axes: str, palette: Palette, codes: dict[str, int],
             selected: int | None) -> None:
        """Draw the pieces under brackets for ``axes``, outermost first.

        ``codes``: of the palette, by "padding", "blank" and "plain" (to be added for a box without a hatch);
        ``selected``: a byte offset whose box is outlined.
        """
        self._map, self.pieces, self._nesting = address_map, pieces, axes
        regions = [address_map.region(int(layer)) for layer in pieces.layer[pieces.layer >= 0][:1]]
        self._steps = {axis: stride for region in regions for axis, stride, extent in
                       zip(AXES, region.geometry.strides, region.geometry.shape) if extent > 1}
        self._levels = change_levels(pieces, axes)
        self._place()
        image = np.full((self._height, self._width), codes["blank"], dtype=np.int16)
        labels = self._boxes(image, codes)
        self.raster.set(image, palette, (0, self._width, 0, self._height))
        labels += self._draw_brackets() + self._addresses()
        self.glyphs.set(labels)
        chosen = np.flatnonzero((pieces.offset <= selected) & (selected < pieces.offset + pieces.length)) \
            if selected is not None else ()
        self._outline.set_segments([self._box(index) for index in chosen])
        self.axes.set_xlim(0, self._width)
        self.axes.set_ylim(0, self._height)

    def offset_at(self, x: float, y: float) -> int | None:
        """Return the byte under a point; None beside the boxes."""
        row = int(np.floor((self._top - y) / self._pitch))
        hit = np.flatnonzero((self.row == row) & (self.left <= x) & (x < self.right))
        if not len(hit) or not self._base(row) <= y <= self._base(row) + self._tall:
            return None
        index = hit[0]
        share = (x - self.left[index]) / (self.right[index] - self.left[index])
        return int(self.pieces.offset[index] + int(share * self.pieces.length[index]))

    def marks_at(self, pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return x and y, in pixels, of a mark inside the lower end of each of these pieces' boxes."""
        base = np.array([self._base(row) for row in self.row[pieces]], dtype=float)
        return (self.left[pieces] + self.right[pieces] - 1) / 2, base + 6

    @property
    def spelt(self) -> str:
        """The axes of the brackets from the outside in, as drawn, and C where the boxes are C's content."""
        heights = {bracket.axis: bracket.y - self._base(self.row[bracket.first]) for bracket in self.brackets}
        letters = "".join(sorted(heights, key=heights.get, reverse=True))
        return letters if "C" in letters else letters + "C"

    def _place(self) -> None:
        """Choose lines, box width, and each box' place."""
        number, room = len(self.pieces), self._width - _GUTTER - 16
        depth = len(self._nesting) - 1 - self._levels
        gaps = np.where(depth >= 0, np.array(_GAPS)[np.clip(depth, 0, len(_GAPS) - 1)], 0)
        for rows in range(1, _MOST_ROWS + 1):
            starts = self._break_lines(rows)
            self.row = np.searchsorted(starts, np.arange(number), side="right") - 1
            spaces = [int(gaps[a:b - 1].sum()) for a, b in zip(starts, [*starts[1:], number])]
            sizes = np.diff([*starts, number])
            box = min(_WIDEST, *((room - space) // size for space, size in zip(spaces, sizes)))
            if box >= 13 or rows == _MOST_ROWS or number <= rows * 12:
                break
        box = max(int(box), 2)
        before = np.concatenate([[0], np.cumsum(gaps)])[:number] + np.arange(number) * box
        self.left = _GUTTER + before - before[np.array(starts)[self.row]]
        self.right = self.left + box
        self._pitch = min(self._height / len(starts), 330)
        self._top = self._height - (self._height - self._pitch * len(starts)) / 2
        levels = len(self._nesting)
        self._tall = int(min(90, max(18, self._pitch - 22 - 24 * levels)))
        self._spacing = min(46, (self._pitch - self._tall - 24) / levels)

    def _break_lines(self, rows: int) -> list[int]:
        """Return the first piece of each of ``rows`` lines; lines break where the outermost axis changes."""
        number, starts = len(self.pieces), [0]
        for row in range(1, rows):
            wanted, slack = number * row / rows, number / rows / 4
            near = np.arange(max(starts[-1] + 1, int(wanted - slack)), min(number - 1, int(wanted + slack)) + 1)
            if len(near):
                starts.append(int(min(near, key=lambda index: (self._levels[index - 1], abs(index - wanted)))))
        return starts

    def _base(self, row: int) -> int:
        """Return the bottom of a line's boxes, in pixels from the bottom of the axes."""
        return int(self._top - (row + 1) * self._pitch) + 16

    def _box(self, index: int) -> list[tuple[float, float]]:
        left, right, bottom = self.left[index], self.right[index], self._base(self.row[index])
        top = bottom + self._tall
        return [(left, bottom), (right, bottom), (right, top), (left, top), (left, bottom)]

    def _boxes(self, image: np.ndarray, codes: dict[str, int]) -> list[Label]:
        names, labels = field_table(self._map).names, []
        for index, code in enumerate(self.pieces.field.tolist()):
            left, right, bottom = int(self.left[index]), int(self.right[index]), self._base(self.row[index])
            rows = slice(self._height - bottom - self._tall, self._height - bottom)
            image[rows, left:right - 1] = codes["padding"] if code < 0 else code
            letter = field_style(names[code]).letter if code >= 0 else "·"
            size = 9 if right - left >= 16 else 7
            width = text_width(letter, size)
            if width + 1 < right - left:
                middle, half = (left + right - 1) // 2, int(width / 2) + 2
                if code >= 0:
                    centre = self._height - bottom - self._tall // 2
                    plate = (slice(centre - 7, centre + 7), slice(max(left, middle - half),
                                                                  min(right - 1, middle + half + 1)))
                    image[plate] = code + codes["plain"]
                face = field_look(names[code], self._theme)[0] if code >= 0 else self._theme.unowned
                labels.append(Label(middle + 0.5, bottom + self._tall / 2, letter, size, ink_on(face)))
        return labels

    def _draw_brackets(self) -> list[Label]:
        self.brackets, segments, colours, labels = [], [], [], []
        number, last = len(self.pieces), len(self._nesting) - 1
        breaks = np.flatnonzero(self.row[1:] != self.row[:-1]) + 1
        for position, axis in enumerate(self._nesting):
            indices = self.pieces.keys[axis]
            heads = np.union1d(np.flatnonzero(self._levels <= position) + 1, breaks).astype(int)
            heads = np.concatenate([[0], heads])
            ink = self._theme.axis_ink[axis]
            for first, end in zip(heads.tolist(), [*heads[1:].tolist(), number]):
                if indices[first] < 0:
                    continue
                y = self._base(self.row[first]) + self._tall + 5 + (last - position) * self._spacing
                left, right = self.left[first], self.right[end - 1] - 1
                self.brackets.append(Bracket(axis, int(indices[first]), first, end, y))
                segments.append([(left, y), (left, y + 4), (right, y + 4), (right, y)])
                colours.append(AXIS_COLOURS[axis])
                name = self._index_name(axis, int(indices[first]))
                for text in (axis + name, name):
                    if text_width(text, 7) <= right - left + 2:
                        labels.append(Label((left + right) / 2, y + 10, text, 7, ink))
                        break
            for row in range(int(self.row[-1]) + 1):
                y = self._base(row) + self._tall + 7 + (last - position) * self._spacing
                labels.append(Label(_GUTTER - 12, y, AXIS_TITLES[axis], 8.5, ink, "right"))
                if self._spacing > 28 and axis in self._steps:
                    labels.append(Label(_GUTTER - 12, y - 13, step_bytes(self._steps[axis]), 7, self._theme.soft,
                                        "right"))
        self._lines.set_segments(segments)
        self._lines.set_colors(colours)
        return labels

    def _index_name(self, axis: str, index: int) -> str:
        return layer_number(self._map.layers[index]) if axis == "L" else str(index)

    def _addresses(self) -> list[Label]:
        """Addresses under the boxes, those behind the widest gaps first, as many as there is room for."""
        labels: list[Label] = []
        levels = np.concatenate([[-1], self._levels])
        levels[np.flatnonzero(self.row[1:] != self.row[:-1]) + 1] = -1
        taken: list[tuple[int, float, float]] = []
        for index in np.argsort(levels, kind="stable").tolist():
            text, left, row = f"{int(self.pieces.offset[index]):#x}", float(self.left[index]), int(self.row[index])
            right = left + text_width(text, 7)
            if levels[index] < len(self._nesting) and right <= self._width and all(
                    row != other or right + 8 < a or b + 8 < left for other, a, b in taken):
                taken.append((row, left, right))
                labels.append(Label(left, self._base(row) - 8, text, 7, self._theme.soft, "left"))
        labels += [Label(_GUTTER - 12, self._base(row) - 8, "address", 7, self._theme.soft, "right")
                   for row in range(int(self.row[-1]) + 1)]
        ends = [(0, self.left[0] - 9, self.pieces.offset[0] > 0),
                (-1, self.right[-1] + 8, self.pieces.offset[-1] + self.pieces.length[-1] < self._map.size_bytes)]
        labels += [Label(x, self._base(self.row[piece]) + self._tall / 2, "…", 10, self._theme.soft)
                   for piece, x, goes_on in ends if goes_on]
        return labels
