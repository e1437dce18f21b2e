"""The selected byte: five sliders with a text box each, an address to go to, and both ways of saying where it is."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from kvlayout.clinic import parse_address
from kvlayout.errors import LayoutError
from kvlayout.layout import AXES
from kvlayout_widgets.figures.theme import AXIS_WORDS
from kvlayout_widgets.html import chip, paragraph, span
from kvlayout_widgets.readout import coordinate_lines, offset_lines
from kvlayout_widgets.slider import Slider
from kvlayout_widgets.state import State

_TOOLTIPS = {
    "L": "Layer: its index among this rank's layers, in the order of the groups",
    "B": "Block: block id in the block table, counted in kernel blocks where those split it",
    "H": "Head slot: a KV head of this rank, or whatever the backend puts side by side",
    "N": "Token state: the position inside the block",
    "C": "Byte inside C, the content of one head slot and state",
}


class SelectionBar:
    """``widget`` shows and changes ``state.coordinate``; ``act`` runs a change of the state and redraws."""

    def __init__(self, state: State, act: Callable[[Callable[[], None]], None]):
        self.state, self._act = state, act
        self.axes = {axis: Slider(f"{chip(axis)} {AXIS_WORDS[axis][0].removesuffix(' of C')}", _TOOLTIPS[axis],
                                  lambda: act(self._select)) for axis in AXES}
        self.address = widgets.Text(placeholder="decimal or 0x hex", continuous_update=False,
                                    tooltip="A byte offset from the start of the allocation: shows who owns it",
                                    layout=widgets.Layout(width="176px"))
        self.address.observe(lambda change: act(self._go), "value")
        self.note = widgets.HTML()
        self.readout = widgets.HTML()
        self._noted_for = None
        address = widgets.HBox([widgets.HTML('<span class="kvl-axis">@ address</span>'), self.address])
        row = widgets.HBox([*(one.widget for one in self.axes.values()), address],
                           layout=widgets.Layout(flex_flow="row wrap"))
        self.widget = widgets.VBox([row, self.note, self.readout])

    def _select(self) -> None:
        address_map = self.state.plan.address_map
        wished = [self.axes[axis].value for axis in AXES]
        # Another layer may have fewer blocks, heads, states or bytes.
        extents = address_map.shape(wished[0])
        self.state.select(wished[0], *(min(value, extent - 1) for value, extent in zip(wished[1:], extents)))

    def _go(self) -> None:
        if not self.address.value.strip():
            return
        try:
            offset = parse_address(self.address.value)
            address_map = self.state.plan.address_map
            is_owned = self.state.select_address(offset)
            words = " · ".join(offset_lines(address_map, offset))
            said = "" if is_owned else paragraph(f"Nobody owns {words}", "warn")
        except LayoutError as error:
            said = paragraph(f"✗ {error}", "refused")
        self._note(said)
        self._noted_for = (self.state.plan, self.state.coordinate)

    def _note(self, said: str) -> None:
        self.note.value = said
        self.note.layout.display = None if said else "none"

    def show(self) -> None:
        """Show the state's coordinate."""
        plan, at = self.state.plan, self.state.coordinate
        if (plan, at) != self._noted_for:
            self._note("")
        if at is None:
            for one in self.axes.values():
                one.set(0, 0)
            self.readout.value = paragraph("This pool has no bytes to select.", "readout")
            return
        address_map = plan.address_map
        extents = (len(address_map.layers), *address_map.shape(at.layer))
        values = (address_map.layer_index(at.layer), at.block, at.head, at.state, at.byte)
        for axis, value, extent in zip(AXES, values, extents):
            self.axes[axis].set(value, extent - 1)
        where, address, *rest = coordinate_lines(address_map, at)
        more = "".join(paragraph(line, "soft") for line in rest)
        self.readout.value = (f'<div class="kvl-readout" role="status"><b>{span(where, "line")}</b> '
                              f'{span(address, "mono")}{more}</div>')
