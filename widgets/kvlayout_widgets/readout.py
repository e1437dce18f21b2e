"""One address in words, from either side: who owns an offset, and where a coordinate lies."""

from __future__ import annotations

from kvlayout.address import AddressMap, Owner, Padding
from kvlayout.clinic.wording import map_block_words
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.theme import exact_address, exact_bytes
from kvlayout_widgets.figures.wording import address_words, coordinate_words, layer_words, steps_words

_KINDS = {"page": "padding of the page of", "block": "padding of the block behind", "pool": "not used, behind"}


def field_words(address_map: AddressMap, coordinate: Coordinate) -> str:
    """Return what the byte of a coordinate holds: "K, element 3"."""
    name, element = address_map.region(coordinate.layer).interior.field_of(coordinate.head, coordinate.byte)
    return f"{name}, element {element:,}"


def coordinate_lines(address_map: AddressMap, coordinate: Coordinate) -> list[str]:
    """Return a coordinate, its address and content, the way to its neighbours, and who else owns the byte."""
    lines = [coordinate_words(address_map, coordinate),
             f"{address_words(address_map, coordinate)} · {field_words(address_map, coordinate)}",
             steps_words(address_map, coordinate, "LBHN")]
    offset = coordinate.offset(address_map)
    group = address_map.region(coordinate.layer).group
    others = [owner for owner in address_map.owners(offset) if owner.group != group]
    if others:
        shown = "; ".join(f"group {one.group}: {layer_words(address_map, one.layer)}, "
                          f"{map_block_words(address_map, one.layer, one.block)}"
                          for one in others)
        lines.append(f"The same byte belongs to {shown}. A block id is one group's at a time.")
    return lines


def owner_words(address_map: AddressMap, owner: Owner) -> str:
    """Return an owner in words: "layer 12 · block 37 · head slot 0 · state 0 · byte 0 · K, element 0"."""
    at = Coordinate(owner.layer, owner.block, owner.head, owner.state, owner.byte)
    return f"{coordinate_words(address_map, at)} · {owner.field}, element {owner.element:,}"


def padding_words(address_map: AddressMap, padding: Padding) -> str:
    """Return a gap in words, with its bytes."""
    behind = "not used" if padding.layer is None else \
        f"{_KINDS[padding.kind]} {layer_words(address_map, padding.layer)}, " \
        f"{map_block_words(address_map, padding.layer, padding.block)}"
    return f"{behind}: {exact_bytes(padding.end - padding.start)} from {exact_address(padding.start)}"


def offset_lines(address_map: AddressMap, offset: int) -> list[str]:
    """Return an offset and, group by group, who owns it or what it is padding of; LayoutError outside the pool."""
    gaps = address_map.padding_of(offset)
    owners = address_map.owners(offset)
    several = len(address_map.config.kv_cache_groups) > 1
    said = sorted([*((one.group, owner_words(address_map, one)) for one in owners),
                   *((one.group, padding_words(address_map, one)) for one in gaps)])
    return [exact_address(offset), *(f"group {group}: {text}" if several else text for group, text in said)]
