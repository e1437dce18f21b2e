"""Strides: five numbers, why they are what they are, and the selected address computed from them."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from kvlayout_widgets.figures.strides import StridesFigure
from kvlayout_widgets.figures.theme import exact_bytes
from kvlayout_widgets.figures.wording import coordinate_words
from kvlayout_widgets.html import chip, code, paragraph, table
from kvlayout_widgets.state import State
from kvlayout_widgets.stride_table import page_sentence, stride_rows, worked_example
from kvlayout_widgets.tabs.base import Act, PictureTab


class StridesTab(PictureTab):
    """Bars on a logarithmic scale, the same as a table, and a sum."""

    title = "Strides"

    def __init__(self, state: State, act: Act):
        super().__init__(state, act)
        self.text = widgets.HTML()
        self.widget = widgets.VBox([self.widget, self.text])

    def make(self, theme: str) -> StridesFigure:
        return StridesFigure(theme)

    def draw(self, theme: str) -> None:
        super().draw(theme)
        self.text.value = "" if self.state.coordinate is None else strides_html(self.state)

    def update(self, drawing: StridesFigure) -> None:
        at = self.state.coordinate
        drawing.update(self.state.plan.address_map, at.layer, selected=at, title=self.state.plan.model.title)


def strides_html(state: State) -> str:
    """Return the table of the selected layer's strides and the sum for the selected byte."""
    address_map, at = state.plan.address_map, state.coordinate
    rows = [(chip(row.axis), f"{row.extent:,}", escape(exact_bytes(row.stride_bytes)), escape(row.formula),
             escape(row.why)) for row in stride_rows(address_map, at.layer)]
    return "".join((
        table(("axis", "extent", "stride", "formula", "why"), rows,
              f"Strides of {at.layer}, outermost first"),
        paragraph(page_sentence(address_map, at.layer), "note"),
        paragraph(f"Worked example: {coordinate_words(address_map, at)}", "section"),
        code("\n".join(worked_example(address_map, at))),
    ))
