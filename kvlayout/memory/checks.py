"""What a cache must be before its bytes are written, and what each view must be before it can be proven."""

from __future__ import annotations

import torch

from kvlayout.errors import LayoutError
from kvlayout.memory.cache import KVCache
from kvlayout.region import Region

_CURE = "Make the view from this config, with create_kv_cache_views"


def check_bytes(cache: KVCache) -> None:
    """Raise LayoutError unless ``cache`` is a KVCache with bytes."""
    if not isinstance(cache, KVCache):
        raise LayoutError("cache", cache, "must be a KVCache", "Give what allocate_kv_cache returned")
    if cache.buffer is None:
        raise LayoutError("cache", cache, "was freed, so it has no bytes", "Allocate it again")
    if cache.device.type == "meta":
        raise LayoutError("cache", cache, "has no bytes on meta", "Allocate it on cpu or a CUDA device")
    buffer = cache.buffer
    if type(buffer) is not torch.Tensor or buffer.dtype != torch.int8 or buffer.dim() != 1 \
            or not buffer.is_contiguous() or buffer.numel() != cache.nbytes:
        raise LayoutError("cache.buffer", type(buffer).__name__, f"must be a flat int8 tensor of {cache.nbytes:,} "
                          "bytes", "Leave it as it was allocated")
    if not isinstance(cache.views, dict):
        raise LayoutError("cache.views", cache.views, "must be a dict {layer: view}", "Leave it as it was allocated")
    missing = [name for name in cache.address_map.layers if name not in cache.views]
    if missing:
        raise LayoutError("cache.views", missing[0], "has no view, though it is a layer of the config",
                          "Give every layer its view")


def check_provable(cache: KVCache) -> None:
    """Raise LayoutError as :func:`check_bytes`, and for a view that can't be written as the map says."""
    check_bytes(cache)
    for region in cache.address_map.regions:
        for name in region.tensor.layers:
            _check_view(cache, region, name)


def _check_view(cache: KVCache, region: Region, name: str) -> None:
    view = cache.views[name]
    if not isinstance(view, torch.Tensor) or view.layout != torch.strided:
        kind = view.layout if isinstance(view, torch.Tensor) else type(view).__name__
        raise LayoutError("cache.views", name, f"must be a strided tensor, not {kind}", _CURE)
    if view.device != cache.device:
        raise LayoutError("cache.views", name, f"lies on {view.device}, the cache on {cache.device}", _CURE)
    (*counts, content), item = region.geometry.shape[1:], view.element_size()
    if content % item or tuple(view.shape) != (*counts, content // item):
        expected = (*counts, content // item) if content % item == 0 else f"{(*counts, content)} bytes"
        raise LayoutError("cache.views", name, f"has the shape {tuple(view.shape)} in {view.dtype}; the address map "
                          f"says {expected}", _CURE)
    if view.is_neg() or view.is_conj():
        raise LayoutError("cache.views", name, "negates or conjugates what it reads", _CURE)
    if any(step == 0 for count, step in zip(view.shape, view.stride()) if count > 1):
        raise LayoutError("cache.views", name, f"can't be written: by its strides {view.stride()} (elements) several "
                          "elements have one place", _CURE)
    last = view.storage_offset() + sum((n - 1) * step for n, step in zip(view.shape, view.stride()))
    if view.numel() and (last + 1) * item > view.untyped_storage().nbytes():
        raise LayoutError("cache.views", name, "reaches beyond its storage, whose memory was given back", _CURE)
