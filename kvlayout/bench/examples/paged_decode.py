"""Paged decode in torch: K and V gathered by a block table, and one new token a request that attends to them."""

from __future__ import annotations

import torch


def gather(
    kv_cache: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor,
    head_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (key, value), [requests, longest, heads, size] each, from kv_cache [B, H, N, C].

    ``head_size``: elements of K, which lies before V; None: half of C. Nothing behind a request's
    end has a meaning.
    """
    position = torch.arange(int(seq_lens.max()), device=kv_cache.device)
    block_size = kv_cache.shape[2]
    block, state = block_table[:, position // block_size].long(), position % block_size
    found = kv_cache[block, :, state]
    head_size = kv_cache.shape[3] // 2 if head_size is None else head_size
    return found[..., :head_size], found[..., head_size:]


def decode(
    query: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor
) -> torch.Tensor:
    """Return the attention [requests, query heads, head_size_v] of query [requests, query heads, head_size].

    A query head reads the KV head of its group; scores are scaled by the root of head_size, as everywhere.
    """
    key, value = gather(kv_cache, block_table, seq_lens, query.shape[2])
    each = query.shape[1] // key.shape[2]
    grouped = query.unflatten(1, (key.shape[2], each)).float()
    scores = torch.einsum("rhgd,rthd->rhgt", grouped, key.float()) / query.shape[2] ** 0.5
    is_behind = torch.arange(key.shape[1], device=query.device) >= seq_lens[:, None]
    weights = scores.masked_fill(is_behind[:, None, None], float("-inf")).softmax(dim=-1)
    # What lies behind the end may be NaN, and 0 x NaN isn't 0.
    value = value.float().masked_fill(is_behind[:, :, None, None], 0)
    return torch.einsum("rhgt,rthd->rhgd", weights, value).flatten(1, 2).to(query.dtype)
