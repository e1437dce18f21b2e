"""The page that a slot names: which state of which layer, and whether the same slot of other groups meets it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.clinic import SlotEntry, colliding_blocks, slots_meet
from kvlayout.clinic.wording import block_noun, map_block_words
from kvlayout.errors import LayoutError
from kvlayout_widgets.figures.wording import group_words, layer_words
from kvlayout_widgets.html import fold, paragraph
from kvlayout_widgets.state import State


@dataclass(frozen=True)
class Facing:
    """The state that a slot names in one layer: its entry, the layer's index in it, the byte offset of one head."""

    entry: SlotEntry
    local: int
    address: int

    @property
    def layer(self) -> str:
        """Name of the layer."""
        return self.entry.layers[self.local]

    @property
    def block(self) -> int:
        """The block as the address map counts it."""
        return map_block(self.entry)


def map_block(entry: SlotEntry) -> int:
    """Return an entry's block as the address map counts: in kernel blocks where the group's are split."""
    return entry.block if entry.kernel_block is None else entry.kernel_block


def facing(state: State, entries: list[SlotEntry]) -> Facing | None:
    """Return the slot's state in the selected layer and head, or the nearest to that; None where there is none."""
    at = state.coordinate
    there = [entry for entry in entries if (entry.addresses >= 0).any()]
    if at is None or not there:
        return None
    entry = next((one for one in there if at.layer in one.layers), there[0])
    local = entry.layers.index(at.layer) if at.layer in entry.layers else 0
    if entry.addresses[local].max() < 0:
        local = int(np.flatnonzero((entry.addresses >= 0).any(axis=1))[0])
    heads = np.flatnonzero(entry.addresses[local] >= 0)
    return Facing(entry, local, int(entry.addresses[local, min(at.head, len(heads) - 1)]))


def meetings_html(address_map: AddressMap, slot: int, entries: list[SlotEntry], found: Facing) -> str:
    """Return, for each other group, whether the same slot there is the same memory, and whose blocks are."""
    others = [entry for entry in entries if entry is not found.entry and entry.layers]
    if not others:
        return ""
    lines = []
    for entry in others:
        # Groups are laid over each other layer by layer, so the layer at the same place faces this one.
        layer = entry.layers[min(found.local, len(entry.layers) - 1)]
        text = f"{group_words(address_map, entry.group)}. "
        kind = "line"
        try:
            if entry.in_pool:
                meeting = slots_meet(address_map, slot, found.layer, layer)
                text, kind = text + meeting.reason, "warn" if meeting.shares else "line"
            else:
                text += _lies_over(address_map, found, layer)
        except LayoutError as error:
            text += str(error)
        lines.append(paragraph(text, kind))
    # Equal blocks overlay each other by design; it is different ones that are taken for equal.
    differ = any(entry.block not in (None, found.entry.block) for entry in others)
    return fold("Do other groups' pages meet this one?", "".join(lines), is_open=differ)


def _lies_over(address_map: AddressMap, found: Facing, layer: str) -> str:
    """What a group without such a slot makes of the page's bytes."""
    blocks = colliding_blocks(address_map, (found.layer, found.block), layer)
    name, noun = layer_words(address_map, layer), block_noun(address_map, layer)
    if not blocks:
        return f"No {noun} of {name} lies over this page."
    shown = ", ".join(f"{block:,}" for block in blocks[:4]) + (" …" if len(blocks) > 4 else "")
    page = map_block_words(address_map, found.layer, found.block)
    return (f"The slot names nothing there; {noun} {shown} of {name} lies over this page of {page}. "
            "A block id is one group's at a time.")
