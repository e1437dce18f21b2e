"""The real view of memory, drawn: rows of a folded strip, coloured by the innermost axis that can be seen."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from kvlayout.address import AddressMap
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.folded import Folded
from kvlayout_widgets.figures.glyphs import Glyphs, Label, text_width
from kvlayout_widgets.figures.raster import Palette, Raster, blank_look, field_look, unowned_look
from kvlayout_widgets.figures.rulers import Ruler, index_ticks
from kvlayout_widgets.figures.theme import AXIS_COLOURS, Theme, mix
from kvlayout_widgets.figures.wording import layer_number, physical_axes

RAMP = 24  # shades of an axis, each in two versions for neighbours
_TALLEST_ROW = 64
_LABEL_ROOM = 84  # pixels right of the strip


def memory_palette(names: tuple[str, ...], colour: str, theme: Theme) -> tuple[Palette, dict[str, int]]:
    """Return the looks of fields, padding, nothing, fields without hatch, and an axis' shades; and their codes."""
    looks, ramp = [field_look(name, theme) for name in names], []
    if colour != "field":
        pale, deep = mix(AXIS_COLOURS[colour], "#FFFFFF", 0.72), mix(AXIS_COLOURS[colour], "#000000", 0.35)
        for shade in range(RAMP):
            face = mix(pale, deep, shade / (RAMP - 1))
            ramp += [(face, face, ""), (mix(face, "#000000", 0.18), face, "")]
    palette = Palette([*looks, unowned_look(theme), blank_look(theme), *((face, ink, "") for face, ink, _ in looks),
                       *ramp])
    number = len(names)
    codes = {name: code for code, name in enumerate(names)}
    return palette, codes | {"padding": number, "blank": number + 1, "plain": number + 2, "ramp": 2 * number + 2}


