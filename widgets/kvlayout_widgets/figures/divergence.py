"""Where an offset formula goes wrong: the share of each checked page, and of each cell of one page."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from kvlayout.address import AddressMap
from kvlayout.clinic.divergence import Divergence
from kvlayout_widgets.figures import wording
from kvlayout_widgets.figures.common import HEIGHT, WIDTH, Coordinate, Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, fit, text_width
from kvlayout_widgets.figures.heatmap import CELLS, PAGES, WRONG, add_heatmap
from kvlayout_widgets.figures.rulers import Ruler, index_ticks
from kvlayout_widgets.figures.theme import AXIS_WORDS, Theme, mix

MOST_COLUMNS, MOST_CELLS = 140, 64  # drawn; more checked blocks share columns, more cells are a window


class DivergenceFigure(Drawing):
    """Two heatmaps of the share that diverges: checked pages (layer × block), and cells (head slot × state) of one.

    Attributes:
        pages: masked [layers, columns]; a column is ``blocks_a_column`` checked blocks, which needn't be neighbours
        cells: masked [head slots, states] as drawn, from ``first_cell`` on; None where no page is shown
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        # What is right is a flat, cool tone; any divergence begins at a visible step from it.
        wrong = [mix(WRONG, self.theme.background, share) for share in (0.72, 0.35, 0)]
        right = mix("#0072B2", self.theme.background, 0.8)
        colours = LinearSegmentedColormap.from_list("diverging", [(0, right), (0.002, right), (0.002, wrong[0]),
                                                                  (0.5, wrong[1]), (1, wrong[2])], N=1024)
        heatmaps = [add_heatmap(self, box, colours) for box in (PAGES, CELLS)]
        self._images, self._numbers, self.rulers, self.callouts = map(list, zip(*heatmaps))
        bar = self.add_axes(CELLS[2] + 18, CELLS[1], CELLS[2] + 32, CELLS[3])
        # Right pages have a piece of the legend of their own, below the scale.
        scale = np.concatenate([np.linspace(1, 0.003, 1000), np.zeros(100)])
        bar.imshow(scale[:, None], cmap=colours, vmin=0, vmax=1, aspect="auto", extent=(0, 1, -10, 100))
        bar.set(xlim=(0, 1), ylim=(-10, 100))
        Ruler(bar, "right", self.theme).set((-5, 25, 50, 75, 100), ("0 %", "25 %", "50 %", "75 %", "100 %"))
        self._titles = Glyphs(self.figure)
        self.blocks_a_column, self.first_cell = 1, (0, 0)
        self.cells: np.ma.MaskedArray | None = None

    def update(self, found: Divergence, address_map: AddressMap, *, page: tuple[str, int] | None = None,
               cells: np.ndarray | None = None, selected: Coordinate | None = None, title: str = "",
               spelt: str = "") -> None:
        """Draw a comparison.

        ``page``, ``cells``: a page (layer's name, block) and the share of each cell [head, token] that diverges, to
        be shown beside the map; ``spelt``: the line below.
        """
        self._found, self._map, self._page, self._all_cells = found, address_map, page, cells
        self.blocks_a_column = max(1, -(-len(found.blocks) // MOST_COLUMNS))
        self.pages = np.ma.masked_invalid(_folded(found.map, self.blocks_a_column))
        layers, blocks = self.pages.shape
        self._heat(0, self.pages, (0, 0))
        left, below = self.rulers[0]
        left.set(index_ticks(0, layers, 6), [wording.layer_number(found.layers[i])
                                             for i in index_ticks(0, layers, 6)])
        left.set_title(self._axis_title("L", layers, len(address_map.layers)), self.theme.axis_ink["L"], 40)
        columns = index_ticks(0, blocks, 6)
        below.set(columns, [f"{int(found.blocks[i * self.blocks_a_column]):,}" for i in columns])
        total = max((address_map.shape(name)[0] for name in found.layers), default=0)
        below.set_title(self._axis_title("B", len(found.blocks), total), self.theme.axis_ink["B"])
        self._draw_cells()
        self._outline(selected)
        self._say(title, spelt)

    def coordinate_at(self, x: float, y: float, axes: int = 0) -> Coordinate | None:
        """Return the coordinate under a point of the pages (``axes`` 0) or cells (1); None where nothing is."""
        row, column = int(np.floor(y + 0.5)), int(np.floor(x + 0.5))
        if axes == 1:
            if self.cells is None:
                return None
            at = row - self.first_cell[0], column - self.first_cell[1]
            inside = all(0 <= index < extent for index, extent in zip(at, self.cells.shape))
            return Coordinate(*self._page, row, column) if inside else None
        if axes or not (0 <= row < self.pages.shape[0] and 0 <= column < self.pages.shape[1]):
            return None
        there = self._columns(row, column)
        # Of several checked blocks, the one that diverges most.
        return Coordinate(self._found.layers[row], int(self._found.blocks[there])) if there is not None else None

    def share_at(self, at: Coordinate, axes: int) -> float:
        """Return the share that diverges of a page or cell that is drawn."""
        if axes == 1:
            return float(self._all_cells[at.head, at.state])
        row, column = self._found.layers.index(at.layer), int(np.searchsorted(self._found.blocks, at.block))
        return float(self._found.map[row, column])

    def _columns(self, row: int, column: int) -> int | None:
        part = self._found.map[row, column * self.blocks_a_column:(column + 1) * self.blocks_a_column]
        if np.isnan(part).all():
            return None
        return column * self.blocks_a_column + int(np.nanargmax(part))

    def _draw_cells(self) -> None:
        self.cells, cells = None, self._all_cells
        heads, states = self.rulers[1]
        if cells is None or not cells.size:
            self._heat(1, np.ma.masked_all((1, 1)), (0, 0))
            for ruler in (heads, states):
                ruler.set((), ())
                ruler.set_title("", self.theme.soft, 40)
            return
        wrong = np.argwhere(cells > 0)
        first = wrong[0] if len(wrong) else (0, 0)
        # A window around the first cell that diverges, where not all can be drawn.
        self.first_cell = tuple(int(min(max(0, at - MOST_CELLS // 8), max(0, extent - MOST_CELLS)))
                                if at >= MOST_CELLS else 0 for at, extent in zip(first, cells.shape))
        rows, columns = (slice(at, at + MOST_CELLS) for at in self.first_cell)
        self.cells = np.ma.masked_invalid(cells[rows, columns])
        self._heat(1, self.cells, self.first_cell)
        extents = self._map.shape(self._page[0])[1:3]
        for ruler, axis, at, shown, total, extent in zip((heads, states), "HN", self.first_cell, self.cells.shape,
                                                         cells.shape, extents):
            ticks = index_ticks(at, shown, 6)
            ruler.set(ticks, [f"{index:,}" for index in ticks])
            part = f"   ({shown:,} of {total:,})" if shown < total else ""
            if total == 1 < extent:  # an index that the formula and its length leave out
                ruler.set((), ())
                part = f"   (all {extent:,} at once)"
            ruler.set_title(f"{AXIS_WORDS[axis][0]}  {axis}{part}", self.theme.axis_ink[axis], 40)

    def _axis_title(self, axis: str, checked: int, total: int) -> str:
        part = f"   ({checked:,} checked of {total:,})" if checked < total else ""
        if axis == "B" and self.blocks_a_column > 1:
            part += f", {self.blocks_a_column} a column"
        return f"{AXIS_WORDS[axis][0]}  {axis}{part}"

    def _heat(self, which: int, values: np.ma.MaskedArray, first: tuple[int, int]) -> None:
        image, shape, box = self._images[which], values.shape, (PAGES, CELLS)[which]
        if 0 in shape:
            values = np.ma.masked_all((1, 1))
        extent = (first[1] - 0.5, first[1] + max(shape[1], 1) - 0.5,
                  first[0] + max(shape[0], 1) - 0.5, first[0] - 0.5)
        image.set_data(values)
        image.set_extent(extent)
        image.axes.set_xlim(extent[:2])
        image.axes.set_ylim(extent[2:])
        wide, high = (box[2] - box[0]) / max(shape[1], 1), (box[3] - box[1]) / max(shape[0], 1)
        size = min(9.0, 0.75 * wide / text_width("99.9", 1), 0.45 * high)
        labels = []
        if size >= 6.5:  # smaller ones are a blur where the picture is shown small
            labels = [Label(first[1] + column, first[0] + row, percent(float(values[row, column])), size,
                            self.theme.ink) for row, column in zip(*np.nonzero(~np.ma.getmaskarray(values)))]
        self._numbers[which].set(labels)

    def _outline(self, selected: Coordinate | None) -> None:
        for callout in self.callouts:
            callout.show(None, ())
        if selected is None:
            return
        places = [(0, self._place(selected), self.pages.shape, PAGES)]
        if self.cells is not None and (selected.layer, selected.block) == self._page:
            at = selected.head - self.first_cell[0], selected.state - self.first_cell[1]
            places.append((1, at, self.cells.shape, CELLS))
        for which, (row, column), shape, box in places:
            if 0 <= row < shape[0] and 0 <= column < shape[1]:
                wide, high = (box[2] - box[0]) / shape[1], (box[3] - box[1]) / shape[0]
                below = shape[0] - 1 - row
                self.callouts[which].show((column * wide, below * high, (column + 1) * wide, (below + 1) * high), ())

    def _place(self, selected: Coordinate) -> tuple[int, int]:
        """(row, column) of its page in the map; (-1, -1) where it wasn't checked."""
        at = int(np.searchsorted(self._found.blocks, selected.block))
        if selected.layer not in self._found.layers or at >= len(self._found.blocks) \
                or self._found.blocks[at] != selected.block:
            return -1, -1
        return self._found.layers.index(selected.layer), at // self.blocks_a_column

    def _say(self, title: str, spelt: str) -> None:
        found = self._found
        head = "each page" if not found.sampled else "each page that was checked"
        labels = [(PAGES[0], head, True), (CELLS[2], "diverges", False)]
        if self._page is not None:
            name, block = self._page
            is_first = found.first is not None and (found.first.layer, found.first.block) == self._page
            kind = "block" if found.kernel_blocks_per_block.get(name, 1) == 1 else "kernel block"
            text = f"{'first: ' if is_first else ''}layer {wording.layer_number(name)}, {kind} {block:,}"
            labels.append((CELLS[0], fit(text, CELLS[2] - CELLS[0] - 12, 9, True), True))
        else:
            labels.append((CELLS[0], "no page diverges" if found.first is None else "", True))
        high = (PAGES[3] + 14) / HEIGHT
        self._titles.set([Label(x / WIDTH, high, text, 9 if bold else 8.5, self.theme.ink, "left", bold)
                          for x, text, bold in labels])
        headline = " · ".join(part for part in ("formula against the address map", title) if part)
        sample = ", ".join(found.sample)
        of = (f"all coordinates diverge, estimated from {found.checked:,} ({sample})" if found.sampled else
              f"the {found.checked:,} coordinates that were checked diverge")
        subline = f"{percent(found.share)} % of {of}"
        self.say(headline, subline, spelt)
        self.tell((f"Heatmap of the share of each page that diverges, {headline}", subline, spelt))


def _folded(shares: np.ndarray, columns: int) -> np.ndarray:
    """Neighbouring columns as their largest share; NaN where none was checked."""
    if columns == 1 or not shares.size:
        return shares
    rest = -shares.shape[1] % columns
    padded = np.pad(shares, ((0, 0), (0, rest)), constant_values=np.nan)
    parts = padded.reshape(len(shares), -1, columns)
    most = np.where(np.isnan(parts), -1, parts).max(axis=2)
    return np.where(most < 0, np.nan, most)


def percent(share: float) -> str:
    """Return a share from 0 to 1 in per cent; never 0 or 100 unless it is."""
    value = 100 * share
    if value in (0, 100):
        return f"{value:.0f}"
    return f"{min(max(value, 0.1), 99.9):.1f}"


def divergence_figure(found: Divergence, address_map: AddressMap, *, theme: str | Theme = "light",
                      **options) -> Figure:
    """Return the picture of :class:`DivergenceFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = DivergenceFigure(theme)
    if found.first is not None:
        options = {"page": (found.first.layer, found.first.block), "cells": found.cells, **options}
    drawing.update(found, address_map, **options)
    return drawing.figure
