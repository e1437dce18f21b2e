"""A page in words: steps, fields, padding, and the entries of its legend."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.interior import Field
from kvlayout.region import Region
from kvlayout.spec import MambaSpec
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.fields import FieldTable
from kvlayout_widgets.figures.page_bytes import PageBytes
from kvlayout_widgets.figures.theme import exact_address, format_bytes
from kvlayout_widgets.figures.wording import coordinate_words


def describe(address_map: AddressMap, region: Region, page: PageBytes) -> list[str]:
    """Return the facts of a page: "state +4,096 B", "head slot +512 B", "K 256 B then V 256 B" ..."""
    _, _, heads, states, content = region.geometry.shape
    _, _, head_stride, state_stride, _ = region.geometry.strides
    words = []
    if region.interior.scope != "page":
        steps = [(stride, f"{word} {stride:+,} B") for stride, extent, word in
                 ((head_stride, heads, "head slot"), (state_stride, states, "state"))
                 if extent > 1 and (word == "head slot" or region.interior.scope == "state")]
        words += [text for _, text in sorted(steps, reverse=True)]
    words += _fields_words(region)
    if region.geometry.strides[4] != 1 and content > 1:
        words.append(f"byte of C {region.geometry.strides[4]:+,} B")
    if len(page.starts) > 1:
        lengths, gaps = np.unique(page.lengths), np.unique(np.diff(page.starts))
        runs = f"{len(page.starts):,} runs"
        runs += f" of {lengths[0]:,} B" if len(lengths) == 1 else ""
        words.append(runs + (f", {gaps[0]:,} B apart" if len(gaps) == 1 else ""))
    padding = page.num_bytes - heads * states * content
    if padding:
        words.append(f"{padding:,} B of padding at its end")
    return words


def spell(address_map: AddressMap, selected: Coordinate) -> str:
    """Return one coordinate with what it holds and where it lies."""
    offset = selected.offset(address_map)
    name, element = address_map.region(selected.layer).interior.field_of(selected.head, selected.byte)
    return (f"{coordinate_words(address_map, selected, 'HN')} · byte {selected.byte:,} of C, in element {element:,} "
            f"of {name}:   offset {exact_address(offset)}")


def axis_word(region: Region, axis: str) -> str:
    """Return what a page's axis counts."""
    return "head slot" if axis == "H" else "state" if isinstance(region.spec, MambaSpec) else "token state"


def sized(field: Field) -> str:
    """Return a field's name and its bytes in one state: "K 256 B"."""
    return f"{field.name}{':' if field.name[-1:].isdigit() else ''} {format_bytes(field.size_bytes)}"


def legend(region: Region, table: FieldTable, padding_code: int, page: PageBytes) -> list[tuple[int, str]]:
    """Return (code, name and bytes a state) of each field of the page, and its padding."""
    _, _, heads, states, content = region.geometry.shape
    entries = {}
    for field in region.interior.fields:
        entries.setdefault(field.name, sized(field))
    found = [(table.code(name), words) for name, words in entries.items()]
    padding = page.num_bytes - heads * states * content
    if padding:
        found.append((padding_code, f"page padding {format_bytes(padding)}"))
    return found


def _fields_words(region: Region) -> list[str]:
    heads, scope = region.geometry.shape[2], region.interior.scope
    kinds = [(tuple(region.interior.slot_fields(head)), head) for head in range(heads)]
    found = []
    for placed, members in groupby(kinds, key=lambda kind: kind[0]):
        slots = [head for _, head in members]
        if scope == "state":
            text = " then ".join(sized(field) for _, field in placed)
        else:
            text = ", ".join(_placed_words(field) for _, field in placed) + f" of the {scope}"
        if len(slots) < heads:
            text = f"slots {slots[0]}–{slots[-1]}: {text}" if len(slots) > 1 else f"slot {slots[0]}: {text}"
        found.append(text)
    return found[:3] + ([f"and {len(found) - 3} more kinds of slots"] if len(found) > 3 else [])


def _placed_words(field: Field) -> str:
    element = "" if field.element_stride is None else f", element {field.element_stride:+,} B"
    return f"{field.name} from byte {field.offset:,}, state {field.state_stride:+,} B{element}"
