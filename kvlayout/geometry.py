"""The view geometry of one KV cache tensor: shape and byte strides of [L, B, H, N, C], and of typed layer views.

Source: vLLM 0.29.0 to 0.33.0, ``create_kv_cache_views`` in ``vllm/v1/kv_cache_interface.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvlayout.config import KVCacheTensor
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError, check_int
from kvlayout.layout import KVCacheLayout, as_layout
from kvlayout.spec import KVCacheSpec
from kvlayout.strides import compute_layer_kv_cache_shape_bytes, compute_layout_strides, one_layer_spec


@dataclass(frozen=True)
class Geometry:
    """``shape`` counts and ``strides`` (bytes) of (L, B, H, N, C); ``offset`` is the first byte."""

    shape: tuple[int, int, int, int, int]
    strides: tuple[int, int, int, int, int]
    offset: int

    @property
    def end(self) -> int:
        """Byte behind the last one that the view touches."""
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides))


@dataclass(frozen=True)
class LayerView:
    """One layer's typed view [B, H, N, C]: shape, strides and start in elements of ``dtype``."""

    layer: str
    shape: tuple[int, int, int, int]
    stride_elements: tuple[int, int, int, int]
    storage_offset_elements: int
    dtype: str


def tensor_geometry(
    spec: KVCacheSpec,
    num_blocks: int,
    layout: KVCacheLayout,
    kv_cache_tensor: KVCacheTensor,
    kernel_block_size: int | None = None,
) -> Geometry:
    """Return shape and byte strides of the 5D view over ``kv_cache_tensor``, its layer and block strides pinned.

    ``kernel_block_size`` (tokens) splits each manager block. That needs a block to be one dense page, otherwise
    no single stride leads from kernel block to kernel block: LayoutError.
    """
    spec, layout = one_layer_spec(spec), as_layout(layout)
    check_int("num_blocks", num_blocks, minimum=1)
    shape = compute_layer_kv_cache_shape_bytes(spec, num_blocks, kernel_block_size)
    block_stride = kv_cache_tensor.block_stride
    ratio = shape[0] // num_blocks
    if ratio > 1:
        dense = math.prod(compute_layer_kv_cache_shape_bytes(spec, 1)[1:])
        if block_stride != dense:
            raise LayoutError(
                "kernel_block_size", kernel_block_size,
                f"splits blocks that aren't one dense page: block_stride is {block_stride:,} bytes, the page "
                f"{dense:,} ({layout.name}), so kernel blocks would need two different steps",
                f"Use block_size={kernel_block_size}, or a layer-compact layout such as LBNHC without padding")
        if block_stride % ratio:
            raise LayoutError("kernel_block_size", kernel_block_size,
                              f"must cut the block of {block_stride:,} bytes into {ratio} equal parts")
        block_stride //= ratio
    if not kv_cache_tensor.layer_stride or not block_stride:
        raise LayoutError("kv_cache_tensor", kv_cache_tensor, "must have a layer_stride and a block_stride above 0",
                          "Plan at least one block of at least one token state")
    num_layers = len(kv_cache_tensor.layers)
    strides = compute_layout_strides(spec, num_blocks, num_layers, layout, kernel_block_size,
                                     fixed_strides=(kv_cache_tensor.layer_stride, block_stride, None, None, None))
    return Geometry((num_layers, *shape), strides, kv_cache_tensor.offset)


def view_dtype(spec: KVCacheSpec, geometry: Geometry | None = None) -> str:
    """Return the element type of a spec's views; state specs have none and stay int8.

    With ``geometry``, so do views over a layout that scatters the bytes of one element (C isn't innermost).
    """
    dtype = getattr(spec, "dtype", "int8")
    return "int8" if geometry is not None and _scatters(geometry, dtype) else dtype


def _scatters(geometry: Geometry, dtype: str) -> bool:
    return dtype_size_bytes(dtype) > 1 and geometry.strides[4] != 1 and geometry.shape[4] > 1


def layer_views(geometry: Geometry, layers: tuple[str, ...], dtype: str, size_bytes: int) -> list[LayerView]:
    """Return the typed view of each layer over a buffer of ``size_bytes``.

    Raises LayoutError where the view would leave the buffer, or where an offset, a stride or C isn't a whole
    number of ``dtype`` elements.
    """
    # An empty view (a kernel block shorter than one state) touches nothing, so it may start anywhere.
    if 0 not in geometry.shape and geometry.end > size_bytes:
        raise LayoutError("kv_cache_tensor", geometry, f"touches byte {geometry.end - 1:,} of a buffer of "
                          f"{size_bytes:,} bytes", "Allocate more, or lower num_blocks or the offset")
    item = dtype_size_bytes(dtype)
    counts, steps = geometry.shape[1:], geometry.strides[1:]
    if _scatters(geometry, dtype):
        raise LayoutError("layout", geometry, f"scatters the bytes of one {dtype} element",
                          "Use int8, or a layout with C innermost")
    named = [("C", counts[3]), *zip(("block_stride", "head stride", "state stride"), steps)]
    for name, value in named:
        if value % item:
            raise LayoutError(name, value,
                              f"must be a multiple of {item} bytes, one {dtype} element, to be viewed so")
    views = []
    for index, layer in enumerate(layers):
        start = geometry.offset + index * geometry.strides[0]
        if start % item:
            raise LayoutError("offset", start,
                              f"of layer {layer} must be a multiple of {item} bytes, one {dtype} element")
        views.append(LayerView(layer, (*counts[:3], counts[3] // item),
                               (*(step // item for step in steps[:3]), steps[3] if item == 1 else 1),
                               start // item, dtype))
    return views
