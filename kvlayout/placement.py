"""Placing layers in memory: one tensor over same-shaped layers, or all groups in one allocation.

Sources: vLLM 0.33.0 ``vllm/v1/core/kv_cache_planning.py``; before 0.32 ``vllm/v1/core/kv_cache_utils.py``;
vLLM-Omni 0.30.0 ``vllm_omni/diffusion/diffusion_kv/layout.py`` for :func:`build_kv_cache_tensor`.
Not reproduced: HiSparse's host pool, and the placement of one model family (GLM-5) in 0.30 and 0.31.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError, check_int
from kvlayout.layout import KVCacheLayout, as_layout
from kvlayout.rounding import round_up
from kvlayout.spec import KVCacheSpec, UniformTypeKVCacheSpecs
from kvlayout.strides import compute_layout_strides, one_layer_spec
from kvlayout.versions import NEWEST, at_least


def build_kv_cache_tensor(
    spec: KVCacheSpec,
    num_blocks: int,
    layers: Sequence[str],
    *,
    layout: KVCacheLayout | None = None,
    offset: int = 0,
) -> KVCacheTensor:
    """Return one tensor over ``layers``, all of one ``spec``, at byte ``offset`` of its allocation.

    ``layout`` None means LBNHC. ``size`` is page x layers x blocks bytes and doesn't count ``offset``. A
    block-outermost layout packs the layers' pages side by side, so block_stride is page x layers.
    Raises LayoutError where the layout can't express the spec's page, or layers would share an offset.
    """
    spec = one_layer_spec(spec)
    layout = KVCacheLayout.LBNHC if layout is None else as_layout(layout)
    check_int("num_blocks", num_blocks, minimum=0)
    check_int("offset", offset, minimum=0)
    if isinstance(layers, str) or not layers:
        raise LayoutError("layers", layers, "must be at least one layer name, in a list")
    if len(set(layers)) != len(layers):
        raise LayoutError("layers", list(layers), "must not name a layer twice")
    packed = spec.page_size_bytes * len(layers)
    pinned = packed if layout.is_block_outermost else None
    layer_stride, block_stride, *_ = compute_layout_strides(
        spec, num_blocks, len(layers), layout, fixed_strides=(None, pinned or None, None, None, None))
    if len(layers) > 1 and layer_stride == 0:
        raise LayoutError("num_blocks", num_blocks, "puts every layer at the same offset",
                          "Use at least one block of at least one state")
    return KVCacheTensor(packed * num_blocks, tuple(layers), layer_stride, block_stride, offset)


def validate_kv_cache_layout(layout: KVCacheLayout, kv_cache_groups: Sequence[KVCacheGroupSpec]) -> None:
    """Raise LayoutError unless ``layout`` can express the page sizes of these groups.

    One page size: every layout can. Mixed sizes lie side by side, so a page must be one run (block compact), and
    with several groups the layer must lie inside the block (not layer compact).
    """
    layout = as_layout(layout)
    page_sizes = sorted({size for group in kv_cache_groups for size in group.page_sizes_bytes})
    if len(page_sizes) <= 1:
        return
    if not layout.is_block_compact or (len(kv_cache_groups) > 1 and layout.is_layer_compact):
        raise LayoutError("layout", layout.name, f"can't express mixed page sizes {page_sizes} bytes",
                          "Use a block-outermost layout such as BLHNC")


def layer_block_stride(spec: KVCacheSpec) -> int:
    """Bytes from block to block where each layer is a region of its own (vLLM 0.32 and newer)."""
    return round_up(spec.page_size_bytes, spec.get_block_stride_alignment())


def get_kv_cache_bytes_per_block(
    kv_cache_groups: Sequence[KVCacheGroupSpec], layout: KVCacheLayout, *, vllm_version: str = NEWEST
) -> int:
    """Return the bytes that one block id stands for: those of the largest group, alignment included.

    Up to 0.31 the layout makes no difference here, and alignment (0.31) rounds the whole block.
    """
    layout = as_layout(layout)
    specs = [list(group.layer_specs.values()) for group in kv_cache_groups]
    if at_least(vllm_version, "0.32.0") and not layout.is_block_outermost:
        return max(sum(layer_block_stride(spec) for spec in group) for group in specs)
    largest = max(sum(spec.page_size_bytes for spec in group) for group in specs)
    if not at_least(vllm_version, "0.31.0"):
        return largest
    return round_up(largest, math.lcm(*(s.get_block_stride_alignment() for group in specs for s in group)))


def get_kv_cache_config_from_groups(
    kv_cache_groups: Sequence[KVCacheGroupSpec],
    available_memory: int,
    layout: KVCacheLayout,
    *,
    num_gpu_blocks_override: int | None = None,
    vllm_version: str = NEWEST,
) -> KVCacheConfig:
    """Return the config that fits ``available_memory`` bytes, every group starting at byte 0 of one allocation.

    Inside a group, layers of equal spec form one tensor, in first-seen order. ``num_gpu_blocks_override``
    replaces the number of blocks that would fit. Memory below one block gives num_blocks 0. No groups: one
    block, no tensors. Raises LayoutError for a layout that can't express the groups.
    """
    layout = as_layout(layout)
    check_int("available_memory", available_memory, minimum=0)
    if num_gpu_blocks_override is not None:
        check_int("num_gpu_blocks_override", num_gpu_blocks_override, minimum=0)
    if not kv_cache_groups:
        return KVCacheConfig(1, (), (), layout.name)
    if not any(group.layer_names for group in kv_cache_groups):
        raise LayoutError("kv_cache_groups", list(kv_cache_groups), "hold no layer at all",
                          "Leave out empty groups, or pass no group for a model without a cache")
    validate_kv_cache_layout(layout, kv_cache_groups)
    bytes_per_block = get_kv_cache_bytes_per_block(kv_cache_groups, layout, vllm_version=vllm_version)
    if bytes_per_block == 0:
        raise LayoutError("block_size", 0, "gives pages of no bytes",
                          "A block must hold at least one token state")
    num_blocks = available_memory // bytes_per_block
    if num_gpu_blocks_override is not None:
        num_blocks = num_gpu_blocks_override
    tensors = []
    for group in kv_cache_groups:
        tensors += _place_group(group, num_blocks, bytes_per_block, layout, vllm_version)
    return KVCacheConfig(num_blocks, tuple(tensors), tuple(kv_cache_groups), layout.name)


def _place_group(group, num_blocks, bytes_per_block, layout, vllm_version) -> list[KVCacheTensor]:
    layers_by_spec: dict[KVCacheSpec, list[str]] = {}
    # vLLM walks the specs of a uniform-type group, not its layer names: a pipeline rank without any of its layers
    # still places them all, although no block is made large enough for them.
    specs = group.kv_cache_spec.kv_cache_specs if isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs) \
        else group.layer_specs
    for name, spec in specs.items():
        layers_by_spec.setdefault(spec, []).append(name)
    tensors, offset = [], 0
    for spec, layers in layers_by_spec.items():
        pinned = bytes_per_block if layout.is_block_outermost else None
        if pinned is None and at_least(vllm_version, "0.32.0") and layer_block_stride(spec) != spec.page_size_bytes:
            if not layout.is_block_compact:
                raise LayoutError("layout", layout.name, "can't put distance between pages that aren't contiguous "
                                  f"(block_stride_alignment={spec.get_block_stride_alignment()} bytes)",
                                  "Use LBHNC, LBNHC or a block-outermost layout")
            pinned = layer_block_stride(spec)
        layer_stride, block_stride, *_ = compute_layout_strides(
            spec, num_blocks, len(layers), layout, fixed_strides=(None, pinned, None, None, None))
        start = offset
        if not at_least(vllm_version, "0.32.0"):
            if spec.page_size_bytes == 0:
                raise LayoutError("block_size", spec.block_size, "gives pages of no bytes",
                                  "A block must hold at least one token state")
            # Until 0.31 the running offset counts pages of this spec, and drops a fraction of one.
            start = offset * max(layer_stride, spec.page_size_bytes) // spec.page_size_bytes
        tensors.append(KVCacheTensor(bytes_per_block * num_blocks, tuple(layers), layer_stride, block_stride, start))
        per_layer = spec.page_size_bytes
        if at_least(vllm_version, "0.32.0") and not layout.is_block_outermost:
            per_layer = layer_stride
        offset += len(layers) * per_layer
    return tensors
