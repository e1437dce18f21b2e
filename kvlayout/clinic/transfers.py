"""What it takes to move a part of the cache: how many runs of how many bytes, and which regions to register."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.arrays import integers
from kvlayout.clinic.block_bytes import map_block_runs
from kvlayout.clinic.relayout import relaid
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.layout import KVCacheLayout
from kvlayout.plan import Plan
from kvlayout.strided import StridedSet, merge_runs


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

    Each is None (all), an index (a layer also by name) or a list of them; blocks are the map's, so kernel blocks
    where it is split. With all layers of several groups, each block counts for every group: bytes that they overlay
    count once. Raises LayoutError for what isn't there, and for more runs than can be listed.
    """
    check_type("address_map", address_map, AddressMap)
    layers = _layers(address_map, layers)
    if blocks is None and heads is None and layers is not None and len(layers) == 1:
        found = _whole_layer(address_map, layers[0])
        if found is not None:
            return found
    ids = _indices("blocks", blocks)
    if heads is None and ids is not None and len(ids := np.unique(ids)) and ids[-1] - ids[0] == len(ids) - 1:
        layers = list(range(len(address_map.layers))) if layers is None else layers
        # The last of them must be there in every layer; a stretch of blocks is then as quick as one.
        address_map.offset(np.array(layers, dtype=np.int64), ids[[0, -1]][:, None])
        return _counted(map_block_runs(address_map, layers, ids)[1])
    _, lengths = address_map.run_arrays(layers, ids, _indices("heads", heads))
    return _counted(lengths)


def transfer_selections(address_map: AddressMap, *, block: int = 0, layer: str | int = 0, tp_size: int = 2,
                        tp_rank: int = 0, request: Sequence[int] | None = None) -> dict[str, Transfer]:
    """Return the four transfers that one usually asks for, all of the group that ``layer`` is in.

    "one block": ``block`` of all layers. "one layer": all blocks of ``layer``. "one head shard": ``block`` of all
    layers, the head slots that rank ``tp_rank`` of ``tp_size`` takes of each, at least one. "one request": the blocks
    of ``request`` (None: all but block 0, which is vLLM's null block) of all layers.
    Raises LayoutError as :func:`transfer` does, and where ``tp_size`` can't split the head slots evenly.
    """
    check_type("address_map", address_map, AddressMap)
    check_int("block", block, minimum=0)
    if check_int("tp_rank", tp_rank, minimum=0) >= check_int("tp_size", tp_size, minimum=1):
        raise LayoutError("tp_rank", tp_rank, f"must be below tp_size={tp_size}")
    layer = address_map.layer_index(layer)
    group = address_map.config.kv_cache_groups[address_map.region(layer).group].layer_names
    num_blocks = address_map.shape(layer)[0]
    request = np.arange(1, num_blocks) if request is None else request
    with_slots: dict[int, list[str]] = {}
    for name in group:
        with_slots.setdefault(address_map.shape(name)[1], []).append(name)
    starts, lengths = [], []
    for slots, names in with_slots.items():
        shard = shard_slots(slots, tp_rank, tp_size)
        # A whole page needs no look at what lies where inside of it.
        run_starts, run_lengths = address_map.run_arrays(names, block, None if len(shard) == slots else shard)
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

    The plan's own layout is counted in its own map; the others as vLLM would place the same groups and blocks.
    Raises LayoutError where the plan itself doesn't have what is asked.
    """
    if not isinstance(plan, (Plan, AddressMap)):
        raise LayoutError("plan", plan, "must be a Plan or an AddressMap", "Give what make_plan returned")
    address_map = plan if isinstance(plan, AddressMap) else plan.address_map
    version = {} if isinstance(plan, AddressMap) else {"vllm_version": plan.selection.vllm_version}
    own = transfer(address_map, blocks=blocks, layers=layers, heads=heads)
    names = None if layers is None else [address_map.layers[index] for index in _layers(address_map, layers)]
    found: dict[str, Transfer | str] = {}
    for layout in KVCacheLayout:
        if layout == address_map.layout:
            found[layout.name] = own
            continue
        try:
            found[layout.name] = transfer(relaid(address_map, layout, **version), blocks=blocks, layers=names,
                                          heads=heads)
        except LayoutError as error:
            found[layout.name] = f"{error.argument}: {error.rule}"
    return found


def _whole_layer(address_map: AddressMap, layer: int) -> Transfer | None:
    """All blocks of one layer, however many, from the strides alone; None where its runs touch each other."""
    region = address_map.region(layer)
    local = int(np.flatnonzero(region.layers == layer)[0])
    addresses = StridedSet(region.geometry.offset + local * region.geometry.strides[0],
                           (1, *region.geometry.shape[1:]), region.geometry.strides)
    if addresses.is_empty:
        return Transfer()
    return Transfer({addresses.run_length: addresses.num_runs}) if addresses.runs_are_apart else None


def _counted(lengths: np.ndarray) -> Transfer:
    values, counts = np.unique(lengths, return_counts=True)
    return Transfer(dict(zip(values.tolist(), counts.tolist())))


def _indices(name: str, values) -> np.ndarray | None:
    if values is None:
        return None
    array = integers(name, values)
    if array.ndim > 1:
        raise LayoutError(name, values, "must be one index or a list of them")
    return np.atleast_1d(array)


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
