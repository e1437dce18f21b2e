"""Do two coordinates share bytes, and why? Groups overlay each other: it is block ids that collide, not slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.clinic.wording import block_noun, map_block_words
from kvlayout.errors import LayoutError, check_int, check_type

_AXES = ("layer", "block", "head", "state")


@dataclass(frozen=True)
class Meeting:
    """Whether two coordinates share bytes.

    Attributes:
        shares: the answer
        num_bytes: bytes that both take
        offset: the first of them; -1 where there is none
        reason: why, in words
        blocks: block ids of the second layer that share bytes with the first coordinate, whichever was asked for
    """

    shares: bool
    num_bytes: int
    offset: int
    reason: str
    blocks: tuple[int, ...]


def meets(address_map: AddressMap, first: Sequence | Mapping, second: Sequence | Mapping) -> Meeting:
    """Return whether two coordinates share bytes.

    A coordinate is (layer, block), (layer, block, head) or (layer, block, head, state), or a dict of these names; a
    head or state that is None or left out means all of them. Blocks are the map's. Raises LayoutError for a
    coordinate that isn't there.
    """
    check_type("address_map", address_map, AddressMap)
    first, second = _coordinate(address_map, "first", first), _coordinate(address_map, "second", second)
    (starts, lengths), (others, other_lengths) = address_map.run_arrays(*first), address_map.run_arrays(*second)
    low = np.maximum(starts[:, None], others)
    shared = np.minimum((starts + lengths)[:, None], others + other_lengths) - low
    found = shared > 0
    blocks = colliding_blocks(address_map, first, second[0])
    count = int(shared[found].sum())
    return Meeting(count > 0, count, int(low[found].min()) if count else -1,
                   _reason(address_map, first, second, count, blocks), blocks)


def slots_meet(address_map: AddressMap, slot: int, first_layer: str | int, second_layer: str | int) -> Meeting:
    """Return whether one slot number stands for shared bytes in two layers, each by its own block size.

    Raises LayoutError for a layer without slots (a recurrent state) and for a slot beyond a layer's blocks.
    """
    check_type("address_map", address_map, AddressMap)
    slot = check_int("slot", slot, minimum=0)
    places = []
    for layer in (first_layer, second_layer):
        region = address_map.region(layer)
        if not region.spec.uses_slot_mapping or region.spec.tokens_per_state <= 0 or not region.geometry.shape[3]:
            raise LayoutError("layer", layer, "has no slots: it keeps no state a token")
        tokens = int(region.geometry.shape[3] * region.spec.tokens_per_state)
        row = int(slot % tokens // region.spec.tokens_per_state)
        if slot // tokens >= region.geometry.shape[1]:
            raise LayoutError("slot", slot, f"is beyond the {region.geometry.shape[1]:,} blocks of layer {layer}")
        places.append((layer, slot // tokens, None, row))
    found = meets(address_map, *places)
    (*_, row), (*_, other_row) = places
    words = [map_block_words(address_map, *place[:2]) for place in places]
    reason = (f"Slot {slot:,} is ({words[0]}, row {row}) in the first layer and ({words[1]}, row "
              f"{other_row}) in the second. {found.reason} Equal slots by themselves share nothing.")
    return Meeting(found.shares, found.num_bytes, found.offset, reason, found.blocks)


def colliding_blocks(address_map: AddressMap, first: Sequence, layer: str | int) -> tuple[int, ...]:
    """Return the block ids of ``layer`` that share bytes with the coordinate ``first``, in order.

    Raises LayoutError as :func:`meets` does.
    """
    check_type("address_map", address_map, AddressMap)
    starts, lengths = address_map.run_arrays(*_coordinate(address_map, "first", first))
    num_blocks, step = address_map.shape(layer)[0], address_map.strides(layer)[0]
    if not num_blocks or not len(starts):
        return ()
    others, other_lengths = address_map.run_arrays(layer, 0)
    # Block j lies j steps further: it meets a run where others + j * step lies between these two.
    low = -((others + other_lengths - 1 - starts[:, None]) // step)
    high = (starts[:, None] + lengths[:, None] - 1 - others) // step
    low, high = np.maximum(low, 0), np.minimum(high, num_blocks - 1)
    spans = np.unique(np.stack([low[low <= high], high[low <= high]], axis=1), axis=0)
    return tuple(sorted({block for a, b in spans.tolist() for block in range(a, b + 1)}))


def _coordinate(address_map: AddressMap, name: str, given: object) -> tuple:
    """(layer index, block, head or None, state or None), checked."""
    if isinstance(given, Mapping):
        if not {"layer", "block"} <= set(given) <= set(_AXES):
            raise LayoutError(name, given, "must name a layer and a block, and may name a head and a state")
        given = [given.get(axis) for axis in _AXES]
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not 2 <= len(given) <= 4:
        raise LayoutError(name, given, "must be (layer, block), with a head and a state if you like")
    layer, *rest = (*given, None, None)[:4]
    index = address_map.layer_index(layer)
    at = [None if value is None and axis != "block" else check_int(axis, value, minimum=0)
          for axis, value in zip(_AXES[1:], rest)]
    address_map.offset(index, *(value or 0 for value in at))
    return (index, *at)


def _reason(address_map: AddressMap, first: tuple, second: tuple, count: int, blocks: tuple[int, ...]) -> str:
    groups = [address_map.region(one[0]).group for one in (first, second)]
    names = [address_map.layers[one[0]] for one in (first, second)]
    nouns = [block_noun(address_map, one[0]) for one in (first, second)]
    words = [map_block_words(address_map, *one[:2]) for one in (first, second)]
    starts = [one[0].upper() + one[1:] for one in words]
    if groups[0] == groups[1]:
        if first[0] == second[0]:
            return (f"Both take bytes of layer {names[0]}: {count:,} bytes are in both." if count else
                    f"They are different cells of layer {names[0]}.")
        return (f"The config gives two layers of one group the same {count:,} bytes, which is never right." if count
                else "They are different layers of one group, which lie apart.")
    if count:
        return (f"{starts[0]} of {names[0]} and {words[1]} of {names[1]} overlay each other: {count:,} "
                "bytes are in both. That is legal, as a block id belongs to one group at a time.")
    if not blocks:
        return f"No {nouns[1]} of {names[1]} lies over these bytes of {names[0]}."
    if second[1] in blocks:
        return (f"{starts[1]} of {names[1]} does lie over these bytes of {names[0]}, but not with the cell "
                "that was asked for.")
    shown = ", ".join(map(str, blocks[:4])) + (" ..." if len(blocks) > 4 else "")
    is_equal = blocks == (first[1],) and nouns == ["block", "block"]
    what = f"the equal block id, {shown}," if is_equal else f"{nouns[1]} {shown} of the other layer"
    return (f"{starts[0]} of {names[0]} shares bytes with {what} alone, and {second[1]} is another one, so they "
            "don't meet.")
