"""What a landing says, in words, above the tabs that light it."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from kvlayout_widgets.html import paragraph
from kvlayout_widgets.state import State

_MOST = 6


class LandingBar:
    """The landing's summary and findings, and a button that puts the light out; hidden without a landing."""

    def __init__(self, state: State, act: Callable[[Callable[[], None]], None]):
        self.state = state
        self.text = widgets.HTML()
        self.dark = widgets.Button(description="Lights out", layout=widgets.Layout(flex="0 0 auto", width="100px"),
                                   tooltip="Show the pages as before, without where tokens landed")
        self.widget = widgets.HBox([self.text, self.dark], layout=widgets.Layout(display="none"))
        self.dark.on_click(lambda _: act(lambda: state.light(None)))
        state.observe(lambda change: self._show(), "landing")

    def _show(self) -> None:
        landing = self.state.landing
        self.widget.layout.display = "none" if landing is None else None
        if landing is None:
            return
        sign, kind = ("✓", "good") if landing.ok else ("✗", "refused")
        lines = [paragraph(f"{sign} Tokens landed: {landing.summary}", kind)]
        lines += [paragraph(f"{one.severity}: {one.message} {one.cure}", "refused" if one.is_error else "note")
                  for one in landing.findings[:_MOST]]
        if len(landing.findings) > _MOST:
            lines.append(paragraph(f"and {len(landing.findings) - _MOST} more", "note"))
        self.text.value = "".join(lines)
