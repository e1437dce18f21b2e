"""What it takes to move a part of the cache: how many runs of how many bytes, and which regions to register."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.arrays import integers
from kvlayout.clinic.block_bytes import map_block_runs
from kvlayout.clinic.regular import regular_runs, steps_of
from kvlayout.clinic.relayout import relaid
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.layout import KVCacheLayout
from kvlayout.plan import Plan
from kvlayout.spec import AttentionSpec
from kvlayout.strided import merge_runs

_MOST_LISTED = 1 << 24


@dataclass(frozen=True)
class Transfer:
    """Contiguous runs of a part of the cache, counted by length.

    ``run_bytes``: {bytes of a run: how many runs there are}, shortest first. Bytes that several groups own count
    once, and runs that touch are one.
    """

    run_bytes: dict[int, int] = field(default_factory=dict)

    @property
    def num_runs(self) -> int:
        """How many runs."""
        return sum(self.run_bytes.values())

    @property
    def total_bytes(self) -> int:
        """Bytes of all runs."""
        return sum(length * count for length, count in self.run_bytes.items())

    @property
    def smallest(self) -> int:
        """Bytes of the shortest run; 0 where there is none."""
        return min(self.run_bytes, default=0)

    @property
    def largest(self) -> int:
        """Bytes of the longest run; 0 where there is none."""
        return max(self.run_bytes, default=0)

    def share_below(self, threshold_bytes: int) -> float:
        """Return the share (0 to 1) of the runs that are shorter than ``threshold_bytes``; 0 where there is none."""
        check_int("threshold_bytes", threshold_bytes, minimum=0)
        below = sum(count for length, count in self.run_bytes.items() if length < threshold_bytes)
        return below / self.num_runs if self.run_bytes else 0.0

    def byte_share_below(self, threshold_bytes: int) -> float:
        """Return the share (0 to 1) of the bytes that lie in runs shorter than ``threshold_bytes``."""
        check_int("threshold_bytes", threshold_bytes, minimum=0)
        below = sum(length * count for length, count in self.run_bytes.items() if length < threshold_bytes)
        return below / self.total_bytes if self.run_bytes else 0.0


@dataclass(frozen=True)
class MemoryRegion:
    """Bytes ``base`` to ``base + length`` of the allocation, and the layers whose pages lie there."""

    base: int
    length: int
    layers: tuple[str, ...]


def transfer(address_map: AddressMap, *, blocks, layers=None, heads=None) -> Transfer:
    """Return the runs of ``blocks`` of ``layers``, of head slots ``heads``.

    Each is None (all), an index (a layer also by name) or a list of them; a range costs the same however long it is.
    Blocks are the map's, so kernel blocks
    where it is split. With all layers of several groups, each block counts for every group: bytes that they overlay
    count once. Raises LayoutError for what isn't there, and for more runs than can be listed.
    """
    check_type("address_map", address_map, AddressMap)
    layers = _layers(address_map, layers)
    ids, slots = _indices("blocks", blocks), _indices("heads", heads)
    steps = [None if one is None else steps_of(one) for one in (ids, slots)]
    if layers != [] and all(one is None or step is not None for one, step in zip((ids, slots), steps)):
        found = regular_runs(address_map, layers, *steps)
        if found is not None:
            return Transfer(dict(sorted(found.items())))
    if isinstance(ids, range):
        if steps[0] is not None and steps[0].count > _MOST_LISTED:
            raise LayoutError("blocks", blocks, f"are more than {_MOST_LISTED:,} blocks whose runs touch in places",
                              "Choose fewer blocks or layers")
        ids = np.unique(np.array(ids, dtype=np.int64))
    if slots is None and ids is not None and len(ids) and ids[-1] - ids[0] == len(ids) - 1:
        layers = list(range(len(address_map.layers))) if layers is None else layers
        return _counted(map_block_runs(address_map, layers, ids)[1])
    _, lengths = address_map.run_arrays(layers, ids, slots)
    return _counted(lengths)


def transfer_selections(address_map: AddressMap, *, block: int = 0, layer: str | int = 0, tp_size: int = 2,
                        tp_rank: int = 0, request: Sequence[int] | None = None) -> dict[str, Transfer]:
    """Return the four transfers that one usually asks for, all of the group that ``layer`` is in.

    "one block": ``block`` of all layers. "one layer": all blocks of ``layer``. "one head shard": ``block`` of all
    layers, the head slots that rank ``tp_rank`` of ``tp_size`` takes of each (of K's and of V's), at least one. "one
    request": the blocks of ``request`` (None: all but block 0, which is vLLM's null block) of all layers.
    Raises LayoutError as :func:`transfer` does, and where ``tp_size`` can't split the heads evenly, or a head slot
    holds several heads.
    """
    check_type("address_map", address_map, AddressMap)
    check_int("block", block, minimum=0)
    if check_int("tp_rank", tp_rank, minimum=0) >= check_int("tp_size", tp_size, minimum=1):
        raise LayoutError("tp_rank", tp_rank, f"must be below tp_size={tp_size}")
    layer = address_map.layer_index(layer)
    group = address_map.config.kv_cache_groups[address_map.region(layer).group].layer_names
    num_blocks = address_map.shape(layer)[0]
    request = range(1, num_blocks) if request is None else request
    with_slots: dict[tuple[int, ...], list[str]] = {}
    for name in group:
        with_slots.setdefault(_shard_of(address_map, name, tp_rank, tp_size), []).append(name)
    starts, lengths = [], []
    for shard, names in with_slots.items():
        # A whole page needs no look at what lies where inside of it.
        is_whole = len(shard) == address_map.shape(names[0])[1]
        run_starts, run_lengths = address_map.run_arrays(names, block, None if is_whole else shard)
        starts.append(run_starts)
        lengths.append(run_lengths)
    _, shard_lengths = merge_runs(np.concatenate(starts), np.concatenate(lengths))
    return {
        "one block": transfer(address_map, blocks=block, layers=group),
        "one layer": transfer(address_map, blocks=None, layers=layer),
        "one head shard": _counted(shard_lengths),
        "one request": transfer(address_map, blocks=request, layers=group),
    }


def shard_slots(num_slots: int, tp_rank: int, tp_size: int) -> range:
    """Return the head slots that rank ``tp_rank`` of ``tp_size`` takes of ``num_slots``; one where ranks share it."""
    if max(num_slots, tp_size) % min(num_slots, tp_size):
        raise LayoutError("tp_size", tp_size, f"can't split or share {num_slots} head slots evenly",
                          f"Use a divisor or a multiple of {num_slots}")
    each = max(1, num_slots // tp_size)
    first = tp_rank * num_slots // tp_size
    return range(first, first + each)


def registered_regions(address_map: AddressMap) -> list[MemoryRegion]:
    """Return the regions that a connector registers, in address order.

    One for each layer where the layers lie apart (L is outermost), one in all where a block holds all layers. Layers
    of different groups that overlay the same region share one entry.
    """
    check_type("address_map", address_map, AddressMap)
    if not address_map.layout.is_layer_compact:
        return [MemoryRegion(0, address_map.size_bytes, address_map.layers)] if address_map.layers else []
    found: dict[tuple[int, int], list[str]] = {}
    for region in address_map.regions:
        stride = region.geometry.strides[0]
        for place, name in enumerate(region.tensor.layers):
            base = region.geometry.offset + place * stride
            found.setdefault((base, max(0, min(stride, address_map.size_bytes - base))), []).append(name)
    return [MemoryRegion(base, length, tuple(layers)) for (base, length), layers in sorted(found.items())]


def transfer_by_layout(plan: Plan | AddressMap, *, blocks, layers=None, heads=None) -> dict[str, Transfer | str]:
    """Return {layout's name: its :func:`transfer` of the same blocks, or why it can't be} for the six layouts.

    The plan's own layout is counted in its own map, and comes last where it is none of the six; the others as vLLM
    would place the same groups and blocks. Raises LayoutError where the plan itself doesn't have what is asked.
    """
    if not isinstance(plan, (Plan, AddressMap)):
        raise LayoutError("plan", plan, "must be a Plan or an AddressMap", "Give what make_plan returned")
    address_map = plan if isinstance(plan, AddressMap) else plan.address_map
    version = {} if isinstance(plan, AddressMap) else {"vllm_version": plan.selection.vllm_version}
    own = transfer(address_map, blocks=blocks, layers=layers, heads=heads)
    names = None if layers is None else [address_map.layers[index] for index in _layers(address_map, layers)]
    found: dict[str, Transfer | str] = {}
    for layout in dict.fromkeys((*KVCacheLayout, address_map.layout)):
        if layout == address_map.layout:
            found[layout.name] = own
            continue
        try:
            found[layout.name] = transfer(relaid(address_map, layout, **version), blocks=blocks, layers=names,
                                          heads=heads)
        except LayoutError as error:
            found[layout.name] = f"{error.argument}: {error.rule}"
    return found


def _shard_of(address_map: AddressMap, layer: str, tp_rank: int, tp_size: int) -> tuple[int, ...]:
    """The head slots of a layer that hold what the rank takes: of K and of V where each has slots of its own."""
    region = address_map.region(layer)
    spec, num_slots = region.spec, region.geometry.shape[2]
    if not isinstance(spec, AttentionSpec) or spec.num_head_slots is None:
        return tuple(shard_slots(num_slots, tp_rank, tp_size))
    if tp_size == 1:
        return tuple(range(num_slots))
    found = set()
    for first, behind in {one.slots or (0, num_slots) for one in region.interior.fields}:
        if behind - first != spec.num_kv_heads:
            raise LayoutError("layer", layer, f"has {num_slots} head slots that aren't its {spec.num_kv_heads} "
                              "heads, so no rank's share is a choice of slots", "Use tp_size=1")
        found |= {first + slot for slot in shard_slots(spec.num_kv_heads, tp_rank, tp_size)}
    return tuple(sorted(found))


def _counted(lengths: np.ndarray) -> Transfer:
    values, counts = np.unique(lengths, return_counts=True)
    return Transfer(dict(zip(values.tolist(), counts.tolist())))


def _indices(name: str, values) -> range | np.ndarray | None:
    """Ascending distinct indices; a range stays one, however long."""
    if values is None or isinstance(values, range) and values:
        return values
    array = integers(name, values)
    if array.ndim > 1:
        raise LayoutError(name, values, "must be one index or a list of them")
    return np.unique(np.atleast_1d(array))


def _layers(address_map: AddressMap, layers) -> list[int] | None:
    """Layer indices of a name, an index or a list of either; None stays None."""
    if layers is None:
        return None
    if isinstance(layers, (str, int, np.integer)):
        layers = [layers]
    if not isinstance(layers, (Sequence, np.ndarray, set, frozenset)) or isinstance(layers, (bytes, bytearray)) \
            or isinstance(layers, np.ndarray) and layers.ndim != 1:
        raise LayoutError("layers", layers, "must be a layer's name or index, or a list of them")
    return [address_map.layer_index(layer if isinstance(layer, str) else check_int("layers", layer, minimum=0))
            for layer in layers]
