"""A slot's answer as HTML: side by side in every group and block size, then each group with its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.clinic import SlotEntry, compare_block_sizes, decode_slot
from kvlayout_widgets.figures.theme import exact_address
from kvlayout_widgets.figures.wording import group_words
from kvlayout_widgets.html import code, fold, paragraph, span, table
from kvlayout_widgets.panels.slot_pages import facing, meetings_html
from kvlayout_widgets.panels.token_places import usable_html
from kvlayout_widgets.state import State

_LAYERS, _HEADS = 3, 256  # listed


@dataclass(frozen=True)
class Sizes:
    """A block size (tokens) of the user's own, its kernel block's, and blocks of its pool; None: as this cache's."""

    block_size: int
    kernel_block_size: int | None
    num_blocks: int | None


def slot_html(state: State, slot: int, entries: list[SlotEntry], sizes: Sizes | None) -> str:
    """Return the answer for a slot; LayoutError for sizes that can't be."""
    address_map = state.plan.address_map
    if slot < 0:
        return paragraph(f"Slot {slot:,} is negative: vLLM ignores that token, nothing is written or read.", "warn")
    own = "" if sizes is None else _own_html(slot, entries, sizes, address_map.config.num_blocks)
    found = facing(state, entries)
    shown = 0 if found is None else found.entry.group
    parts = [own, _side_by_side(address_map, slot, entries, sizes)]
    parts += [fold(group_words(address_map, entry.group), _group_html(state, entry), is_open=entry.group == shown)
              for entry in entries]
    if found is not None:
        parts.append(meetings_html(address_map, slot, entries, found))
    return "".join(parts) + usable_html(address_map)


def _own_html(slot: int, entries: list[SlotEntry], sizes: Sizes, num_blocks: int) -> str:
    """Return one sentence a block size: this cache's and the user's own."""
    known = list(dict.fromkeys(entry.block_size for entry in entries if entry.block is not None))
    counts = [num_blocks] * len(known) + [num_blocks if sizes.num_blocks is None else sizes.num_blocks]
    return "".join(paragraph(one.line, "line" if one.in_pool else "bad")
                   for one in compare_block_sizes(slot, [*known, sizes.block_size], counts))


def _side_by_side(address_map: AddressMap, slot: int, entries: list[SlotEntry], sizes: Sizes | None) -> str:
    rows = []
    for entry in entries:
        numbers = ("–",) * 4 if entry.block is None else _numbers(entry.block, entry.row, entry.kernel_block_size,
                                                                  entry.kernel_block, entry.kernel_row)
        rows.append((escape(group_words(address_map, entry.group)), f"{entry.block_size:,}", *numbers,
                     _pool(entry.in_pool, address_map.config.num_blocks)))
    if sizes is not None:
        block, row, *kernel = decode_slot(slot, sizes.block_size, sizes.kernel_block_size)
        count = address_map.config.num_blocks if sizes.num_blocks is None else sizes.num_blocks
        rows.append(("your block size", f"{sizes.block_size:,}",
                     *_numbers(block, row, sizes.kernel_block_size, *(kernel or (None, None))),
                     _pool(block < count, count)
                     + ("" if sizes.kernel_block_size is None else
                        f", {count * (sizes.block_size // sizes.kernel_block_size):,} kernel blocks")))
    return table(("", "block size (tokens)", "block", "row", "kernel block", "kernel row", "in the pool"), rows,
                 f"Slot {slot:,}: block = slot // block size, row = slot mod block size")


def _numbers(block, row, kernel_size, kernel_block, kernel_row) -> tuple[str, str, str, str]:
    if kernel_size is None:
        return f"{block:,}", f"{row:,}", "not split", "–"
    return f"{block:,}", f"{row:,}", f"{kernel_block:,} (of {kernel_size:,} tokens)", f"{kernel_row:,}"


def _pool(inside: bool | None, count: int) -> str:
    if inside is None:
        return span("no slots here", "soft")
    return span(f"✓ of {count:,} blocks", "good") if inside else span(f"✗ OUT of {count:,} blocks", "bad")


def _group_html(state: State, entry: SlotEntry) -> str:
    """Return one group: what to beware of, the arithmetic, and the addresses."""
    first, rest = entry.notes[:1], entry.notes[1:]
    is_null = entry.block == 0 and entry.in_pool
    kind = "bad" if entry.in_pool is False else "warn" if is_null else "note"
    notes = "".join([*(paragraph(one, kind) for one in first), *(paragraph(one, "note") for one in rest)])
    arithmetic = code("\n".join(entry.lines)) if entry.lines else ""
    if not (entry.addresses >= 0).any():
        return notes + arithmetic
    at = state.coordinate
    selected = at.layer if at is not None and at.layer in entry.layers else None
    return notes + arithmetic + _layers_table(entry, selected) + _heads(entry, selected)


def _layers_table(entry: SlotEntry, selected: str | None) -> str:
    count = len(entry.layers)
    wanted = {*range(min(_LAYERS, count)), count - 1}
    if selected is not None:
        wanted.add(entry.layers.index(selected))
    rows = []
    for local in sorted(wanted):
        addresses = entry.addresses[local][entry.addresses[local] >= 0]
        mark = "▶ " if entry.layers[local] == selected else ""
        where = ("no state of its own", "–", "–") if not len(addresses) else (
            exact_address(int(addresses[0])), f"{int(addresses[-1]):,}" if len(addresses) > 1 else "–",
            _step(addresses))
        rows.append((escape(mark + entry.layers[local]), str(entry.states[local]), *where))
    rest = count - len(wanted)
    more = paragraph(f"{rest:,} more layers in between; each next layer: "
                     f"{_step(entry.addresses[:, 0]) or 'no even step'}.", "note") if rest else ""
    return table(("layer", "state", "head 0 from byte", "last head", "each next head"), rows,
                 "Where it lies, bytes into the allocation") + more


def _step(addresses: np.ndarray) -> str:
    """Return the distance from each address to the next where it is always the same one."""
    steps = np.unique(np.diff(addresses))
    return f"{int(steps[0]):+,} B" if len(steps) == 1 and (addresses >= 0).all() else "" if len(steps) else "–"


def _heads(entry: SlotEntry, selected: str | None) -> str:
    if selected is None:
        return ""
    addresses = entry.addresses[entry.layers.index(selected)]
    addresses = addresses[addresses >= 0].tolist()
    if len(addresses) < 3:
        return ""  # the table has both already
    lines = [f"head {head:>3}   {exact_address(address)}" for head, address in enumerate(addresses[:_HEADS])]
    more = [f"and {len(addresses) - _HEADS:,} more"] if len(addresses) > _HEADS else []
    return fold(f"Every head of {selected}", code("\n".join([*lines, *more])))
