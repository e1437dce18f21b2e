"""Offsets: the heatmap of byte offsets over any two axes; the others stay at the selection."""

from __future__ import annotations

import csv
import io
from dataclasses import astuple

import ipywidgets as widgets

from kvlayout.layout import AXES
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.offsets import DRAWN, OffsetsFigure
from kvlayout_widgets.figures.theme import AXIS_WORDS
from kvlayout_widgets.slider import WindowSlider
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, PictureTab

_AXES = [(f"{axis} · {AXIS_WORDS[axis][0]}", axis) for axis in AXES]


class OffsetsTab(PictureTab):
    """The heatmap with its choice of axes and the window of each."""

    title = "Offsets"
    depends_on = frozenset({"plan", "coordinate", "landing"})

    def __init__(self, state: State, act: Act):
        self.rows = _axis_dropdown("Rows", "L")
        self.columns = _axis_dropdown("Columns", "B")
        self.first_row = WindowSlider("First row", "The first row that is drawn", self.later)
        self.first_column = WindowSlider("First column", "The first column that is drawn", self.later)
        super().__init__(state, act, (self.rows, self.columns, self.first_column.widget, self.first_row.widget),
                         "Click a cell, or move the selection with the arrow keys. The axes that aren't drawn stay "
                         "at the selection; their sliders are above.")
        self._shown: Coordinate | None = None
        for mine, other in ((self.rows, self.columns), (self.columns, self.rows)):
            mine.observe(lambda change, other=other: self._axis_changed(change, other), "value")

    def _axis_changed(self, change, other: widgets.Dropdown) -> None:
        if other.value == change["new"]:
            other.value = change["old"]
        self.first_row.value = self.first_column.value = 0
        self._shown = None
        self.later()

    def make(self, theme: str) -> OffsetsFigure:
        return OffsetsFigure(theme)

    def update(self, drawing: OffsetsFigure) -> None:
        selected = self.state.coordinate
        address_map = self.state.plan.address_map
        if selected != self._shown and selected is not None:
            # A selection that came from elsewhere is brought into view.
            index = self._index(selected)
            self.first_row.reach(index[self.rows.value], DRAWN[self.rows.value])
            self.first_column.reach(index[self.columns.value], DRAWN[self.columns.value])
        self._shown = selected
        drawing.update(address_map, rows=self.rows.value, columns=self.columns.value, selected=selected,
                       first_row=self.first_row.value, first_column=self.first_column.value,
                       title=self.state.plan.model.title, landing=self.state.landing)
        self.first_row.set(drawing.first_row, drawing.total_rows - drawing.num_rows)
        self.first_column.set(drawing.first_column, drawing.total_columns - drawing.num_columns)

    def _index(self, at: Coordinate) -> dict[str, int]:
        layer = self.state.plan.address_map.layer_index(at.layer)
        return dict(zip(AXES, (layer, at.block, at.head, at.state, at.byte)))

    def pressed(self, key: str, shift: bool) -> None:
        selected = self.state.coordinate
        axis, step = {"ArrowLeft": (self.columns.value, -1), "ArrowRight": (self.columns.value, 1),
                      "ArrowUp": (self.rows.value, -1), "ArrowDown": (self.rows.value, 1),
                      "Home": (self.columns.value, -2**62), "End": (self.columns.value, 2**62),
                      "PageUp": (self.columns.value, -DRAWN[self.columns.value]),
                      "PageDown": (self.columns.value, DRAWN[self.columns.value])}.get(key, ("B", 0))
        if selected is None or not step:
            return
        address_map = self.state.plan.address_map
        index = self._index(selected)
        extent = dict(zip(AXES, (len(address_map.layers), *address_map.shape(selected.layer))))[axis]
        index[axis] = min(max(index[axis] + step, 0), extent - 1)
        limits = (len(address_map.layers), *address_map.shape(index["L"]))
        self.state.select(*(min(value, limit - 1) for value, limit in zip(index.values(), limits)))

    def csv(self) -> str:
        """Return the drawn grid as CSV: one line a cell, with its coordinate and byte offset."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("layer", "block", "head", "state", "byte", "offset_bytes"))
        drawing = self._drawing
        for row in range(drawing.num_rows):
            for column in range(drawing.num_columns):
                at = drawing.coordinate_at(drawing.first_column + column, drawing.first_row + row)
                if at is not None:
                    writer.writerow((*astuple(at), int(drawing.offsets[row, column])))
        return file.getvalue()


def _axis_dropdown(label: str, value: str) -> widgets.Dropdown:
    return widgets.Dropdown(options=_AXES, value=value, description=label,
                            tooltip=f"The axis drawn as {label.lower()}", layout=widgets.Layout(width="200px"),
                            style={"description_width": "68px"})
