"""A cache write in Triton that takes the view's strides, and so is right for every layout with C innermost.

Needs the package ``triton``. Without a GPU set TRITON_INTERPRET=1 in the environment before anything imports triton:
then each program runs in Python, on the CPU's memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def write_kernel(
    key_ptr, value_ptr, cache_ptr, slot_ptr,
    key_token_stride: tl.int64, key_head_stride: tl.int64,
    value_token_stride: tl.int64, value_head_stride: tl.int64,
    block_stride: tl.int64, head_stride: tl.int64, state_stride: tl.int64,
    block_size: tl.constexpr, head_size: tl.constexpr, head_size_v: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program a token and head: all strides are in elements, and 64 bits wide."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot >= 0:
        element = tl.arange(0, TILE)
        key = tl.load(key_ptr + token * key_token_stride + head * key_head_stride + element,
                      mask=element < head_size)
        value = tl.load(value_ptr + token * value_token_stride + head * value_head_stride + element,
                        mask=element < head_size_v)
        state = cache_ptr + (slot // block_size * block_stride + head * head_stride
                             + slot % block_size * state_stride)
        tl.store(state + element, key, mask=element < head_size)
        tl.store(state + head_size + element, value, mask=element < head_size_v)


def write(key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Write key [rows, heads, head_size] and value [.., head_size_v] into kv_cache [B, H, N, C], K before V."""
    block_stride, head_stride, state_stride, _ = kv_cache.stride()
    launch(key, value, kv_cache, slot_mapping, block_stride, head_stride, state_stride)


def launch(key, value, kv_cache, slot_mapping, block_stride: int, head_stride: int, state_stride: int) -> None:
    """Start the kernel with strides in elements, whoever worked them out."""
    _, heads, head_size = key.shape  # rows behind slot_mapping's tokens are padding
    head_size_v = value.shape[2]
    write_kernel[len(slot_mapping), heads](
        key, value, kv_cache, slot_mapping, key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        block_stride, head_stride, state_stride, block_size=kv_cache.shape[2], head_size=head_size,
        head_size_v=head_size_v, TILE=triton.next_power_of_2(max(head_size, head_size_v)))
