"""Follow one token: a slot becomes a block and a row, and in each layout another address."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from kvlayout import AddressMap, LayoutError
from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.course.maps import real_map
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.offsets import OffsetsFigure
from kvlayout_widgets.figures.theme import exact_address
from kvlayout_widgets.html import STYLE, layout_chips, paragraph, table
from kvlayout_widgets.picture import Picture


class FollowToken(widgets.VBox):
    """A slot, a layer and a head to choose; the arithmetic, the picture, and the same token in all six layouts.

    ``map_of`` gives the address map of a layout. ``answer`` is the byte offset that is shown.
    """

    def __init__(self, map_of: Callable[[KVCacheLayout], AddressMap] = real_map, slot: int = 37):
        self.maps = {layout: map_of(layout) for layout in KVCacheLayout}
        address_map = self.maps[KVCacheLayout.LBNHC]
        blocks, heads, self.block_size, _ = address_map.shape(0)
        self.slot = widgets.BoundedIntText(value=slot, min=0, max=blocks * self.block_size - 1, description="slot",
                                           tooltip="slot_mapping: block × block size + row")
        self.layer = widgets.BoundedIntText(value=0, min=0, max=len(address_map.layers) - 1, description="layer")
        self.head = widgets.BoundedIntText(value=0, min=0, max=heads - 1, description="head")
        self.layout_choice = widgets.ToggleButtons(options=list(KVCacheLayout.__members__), value="LBNHC",
                                                   description="layout", style={"button_width": "72px"})
        self.words, self.table, self.reason = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.picture, self._figure = Picture(), OffsetsFigure()
        for control in (self.slot, self.layer, self.head):
            control.layout.width = "170px"
        super().__init__([widgets.HBox([self.slot, self.layer, self.head]), self.layout_choice, self.reason,
                          self.words, self.picture, self.table])
        for control in (self.slot, self.layer, self.head, self.layout_choice):
            control.observe(self._changed, "value")
        self.picture.observe(self._clicked, "click")
        self._changed()

    def _changed(self, _change=None) -> None:
        try:
            self._show()
            self.reason.value = ""
        except LayoutError as error:
            self.reason.value = f"<style>{STYLE}</style>{paragraph(error, 'error')}"

    def _clicked(self, change) -> None:
        point = change["new"]
        found = self._figure.coordinate_at(point["x"], point["y"]) if point else None
        if found is not None:
            address_map = self.maps[KVCacheLayout[self.layout_choice.value]]
            self.layer.value = address_map.layer_index(found.layer)
            self.slot.value = found.block * self.block_size + self.slot.value % self.block_size

    def _show(self) -> None:
        slot, size, chosen = self.slot.value, self.block_size, KVCacheLayout[self.layout_choice.value]
        block, row = divmod(slot, size)
        offsets = {layout: one.offset(self.layer.value, block, self.head.value, row)
                   for layout, one in self.maps.items()}
        self.answer = offsets[chosen]
        address_map = self.maps[chosen]
        region = address_map.region(self.layer.value)
        index = {"layer": self.layer.value, "block": block, "head": self.head.value, "row": row}
        total = " + ".join(f"{word} {at:,} × {stride:,}"
                           for (word, at), stride in zip(index.items(), region.geometry.strides))
        self.words.value = (
            f"<div>slot {slot:,} = block {slot:,} // {size} = <b>{block:,}</b>, row {slot:,} % {size} = "
            f"<b>{row}</b></div>"
            f"<div>offset = {total} = <b>{exact_address(self.answer)}</b></div>")
        first = max(0, block - 32)
        self._figure.update(address_map, first_column=first, title=f"slot {slot:,}", selected=Coordinate(
            address_map.layers[self.layer.value], block, self.head.value, row))
        self.picture.show(self._figure.figure, self._figure.alt_text())
        rows = [[layout_chips(layout.name), f"{offset:,}", hex(offset)] for layout, offset in offsets.items()]
        self.table.value = f"<style>{STYLE}</style>" + table(
            ["layout", "byte offset of K", "hex"], rows, "The same token, layer and head in each layout")
