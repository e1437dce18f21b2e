"""How far one step along each axis jumps: the five strides of a layer, outermost first, on a log scale."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from kvlayout.address import AddressMap
from kvlayout.layout import AXES
from kvlayout_widgets.figures import wording
from kvlayout_widgets.figures.common import Coordinate, Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, text_width
from kvlayout_widgets.figures.rulers import Ruler
from kvlayout_widgets.figures.theme import (
    AXIS_COLOURS,
    AXIS_TITLES,
    Theme,
    exact_address,
    exact_bytes,
    format_bytes,
    ink_on,
)

_BOX = (116, 78, 936, 396)  # pixels: left, bottom, right, top


class StridesFigure(Drawing):
    """The bars, updated in place.

    Attributes:
        order: the axes as drawn, outermost (top) first
        strides: bytes of each, in that order
        formulas: what stands beside each bar
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        self.axes = self.add_axes(*_BOX)
        for side in ("top", "right"):
            self.axes.spines[side].set_visible(False)
        self._grid = LineCollection([], colors=self.theme.line, linewidths=0.5, zorder=1)
        self.axes.add_collection(self._grid, autolim=False)
        self._ruler = Ruler(self.axes, "bottom", self.theme)
        self._ruler.set_title("bytes from one index to the next   (log scale)", self.theme.ink)
        self._bars = PolyCollection([], zorder=2, linewidths=1.2)
        self.axes.add_collection(self._bars, autolim=False)
        self._glyphs = Glyphs(self.axes)

    def update(
        self, address_map: AddressMap, layer: str | int, *, selected: Coordinate | None = None, title: str = ""
    ) -> None:
        """Draw the strides of ``layer`` (name or index); ``selected`` gives the worked example, by default the
        middle of the layer. LayoutError for an unknown layer."""
        name = address_map.layers[address_map.layer_index(layer)]
        region = address_map.region(name)
        self.order = wording.physical_axes(address_map)
        by_axis = dict(zip(AXES, region.geometry.strides))
        self.strides = tuple(by_axis[axis] for axis in self.order)
        self._extents = dict(zip(AXES, region.geometry.shape))
        self.formulas = tuple(wording.formula(address_map, name, axis) for axis in self.order)
        self._draw()
        if selected is None or selected.layer != name:
            blocks, heads, states, _ = address_map.shape(name)
            selected = Coordinate(name, blocks // 2, heads // 2, states // 2) if blocks and states else None
        example = self._example(address_map, selected) if selected else ""
        headline = " · ".join(part for part in (
            address_map.layout.name, title, f"strides of {wording.layer_words(address_map, name)}") if part)
        where = wording.region_words(address_map, region)
        note = "" if region.interior.scope == "state" else \
            f" · inside a {region.interior.scope} the backend's interior decides, see the page"
        self.say(headline, f"{where} · one step along each axis, outermost first{note}", example)
        self.tell((headline, where, *(f"{AXIS_TITLES[axis]}: {exact_bytes(stride)}, {formula}" for axis, stride,
                               formula in zip(self.order, self.strides, self.formulas)), example))

    def _draw(self) -> None:
        shown = np.log2(np.maximum(self.strides, 1).astype(float))
        right = max(10.0, float(shown.max())) * 1.02
        bars, faces, labels = [], [], []
        for row, (axis, stride, formula, end) in enumerate(zip(self.order, self.strides, self.formulas, shown)):
            end = max(end, right * 0.004)
            bars.append([(0, row - 0.27), (end, row - 0.27), (end, row + 0.27), (0, row + 0.27)])
            faces.append(AXIS_COLOURS[axis] if self._extents[axis] > 1 else self.theme.background)
            text = f"{exact_bytes(stride)}   {formula}"
            fraction, width = end / right, _BOX[2] - _BOX[0]
            if text_width(text, 9) + 14 < (1 - fraction) * width:
                labels.append(Label(end + right * 8 / width, row, text, 9, self.theme.ink, "left"))
            else:
                ink = ink_on(faces[-1])
                labels.append(Label(right * 10 / width, row, text, 9, ink, "left"))
            labels.append(Label(-right * 10 / width, row - 0.1, AXIS_TITLES[axis], 10,
                                self.theme.axis_ink[axis], "right", True))
            number = f"{self._extents[axis]:,} B" if axis == "C" else wording.count(self._extents[axis], axis)
            labels.append(Label(-right * 10 / width, row + 0.17, number, 7.5, self.theme.soft, "right"))
        self._bars.set_verts(bars)
        self._bars.set_facecolor(faces)
        self._bars.set_edgecolor([AXIS_COLOURS[axis] for axis in self.order])
        self._glyphs.set(labels)
        self.axes.set_xlim(0, right)
        self.axes.set_ylim(len(bars) - 0.45, -0.55)
        step = next(step for step in (2, 5, 10) if right / step <= 9)
        powers = range(0, int(right) + 1, step)
        self._ruler.set(powers, [format_bytes(2 ** power) for power in powers])
        self._grid.set_segments([[(power, -1), (power, len(bars))] for power in powers])

    def _example(self, address_map: AddressMap, selected: Coordinate) -> str:
        """Return the sum that leads to one coordinate's offset."""
        region = address_map.region(selected.layer)
        index = {"L": region.tensor.layers.index(selected.layer), "B": selected.block, "H": selected.head,
                 "N": selected.state, "C": selected.byte}
        offset = selected.offset(address_map)
        terms = [f"{index[axis]:,}×{stride:,}" for axis, stride in zip(self.order, self.strides) if index[axis]]
        if region.geometry.offset:
            terms.insert(0, f"{region.geometry.offset:,}")
        where = wording.coordinate_words(address_map, selected, "BHNC")
        if region.interior.scope != "state":
            return f"{where}:   offset {exact_address(offset)}"
        return f"{where}:   {' + '.join(terms) or '0'} = {exact_address(offset)}"


def strides_figure(address_map: AddressMap, layer: str | int, *, theme: str | Theme = "light", **options) -> Figure:
    """Return the bars of :class:`StridesFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = StridesFigure(theme)
    drawing.update(address_map, layer, **options)
    return drawing.figure
