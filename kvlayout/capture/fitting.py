"""Which layouts a config's tensors can have been placed with, where the config doesn't say.

A layout fits if, with each tensor's layer and block stride, its other axes nest inside them in the layout's order
without one axis' steps meeting another's, every view stays inside the allocation, and tensors of one group share no
byte. Strides don't tell the order of H and N inside a page: LBHNC and LBNHC fit alike, so do BLHNC and BLNHC.
"""

from __future__ import annotations

from kvlayout.address import AddressMap
from kvlayout.config import KVCacheConfig
from kvlayout.errors import LayoutError
from kvlayout.geometry import Geometry, tensor_geometry
from kvlayout.layout import KVCacheLayout


def fitting_layouts(config: KVCacheConfig) -> list[KVCacheLayout]:
    """Return those of the six layouts that the config's strides allow, in vLLM's order; all for no blocks.

    Raises LayoutError where the tensors and groups contradict each other whatever the layout.
    """
    for tensor in config.kv_cache_tensors:
        for name in tensor.layers:
            config.group_of(name)
    return [layout for layout in KVCacheLayout if _fits(config, layout)]


def _fits(config: KVCacheConfig, layout: KVCacheLayout) -> bool:
    specs = config.layer_specs
    try:
        for tensor in config.kv_cache_tensors if config.num_blocks else ():
            geometry = tensor_geometry(specs[tensor.layers[0]], config.num_blocks, layout, tensor)
            if geometry.end > tensor.size or not _nests(geometry, layout):
                return False
        return all(overlap.is_legal for overlap in AddressMap(config, layout).overlaps())
    except LayoutError:
        return False  # this layout can't express these pages at all


def _nests(geometry: Geometry, layout: KVCacheLayout) -> bool:
    """Whether each axis of several steps is at least as long a step as everything inside it."""
    inner = 1
    for axis in reversed(layout.stride_order):
        count, stride = geometry.shape[axis], geometry.strides[axis]
        if count > 1:
            if stride < inner:
                return False
            inner = count * stride
    return True
