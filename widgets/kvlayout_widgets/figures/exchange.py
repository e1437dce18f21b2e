"""What a transfer does to its target: each page of the request, and the cells of one page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from kvlayout.clinic import Fates, Side
from kvlayout.clinic.wording import block_noun, map_block_words
from kvlayout.errors import check_int
from kvlayout_widgets.figures import wording
from kvlayout_widgets.figures.callout import Callout
from kvlayout_widgets.figures.common import Coordinate, Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, fit
from kvlayout_widgets.figures.raster import Palette, Raster, blank_look, unowned_look
from kvlayout_widgets.figures.rulers import Ruler, index_ticks
from kvlayout_widgets.figures.theme import AXIS_WORDS, Theme, format_bytes, mix

DRAWN = {"L": 128, "B": 64, "H": 64, "N": 64}  # at most so many indices of an axis
_PAGES, _CELLS = (80, 76, 486, 372), (566, 76, 824, 372)  # pixels: left, bottom, right, top
_KEY = 846  # where the key of colours begins
# Worst first, as they are painted from a cell's left edge; each with its row in a Fates' counts.
FATES = {"wrong": 3, "twice": 2, "missing": 1, "right": 0}
_BLANK = len(FATES)


class ExchangeFigure(Drawing):
    """Two pictures: pages (layer × block), and the cells (head slot × state) of one of them, updated in place.

    Attributes:
        pages: bytes of each fate, int64 [fates in the order of ``FATES``, layers, blocks], of what is drawn
        cells: the same of the page that is shown, [fates, head slots, states]
        first_row, first_column: where the drawn layers and blocks begin
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        faces = {"wrong": ("#D55E00", "/"), "twice": ("#CC79A7", "x"), "right": ("#0072B2", "")}
        looks = []
        for name in FATES:
            face, hatch = faces.get(name, ("", ""))
            face = mix(face, self.theme.background, 0.45 if name == "right" else 0.1) if face else ""
            looks.append((face, mix(face, "#FFFFFF", 0.55), hatch) if face else unowned_look(self.theme))
        self._palette = Palette([*looks, blank_look(self.theme)])
        self._rasters, self.rulers, self.callouts = [], [], []
        for box in (_PAGES, _CELLS):
            axes = self.add_axes(*box)
            self._rasters.append(Raster(axes))
            self.rulers.append((Ruler(axes, "left", self.theme), Ruler(axes, "bottom", self.theme)))
            self.callouts.append(Callout(axes, box[2] - box[0], box[3] - box[1], self.theme))
        self.axes, self.cell_axes = self.figure.axes[:2]
        swatches = Raster(self.add_axes(_KEY, _CELLS[1], _KEY + 18, _CELLS[3], frame=False))
        codes = np.full((_CELLS[3] - _CELLS[1], 18), _BLANK, dtype=np.int16)
        for index in range(len(FATES)):
            codes[46 * index:46 * index + 14] = index
        swatches.set(codes, self._palette, (0, 1, 0, 1))
        self._words = Glyphs(self.figure)

    def update(self, fates: Fates, target: Side, blocks: Sequence[int], *, layer: str, column: int = 0,
               elsewhere_bytes: int = 0, cell: tuple[int, int] | None = None, headline: str = "",
               sentence: str = "", footer: str = "") -> None:
        """Draw the target's pages and the cells of one.

        ``blocks``: the request's, in token order, as the target's map counts them; ``layer`` and ``column`` (a place
        in ``blocks``): the page whose cells are shown; ``cell``: a (head slot, state) of it to outline;
        ``elsewhere_bytes``: written outside of the request, for the key. LayoutError for a page that isn't there.
        """
        self._target, self._layers, self._blocks = target, target.layers, list(blocks)
        row = self._layers.index(target.address_map.layers[target.address_map.layer_index(layer)])
        column = min(check_int("column", column, minimum=0), len(self._blocks) - 1)
        self.page = self._layers[row], self._blocks[column]
        num_rows, num_columns = min(DRAWN["L"], len(self._layers)), min(DRAWN["B"], len(self._blocks))
        self.first_row, self.first_column = max(0, row - num_rows + 1), max(0, column - num_columns + 1)
        order = list(FATES.values())
        self.pages = fates.pages(list(self._layers[self.first_row:self.first_row + num_rows]),
                                 self._blocks[self.first_column:self.first_column + num_columns])[order]
        cells = fates.cells(*self.page)[order]
        self.cells = cells[:, :DRAWN["H"], :DRAWN["N"]]
        self._paint(0, self.pages, self.first_row, self.first_column)
        self._paint(1, self.cells, 0, 0)
        self._rule(cells.shape[1:])
        self._outline(0, row - self.first_row, column - self.first_column)
        self._outline(1, *(cell or (-1, -1)))
        self._write(elsewhere_bytes)
        self._say(headline, sentence, footer)

    def page_at(self, x: float, y: float) -> tuple[str, int] | None:
        """Return (layer, place in the request) under a point of the pages; None where nothing is."""
        row, column = int(np.floor(y)), int(np.floor(x))
        if not (0 <= row < self.pages.shape[1] and 0 <= column < self.pages.shape[2]):
            return None
        return self._layers[self.first_row + row], self.first_column + column

    def cell_at(self, x: float, y: float) -> Coordinate | None:
        """Return the target's coordinate under a point of the cells; None where nothing is."""
        head, state = int(np.floor(y)), int(np.floor(x))
        if not (0 <= head < self.cells.shape[1] and 0 <= state < self.cells.shape[2]):
            return None
        return Coordinate(*self.page, head, state)

    def words_at(self, x: float, y: float, axes: int) -> str:
        """Return what became of the page (``axes`` 0) or cell (1) under a point."""
        if axes == 0 and (page := self.page_at(x, y)) is not None:
            counts = self.pages[:, int(np.floor(y)), int(np.floor(x))]
            at = Coordinate(page[0], self._blocks[page[1]])
        elif axes == 1 and (at := self.cell_at(x, y)) is not None:
            counts = self.cells[:, at.head, at.state]
        else:
            return ""
        return f"{wording.coordinate_words(self._target.address_map, at, 'LB' if axes == 0 else 'LBHN')}\n" \
               f"{fate_words(counts)}"

    def _paint(self, which: int, counts: np.ndarray, first_row: int, first_column: int) -> None:
        """Paint each cell from the left: the worst of its bytes first, each kind as wide as its share."""
        box = (_PAGES, _CELLS)[which]
        wide, high = box[2] - box[0], box[3] - box[1]
        _, rows, columns = counts.shape
        each = wide / max(1, columns)
        total = np.maximum(counts.sum(axis=0), 1)
        ends = counts[:-1].cumsum(axis=0) / total
        # Of what there is, at least a pixel is seen: the worst at the left edge, what is right at the other.
        bad = (counts[:-1].cumsum(axis=0) > 0)
        ends = np.where(bad, np.maximum(ends, 1.5 / each), ends)
        ends = np.where(counts[-1] > 0, np.minimum(ends, max(0.5, 1 - 1.5 / each)), ends)
        x, y = (np.arange(wide) + 0.5) * columns / wide, (np.arange(high) + 0.5) * rows / high
        column, row = x.astype(int), y.astype(int)
        here = ends[:, row[:, None], column[None, :]]
        codes = (x - column >= here).sum(axis=0).astype(np.int16)
        if each > 5:
            codes[:, np.flatnonzero(np.diff(column)) + 1] = _BLANK
        if high / max(1, rows) > 5:
            codes[np.flatnonzero(np.diff(row)) + 1] = _BLANK
        self._rasters[which].set(codes, self._palette, (0, columns, rows, 0))
        axes = (self.axes, self.cell_axes)[which]
        axes.set_xlim(0, columns)
        axes.set_ylim(rows, 0)

    def _rule(self, page: tuple[int, int]) -> None:
        ticks = index_ticks(self.first_row, self.pages.shape[1], 8)
        names = [wording.layer_number(self._layers[i]) for i in ticks]
        self.rulers[0][0].set([i - self.first_row + 0.5 for i in ticks],
                              [name if len(name) < 9 else f"{name[:7]}…" for name in names])
        ticks = index_ticks(self.first_column, self.pages.shape[2], 8)
        self.rulers[0][1].set([i - self.first_column + 0.5 for i in ticks], [f"{self._blocks[i]:,}" for i in ticks])
        for axis, extent in ((0, 1), (1, 2)):
            ticks = index_ticks(0, self.cells.shape[extent], 6)
            self.rulers[1][axis].set([i + 0.5 for i in ticks], [f"{i:,}" for i in ticks])
        totals = {"L": len(self._layers), "B": len(self._blocks), "H": page[0], "N": page[1]}
        drawn = dict(zip("LBHN", (*self.pages.shape[1:], *self.cells.shape[1:])))
        for letter, ruler in zip("LBHN", (*self.rulers[0], *self.rulers[1])):
            part = f"   ({drawn[letter]:,} of {totals[letter]:,})" if drawn[letter] < totals[letter] else ""
            name = "the target's blocks, in token order" if letter == "B" else AXIS_WORDS[letter][0]
            ruler.set_title(f"{name}  {letter}{part}", self.theme.axis_ink[letter], 40)
        layer, block = self.page
        noun = block_noun(self._target.address_map, layer)
        self._title = fit(f"layer {wording.layer_number(layer)} · {noun} {block:,}, cell by cell", 370, 9, True)

    def _outline(self, which: int, row: int, column: int) -> None:
        box, (_, rows, columns) = (_PAGES, _CELLS)[which], (self.pages, self.cells)[which].shape
        if not (0 <= row < rows and 0 <= column < columns):
            self.callouts[which].show(None, ())
            return
        wide, high = (box[2] - box[0]) / columns, (box[3] - box[1]) / rows
        below = rows - 1 - row
        self.callouts[which].show((column * wide, below * high, (column + 1) * wide, (below + 1) * high), ())

    def _write(self, elsewhere_bytes: int) -> None:
        words = [Label(_PAGES[0] / 960, (_PAGES[3] + 14) / 460, "each page of the request, at the target", 9,
                       self.theme.ink, "left", True),
                 Label(_CELLS[0] / 960, (_CELLS[3] + 14) / 460, self._title, 9, self.theme.ink, "left", True)]
        sums = self.pages.sum(axis=(1, 2))
        self.sums = {name: int(total) for name, total in zip(FATES, sums)}
        for index, (name, total) in enumerate(self.sums.items()):
            y = _CELLS[3] - 46 * index - 7
            words += [Label((_KEY + 25) / 960, y / 460, name, 8.5, self.theme.ink, "left"),
                      Label(_KEY / 960, (y - 17) / 460, format_bytes(total), 8, self.theme.soft, "left")]
        y = _CELLS[3] - 46 * len(FATES) - 7
        words += [Label(_KEY / 960, y / 460, "elsewhere", 8.5, self.theme.ink, "left"),
                  Label(_KEY / 960, (y - 17) / 460, format_bytes(elsewhere_bytes), 8, self.theme.soft, "left")]
        self._words.set(words)

    def _say(self, headline: str, sentence: str, footer: str) -> None:
        self.say(headline, sentence, footer)
        layer, block = self.page
        block = map_block_words(self._target.address_map, layer, block)
        self.tell(("Two heatmaps of what a transfer does to its target: the pages of the request, and the cells of "
                   f"{block} of layer {wording.layer_number(layer)}", headline, sentence, footer,
                   f"Of the pages drawn: {fate_words(np.array(list(self.sums.values())))}",
                   f"Of the page shown: {fate_words(self.cells.sum(axis=(1, 2)))}"))


def fate_words(counts: np.ndarray) -> str:
    """Return bytes of each fate, in the order of ``FATES``, in words: "98.44 % wrong, 1.563 % right"."""
    total = int(counts.sum())
    parts = [f"{100 * int(count) / total:.4g} % {name}" for name, count in zip(FATES, counts) if count]
    return ", ".join(parts) or "no bytes"


def exchange_figure(fates: Fates, target: Side, blocks: Sequence[int], *, theme: str | Theme = "light",
                    **options) -> Figure:
    """Return the picture of :class:`ExchangeFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = ExchangeFigure(theme)
    drawing.update(fates, target, blocks, **options)
    return drawing.figure
