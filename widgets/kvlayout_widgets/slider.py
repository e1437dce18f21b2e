"""A slider with a text box beside it, always equal."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets


class Slider:
    """A whole number from 0 on; ``on_change`` is called when the user, not :meth:`set`, changed it."""

    def __init__(self, label: str, tooltip: str, on_change: Callable[[], None]):
        self.slider = widgets.IntSlider(readout=False, tooltip=tooltip)
        self.slider.add_class("kvl-slider")
        self.text = widgets.BoundedIntText(tooltip=tooltip, layout=widgets.Layout(width="76px"))
        self.widget = widgets.HBox([widgets.HTML(f'<span class="kvl-axis">{label}</span>'), self.slider, self.text],
                                   layout=widgets.Layout(margin="0 10px 0 0"))
        self.value, self.largest = 0, 0
        self._on_change, self._is_setting = on_change, False
        for part in (self.slider, self.text):
            part.observe(self._changed, "value")

    def _changed(self, change) -> None:
        if not self._is_setting:
            self.set(change["new"], self.largest)
            self._on_change()

    def set(self, value: int, largest: int) -> None:
        """Show ``value`` of 0 to ``largest``; one that can only be 0 is greyed out."""
        self.value, self.largest = value, largest
        self._is_setting = True
        try:
            for part in (self.slider, self.text):
                # A limit below the old value would change the value by itself.
                part.max = max(largest, part.value)
                part.value = value
                part.max = largest
                part.disabled = largest == 0
        finally:
            self._is_setting = False


class WindowSlider(Slider):
    """The first index that is drawn of an axis; hidden while all of the axis is."""

    def set(self, value: int, largest: int) -> None:
        super().set(value, largest)
        self.widget.layout.display = None if largest else "none"

    def reach(self, index: int, drawn: int) -> None:
        """Move the window, if need be, so that ``index`` is among the ``drawn`` ones."""
        if not self.value <= index < self.value + drawn:
            self.value = max(0, index - drawn // 2)
