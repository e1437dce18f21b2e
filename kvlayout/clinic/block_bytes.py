"""The bytes of whole manager blocks in a group's layers, whether or not the map counts in kernel blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.errors import LayoutError
from kvlayout.region import Region
from kvlayout.strided import StridedSet, merge_runs

_MOST_RUNS = 1 << 25


def shared_bytes(address_map: AddressMap, first: tuple[int, int], second: tuple[int, int]) -> int:
    """Return how many bytes two blocks, given as (group, manager block), have in common in all layers together."""
    starts, ends = [], []
    for group, block in (first, second):
        at, length = block_runs(address_map, group, [block])
        starts.append(at)
        ends.append(at + length)
    total = 0
    # Both are sorted and disjoint: each run of the first meets a stretch of the second.
    low = np.searchsorted(ends[1], starts[0], side="right")
    high = np.searchsorted(starts[1], ends[0], side="left")
    for run in np.flatnonzero(low < high):
        meet = slice(low[run], high[run])
        total += int((np.minimum(ends[1][meet], ends[0][run]) - np.maximum(starts[1][meet], starts[0][run])).sum())
    return total


def block_runs(address_map: AddressMap, group: int, blocks, layers=None) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and lengths (bytes, merged) of manager blocks in a group's layers, or the named ones."""
    names = address_map.config.kv_cache_groups[group].layer_names if layers is None else layers
    wanted = [address_map.layer_index(name) for name in names]
    return map_block_runs(address_map, wanted, np.unique(kernel_ids(address_map, group, blocks)))


def map_block_runs(address_map: AddressMap, layers: list[int], ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and lengths (bytes, merged) of blocks as the map counts them, ascending, in some layers."""
    starts, lengths = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for region in address_map.regions:
        local = np.flatnonzero(np.isin(region.layers, layers))
        if not len(local) or not len(ids):
            continue
        local = None if len(local) == len(region.layers) else local  # a whole axis may be part of a longer run
        for first, last in _stretches(ids):
            found, length = _whole_blocks(region, local, ids[first:last])
            starts.append(found)
            lengths.append(np.full(len(found), length, dtype=np.int64))
    return merge_runs(np.concatenate(starts), np.concatenate(lengths))


def _stretches(ids: np.ndarray) -> list[tuple[int, int]]:
    """Where consecutive ids begin and end, or all of them as one where there are too many to be worth it."""
    edges = np.flatnonzero(np.diff(ids) != 1) + 1
    if len(edges) > 64:
        return [(0, len(ids))]
    return list(zip([0, *edges.tolist()], [*edges.tolist(), len(ids)]))


def _whole_blocks(region: Region, local: np.ndarray | None, ids: np.ndarray) -> tuple[np.ndarray, int]:
    """Starts and length of the runs of whole blocks: what lies where inside a page doesn't matter."""
    offset, strides, shape = region.geometry.offset, region.geometry.strides, list(region.geometry.shape)
    chosen: list[np.ndarray | None] = [local, ids, None, None, None]
    if len(ids) == ids[-1] - ids[0] + 1:
        offset, shape[1], chosen[1] = offset + int(ids[0]) * strides[1], len(ids), None
    addresses = StridedSet(offset, shape, strides)
    if addresses.count_runs(chosen) > _MOST_RUNS:
        raise LayoutError("blocks", f"{len(ids):,} blocks", f"have more than {_MOST_RUNS:,} runs", "Choose fewer")
    return addresses.runs(chosen)


def kernel_ids(address_map: AddressMap, group: int, blocks) -> np.ndarray:
    """Return the ids that the map counts in for manager blocks: kernel blocks where the group's are split."""
    ratio = kernel_ratio(address_map, group)
    return (np.asarray(blocks, dtype=np.int64)[:, None] * ratio + np.arange(ratio)).ravel()


def kernel_ratio(address_map: AddressMap, group: int) -> int:
    """Return how many blocks of the map one manager block of the group is."""
    size = kernel_size_of(address_map.kernel_block_sizes, group)
    return 1 if size is None else address_map.config.kv_cache_groups[group].kv_cache_spec.block_size // size


def kernel_size_of(kernel_block_sizes: Sequence[int | None] | None, group: int) -> int | None:
    """Return the tokens of the group's kernel blocks; None where its blocks aren't split."""
    return None if kernel_block_sizes is None else kernel_block_sizes[group]
