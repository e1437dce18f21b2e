"""A panel with a picture, and below it the same in numbers."""

from __future__ import annotations

import ipywidgets as widgets

from kvlayout.errors import LayoutError
from kvlayout_widgets.html import paragraph
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, PictureTab


class PicturePanel(PictureTab):
    """Controls, a picture and a text. A choice that is refused has its reason between controls and picture.

    ``rows``: more rows of controls, above ``controls``.
    """

    def __init__(self, state: State, act: Act, controls: tuple[widgets.Widget, ...] = (), hint: str = "",
                 rows: tuple[widgets.Widget, ...] = ()):
        super().__init__(state, act, controls, hint)
        self.complaint, self.text = widgets.HTML(), widgets.HTML()
        first, picture, said = self._below.children
        self._below.children = [*rows, first, self.complaint, picture, said, self.text]

    def draw(self, theme: str) -> None:
        self.complaint.value = self.text.value = ""
        self.picture.layout.display = None
        try:
            super().draw(theme)
            if self._drawing is not None:
                self.text.value = self.html()
        except LayoutError as error:
            # The choice is at fault, not the explorer: the reason stands where the choice is.
            self.say(paragraph(f"✗ {error}", "refused"))

    def say(self, html: str) -> None:
        """Show a text in place of the picture and of what stands below it."""
        self.complaint.value, self.text.value = html, ""
        self.picture.layout.display = "none"
        self._drawing = None

    def html(self) -> str:
        """Return what stands below the picture."""
        raise NotImplementedError
