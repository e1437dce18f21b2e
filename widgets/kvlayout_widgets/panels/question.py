"""One question of a panel: its controls in a row, and below them the answer or why there is none."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from kvlayout.errors import LayoutError
from kvlayout_widgets.html import paragraph


class Question:
    """``answer`` returns HTML or raises a LayoutError, whose reason then stands below the controls.

    Attributes:
        complaint, text: the reason and the answer, as HTML widgets
    """

    def __init__(self, label: str, controls: tuple[widgets.Widget, ...], answer: Callable[[], str],
                 later: Callable[[], None]):
        self._answer = answer
        self.complaint, self.text = widgets.HTML(), widgets.HTML()
        row = widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap", align_items="center"))
        self.widget = widgets.VBox([widgets.HTML(paragraph(label, "section")), row, self.complaint, self.text])
        for one in controls:
            if not isinstance(one, widgets.Button):
                one.observe(lambda _: later(), "value")

    def draw(self) -> None:
        """Show the answer anew."""
        self.complaint.value = ""
        try:
            self.text.value = self._answer()
        except LayoutError as error:
            self.complaint.value, self.text.value = paragraph(f"✗ {error}", "refused"), ""


def field(description: str, tooltip: str, placeholder: str = "", *, width: int = 170, label: int = 70
          ) -> widgets.Text:
    """Return a text box for a number; ``width`` and ``label`` in pixels."""
    return widgets.Text(description=description, tooltip=tooltip, placeholder=placeholder, continuous_update=False,
                        layout=widgets.Layout(width=f"{width}px"), style={"description_width": f"{label}px"})


def reveal(controls: tuple[widgets.Widget, ...], is_shown: bool) -> None:
    """Show controls only once they mean something."""
    for one in controls:
        one.layout.display = None if is_shown else "none"
