"""What one page holds: head slots x states with their fields, and the same bytes in address order."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from kvlayout.address import AddressMap
from kvlayout.errors import LayoutError, check_int
from kvlayout_widgets.figures import page_words, wording
from kvlayout_widgets.figures.common import Coordinate, Drawing
from kvlayout_widgets.figures.fields import field_table
from kvlayout_widgets.figures.glyphs import Glyphs, Label, text_width
from kvlayout_widgets.figures.page_bytes import PageBytes, page_bytes
from kvlayout_widgets.figures.raster import Legend, Palette, Raster, blank_look, field_look
from kvlayout_widgets.figures.rulers import Ruler, index_ticks
from kvlayout_widgets.figures.theme import Theme, field_style, format_bytes, ink_on

MOST_HEADS, MOST_STATES = 32, 64
_GRID, _STRIP = (84, 224, 940, 378), (84, 74, 940, 158)  # pixels: left, bottom, right, top


class PageFigure(Drawing):
    """The page, updated in place: ``axes`` is the grid, ``strip_axes`` the page in address order.

    Attributes:
        palette: the looks of the codes in ``grid.codes`` and ``strip.codes`` [height, width]; codes are those of
            ``fields.field_table(map).names``, then ``padding`` and ``blank``; adding ``plain`` to a field's code
            leaves out its hatch, behind a letter
        strip_offsets: byte offset that each pixel of a row of the strip shows, [rows, width]
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        self.axes, self.strip_axes = self.add_axes(*_GRID), self.add_axes(*_STRIP)
        self.grid, self.strip = Raster(self.axes), Raster(self.strip_axes)
        self._letters = Glyphs(self.axes)
        self.rulers = {"N": Ruler(self.axes, "bottom", self.theme), "H": Ruler(self.axes, "left", self.theme),
                       "byte": Ruler(self.strip_axes, "bottom", self.theme),
                       "row": Ruler(self.strip_axes, "left", self.theme, 7.5)}
        words = Glyphs(self.strip_axes, transform=self.strip_axes.transAxes)
        words.set([Label(0, 1 + 12 / (_STRIP[3] - _STRIP[1]), "the same bytes in the order they lie in memory; left "
                         "of each row, the offset of its first byte", 8, self.theme.soft, "left")])
        self._marks = []
        for axes in (self.axes, self.strip_axes):
            pair = [LineCollection([], colors=colour, linewidths=width, zorder=6, clip_on=False,
                                   capstyle="projecting")
                    for colour, width in ((self.theme.background, 3.4), (self.theme.ink, 1.7))]
            for lines in pair:
                axes.add_collection(lines, autolim=False)
            self._marks.append(pair)
        self._legend = Legend(self.add_axes(_GRID[0], 389, _GRID[2], 403, frame=False), _GRID[2] - _GRID[0],
                              self.theme)

    def update(
        self,
        address_map: AddressMap,
        layer: str | int,
        block: int = 0,
        *,
        selected: Coordinate | None = None,
        first_head: int | None = None,
        first_state: int | None = None,
        title: str = "",
    ) -> None:
        """Draw the page of ``block`` of ``layer`` (name or index).

        ``selected`` is marked where it lies in this page. Large pages are drawn from ``first_head`` and
        ``first_state`` on, by default so that the selection is seen. LayoutError names a bad layer, block or index.
        """
        self._map, self.layer = address_map, address_map.layers[address_map.layer_index(layer)]
        blocks, self._heads, self._states, self._content = address_map.shape(self.layer)
        self.block = check_int("block", block, minimum=0)
        if self.block >= blocks:
            raise LayoutError("block", block, f"must be below the {blocks:,} blocks of {self.layer}")
        self._region, self._table = address_map.region(self.layer), field_table(address_map)
        names = self._table.names
        self.padding, self.blank, self.plain = len(names), len(names) + 1, len(names) + 2
        looks = [field_look(name, self.theme) for name in names]
        self.palette = Palette([*looks, field_look("padding", self.theme), blank_look(self.theme),
                                *((face, ink, "") for face, ink, _ in looks)])
        self.num_heads, self.num_states = min(MOST_HEADS, self._heads), min(MOST_STATES, self._states)
        if selected is not None and (selected.layer, selected.block) != (self.layer, self.block):
            selected = None
        self.first_head = _first("first_head", first_head, selected and selected.head, MOST_HEADS, self._heads)
        self.first_state = _first("first_state", first_state, selected and selected.state, MOST_STATES, self._states)
        self.bytes: PageBytes = page_bytes(address_map, self.layer, self.block)
        self._draw_grid()
        self._draw_strip()
        self._mark(selected)
        self._say(selected, title)

    def coordinate_at(self, x: float, y: float, axes: int = 0) -> Coordinate | None:
        """Return the coordinate under a point of the grid (``axes`` 0) or of the strip (1); None where nothing is."""
        if axes == 1:
            row, column = int(np.floor(y)), int(np.floor(x))
            position = row * self.bytes.fold + column
            if not (0 <= column < self.bytes.fold and row >= 0 and position < self.bytes.num_bytes):
                return None
            owners = self._map.owners(int(self.bytes.offsets(np.array([position]))[0]))
            mine = next((owner for owner in owners if owner.layer == self.layer), None)
            return mine and Coordinate(mine.layer, mine.block, mine.head, mine.state, mine.byte)
        head, state = int(np.floor(y + 0.5)), int(np.floor(x + 0.5))
        if not (0 <= head - self.first_head < self.num_heads and 0 <= state - self.first_state < self.num_states):
            return None
        edges, fields = self._cell_columns(head, 1000)
        under = int(np.searchsorted(edges, (x - state + 0.5) * 1000, side="right")) - 1
        return Coordinate(self.layer, self.block, head, state, fields[min(max(under, 0), len(fields) - 1)][0])

    def _cell_columns(self, head: int, width: int) -> tuple[np.ndarray, list]:
        """Return (edges in pixels, fields) of one cell: as wide as their bytes, but at least 2 pixels each."""
        fields = self._region.interior.slot_fields(head)
        sizes = np.array([field.size_bytes for _, field in fields], dtype=float)
        least = min(2.0, width / len(fields))
        wide = np.maximum(sizes / sizes.sum() * width, least)
        spare = wide - least
        wide -= spare * ((wide.sum() - width) / max(spare.sum(), 1e-9))
        return np.concatenate([[0], np.round(np.cumsum(wide))]), fields

    def _draw_grid(self) -> None:
        width, height = _GRID[2] - _GRID[0], _GRID[3] - _GRID[1]
        codes = np.full((height, width), self.blank, dtype=np.int16)
        lefts = np.linspace(0, width, self.num_states + 1).round().astype(int)
        tops = np.linspace(0, height, self.num_heads + 1).round().astype(int)
        gap = 2 if width / max(1, self.num_states) >= 12 else 1
        labels, rows, high = [], {}, height / max(1, self.num_heads)
        for row in range(self.num_heads):
            head = row + self.first_head
            kind = tuple((begin, field.name) for begin, field in self._region.interior.slot_fields(head))
            if kind not in rows:
                rows[kind] = self._paint_row(head, lefts, gap)
            line, texts = rows[kind]
            bottom = tops[row + 1] - (2 if high >= 12 else 1 if high >= 4 else 0)
            codes[tops[row]:bottom] = line
            if high >= 11:
                middle = (tops[row] + bottom) // 2
                for x, text, _ in texts:  # the hatch stops behind a letter
                    half = int(text_width(text, 7.5) / 2) + 2
                    codes[middle - 5:middle + 5, int(x) - half:int(x) + half + 1] += self.plain
                y = self.first_head - 0.5 + middle / height * self.num_heads
                labels += [Label(self.first_state - 0.5 + x / width * self.num_states, y, text, 7.5, colour)
                           for x, text, colour in texts]
        extent = (self.first_state - 0.5, self.first_state + self.num_states - 0.5,
                  self.first_head + self.num_heads - 0.5, self.first_head - 0.5)
        self.grid.set(codes, self.palette, extent)
        self._letters.set(labels)
        self.axes.set_xlim(extent[:2])
        self.axes.set_ylim(extent[2:])
        for letter, first, number, total, most in (
                ("N", self.first_state, self.num_states, self._states, 16),
                ("H", self.first_head, self.num_heads, self._heads, 8)):
            ticks = index_ticks(first, number, most)
            self.rulers[letter].set(ticks, map(str, ticks))
            part = f"   ({number} of {total:,} drawn)" if number < total else ""
            self.rulers[letter].set_title(f"{page_words.axis_word(self._region, letter)}  {letter}{part}",
                                          self.theme.axis_ink[letter], 34)

    def _paint_row(self, head: int, lefts: np.ndarray, gap: int):
        """Return (codes of one row of pixels, [(x in pixels, letter, colour)]) of a head slot."""
        line, texts = np.full(lefts[-1], self.blank, dtype=np.int16), []
        unfit = set()  # a letter that is too wide for one cell is left out of all
        for left, right in zip(lefts, lefts[1:]):
            edges, fields = self._cell_columns(head, max(1, right - left - gap))
            for (begin, field), start, end in zip(fields, left + edges.astype(int), left + edges[1:].astype(int)):
                line[start:end] = self._table.code(field.name)
                text = page_words.sized(field)
                if self.num_states > 4 or text_width(text, 7.5) + 8 > end - start:
                    text = field_style(field.name).letter
                if text_width(text, 7.5) + 6 > end - start:
                    unfit.add(begin)
                texts.append((begin, (start + end) / 2, text, ink_on(field_look(field.name, self.theme)[0])))
        return line, [text[1:] for text in texts if text[0] not in unfit]

    def _draw_strip(self) -> None:
        width, room = _STRIP[2] - _STRIP[0], _STRIP[3] - _STRIP[1]
        rows, fold = self.bytes.num_rows, self.bytes.fold
        high = max(1, room // rows)
        columns = ((np.arange(width) + 0.5) * fold / width).astype(np.int64)
        positions = np.arange(rows)[:, None] * fold + columns
        self.strip_offsets = self.bytes.offsets(positions)
        located = self._map.locate(self.strip_offsets, self._region.group)
        found = self._table.codes(located)
        found[located.layer != self._map.layer_index(self.layer)] = self.padding
        found[positions >= self.bytes.num_bytes] = self.blank
        codes = np.repeat(found, high, axis=0)
        if rows > 1:
            codes[high - 1::high] = self.blank
        self.strip.set(codes, self.palette, (0, fold, rows, 0))
        self.strip_axes.set_xlim(0, fold)
        self.strip_axes.set_ylim(room / high, 0)
        unit = self.rulers["byte"].set_bytes(fold, 8)
        sampled = f" · one pixel shows one byte of {fold / width:,.0f}" if fold > 2 * width else ""
        self.rulers["byte"].set_title(f"byte within a row [{unit}]   (one row: {self.bytes.row_words}{sampled})",
                                      self.theme.ink)
        shown = index_ticks(0, rows, 4)
        firsts = self.bytes.offsets(np.array(shown) * fold)
        self.rulers["row"].set([row + 0.5 for row in shown], [f"{int(first):#x}" for first in firsts])

    def _mark(self, selected: Coordinate | None) -> None:
        boxes: list[list] = [[], []]
        if selected is not None:
            if (0 <= selected.head - self.first_head < self.num_heads
                    and 0 <= selected.state - self.first_state < self.num_states):
                boxes[0].append(_box(selected.state - 0.5, selected.state + 0.5, selected.head - 0.5,
                                     selected.head + 0.5))
            starts, lengths = self._map.run_arrays(self.layer, self.block, selected.head, selected.state)
            fold, thin = self.bytes.fold, self.bytes.fold / (_STRIP[2] - _STRIP[0]) * 3
            for start, length in zip(self.bytes.positions(starts).tolist(), lengths.tolist()):
                for row in range(start // fold, (start + length - 1) // fold + 1):
                    left, right = max(start - row * fold, 0), min(start + length - row * fold, fold)
                    boxes[1].append(_box(left, right, row, row + 0.96) if right - left > thin
                                    else [((left + right) / 2, row), ((left + right) / 2, row + 0.9)])
        for pair, lines in zip(self._marks, boxes):
            for collection in pair:
                collection.set_segments(lines)
            # Lone elements, side by side, would be hidden by the outline's light rim.
            pair[0].set_visible(len(lines) == 1)

    def _say(self, selected: Coordinate | None, title: str) -> None:
        words = page_words.describe(self._map, self._region, self.bytes)
        headline = " · ".join(part for part in (
            self._map.layout.name, title, f"one page of {wording.layer_words(self._map, self.layer)}, block "
            f"{self.block:,}: {format_bytes(self._region.page_size_bytes)}") if part)
        spelt = page_words.spell(self._map, selected) if selected is not None else ""
        self.say(headline, " · ".join(words), spelt)
        self._legend.set(page_words.legend(self._region, self._table, self.padding, self.bytes), self.palette,
                         self.blank)
        self.tell((headline, *words, f"{self.num_heads} of {wording.count(self._heads, 'H')} and "
                   f"{self.num_states} of {wording.count(self._states, 'N')} drawn",
                   f"Below, the same page in address order from byte {int(self.bytes.starts[0]):,}, one row is "
                   f"{self.bytes.row_words}", f"Legend: {', '.join(self._legend.entries)}",
                   f"Selected: {spelt}" if spelt else ""))


def _first(argument: str, first: int | None, selected: int | None, most: int, total: int) -> int:
    """Return the first index of a window of ``most``: as asked, or a multiple of it with the selection in it."""
    if first is None:
        first = (selected or 0) // most * most
    return max(0, min(check_int(argument, first, minimum=0), total - most))


def _box(left: float, right: float, top: float, bottom: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]


def page_figure(
    address_map: AddressMap, layer: str | int, block: int = 0, *, theme: str | Theme = "light", **options
) -> Figure:
    """Return the page map of :class:`PageFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = PageFigure(theme)
    drawing.update(address_map, layer, block, **options)
    return drawing.figure
