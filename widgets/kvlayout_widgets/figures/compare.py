"""What a reader with another layout sees: the share of each page that it reads from wrong owners."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from kvlayout.errors import check_int
from kvlayout.layout import AXES
from kvlayout.readers import WrongReader
from kvlayout_widgets.figures import wording
from kvlayout_widgets.figures.common import Coordinate, Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, fit, text_width
from kvlayout_widgets.figures.heatmap import CELLS, PAGES, WRONG, add_heatmap
from kvlayout_widgets.figures.rulers import Ruler, index_ticks
from kvlayout_widgets.figures.theme import AXIS_WORDS, Theme, exact_address, mix

DRAWN = {"L": 128, "B": 64, "H": 64, "N": 64}  # at most so many indices of an axis


class CompareFigure(Drawing):
    """Two heatmaps: pages (layer × block), and the cells (head slot × state) of the selected page.

    Attributes:
        shares: [layers, blocks] of what is drawn, 0 to 1, of the bytes read from a wrong owner
        cells: [head slots, states] of the selected page, the same; None without a selection
        first_row, first_column, num_rows, num_columns: the window of layers and blocks that is drawn
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        colours = LinearSegmentedColormap.from_list("wrong", [mix(self.theme.panel, self.theme.background, 0.3),
                                                              mix(WRONG, self.theme.background, 0.35), WRONG])
        heatmaps = [add_heatmap(self, box, colours) for box in (PAGES, CELLS)]
        self._images, self._numbers, self.rulers, self.callouts = map(list, zip(*heatmaps))
        self.axes, self.cell_axes = (image.axes for image in self._images)
        bar = self.add_axes(CELLS[2] + 18, CELLS[1], CELLS[2] + 32, CELLS[3])
        bar.imshow(np.linspace(1, 0, 256)[:, None], cmap=colours, aspect="auto", extent=(0, 1, 0, 100))
        bar.set(xlim=(0, 1), ylim=(0, 100))
        ruler = Ruler(bar, "right", self.theme)
        ruler.set((0, 25, 50, 75, 100), ("0 %", "25 %", "50 %", "75 %", "100 %"))
        self._titles = Glyphs(self.figure)
        high = 460
        self._titles.set([
            Label(PAGES[0] / 960, (PAGES[3] + 14) / high, "each page", 9, self.theme.ink, "left", True),
            Label(CELLS[0] / 960, (CELLS[3] + 14) / high, "the selected page, cell by cell", 9, self.theme.ink,
                  "left", True),
            Label(CELLS[2] / 960, (CELLS[3] + 14) / high, "read wrongly", 8.5, self.theme.ink, "left")])

    def update(self, reader: WrongReader, *, selected: Coordinate | None = None, first_row: int = 0,
               first_column: int = 0, title: str = "") -> None:
        """Draw what ``reader`` reads from where it shouldn't; the window is moved so that it lies within the pool."""
        self._reader, written = reader, reader.writer
        layers = len(written.layers)
        blocks = max((written.shape(i)[0] for i in range(layers)), default=0)
        self.total_rows, self.total_columns = layers, blocks
        self.num_rows, self.num_columns = min(DRAWN["L"], layers), min(DRAWN["B"], blocks)
        self.first_row = min(check_int("first_row", first_row, minimum=0), layers - self.num_rows)
        self.first_column = min(check_int("first_column", first_column, minimum=0), blocks - self.num_columns)
        rows = np.arange(self.first_row, self.first_row + self.num_rows)
        columns = np.arange(self.first_column, self.first_column + self.num_columns)
        self.shares = np.ma.masked_invalid(reader.shares(rows, columns))
        self._draw(0, self.shares, (self.first_row, self.first_column), "LB", (layers, blocks))
        for axis in (0, 1):
            ruler = self.rulers[0][axis]
            if axis == 0:
                ruler.set(ruler.positions, [wording.layer_number(written.layers[int(i)]) for i in ruler.positions])
        self.cells = None
        if selected is not None:
            cells = reader.cells(selected.layer, selected.block, DRAWN["H"], DRAWN["N"])
            self.cells = np.ma.masked_invalid(cells)
            self._draw(1, self.cells, (0, 0), "HN", written.shape(selected.layer)[1:3])
        self._select(selected)
        self._say(selected, title)

    def coordinate_at(self, x: float, y: float, axes: int = 0) -> Coordinate | None:
        """Return the coordinate under a point of the pages (``axes`` 0) or cells (1); None where nothing is."""
        row, column = int(np.floor(y + 0.5)), int(np.floor(x + 0.5))
        if axes == 1:
            if self.cells is None or not (0 <= row < self.cells.shape[0] and 0 <= column < self.cells.shape[1]):
                return None
            return Coordinate(self._selected.layer, self._selected.block, row, column)
        inside = 0 <= row - self.first_row < self.num_rows and 0 <= column - self.first_column < self.num_columns
        if not inside or self.shares.mask[row - self.first_row, column - self.first_column]:
            return None
        return Coordinate(self._reader.writer.layers[row], column)

    def _draw(self, which: int, values: np.ma.MaskedArray, first: tuple[int, int], axes: str, total: tuple) -> None:
        image, shape = self._images[which], values.shape
        extent = (first[1] - 0.5, first[1] + max(shape[1], 1) - 0.5,
                  first[0] + max(shape[0], 1) - 0.5, first[0] - 0.5)
        image.set_data(values)
        image.set_extent(extent)
        image.axes.set_xlim(extent[:2])
        image.axes.set_ylim(extent[2:])
        for axis, ruler in enumerate(self.rulers[which]):
            letter = axes[axis]
            ticks = index_ticks(first[axis], shape[axis], 6)
            ruler.set(ticks, [f"{i:,}" for i in ticks])
            part = f"   ({shape[axis]:,} of {total[axis]:,})" if shape[axis] < total[axis] else ""
            ruler.set_title(f"{AXIS_WORDS[letter][0]}  {letter}{part}", self.theme.axis_ink[letter], 40)
        box = (PAGES, CELLS)[which]
        wide, high = (box[2] - box[0]) / max(shape[1], 1), (box[3] - box[1]) / max(shape[0], 1)
        labels = []
        size = min(9.0, 0.75 * wide / text_width("99.9", 1), 0.45 * high)
        if size >= 6.5:  # smaller ones are a blur where the picture is shown small
            ink = self.theme.ink
            labels = [Label(first[1] + column, first[0] + row, _percent(float(values[row, column])), size, ink)
                      for row, column in zip(*np.nonzero(~np.ma.getmaskarray(values)))]
        self._numbers[which].set(labels)

    def _select(self, selected: Coordinate | None) -> None:
        self._selected = selected
        for callout in self.callouts:
            callout.show(None, ())
        if selected is None:
            return
        layer = self._reader.writer.layer_index(selected.layer)
        places = ((layer - self.first_row, selected.block - self.first_column, self.shares.shape, PAGES),
                  (selected.head, selected.state, self.cells.shape, CELLS))
        for callout, (row, column, shape, box) in zip(self.callouts, places):
            if 0 <= row < shape[0] and 0 <= column < shape[1]:
                wide, high = (box[2] - box[0]) / shape[1], (box[3] - box[1]) / shape[0]
                below = shape[0] - 1 - row
                callout.show((column * wide, below * high, (column + 1) * wide, (below + 1) * high), ())

    def _say(self, selected: Coordinate | None, title: str) -> None:
        written, read = self._reader.writer, self._reader.reader
        names = f"written {written.layout.name}, read {read.layout.name}"
        headline = " · ".join(part for part in (names, title) if part)
        mean = float(self.shares.mean()) if self.shares.count() else 0.0
        drawn = "all pages" if self.shares.shape == (self.total_rows, self.total_columns) else "the pages drawn"
        subline = f"{_percent(mean)} % of the bytes of {drawn} come from a wrong owner"
        footer = "" if selected is None else self.spell(selected)
        self.say(headline, subline, footer)
        self.tell((f"Heatmap of the share of each page that a reader takes from wrong owners, {headline}", subline,
                   footer))

    def spell(self, at: Coordinate) -> str:
        """Return where ``at`` was written, where the reader looks for it, and whose bytes those are."""
        wrote = at.offset(self._reader.writer)
        looked = at.offset(self._reader.reader)
        what = wording.coordinate_words(self._reader.writer, at)
        if looked == wrote:
            return fit(f"{what}:   written and read at {exact_address(wrote)}", 2000, 9)
        return f"{what}:   written at {wrote:,}, read at {looked:,}, where {owner_words(self._reader, at)} lies"


def owner_words(reader: WrongReader, at: Coordinate) -> str:
    """Return whose byte the reader takes for the byte at ``at``."""
    owner = reader.reads(at.layer, at.block, at.head, at.state, at.byte)
    if owner is None:
        return "nobody's byte"
    found = Coordinate(owner.layer, owner.block, owner.head, owner.state, owner.byte)
    axes = "".join(axis for axis, mine, theirs in zip(AXES, _parts(at), _parts(found)) if mine != theirs)
    return wording.coordinate_words(reader.writer, found, axes) if axes else "the right byte"


def _parts(at: Coordinate) -> tuple:
    return at.layer, at.block, at.head, at.state, at.byte


def _percent(share: float) -> str:
    """A share from 0 to 1 in per cent; never 0 or 100 unless it is."""
    value = 100 * share
    if value in (0, 100):
        return f"{value:.0f}"
    return f"{min(max(value, 0.1), 99.9):.1f}"


def compare_figure(reader: WrongReader, *, theme: str | Theme = "light", **options) -> Figure:
    """Return the picture of :class:`CompareFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = CompareFigure(theme)
    drawing.update(reader, **options)
    return drawing.figure
