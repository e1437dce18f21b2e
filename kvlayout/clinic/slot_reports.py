"""One slot in every group of a config: block, row, addresses, the arithmetic spelt out, and what to beware of."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.clinic.block_bytes import kernel_size_of, shared_bytes
from kvlayout.clinic.slots import check_slot, decode_slot
from kvlayout.errors import LayoutError, check_type
from kvlayout.slot_mapping import NULL_BLOCK
from kvlayout.spec import AttentionSpec, ChunkedLocalAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec

_MOST_ADDRESSES = 1 << 22


@dataclass(frozen=True, eq=False)
class SlotEntry:
    """A slot in one group.

    Attributes:
        group: index of the KV cache group
        layers: names of its layers
        spec: name of the kind of its layers' spec
        block_size, kernel_block_size: tokens; the latter None where blocks aren't split and it wasn't asked for
        block, row: None for a negative slot, and in a group whose spec has no slots
        kernel_block, kernel_row: the same slot counted in kernel blocks; None as ``kernel_block_size``
        in_pool: whether the block is one of the pool's; None where there is no block
        states: int64 [layers], the state inside the (kernel) block, the first where a token has several; -1 for none
        addresses: int64 [layers, heads], byte offset of that state's first byte; -1 where there is no such state
        lines: the arithmetic, as text
        notes: what to beware of, as text
    """

    group: int
    layers: tuple[str, ...]
    spec: str
    block_size: int
    kernel_block_size: int | None
    block: int | None
    row: int | None
    kernel_block: int | None
    kernel_row: int | None
    in_pool: bool | None
    states: np.ndarray
    addresses: np.ndarray
    lines: tuple[str, ...]
    notes: tuple[str, ...]


def slot_report(slot: int, address_map: AddressMap, *, kernel: bool = False) -> list[SlotEntry]:
    """Return one entry a group of ``address_map`` for a slot (a count of tokens; negative: an ignored token).

    ``kernel``: name kernel blocks also where a group's blocks aren't split. A slot beyond the pool is an answer,
    not an error. Raises LayoutError for a slot that isn't a whole number, and for a group of more than 4,194,304 head
    slots in all its layers.
    """
    slot = check_slot("slot", slot)
    check_type("address_map", address_map, AddressMap)
    entries = [_entry(slot, address_map, group, kernel) for group in range(len(address_map.config.kv_cache_groups))]
    return [_with_notes(entry, _across_groups(entry, entries, address_map)) for entry in entries]


def _entry(slot: int, address_map: AddressMap, group: int, kernel: bool) -> SlotEntry:
    spec_of_group = address_map.config.kv_cache_groups[group]
    names, size = spec_of_group.layer_names, spec_of_group.kv_cache_spec.block_size
    specs = spec_of_group.layer_specs
    kinds = sorted({type(one).__name__ for one in specs.values()}) or [type(spec_of_group.kv_cache_spec).__name__]
    kernel_size = kernel_size_of(address_map.kernel_block_sizes, group)
    if kernel_size is None or (kernel_size == size and not kernel):
        kernel_size = size if kernel else None
    heads = max((address_map.shape(name)[1] for name in names), default=0)
    if len(names) * heads > _MOST_ADDRESSES:
        raise LayoutError("address_map", len(names) * heads, "are more head slots in one group's layers than "
                          f"{_MOST_ADDRESSES:,}", "Look at one layer with AddressMap.offset")
    states = np.full(len(names), -1, dtype=np.int64)
    addresses = np.full((len(names), heads), -1, dtype=np.int64)
    count = address_map.config.num_blocks
    notes = [*_spec_notes(specs), *_replication_notes(specs)]
    has_slots = all(isinstance(one, AttentionSpec) and one.uses_slot_mapping for one in specs.values())
    block = row = kernel_block = kernel_row = inside = None
    lines = []
    if slot < 0:
        notes.insert(0, f"Slot {slot} is negative: vLLM ignores that token, nothing is written or read.")
    elif has_slots:
        block, row, kernel_block, kernel_row = decode_slot(slot, size, kernel_size or size)
        inside = block < count
        lines.append(f"block {block:,}, row {row:,}: {slot:,} = {block:,} x {size:,} + {row:,}")
        if kernel_size is not None:
            lines.append(f"kernel block {kernel_block:,}, row {kernel_row:,}: {slot:,} = {kernel_block:,} x "
                         f"{kernel_size:,} + {kernel_row:,}; {size // kernel_size:,} kernel blocks a block")
        if block == NULL_BLOCK:
            notes.insert(0, "Block 0 is vLLM's null block: a block table's padding points to it, and no token's data "
                            "is kept there.")
        if not inside:
            notes.insert(0, f"Block {block:,} lies beyond the pool of {count:,} blocks (0 to {count - 1:,})."
                         if count else f"Block {block:,} lies beyond the pool, which has no blocks.")
        elif names:
            lines += _fill(address_map, names, specs, (kernel_block, kernel_row), states, addresses)
    if kernel_size is None:
        kernel_block = kernel_row = None
    return SlotEntry(group, names, ", ".join(kinds), size, kernel_size, block, row, kernel_block, kernel_row, inside,
                     states, addresses, tuple(lines), tuple(notes))


def _fill(address_map, names, specs, place, states, addresses) -> list[str]:
    """Write each layer's state and addresses; return the arithmetic of the first layer of each kind."""
    block, row = place  # in kernel blocks, which the map counts where a group's blocks are split
    lines, spelt = [], set()
    for local, name in enumerate(names):
        index, (_, heads, num_states, _) = address_map.layer_index(name), address_map.shape(name)
        state = _first_state(row, specs[name])
        if state >= num_states:
            continue  # tokens behind the last whole state of a block
        states[local] = state
        addresses[local, :heads] = address_map.offset(index, block, np.arange(heads), state)
        kind = (address_map.strides(name), specs[name].tokens_per_state)
        if kind not in spelt and len(spelt) < 4:
            spelt.add(kind)
            lines.append(_spelt(address_map, name, block, state, int(addresses[local, 0])))
    return lines


