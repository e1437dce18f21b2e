"""Page: head slots and states of the selected page, and the same bytes in address order."""

from __future__ import annotations

from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.page import MOST_HEADS, MOST_STATES, PageFigure
from kvlayout_widgets.slider import WindowSlider
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, PictureTab

_STEPS = {"ArrowLeft": ("state", -1), "ArrowRight": ("state", 1), "ArrowUp": ("head", -1), "ArrowDown": ("head", 1),
          "PageUp": ("block", -1), "PageDown": ("block", 1)}


class PageTab(PictureTab):
    """The selected page; the sliders are there where a page is too large to be drawn whole."""

    title = "Page"

    def __init__(self, state: State, act: Act):
        self.first_head = WindowSlider("First head slot", "The first head slot that is drawn", self.later)
        self.first_state = WindowSlider("First state", "The first state that is drawn", self.later)
        super().__init__(state, act, (self.first_head.widget, self.first_state.widget),
                         "Click a field to select its first byte. Arrow keys go to the next head slot or state, "
                         "Page Up and Page Down to the next block.")
        self._shown: Coordinate | None = None

    def make(self, theme: str) -> PageFigure:
        return PageFigure(theme)

    def update(self, drawing: PageFigure) -> None:
        at, address_map = self.state.coordinate, self.state.plan.address_map
        if at != self._shown:
            self.first_head.reach(at.head, MOST_HEADS)
            self.first_state.reach(at.state, MOST_STATES)
        self._shown = at
        drawing.update(address_map, at.layer, at.block, selected=at, title=self.state.plan.model.title,
                       first_head=self.first_head.value, first_state=self.first_state.value)
        _, heads, states, _ = address_map.shape(at.layer)
        self.first_head.set(drawing.first_head, heads - drawing.num_heads)
        self.first_state.set(drawing.first_state, states - drawing.num_states)

    def coordinate_at(self, x: float, y: float, axes: int) -> Coordinate | None:
        return self._drawing.coordinate_at(x, y, axes) if axes < 2 else None

    def pressed(self, key: str, shift: bool) -> None:
        at = self.state.coordinate
        if key not in _STEPS:
            return
        name, step = _STEPS[key]
        index = {"block": at.block, "head": at.head, "state": at.state}
        extents = dict(zip(index, self.state.plan.address_map.shape(at.layer)))
        index[name] = min(max(index[name] + step, 0), extents[name] - 1)
        self.state.select(at.layer, **index)
