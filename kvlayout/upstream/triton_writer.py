"""vLLM's own cache writes in Triton, as writers that ``kvlayout.bench.check_writer`` can put to the test.

Source: vLLM 0.33.0 ``vllm/v1/attention/ops/triton_reshape_and_cache_flash.py``, called as the backends TRITON_ATTN
(``TritonAttentionImpl.do_kv_cache_update``) and TRITON_ATTN_DIFFKV do. On a machine without a GPU, set
TRITON_INTERPRET=1 and CUDA_VISIBLE_DEVICES="" in the environment before anything imports vllm or triton: then the
kernels run in Python on the CPU's memory. Their verdicts are recorded by ``kvlayout.upstream.kernel_verdicts``.
"""

from __future__ import annotations

from types import ModuleType

import torch

from kvlayout.errors import LayoutError
from kvlayout.upstream.release import found


def reshape_and_cache_flash(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write key and value [tokens, heads, head_size], of one head size, with ``reshape_and_cache_kernel_flash``.

    Raises LayoutError where vLLM isn't installed, or has no Triton.
    """
    ops = _ops()
    head_size = key.shape[2]
    key_cache, value_cache = kv_cache.transpose(1, 2).split(head_size, dim=-1)
    scale = torch.ones(1, device=key.device)
    if key.is_cuda:
        ops.triton_reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping, "auto", scale, scale)
        return
    # Its wrapper asks the GPU for its capability, to choose the tile; the rest of it is done here in the same way.
    elements = key.shape[1] * head_size
    tile = min(2048, ops.triton.next_power_of_2(elements))
    ops.reshape_and_cache_kernel_flash[slot_mapping.shape[0], ops.triton.cdiv(elements, tile)](
        key_ptr=key, value_ptr=value, key_cache_ptr=key_cache, value_cache_ptr=value_cache,
        slot_mapping_ptr=slot_mapping, k_scale=scale, v_scale=scale,
        key_stride=key.stride(0), value_stride=value.stride(0), block_stride=key_cache.stride(0),
        head_stride=key_cache.stride(2), dim_stride_k=0, dim_stride_v=0, page_stride=key_cache.stride(1),
        num_heads=key.shape[1], head_size=head_size, block_size=key_cache.shape[1], x=1,
        USE_HEAD_MAJOR_LAYOUT=False, INTERLEAVED_V_PACK_FACTOR=0, FP8_KV_CACHE=False, TILE_SIZE=tile)


def reshape_and_cache_flash_diffkv(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write key [tokens, heads, head_size] and value [.., head_size_v], whose sizes may differ, with ``.._diffkv``.

    Raises LayoutError where vLLM isn't installed, or has no Triton.
    """
    scale = torch.ones(1, device=key.device)
    _ops().triton_reshape_and_cache_flash_diffkv(
        key, value, kv_cache.transpose(1, 2), slot_mapping, "auto", scale, scale)


def _ops() -> ModuleType:
    try:
        from vllm.triton_utils import HAS_TRITON
        from vllm.v1.attention.ops import triton_reshape_and_cache_flash
    except ImportError as error:
        raise LayoutError("vllm", None, f"can't be imported: {error}", "Install the official vLLM 0.33") from error
    if not HAS_TRITON:
        raise LayoutError("vllm", found()[0], "has Triton switched off here, as its CPU build always has",
                          "Use the official build, with TRITON_INTERPRET=1 set where there is no GPU")
    return triton_reshape_and_cache_flash
