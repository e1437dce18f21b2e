"""How far a byte is from the nearest other layer, block and head slot, on both sides, and whose those bytes are.

Everything is found by stepping along the strided sets of a group's regions, never by looking at each byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap, Owner
from kvlayout.region import Region

AXES = ("layer", "block", "head")


@dataclass(frozen=True)
class Boundary:
    """The stretch of a group's bytes in address order that share an owned byte's layer, block or head slot.

    Attributes:
        axis: "layer", "block" or "head"; ``group``: the KV cache group
        start, end: byte offsets of the stretch's first byte and behind its last one
        below, above: bytes from ``start`` to the address, and from the address to ``end``
        before, after: owner of the group's nearest byte on the other side of each end; None where there is none
        before_offset, after_offset: byte offsets of those bytes
    """

    axis: str
    group: int
    start: int
    end: int
    below: int
    above: int
    before: Owner | None
    after: Owner | None
    before_offset: int | None
    after_offset: int | None


@dataclass(frozen=True)
class Neighbours:
    """The nearest bytes that a group owns strictly below and above an address; None where there are none."""

    group: int
    below_offset: int | None
    below: Owner | None
    above_offset: int | None
    above: Owner | None


def neighbours(address_map: AddressMap, offset: int, group: int) -> Neighbours:
    """Return the neighbours of a byte offset, which may lie outside the allocation."""
    below, above = _last_before(address_map, offset - 1, group), _first_from(address_map, offset + 1, group)
    return Neighbours(group, below, _owner_at(address_map, below, group), above, _owner_at(address_map, above, group))


def boundaries(address_map: AddressMap, owner: Owner, offset: int) -> list[Boundary]:
    """Return the layer's, the block's and the head slot's boundary around an owned byte.

    Empty where the config gives several coordinates one byte: there is no order in which to step.
    """
    regions = [region for region in address_map.regions if region.group == owner.group]
    if not all(region.addresses.is_nested for region in regions):
        return []
    found = []
    for axis, value in zip(AXES, (owner.layer, owner.block, owner.head)):
        before = max((one for one in (_other(region, axis, value, offset, -1) for region in regions)
                      if one is not None), default=None)
        after = min((one for one in (_other(region, axis, value, offset, 1) for region in regions)
                     if one is not None), default=None)
        start = _first_from(address_map, 0 if before is None else before + 1, owner.group)
        end = _last_before(address_map, address_map.end_of_use if after is None else after - 1, owner.group) + 1
        found.append(Boundary(axis, owner.group, start, end, offset - start, end - offset,
                              _owner_at(address_map, before, owner.group), _owner_at(address_map, after, owner.group),
                              before, after))
    return found


def _owner_at(address_map: AddressMap, offset: int | None, group: int) -> Owner | None:
    if offset is None:
        return None
    return next((owner for owner in address_map.owners(offset) if owner.group == group), None)


def _regions(address_map: AddressMap, group: int) -> Iterator[Region]:
    return (region for region in address_map.regions if region.group == group and not region.addresses.is_empty)


def _first_from(address_map: AddressMap, offset: int, group: int) -> int | None:
    found = (region.addresses.ceil(offset) for region in _regions(address_map, group))
    return min((one for one in found if one is not None), default=None)


def _last_before(address_map: AddressMap, offset: int, group: int) -> int | None:
    """The greatest owned byte that is <= offset."""
    found = ((region.addresses, region.addresses.floor(offset)) for region in _regions(address_map, group))
    return max((addresses.at(index) for addresses, index in found if index is not None), default=None)


def _other(region: Region, axis: str, value: object, offset: int, step: int) -> int | None:
    """The region's nearest byte above (step 1) or below (-1) ``offset`` whose ``axis`` isn't ``value``."""
    addresses = region.addresses
    if addresses.is_empty:
        return None
    if axis == "layer":
        number, value = 0, region.tensor.layers.index(value) if value in region.tensor.layers else None
    else:
        number = AXES.index(axis)
    found = _step_from(addresses, offset + step, step)
    if axis == "head" and region.interior.scope == "page":
        return _other_head(region, value, found, step)
    if found is None or addresses.floor(found)[number] != value:
        return found
    # All of the axes inside this one to their end: the next byte in address order has another index.
    if addresses.extents[number] == 1:
        return None
    edge, inner = list(addresses.floor(found)), addresses.walk[addresses.walk.index(number) + 1:]
    for one in inner:
        edge[one] = addresses.extents[one] - 1 if step > 0 else 0
    return _step_from(addresses, addresses.at(edge) + step, step)


def _step_from(addresses, offset: int, step: int) -> int | None:
    """The set's first address at or above ``offset`` (step 1), or its last one at or below (-1)."""
    if step > 0:
        return addresses.ceil(offset)
    index = addresses.floor(offset)
    return None if index is None else addresses.at(index)


def _other_head(region: Region, value: int, found: int | None, step: int) -> int | None:
    """As :func:`_other` for head slots that lie anywhere inside a contiguous page: its bytes are listed once."""
    _, _, heads, states, content = region.geometry.shape
    size = heads * states * content
    slots = region.interior.coordinates(heads, states, np.arange(size))[0]
    others = np.flatnonzero(slots != value)
    if not len(others):
        return None
    while found is not None:
        layer, block = region.addresses.floor(found)[:2]
        page = region.geometry.offset + layer * region.geometry.strides[0] + block * region.geometry.strides[1]
        inside = found - page
        ahead = others[others >= inside] if step > 0 else others[others <= inside]
        if len(ahead):
            return page + int(ahead[0] if step > 0 else ahead[-1])
        found = _step_from(region.addresses, page + size if step > 0 else page - 1, step)
    return None
