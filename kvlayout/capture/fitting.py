"""Which layouts a config's tensors can have been placed with, where the config doesn't say.

A layout fits if, with each tensor's layer and block stride, its other axes nest inside them in the layout's order
without one axis' steps meeting another's, every view stays inside the allocation, and tensors of one group share no
byte. A tensor's strides don't tell the order of H and N inside a page: LBHNC and LBNHC fit alike, so do BLHNC and
BLNHC.
"""

from __future__ import annotations

from kvlayout.address import AddressMap
from kvlayout.candidates import DEFAULT_PREFERENCE
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


def likeliest_first(config: KVCacheConfig) -> list[KVCacheLayout]:
    """Return :func:`fitting_layouts`, those first that vLLM takes where no backend asks for another.

    Raises LayoutError as that one.
    """
    return sorted(fitting_layouts(config), key=DEFAULT_PREFERENCE.index)


def place_alike(config: KVCacheConfig, layouts: list[KVCacheLayout]) -> bool:
    """Whether these layouts, all fitting, put every byte of ``config`` at the same place: as with one head slot.

    Raises LayoutError where one of them doesn't fit.
    """
    return len({_steps(config, layout) for layout in layouts}) <= 1


def _steps(config: KVCacheConfig, layout: KVCacheLayout) -> tuple:
    """Each tensor's strides along the axes that have more than one step."""
    if not config.num_blocks:
        return ()
    specs = config.layer_specs
    geometries = [tensor_geometry(specs[one.layers[0]], config.num_blocks, layout, one)
                  for one in config.kv_cache_tensors]
    return tuple(tuple(stride for count, stride in zip(one.shape, one.strides) if count > 1) for one in geometries)


def _fits(config: KVCacheConfig, layout: KVCacheLayout) -> bool:
    specs = config.layer_specs
    try:
        for tensor in config.kv_cache_tensors if config.num_blocks else ():
            geometry = tensor_geometry(specs[tensor.layers[0]], config.num_blocks, layout, tensor)
            if geometry.end > tensor.size or not nests(geometry, layout):
                return False
        return all(overlap.is_legal for overlap in AddressMap(config, layout).overlaps())
    except LayoutError:
        return False  # this layout can't express these pages at all


def nests(geometry: Geometry, layout: KVCacheLayout) -> bool:
    """Whether each axis of several steps is at least as long a step as everything inside it."""
    inner = 1
    for axis in reversed(layout.stride_order):
        count, stride = geometry.shape[axis], geometry.strides[axis]
        if count > 1:
            if stride < inner:
                return False
            inner = count * stride
    return True
