"""Blocks that the engine zeroes before it hands them out again: what they held before says nothing of this run.

Source: vLLM 0.29.0 to 0.33.0, ``new_block_ids_to_zero`` of ``SchedulerOutput`` and ``KVBlockZeroer``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.snapshot import Snapshot


def forget_zeroed(before: Snapshot, buffer: object, address_map: AddressMap, slots: dict[int, np.ndarray],
                  block_ids: list[int]) -> Snapshot:
    """Return ``before`` with zeros wherever these blocks' bytes are zero now, and drop wiped tokens from ``slots``.

    ``slots``: {group: slots recorded so far}, changed in place: in a group whose pages of a block are all zeros now,
    what was written to that block earlier in this watch is gone. ``block_ids`` are the manager's.
    """
    content = before.content.copy()
    for block in block_ids:
        for group, spec_of_group in enumerate(address_map.config.kv_cache_groups):
            starts, lengths = _runs(address_map, group, block)
            is_wiped = True
            for start, length in zip(starts.tolist(), lengths.tolist()):
                now = buffer[start:start + length].cpu().numpy()
                is_wiped &= not now.any()
                _zero_where(before, content, start, now == 0)
            size = spec_of_group.kv_cache_spec.block_size
            if is_wiped and len(starts):
                slots[group] = slots[group][slots[group] // size != block]
    return replace(before, content=content)


def _runs(address_map: AddressMap, group: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The byte runs of one manager block in one group's layers."""
    layers = address_map.config.kv_cache_groups[group].layer_names
    if not layers:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    split = address_map.shape(address_map.layer_index(layers[0]))[0] // address_map.config.num_blocks
    return address_map.run_arrays(layer=list(layers), block=np.arange(block * split, (block + 1) * split))


def _zero_where(before: Snapshot, content: np.ndarray, start: int, is_zero: np.ndarray) -> None:
    """Zero bytes of kept granules; a granule that is known by digest only stays as it is."""
    offsets = start + np.flatnonzero(is_zero)
    granule, inside = np.divmod(offsets, before.granule_bytes)
    place = np.searchsorted(before.kept, granule)
    held = place < len(before.kept)
    held[held] = before.kept[place[held]] == granule[held]
    content[place[held], inside[held]] = 0
