"""The bytes of whole manager blocks in a group's layers, whether or not the map counts in kernel blocks."""

from __future__ import annotations

import numpy as np

from kvlayout.address import AddressMap


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
    """Return offsets and lengths (bytes, merged) of manager blocks in a group's layers, or in some of them."""
    names = address_map.config.kv_cache_groups[group].layer_names if layers is None else layers
    return address_map.run_arrays(list(names), kernel_ids(address_map, group, blocks))


def kernel_ids(address_map: AddressMap, group: int, blocks) -> np.ndarray:
    """Return the ids that the map counts in for manager blocks: kernel blocks where the group's are split."""
    ratio = kernel_ratio(address_map, group)
    return (np.asarray(blocks, dtype=np.int64)[:, None] * ratio + np.arange(ratio)).ravel()


def kernel_ratio(address_map: AddressMap, group: int) -> int:
    """Return how many blocks of the map one manager block of the group is."""
    size = kernel_size_of(address_map, group)
    return 1 if size is None else address_map.config.kv_cache_groups[group].kv_cache_spec.block_size // size


def kernel_size_of(address_map: AddressMap, group: int) -> int | None:
    """Return the tokens of the group's kernel blocks; None where its blocks aren't split."""
    return None if address_map.kernel_block_sizes is None else address_map.kernel_block_sizes[group]