def _first_state(row: int, spec: KVCacheSpec) -> int:
    per_state = Fraction(spec.tokens_per_state)
    return row * per_state.denominator // per_state.numerator


def _spelt(address_map: AddressMap, name: str, block: int, state: int, found: int) -> str:
    region = address_map.region(name)
    block_stride, _, state_stride, _ = address_map.strides(name)
    word = "block" if region.geometry.shape[1] == address_map.config.num_blocks else "kernel block"
    text = f"{name}, head 0: {address_map.offset(name, 0):,} + {word} {block:,} x {block_stride:,} + "
    if region.interior.scope == "state":
        return text + f"state {state:,} x {state_stride:,} = byte {found:,}"
    inside = found - address_map.offset(name, 0) - block * block_stride
    return text + f"{inside:,} (state {state:,}, as its backend keeps it inside the page) = byte {found:,}"


def _spec_notes(specs: dict[str, KVCacheSpec]) -> list[str]:
    notes = []
    for spec in dict.fromkeys(specs.values()):
        kind = type(spec).__name__
        if isinstance(spec, MambaSpec):
            notes.append(f"{kind}: one recurrent state a block, not one a token, so a slot names no state here.")
        elif not spec.uses_slot_mapping:
            notes.append(f"{kind}: addressed by itself, without a slot mapping, so a slot names no state here.")
        elif not isinstance(spec, AttentionSpec):
            notes.append(f"{kind}: it isn't known how a slot names its states.")
        elif spec.tokens_per_state > 1:
            notes.append(f"{kind}: {spec.tokens_per_state} tokens share one state, so their slots have one address.")
        elif spec.tokens_per_state < 1:
            notes.append(f"{kind}: a token has {1 / spec.tokens_per_state} states; the address is the first's.")
    return list(dict.fromkeys(notes))


def is_replicated(spec: KVCacheSpec) -> bool:
    """Return whether every rank of decode context parallelism keeps all of such a layer's tokens."""
    return isinstance(spec, (MambaSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec)) or not spec.dcp_sharded


def _replication_notes(specs: dict[str, KVCacheSpec]) -> list[str]:
    replicated = [one for one in specs.values() if is_replicated(one)]
    if not replicated:
        return []
    return [f"{type(replicated[0]).__name__}: replicated on every rank under decode context parallelism, so its "
            "slots aren't transformed."]


def _across_groups(entry: SlotEntry, entries: list[SlotEntry], address_map: AddressMap) -> list[str]:
    """Equal slots in groups of different block sizes are different blocks; only real addresses say who collides."""
    notes = []
    for other in entries:
        if other is entry or None in (entry.block, other.block) or entry.block == other.block:
            continue
        text = f"The same slot is block {other.block:,} in group {other.group}: "
        if not (entry.in_pool and other.in_pool):
            notes.append(text + "slots of different groups say nothing about each other.")
            continue
        shared = shared_bytes(address_map, (entry.group, entry.block), (other.group, other.block))
        notes.append(text + ("the two share no byte, so equal slots aren't equal memory." if not shared else
                             f"the two share {shared:,} bytes."))
    return notes


def _with_notes(entry: SlotEntry, notes: list[str]) -> SlotEntry:
    return SlotEntry(**{**vars(entry), "notes": entry.notes + tuple(notes)})
