"""Files of what is on screen: the picture as PNG or SVG, the drawn offsets as CSV, the selection as JSON."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from kvlayout_widgets.picture import Picture, figure_bytes

_KINDS = {
    "PNG": ("image/png", "The visible picture, twice as fine as on screen"),
    "SVG": ("image/svg+xml", "The visible picture as vectors"),
    "CSV": ("text/csv", "The offsets that the Offsets tab draws: layer, block, head, state, byte, offset"),
    "JSON": ("application/json", "The choices: Selection.from_json or Explorer.from_json opens them again"),
}


class Exports:
    """Four buttons; the browser saves the file. ``content`` returns (name without suffix, content) of a kind."""

    def __init__(self, content: Callable[[str], tuple[str, bytes]], act: Callable[[Callable[[], None]], None]):
        self._content = content
        # Never shown: it only carries files to the browser.
        self.carrier = Picture(layout=widgets.Layout(display="none"))
        self.buttons = {}
        for kind, (_, tooltip) in _KINDS.items():
            button = widgets.Button(description=kind, tooltip=tooltip, layout=widgets.Layout(width="60px"))
            button.on_click(lambda _, kind=kind: act(lambda: self._save(kind)))
            self.buttons[kind] = button
        label = widgets.HTML('<span class="kvl-axis kvl-soft">Save as</span>')
        self.widget = widgets.HBox([label, *self.buttons.values(), self.carrier])

    def _save(self, kind: str) -> None:
        name, data = self._content(kind)
        self.carrier.download(f"{name}.{kind.lower()}", data, _KINDS[kind][0])


def picture_bytes(figure, kind: str) -> bytes:
    """Return a figure as "PNG", twice as fine as on screen, or "SVG"."""
    return figure_bytes(figure, kind.lower(), dpi=2 * figure.dpi if kind == "PNG" else None)
