"""A cache small enough to see every cell of, in the layout that is shown."""

from __future__ import annotations

from functools import cache

from kvlayout.address import AddressMap
from kvlayout.config import KVCacheGroupSpec
from kvlayout.layout import KVCacheLayout
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.spec import FullAttentionSpec

LAYERS, BLOCKS, HEADS, STATES = 3, 2, 2, 2


@cache
def tiny_map(layout: KVCacheLayout) -> AddressMap:
    """Return the map of 3 layers, 2 blocks, 2 heads and 2 states, with one byte each of K and V."""
    spec = FullAttentionSpec(block_size=STATES, num_kv_heads=HEADS, head_size=1, dtype="int8")
    group = KVCacheGroupSpec(tuple(f"layers.{i}" for i in range(LAYERS)), spec)
    return AddressMap(get_kv_cache_config_from_groups([group], 0, layout, num_gpu_blocks_override=BLOCKS), layout)
