"""A cache write in torch: right for every layout, because it names the axes of the view and not its bytes."""

from __future__ import annotations

import torch


def write(key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Write key [rows, heads, head_size] and value [.., head_size_v] into kv_cache [B, H, N, C], K before V."""
    key, value = key[:len(slot_mapping)], value[:len(slot_mapping)]  # rows behind the tokens are padding
    kept = slot_mapping >= 0
    block, state = slot_mapping[kept] // kv_cache.shape[2], slot_mapping[kept] % kv_cache.shape[2]
    kv_cache[block, :, state] = torch.cat([key[kept], value[kept]], dim=-1)
