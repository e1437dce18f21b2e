"""A tab of several panels: a chooser, and the panel that is chosen."""

from __future__ import annotations

import ipywidgets as widgets

from kvlayout.steps import Resolution
from kvlayout_widgets.figures.common import Drawing
from kvlayout_widgets.html import paragraph
from kvlayout_widgets.picture import Picture
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, Tab


class ChooserTab(Tab):
    """A chooser and the panel that is chosen; each panel is a tab of its own kind, and only that one is drawn.

    Attributes:
        panels: {title: panel}
        chooser: whose value is the title of the panel in front
    """

    kinds: tuple[type[Tab], ...] = ()  # each with the question that it answers, as ``asks``
    says_guess = False  # whether answers here differ by the layout, so that one which is a guess must be said
    depends_on = frozenset({"plan", "coordinate", "problem", "cache", "landing"})

    def __init__(self, state: State, act: Act):
        self.panels: dict[str, Tab] = {panel.title: panel(state, act) for panel in self.kinds}
        self.chooser = widgets.ToggleButtons(options=list(self.panels), tooltips=[one.asks for one in self.kinds],
                                             style={"button_width": "auto"})
        self._asks = widgets.HTML(paragraph(self.kinds[0].asks, "note"))
        self._front = widgets.VBox()
        super().__init__(state, act)
        self.widget = widgets.VBox([self.chooser, self._asks, self._front])
        self.chooser.observe(lambda _: self._bring(), "value")
        self._front.children = [self.visible.widget]

    @property
    def visible(self) -> Tab:
        """The panel in front."""
        return self.panels[self.chooser.value]

    def show(self, title: str) -> None:
        """Bring a panel to the front."""
        self.chooser.value = title

    @property
    def is_stale(self) -> bool:
        """Whether the panel in front is out of date; setting it marks all panels, clearing it only that one."""
        return self.visible.is_stale

    @is_stale.setter
    def is_stale(self, value: bool) -> None:
        for panel in self.panels.values() if value else (self.visible,):
            panel.is_stale = value

    @property
    def drawing(self) -> Drawing | None:
        return self.visible.drawing

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(picture for panel in self.panels.values() for picture in panel.pictures)

    def draw(self, theme: str) -> None:
        self._ask()
        self.visible.draw(theme)

    def _ask(self) -> None:
        """Show the question of the panel in front, and whether the answer hangs on a guess."""
        self._asks.value = paragraph(self.visible.asks, "note") + (
            guess_html(self.state.plan.resolution) if self.says_guess else "")

    def _bring(self) -> None:
        self._ask()
        self._front.children = [self.visible.widget]
        self.act(lambda: None)


def guess_html(resolution: Resolution) -> str:
    """Return what to say where a captured config names no layout and several fit; "" where it is sure."""
    if not resolution.is_guess:
        return ""
    others = " or ".join(resolution.others)
    return paragraph(f"! {resolution.why} Answers here depend on it: choose Layout if it is {others}.", "warn")
