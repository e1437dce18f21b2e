"""The two caches that the course looks at: one small enough for a number in every cell, one of a real model."""

from __future__ import annotations

from kvlayout import AddressMap, FullAttentionSpec, KVCacheGroupSpec, Selection, make_plan
from kvlayout.layout import KVCacheLayout
from kvlayout.placement import get_kv_cache_config_from_groups

REAL_MODEL = "Qwen/Qwen3-0.6B"
REAL_BLOCKS = 11_632  # about 20 GiB, what a 24 GiB GPU has left for this model


def tiny_map(
    layout: KVCacheLayout | str, *, num_layers: int = 2, num_blocks: int = 3, num_kv_heads: int = 2,
    block_size: int = 2, head_size: int = 4,
) -> AddressMap:
    """Return a cache of 384 bytes by default: 2 layers, 3 blocks, 2 heads, 2 tokens, K and V of 8 bytes each."""
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=num_kv_heads, head_size=head_size, dtype="bfloat16")
    group = KVCacheGroupSpec([f"layers.{index}" for index in range(num_layers)], spec)
    return AddressMap(get_kv_cache_config_from_groups([group], 0, layout, num_gpu_blocks_override=num_blocks))


def real_map(layout: KVCacheLayout | str, *, model: str = REAL_MODEL, num_blocks: int = REAL_BLOCKS) -> AddressMap:
    """Return a preset's cache in a forced layout; nothing is allocated."""
    name = layout if isinstance(layout, str) else layout.name
    return make_plan(Selection(model=model, layout=name, num_blocks=num_blocks, device="meta")).address_map
