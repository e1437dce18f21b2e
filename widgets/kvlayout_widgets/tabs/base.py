"""What all tabs share, and what those with one picture share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import ipywidgets as widgets

from kvlayout.errors import LayoutError
from kvlayout_widgets.figures.common import Coordinate, Drawing
from kvlayout_widgets.figures.wording import address_words, coordinate_words
from kvlayout_widgets.html import paragraph
from kvlayout_widgets.picture import Picture
from kvlayout_widgets.readout import field_words
from kvlayout_widgets.state import State

_EMPTY = "The pool holds no byte: give it memory for at least one block."


class Act(Protocol):
    """Runs a change that the user asked for, shows its errors, and redraws what is out of date."""

    def __call__(self, change: Callable[[], None], *, redraw: bool = True) -> None:
        """Run ``change``; without ``redraw`` nothing else is brought up to date."""


class Tab:
    """One tab. ``draw`` is called only while it is visible and ``is_stale``; ``act`` runs a change and redraws.

    ``depends_on``: the traits of the state whose change makes it stale.
    """

    title = ""
    depends_on = frozenset({"plan", "coordinate"})

    def __init__(self, state: State, act: Act):
        self.state, self.act = state, act
        self.is_stale = True
        self.widget: widgets.Widget = widgets.VBox()

    def draw(self, theme: str) -> None:
        """Show the state."""
        raise NotImplementedError

    def later(self) -> None:
        """Have this tab drawn again, after one of its own controls changed."""
        self.is_stale = True
        self.act(lambda: None)

    @property
    def drawing(self) -> Drawing | None:
        """The figure that is shown, for export; None if the tab has none."""
        return None

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Its pictures, which say how dark the page is."""
        return ()


class TextTab(Tab):
    """A tab of text below its own controls. A choice that is refused has its reason between the two."""

    def __init__(self, state: State, act: Act, controls: tuple[widgets.Widget, ...] = (), hint: str = ""):
        super().__init__(state, act)
        row = widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap", align_items="center"))
        self.complaint, self.text = widgets.HTML(), widgets.HTML()
        self.widget = widgets.VBox([row, self.complaint, self.text, widgets.HTML(paragraph(hint, "note"))])

    def draw(self, theme: str) -> None:
        self.complaint.value = ""
        try:
            self.text.value = self.html()
        except LayoutError as error:
            # The choice is at fault, not the explorer: the reason stands where the choice is.
            self.complaint.value, self.text.value = paragraph(f"✗ {error}", "refused"), ""

    def html(self) -> str:
        """Return what to show; LayoutError for what the user chose wrongly."""
        raise NotImplementedError


class PictureTab(Tab):
    """A tab with one picture, below its own controls. Its events come in data coordinates of the axes they hit."""

    def __init__(self, state: State, act: Act, controls: tuple[widgets.Widget, ...] = (), hint: str = ""):
        super().__init__(state, act)
        self.picture = Picture()
        self._drawing: Drawing | None = None
        row = widgets.HBox(controls, layout=widgets.Layout(flex_flow="row wrap", align_items="center"))
        self._empty = widgets.HTML(paragraph(_EMPTY, "note"), layout=widgets.Layout(display="none"))
        self._below = widgets.VBox([row, self.picture, widgets.HTML(paragraph(hint, "note"))])
        self.widget = widgets.VBox([self._below, self._empty])
        self.picture.observe(self._on_hover, "hover")
        for name in ("click", "wheel", "drag", "key"):
            self.picture.observe(self._on_event, name)

    @property
    def drawing(self) -> Drawing | None:
        return self._drawing

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return (self.picture,)

    def draw(self, theme: str) -> None:
        is_empty = self.state.coordinate is None
        self._below.layout.display = "none" if is_empty else None
        self._empty.layout.display = None if is_empty else "none"
        if is_empty:
            self._drawing = None
            return
        if self._drawing is None or self._drawing.theme.name != theme:
            self._drawing = self.make(theme)
        self.update(self._drawing)
        self.picture.show(self._drawing.figure, self._drawing.alt_text())

    def make(self, theme: str) -> Drawing:
        """Return the figure to be updated."""
        raise NotImplementedError

    def update(self, drawing: Drawing) -> None:
        """Update the figure to the state."""
        raise NotImplementedError

    def coordinate_at(self, x: float, y: float, axes: int) -> Coordinate | None:
        """Return the coordinate at a point of the figure's axes of that index, if one is there."""
        return self._drawing.coordinate_at(x, y) if axes == 0 else None

    def hovered(self, x: float, y: float, axes: int) -> str:
        """Return what to say about a point."""
        coordinate = self.coordinate_at(x, y, axes)
        return "" if coordinate is None else hover_words(self.state, coordinate)

    def clicked(self, x: float, y: float, axes: int) -> None:
        """Select what is at a point."""
        coordinate = self.coordinate_at(x, y, axes)
        if coordinate is not None:
            self.state.coordinate = coordinate

    def wheeled(self, x: float, y: float, axes: int, delta: int) -> None:
        """The wheel was turned at a point; 1 is towards the reader."""

    def dragged(self, x0: float, y0: float, x1: float, y1: float, axes: int) -> None:
        """The pointer was drawn from one point to another."""

    def pressed(self, key: str, shift: bool) -> None:
        """A key was pressed while the picture had the focus."""

    def _on_hover(self, change) -> None:
        event = change["new"]

        def say() -> None:
            known = event is not None and self._drawing is not None
            self.picture.readout = self.hovered(event["x"], event["y"], event["axes"]) if known else ""
        self.act(say, redraw=False)

    def _on_event(self, change) -> None:
        event, name = change["new"], change["name"]
        if event is None or self._drawing is None:
            return
        values = {key: value for key, value in event.items() if key != "n"}
        handler = {"click": self.clicked, "wheel": self.wheeled, "drag": self.dragged, "key": self.pressed}[name]
        self.act(lambda: handler(**values))


def hover_words(state: State, coordinate: Coordinate) -> str:
    """Return what the tip beside the pointer says about a coordinate."""
    address_map = state.plan.address_map
    return "\n".join((coordinate_words(address_map, coordinate), address_words(address_map, coordinate),
                      field_words(address_map, coordinate)))