class Strip:
    """The rows in one axes of ``width`` x ``height`` pixels; data coordinates are (byte within a row, row)."""

    def __init__(self, axes: Axes, width: int, height: int, theme: Theme):
        self.axes, self.raster, self.glyphs = axes, Raster(axes), Glyphs(axes)
        self._width, self._height, self._theme = width, height, theme
        self._marks = [LineCollection([], colors=colour, linewidths=line, zorder=6, clip_on=False)
                       for colour, line in ((theme.background, 3.4), (theme.ink, 1.6))]
        for marks in self._marks:
            axes.add_collection(marks, autolim=False)
        self._pin, = axes.plot([], [], marker="D", ms=7, mfc=theme.background, mec=theme.ink, mew=1.6, zorder=7,
                               clip_on=False)
        self.rulers = {"byte": Ruler(axes, "bottom", theme), "row": Ruler(axes, "left", theme, 7.5)}

    def draw(self, address_map: AddressMap, view: Folded, palette: Palette, codes: dict[str, int],
             selected: Coordinate | None) -> None:
        """Draw the samples of ``view``, and mark the selection."""
        self._map, self._view, self._codes = address_map, view, codes
        rows = len(view.offsets)
        high = min(_TALLEST_ROW, self._height / rows)
        pixels = self._pixel_codes()
        self._paint_breaks(pixels)
        tops = np.linspace(0, round(high * rows), rows + 1).round().astype(int)
        image = np.repeat(pixels, np.diff(tops), axis=0)
        if rows > 1 and view.is_seen:
            image[tops[1:] - 1] = codes["blank"]
        self.glyphs.set((self._row_labels(rows, high) + self._column_labels(high)) or self._band_labels(image, tops))
        self.raster.set(image, palette, (0, view.fold, rows, 0))
        self.axes.set_xlim(0, view.fold)
        self.axes.set_ylim(self._height / high, 0)
        unit = self.rulers["byte"].set_bytes(view.fold, 8)
        part = f" · {rows:,} of {view.total_rows:,} rows drawn" if rows < view.total_rows else ""
        self.rulers["byte"].set_title(f"byte within a row [{unit}]   (one row: {view.fold_words}{part})",
                                      self._theme.ink)
        shown = self._shown_rows(rows, high)
        firsts = view.offsets[:, 0] - int(0.5 * view.fold / self._width)
        self.rulers["row"].set([row + 0.5 for row in shown], [f"{int(firsts[row]):#x}" for row in shown])
        self._mark(selected)

    def offset_at(self, x: float, y: float) -> int | None:
        """Return the byte under a point; None beside the strip."""
        row, column, fold = int(np.floor(y)), int(np.floor(x)), self._view.fold
        at = row * fold + column
        if not (0 <= row < len(self._view.offsets) and 0 <= column < fold and at < self._view.length):
            return None
        return self._view.start + at

    def _pixel_codes(self) -> np.ndarray:
        """Return the code of each sample: its field, or the shade of its index with neighbours told apart."""
        view, codes = self._view, self._codes
        if view.colour == "field":
            pixels = view.fields.copy()
        else:
            index = view.index(view.colour)
            shade = index * (RAMP - 1) // max(1, view.extent(view.colour) - 1)
            pixels = (codes["ramp"] + 2 * shade + (index % 2 if view.alternates else 0)).astype(np.int16)
        pixels[~view.owned] = codes["padding"]
        pixels[~view.inside] = codes["blank"]
        return pixels

    def _outer_axes(self) -> str:
        order = physical_axes(self._map)
        return order.replace("C", "") if self._view.colour == "field" else order[:order.index(self._view.colour)]

    def _paint_breaks(self, pixels: np.ndarray) -> None:
        """Blank the first pixels where an axis outside the coloured one goes on, if there is room; wider outside."""
        for depth, axis in enumerate(reversed(self._outer_axes())):
            index = self._view.index(axis)
            rows, columns = np.nonzero((index[:, 1:] != index[:, :-1]) & (index[:, 1:] >= 0))
            wide = min(1 + depth, 4)
            if len(columns) * 10 * wide < pixels.size:
                for width in range(wide):
                    pixels[rows, np.minimum(columns + 1 + width, pixels.shape[1] - 1)] = self._codes["blank"]

    def _shown_rows(self, rows: int, high: float) -> list[int]:
        return index_ticks(0, rows, max(2, min(14, int(rows * high / 24))))

    def _row_labels(self, rows: int, high: float) -> list[Label]:
        """Name the axes that stay the same along a row but not from row to row, right of the rows."""
        view, axes, start = self._view, [], ""
        for axis in physical_axes(self._map):
            index = view.index(axis)
            if view.extent(axis) > 1 and np.all((index == index[:, :1]) | (index < 0)) and np.ptp(index[:, 0]):
                axes.append(axis)
        if not axes and not view.is_seen:
            axes, start = [view.colour], "from "
        labels = []
        for row in self._shown_rows(rows, high):
            names = [self._name(axis, int(view.index(axis)[row, 0])) for axis in axes
                     if view.index(axis)[row, 0] >= 0]
            while names and text_width(start + " ".join(names), 8) > _LABEL_ROOM:
                names.pop()
            if names:
                labels.append(Label(view.fold * (1 + 8 / self._width), row + 0.5, start + " ".join(names), 8,
                                    self._theme.axis_ink[axes[0]], "left"))
        return labels

    def _column_labels(self, high: float) -> list[Label]:
        """Name the bands of the innermost axis that is the same in all rows, above the first row."""
        view = self._view
        for axis in reversed(self._outer_axes() + view.colour.replace("field", "")):
            index = view.index(axis)
            steps = np.flatnonzero(np.diff(index[0])) + 1
            if view.extent(axis) < 2 or not 0 < len(steps) <= 60 or np.any((index != index[0]) & view.inside):
                continue
            edges, scale = [0, *steps.tolist(), self._width], view.fold / self._width
            named = [(a, b, self._name(axis, int(index[0, a]))) for a, b in zip(edges, edges[1:]) if index[0, a] >= 0]
            fitting = [one for one in named if text_width(one[2], 7.5) + 3 < one[1] - one[0]]
            if 2 * len(fitting) > len(named):
                return [Label((a + b) / 2 * scale, -9 / high, name, 7.5, self._theme.axis_ink[axis])
                        for a, b, name in fitting]
        return []

    def _band_labels(self, image: np.ndarray, tops: np.ndarray) -> list[Label]:
        """Name each page inside its band, on a plate of background, where rows are irregular, few and tall."""
        view, labels = self._view, []
        layer, block = view.index("L"), view.index("B")
        changes = (layer[:, 1:] != layer[:, :-1]) | (block[:, 1:] != block[:, :-1])
        if np.diff(tops).min() < 20 or changes.sum() > 60:
            return []
        for row in range(len(layer)):
            edges = [0, *(np.flatnonzero(changes[row]) + 1).tolist(), self._width]
            for left, right in zip(edges, edges[1:]):
                if layer[row, left] < 0 or not view.inside[row, left]:
                    continue
                name = f"{self._name('B', int(block[row, left]))} {self._name('L', int(layer[row, left]))}"
                wide = int(text_width(name, 8)) + 8
                if wide + 8 < right - left:
                    image[tops[row] + 3:tops[row] + 17, left + 6:left + 6 + wide] = self._codes["blank"]
                    y = row + 10 / (tops[row + 1] - tops[row])
                    labels.append(Label((left + 10) * view.fold / self._width, y, name, 8, self._theme.ink, "left"))
        return labels

    def _name(self, axis: str, index: int) -> str:
        return axis + (layer_number(self._map.layers[index]) if axis == "L" else f"{index:,}")

    def _mark(self, selected: Coordinate | None) -> None:
        """Outline the selected page's pixels (its state's, where the page fills the view), and pin the byte."""
        view, boxes, at = self._view, [], None
        if selected is not None:
            at = selected.offset(self._map) - view.start
            for first, end, left, right in self._selected_boxes(selected):
                left, right = left * view.fold / self._width, right * view.fold / self._width
                boxes.append([(left, first), (right, first), (right, end - 0.08), (left, end - 0.08), (left, first)])
        for marks in self._marks:
            marks.set_segments(boxes if len(boxes) <= 400 else [])
        inside = at is not None and 0 <= at < min(view.length, len(view.offsets) * view.fold)
        self._pin.set_visible(inside)
        if inside:
            row, column = divmod(at, view.fold)
            self._pin.set_data([column], [row + 0.46])

    def _selected_boxes(self, selected: Coordinate) -> list[tuple[int, int, int, int]]:
        """Return (first row, behind last row, left, right) in pixels; equal runs of neighbouring rows are one box."""
        view = self._view
        mine = ((view.index("L") == self._map.layer_index(selected.layer)) & view.inside
                & (view.index("B") == selected.block))
        if mine.mean() > 0.4:
            mine &= (view.index("H") == selected.head) & (view.index("N") == selected.state)
        rows, edges = np.nonzero(np.diff(np.pad(mine, ((0, 0), (1, 1))).astype(np.int8), axis=1))
        boxes: dict[tuple[int, int], list[list[int]]] = {}
        for row, run in zip(rows[::2].tolist(), zip(edges[::2].tolist(), edges[1::2].tolist())):
            spans = boxes.setdefault(run, [])
            if spans and spans[-1][1] == row:
                spans[-1][1] = row + 1
            else:
                spans.append([row, row + 1])
        return [(first, end, *run) for run, spans in boxes.items() for first, end in spans]
