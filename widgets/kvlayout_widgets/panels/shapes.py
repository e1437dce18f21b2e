"""Shapes: what a pasted shape, its strides, or a TMA descriptor can mean, and whether this cache has such a view."""

from __future__ import annotations

from dataclasses import replace

import ipywidgets as widgets

from kvlayout.clinic import PastedTensor, own_views, parse_shapes
from kvlayout.errors import LayoutError
from kvlayout_widgets.html import paragraph
from kvlayout_widgets.panels.numbers import whole
from kvlayout_widgets.panels.question import field
from kvlayout_widgets.panels.shape_answers import pasted_html
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, TextTab

_EMPTY = ("Paste a tensor's shape, with strides if you have them, such as torch.Size([100, 8, 16, 256]) "
          "stride (32768, 4096, 256, 1); a list of layers' tensors; a log line; or a TMA descriptor, such as dims "
          "(128, 64, 1, 49408, 1) inner first, byte strides (2, 256, 256, 2064384, 0).")
_MOST_TEXT, _SHOWN = 200_000, 8


class ShapesPanel(TextTab):
    """Pasted text, and each kind of tensor that it tells of with every reading.

    Attributes:
        pasted: the text
        itemsize: bytes of an element, where the text doesn't say
        slot: a token whose place in each reading is looked up
    """

    title = "Shapes"
    asks = "What can this shape, with or without strides, mean, and is it this cache's?"
    depends_on = frozenset({"plan"})

    def __init__(self, state: State, act: Act):
        self.pasted = widgets.Textarea(placeholder="Paste shapes, strides, a tensor's repr or a TMA descriptor",
                                       continuous_update=False, tooltip="Nothing in it is evaluated",
                                       layout=widgets.Layout(width="98%", height="96px"))
        self.itemsize = field("Item size", "Bytes of one element, where the text doesn't say", "bytes", width=150,
                              label=62)
        self.slot = field("Slot", "A slot whose block, row and element are looked up in each reading", "1,661",
                          width=150, label=34)
        super().__init__(state, act, (self.pasted, self.itemsize, self.slot),
                         "Shapes and strides are counted in elements, as torch gives them; a descriptor's strides in "
                         "bytes.")
        for one in (self.pasted, self.itemsize, self.slot):
            one.observe(lambda _: self.later(), "value")

    def html(self) -> str:
        text = self.pasted.value
        if not text.strip():
            return paragraph(_EMPTY, "note")
        if len(text) > _MOST_TEXT:
            raise LayoutError("text", f"{len(text):,} characters", f"is longer than {_MOST_TEXT:,}",
                              "Paste the lines that tell of tensors")
        itemsize, slot = whole("item size", self.itemsize.value, "2"), whole("slot", self.slot.value, "1,661")
        found = parse_shapes(text)
        if not found:
            return paragraph("This text tells of no shape. " + _EMPTY, "note")
        views = own_views(self.state.plan.address_map)
        kinds = alike(found)
        parts = [pasted_html(one, names, views, itemsize, slot) for one, names in kinds[:_SHOWN]]
        more = f"and {len(kinds) - _SHOWN:,} more kinds of tensor" if len(kinds) > _SHOWN else ""
        return "".join(parts) + paragraph(more, "note")


def alike(found: list[PastedTensor]) -> list[tuple[PastedTensor, list[str]]]:
    """Return each kind of tensor once, with the names of those that are of it; unnamed ones are ""."""
    kinds: dict[PastedTensor, list[str]] = {}
    for one in found:
        kinds.setdefault(replace(one, name=""), []).append(one.name)
    return list(kinds.items())
