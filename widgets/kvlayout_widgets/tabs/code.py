"""Code: the same selection as kvlayout code, as plain vLLM code, and as JSON."""

from __future__ import annotations

import ipywidgets as widgets

from kvlayout_widgets.html import code, paragraph
from kvlayout_widgets.kvlayout_code import kvlayout_code
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, Tab
from kvlayout_widgets.vllm_code import vllm_code


class CodeTab(Tab):
    """Three texts that can be copied; the first runs anywhere, the second where vLLM is installed."""

    title = "Code"

    def __init__(self, state: State, act: Act):
        super().__init__(state, act)
        self.texts = widgets.HTML()
        self.widget = widgets.VBox([self.texts])

    def draw(self, theme: str) -> None:
        plan, at = self.state.plan, self.state.coordinate
        parts = [paragraph("With kvlayout", "section"), code(kvlayout_code(plan, at, self.state.backends))]
        if at is not None:
            parts += [paragraph("The same with plain vLLM", "section"),
                      code(vllm_code(plan.address_map, at, plan.selection.vllm_version))]
        parts += [paragraph("The selection as JSON: Selection.from_json(text) opens it again", "section"),
                  code(plan.selection.to_json())]
        self.texts.value = "".join(parts)
