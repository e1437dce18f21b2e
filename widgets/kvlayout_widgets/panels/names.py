"""Names: the same bytes in the words of others, as plain strides, and as one fingerprint."""

from __future__ import annotations

import re
from html import escape

import ipywidgets as widgets

from kvlayout.clinic import fingerprint, names
from kvlayout.clinic.vocabulary import SOURCES
from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.html import code, paragraph, span, table
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, TextTab


class NamesPanel(TextTab):
    """Every vocabulary's word for each layout, the selected layer's view, and the fingerprint."""

    title = "Names"
    asks = "What do others call these bytes, and do two caches agree on every one?"

    def __init__(self, state: State, act: Act):
        self.other = widgets.Text(description="Their fingerprint", continuous_update=False,
                                  placeholder="paste another cache's to compare",
                                  tooltip="What kvlayout.clinic.fingerprint gave for another cache or engine",
                                  layout=widgets.Layout(width="520px"), style={"description_width": "112px"})
        super().__init__(state, act, (self.other,),
                         "The fingerprint is of the byte map: equal only where every coordinate has the same offset.")
        self.other.observe(lambda _: self.later(), "value")

    def html(self) -> str:
        plan, at = self.state.plan, self.state.coordinate
        ours = fingerprint(plan.address_map)
        return (paragraph("Fingerprint", "section") + code(ours) + compared(ours, self.other.value)
                + words_table(plan.layout.name)
                + ("" if at is None else view_html(self.state)))


def compared(ours: str, other: str) -> str:
    """Return whether a pasted fingerprint is ours."""
    other = other.strip()
    if not other:
        return ""
    if other == ours:
        return paragraph("✓ Equal: both caches keep every coordinate at the same offset.", "good")
    if not re.fullmatch(r"kvmap1-[0-9a-f]{32}", other):
        return paragraph("✗ Not a fingerprint: one is kvmap1- and 32 digits of 0-9, a-f.", "refused")
    return paragraph("✗ Not equal: some coordinate lies at another offset, or the caches have other layers, blocks "
                     "or pages. Don't read one by the other's addresses.", "refused")


def words_table(chosen: str) -> str:
    """Return the six layouts in each vocabulary; ``chosen`` is marked."""
    layouts = list(KVCacheLayout.__members__)
    if chosen not in layouts:
        layouts.append(chosen)
    words = {name: names(name) for name in layouts}
    rows = []
    for name in layouts:
        mark = f"<b>▶ {escape(name)}</b>" if name == chosen else escape(name)
        rows.append((mark, *(span("no word", "soft") if word is None else escape(word)
                             for vocabulary, word in words[name].items() if vocabulary != "vLLM")))
    header = tuple(span(one, "", SOURCES[one]) for one in SOURCES if one != "vLLM")
    return table(("layout", *header), rows, "The six layouts in other words; ▶ is this cache's")


def view_html(state: State) -> str:
    """Return the selected layer's view as a shape and strides, in bytes."""
    address_map, layer = state.plan.address_map, state.coordinate.layer
    region = address_map.region(layer)
    shape, strides = region.geometry.shape, region.geometry.strides
    start = region.geometry.offset + region.tensor.layers.index(layer) * strides[0]
    rows = [(axis, f"{extent:,}", f"{stride:,}") for axis, extent, stride in
            zip("BHNC", shape[1:], strides[1:])]
    return table(("axis", "extent", "stride (bytes)"), rows,
                 f"{layer} as a plain strided view, from byte {start:,} of the allocation")
