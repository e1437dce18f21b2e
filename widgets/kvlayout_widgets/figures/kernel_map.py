"""Where a kernel under test wrote or read, and where it should have: cell by cell, K beside V."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from kvlayout.bench.kernel_map import CHANGED, MISSING, RIGHT, SIGNS, STRAY, UNTOUCHED, WRONG, KernelMap
from kvlayout.bench.report import KernelReport
from kvlayout.errors import LayoutError, check_type
from kvlayout_widgets.figures.callout import Callout
from kvlayout_widgets.figures.common import HEIGHT, WIDTH, Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, fit
from kvlayout_widgets.figures.raster import Legend, Palette, Raster, blank_look
from kvlayout_widgets.figures.rulers import Ruler, index_ticks
from kvlayout_widgets.figures.theme import AXIS_WORDS, Theme, mix
from kvlayout_widgets.figures.wording import layer_number

MOST_ROWS, MOST_STATES = 20, 64  # drawn; of more, those from the first that went wrong on
_PANELS = ((210, 76, 560, 346), (590, 76, 940, 346))  # pixels of K and V: left, bottom, right, top
_LEGEND = (20, 382, 940, 396)
_BLANK = len(SIGNS)
_WRITER = {UNTOUCHED: "untouched", RIGHT: "right", MISSING: "not written", WRONG: "wrong value",
           STRAY: "written, and shouldn't be"}
_READER = {UNTOUCHED: "not read", RIGHT: "right", MISSING: "another place was read for it",
           STRAY: "read, and nobody asked for it", CHANGED: "written over, by a reader"}


class KernelMapFigure(Drawing):
    """The map of a report's first wrong case: a row for each layer, block and head slot of the pages that took part.

    Attributes:
        rows: int [rows, 3] of what is drawn: indices of the layer and the block in the map, and the head slot
        cells: [rows, states, 2 for K and V] as drawn, from state ``first_state`` on
        counts: {UNTOUCHED, RIGHT, ...: how many cells of the whole map}
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        background = self.theme.background
        looks = {UNTOUCHED: (self.theme.panel, self.theme.panel, ""),
                 RIGHT: (mix("#0072B2", background, 0.45), background, "")}
        for mark, face, hatch in ((MISSING, "#F0E442", "\\"), (WRONG, "#CC79A7", "x"), (STRAY, "#D55E00", "/"),
                                  (CHANGED, "#009E73", "-")):
            looks[mark] = (mix(face, background, 0.1), mix(face, "#FFFFFF", 0.55), hatch)
        self._palette = Palette([*(looks[mark] for mark in range(len(SIGNS))), blank_look(self.theme)])
        self._rasters, self._signs, self.rulers, self.callouts = [], [], [], []
        for box in _PANELS:
            axes = self.add_axes(*box)
            self._rasters.append(Raster(axes))
            self._signs.append(Glyphs(axes, zorder=4))
            self.rulers.append((Ruler(axes, "left", self.theme), Ruler(axes, "bottom", self.theme)))
            self.callouts.append(Callout(axes, box[2] - box[0], box[3] - box[1], self.theme))
        self._legend = Legend(self.add_axes(*_LEGEND, frame=False), _LEGEND[2] - _LEGEND[0], self.theme)
        self._titles = Glyphs(self.figure)

    def update(self, report: KernelReport, *, title: str = "") -> None:
        """Draw ``report.map``; LayoutError where the kernel was right, or no wrong case ran to its end."""
        check_type("report", report, KernelReport)
        if report.map is None:
            raise LayoutError("report", report.sentences()[0], "has no map", "Only a kernel that goes wrong has one, "
                              "in a case that it runs through")
        self._map = found = report.map
        self.counts = {mark: int((found.cells == mark).sum()) for mark in range(len(SIGNS))}
        rows = np.argwhere(np.broadcast_to((found.cells != UNTOUCHED).any((2, 3, 4))[..., None],
                                           found.cells.shape[:3]))
        bad = found.cells > RIGHT
        first = int(np.argmax(bad[tuple(rows.T)].any((1, 2)))) if len(rows) else 0
        start = 0 if len(rows) <= MOST_ROWS else min(first, len(rows) - MOST_ROWS)
        self.rows, self._num_rows = rows[start:start + MOST_ROWS], len(rows)
        states, shown = found.cells.shape[3], bad[tuple(self.rows.T)].any((0, 2))
        begin = int(np.argmax(shown)) if states > MOST_STATES else 0
        self.first_state = min(begin, max(0, states - MOST_STATES))
        self.cells = found.cells[tuple(self.rows.T)][:, self.first_state:self.first_state + MOST_STATES]
        for side in (0, 1):
            self._draw(side)
        self._say(report, title, self._outline(report))

    def _draw(self, side: int) -> None:
        box, cells = _PANELS[side], self.cells[..., side]
        wide, high = box[2] - box[0], box[3] - box[1]
        rows, columns = max(1, cells.shape[0]), max(1, cells.shape[1])
        x, y = (np.arange(wide) * columns // wide), (np.arange(high) * rows // high)
        codes = cells[y[:, None], x].astype(np.int16) if cells.size else np.full((high, wide), _BLANK, np.int16)
        if cells.size and wide / columns > 5:
            codes[:, np.flatnonzero(np.diff(x)) + 1] = _BLANK
        if cells.size:
            self._part(codes, y)
        self._rasters[side].set(codes, self._palette, (0, columns, rows, 0))
        self.figure.axes[side].set(xlim=(0, columns), ylim=(rows, 0))
        size = min(9.0, 0.5 * wide / columns, 0.6 * high / rows)
        marked = np.argwhere((cells != UNTOUCHED) & (cells != RIGHT)) if size >= 5 else ()
        # All faces of what went wrong are bright in both themes.
        self._signs[side].set([Label(column + 0.5, row + 0.5, SIGNS[cells[row, column]], size, "#101418", bold=True)
                               for row, column in marked])
        self._rule(side, rows, columns)

    def _part(self, codes: np.ndarray, y: np.ndarray) -> None:
        """Leave a gap between rows, and a wider one between pages."""
        edges = np.flatnonzero(np.diff(y)) + 1
        for row, edge in enumerate(edges, start=1):
            is_page = (self.rows[row, :2] != self.rows[row - 1, :2]).any()
            codes[edge - is_page:edge + 1 + is_page] = _BLANK

    def _rule(self, side: int, rows: int, columns: int) -> None:
        left, below = self.rulers[side]
        if side == 0:
            blocks, layers = self._map.blocks, [layer_number(name) for name in self._map.layers]
            names = [f"layer {layers[layer]} · block {blocks[block]:,} · head {head}"
                     for layer, block, head in self.rows]
            left.set([row + 0.5 for row in range(len(names))], [fit(name, _PANELS[0][0] - 18, 8) for name in names])
        ticks = index_ticks(self.first_state, columns, 8)
        below.set([tick - self.first_state + 0.5 for tick in ticks], [f"{tick:,}" for tick in ticks])
        total = self._map.cells.shape[3]
        part = f"   ({columns:,} of {total:,})" if columns < total else ""
        below.set_title(f"{AXIS_WORDS['N'][0]} of the block  N{part}", self.theme.axis_ink["N"])

    def _outline(self, report: KernelReport) -> bool:
        """Frame the cell of the first divergence; False where it isn't among those drawn."""
        for callout in self.callouts:
            callout.show(None, ())
        at, found = report.first.coordinate, self._map
        if report.first.case != found.case or not {"block", "state", "head", "side"} <= at.keys():
            return False
        layer, block, head = self.rows.T
        where = np.flatnonzero((layer == found.layers.index(at.get("layer", found.layer)))
                               & (found.blocks[block] == at["block"]) & (head == at["head"]))
        column = at["state"] - self.first_state
        if not len(where) or not 0 <= column < self.cells.shape[1] or at["side"] not in ("K", "V"):
            return False
        side, (rows, columns) = "KV".index(at["side"]), self.cells.shape[:2]
        box = _PANELS[side]
        wide, high = (box[2] - box[0]) / columns, (box[3] - box[1]) / rows
        above = rows - 1 - int(where[0])
        self.callouts[side].show((column * wide, above * high, (column + 1) * wide, (above + 1) * high), ())
        return True

    def _say(self, report: KernelReport, title: str, is_framed: bool) -> None:
        found: KernelMap = self._map
        words = _WRITER if found.is_writer else _READER
        # The cells that are right bear no sign, in the picture too.
        signs = {mark: f"{SIGNS[mark]} " if mark > RIGHT else "" for mark in words}
        legend = [(mark, signs[mark] + word + (f": {self.counts[mark]:,}" if mark != UNTOUCHED else ""))
                  for mark, word in words.items() if mark == UNTOUCHED or self.counts[mark]]
        self._legend.set(legend, self._palette, _BLANK)
        high = (_PANELS[0][3] + 13) / HEIGHT
        self._titles.set([
            Label(box[0] / WIDTH, high, name if (found.cells[..., side] != UNTOUCHED).any() else f"{name}: nothing",
                  9, self.theme.ink, "left", True)
            for side, (name, box) in enumerate(zip(("K", "V"), _PANELS))])
        did = "wrote" if found.is_writer else "read"
        headline = " · ".join(filter(None, (f"where it {did}, and where it should have", title,
                                            f"case {found.case} in {found.layout}")))
        total = report.cases + report.far_cases
        parts = [f"wrong in {report.failed:,} of {total:,} shapes; a cell is one token state of one head slot"]
        if self._num_rows > len(self.rows):
            parts.append(f"{len(self.rows)} of {self._num_rows:,} rows are drawn")
        parts += [f"{count:,} elements {where} aren't drawn" for count, where in (
            (found.padding_elements, "in padding"), (found.outside_elements, "outside the allocation")) if count]
        subline = "; ".join(parts)
        first = report.first
        footer = f"framed: {first.message}" if is_framed else f"first: {first}"
        self.say(headline, subline, footer)
        told = ", ".join(f"{count:,} {words[mark]}" for mark, count in self.counts.items()
                         if count and mark in words and mark != UNTOUCHED)
        self.tell((f"Map of a kernel under test: {headline}", subline, f"Cells: {told}" if told else "",
                   footer))


def kernel_map_figure(report: KernelReport, *, theme: str | Theme = "light", title: str = "") -> Figure:
    """Return the picture of :class:`KernelMapFigure` as a figure; LayoutError where ``report`` has no map."""
    drawing = KernelMapFigure(theme)
    drawing.update(report, title=title)
    return drawing.figure
