"""Address: what a byte offset, or a pointer from an error message, means."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from kvlayout.clinic import Meaning, explain_address
from kvlayout_widgets.html import paragraph, table
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, TextTab

_EMPTY = ("Type a byte offset such as 74,816, or the address of an error such as 0x7f0000010000 with the base "
          "address that the cache was allocated at (data_ptr() of its buffer).")


class AddressPanel(TextTab):
    """An address and its base; whose byte it is, what lies around it, and which mistakes lead there."""

    title = "Address"
    asks = "Whose byte is this address, and how could a kernel have come there?"
    depends_on = frozenset({"plan"})

    def __init__(self, state: State, act: Act):
        self.address = _text("Address", "A byte offset into the allocation, or a data pointer, decimal or 0x hex", 66)
        self.base = _text("Base", "The address of the allocation's first byte; 0 takes the address as an offset", 40)
        self.base.placeholder = "0"
        self.select = widgets.Button(description="Select in all tabs", disabled=True,
                                     tooltip="Select the coordinate that owns the byte",
                                     layout=widgets.Layout(width="150px"))
        super().__init__(state, act, (self.address, self.base, self.select))
        self._meaning: Meaning | None = None
        for one in (self.address, self.base):
            one.observe(lambda _: self.later(), "value")
        self.select.on_click(lambda _: self.act(lambda: self.state.select_address(self._meaning.offset)))

    def html(self) -> str:
        self._meaning, self.select.disabled = None, True
        if not self.address.value.strip():
            return paragraph(_EMPTY, "note")
        address_map = self.state.plan.address_map
        meaning = explain_address(self.address.value, address_map, self.base.value.strip() or 0)
        self._meaning, self.select.disabled = meaning, not meaning.owners
        return meaning_html(meaning)


def meaning_html(meaning: Meaning) -> str:
    """Return the owners as a table, and everything else that is known as lines."""
    rows = [(str(one.group), one.layer, meaning.block_words(one.group, one.block).removeprefix("block "),
             str(one.head), str(one.state), str(one.byte),
             f"{one.field}, element {one.element}") for one in meaning.owners]
    owners = table(("group", "layer", "block", "head", "state", "byte", "holds"),
                   [tuple(map(escape, row)) for row in rows], "Owner" if len(rows) == 1 else "Owners") if rows else ""
    first, *rest = meaning.sentences()
    rest = rest[len(rows):]
    kind = "good" if meaning.owners else "refused" if meaning.where != "inside" else "warn"
    return paragraph(first, kind) + owners + "".join(paragraph(one, "line") for one in rest)


def _text(description: str, tooltip: str, label_width: int) -> widgets.Text:
    return widgets.Text(description=description, tooltip=tooltip, continuous_update=False,
                        layout=widgets.Layout(width="270px"), style={"description_width": f"{label_width}px"})
