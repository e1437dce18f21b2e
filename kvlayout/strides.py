"""Shapes in bytes and byte strides of one KV cache tensor, from its spec and layout.

Law: walk the physical order from the innermost axis; each axis' stride is the stride of the one inside it
times that one's extent. A fixed stride replaces the value and carries outward; a padded page raises it where
the walk enters the grid of pages (the axes from the outermost down to the inner one of L and B).
Source: vLLM 0.29.0 to 0.33.0, ``vllm/v1/kv_cache_interface.py``.
"""

from __future__ import annotations

import math

from kvlayout.errors import LayoutError, check_int
from kvlayout.layout import B, KVCacheLayout, L, PhysicalLayout, as_layout
from kvlayout.spec import KVCacheSpec, UniformTypeKVCacheSpecs
from kvlayout.spec_io import as_spec

NO_FIXED_STRIDES = (None,) * 5


def one_layer_spec(spec: object) -> KVCacheSpec:
    """Return ``spec`` as one of ours that describes a single layer's page."""
    spec = as_spec(spec)
    if isinstance(spec, UniformTypeKVCacheSpecs):
        raise LayoutError("spec", type(spec).__name__, "describes several layers, whose pages differ",
                          "Pass one of its kv_cache_specs")
    return spec


def compute_layer_kv_cache_shape_bytes(
    spec: KVCacheSpec, num_blocks: int, kernel_block_size: int | None = None
) -> tuple[int, int, int, int]:
    """Return one layer's logical shape (B blocks, H head slots, N states, C bytes).

    With ``kernel_block_size`` (tokens) each manager block counts as block_size / kernel_block_size blocks of
    fewer states. Raises LayoutError if it doesn't divide the spec's block size.
    """
    spec = one_layer_spec(spec)
    check_int("num_blocks", num_blocks, minimum=0)
    if kernel_block_size is None:
        kernel_block_size = spec.block_size
    check_int("kernel_block_size", kernel_block_size, minimum=1)
    if spec.block_size % kernel_block_size:
        raise LayoutError("kernel_block_size", kernel_block_size, f"must divide the block size {spec.block_size}")
    return (num_blocks * (spec.block_size // kernel_block_size), spec.num_heads,
            spec.get_num_kernel_states(kernel_block_size), spec.state_content_size_bytes)


def compute_layout_strides(
    spec: KVCacheSpec,
    num_blocks: int,
    num_layers: int,
    layout: KVCacheLayout | PhysicalLayout,
    kernel_block_size: int | None = None,
    fixed_strides: tuple[int | None, ...] = NO_FIXED_STRIDES,
) -> tuple[int, int, int, int, int]:
    """Return the byte strides of (L, B, H, N, C), in that logical order.

    ``fixed_strides``: five values in the same order, each None or the positive byte stride to use there.
    Raises LayoutError for a padded page that the layout can't express or that is to be split.
    """
    spec, layout = one_layer_spec(spec), as_layout(layout)
    check_int("num_layers", num_layers, minimum=0)
    fixed_strides = _check_fixed_strides(fixed_strides)
    shape = (num_layers, *compute_layer_kv_cache_shape_bytes(spec, num_blocks, kernel_block_size))
    order = layout.stride_order
    padded = spec.page_size_padded
    page_grid_end = 0
    if padded is not None:
        if kernel_block_size is not None and kernel_block_size != spec.block_size:
            raise LayoutError("kernel_block_size", kernel_block_size,
                              f"splits a padded page ({spec.unpadded_page_size_bytes:,} of {padded:,} bytes used)",
                              f"Use block_size={kernel_block_size}, or a page without padding")
        page_grid_end = max(order.index(L), order.index(B)) + 1
        if math.prod(shape[axis] for axis in order[:page_grid_end]) != num_layers * num_blocks:
            raise LayoutError("layout", layout.name,
                              f"can't pad pages: an axis of {dict(zip('LBHNC', shape))} besides L and B lies outside "
                              "the page", "Use a layout whose two outermost axes are L and B")
    strides = [0] * 5
    running = 1
    for position in range(4, -1, -1):
        axis = order[position]
        if position == page_grid_end - 1:
            running = max(running, padded)
            if running % padded:
                raise LayoutError("fixed_strides", fixed_strides,
                                  f"make a page of {running:,} bytes, no multiple of the padded {padded:,}")
        strides[axis] = fixed_strides[axis] or running
        running = strides[axis] * shape[axis]
    return tuple(strides)


def _check_fixed_strides(fixed_strides: object) -> tuple[int | None, ...]:
    if not isinstance(fixed_strides, (tuple, list)) or len(fixed_strides) != 5:
        raise LayoutError("fixed_strides", fixed_strides, "must be five values, one each for L, B, H, N, C")
    for stride in fixed_strides:
        if stride is not None:
            check_int("fixed_strides", stride, minimum=1)
    return tuple(fixed_strides)
