"""A cache write in torch: right for every layout, because it names the axes of the view and not its bytes."""

from __future__ import annotations

import torch


def write(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write key and value, [rows, heads, size] each, into kv_cache [B, H, N, C], K before V."""
    tokens = len(slot_mapping)
    key, value = key[:tokens], value[:tokens]  # rows behind the tokens are padding
    kept = slot_mapping >= 0
    block, state = slot_mapping[kept] // kv_cache.shape[2], slot_mapping[kept] % kv_cache.shape[2]
    kv_cache[block, :, state] = torch.cat([key[kept], value[kept]], dim=-1)
