"""A real KV cache: one int8 buffer, and one typed [B, H, N, C] view a layer over it.

Sources: vLLM 0.33.0 ``create_kv_cache_views`` (``vllm/v1/kv_cache_interface.py``) and ``allocate_kv_cache``
(``vllm/v1/worker/utils.py``). Unlike vLLM's, ours checks the size against free memory first and can be freed.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from kvlayout.address import AddressMap
from kvlayout.config import KVCacheConfig, KVCacheTensor
from kvlayout.errors import CacheMemoryError, LayoutError
from kvlayout.geometry import layer_views, tensor_geometry, view_dtype
from kvlayout.interior import Interior
from kvlayout.layout import KVCacheLayout
from kvlayout.memory.device import as_device, memory_info
from kvlayout.spec import KVCacheSpec
from kvlayout.strides import one_layer_spec


def create_kv_cache_views(
    raw: torch.Tensor,
    spec: KVCacheSpec,
    num_blocks: int,
    layout: KVCacheLayout,
    kv_cache_tensor: KVCacheTensor,
    kernel_block_size: int | None = None,
) -> list[torch.Tensor]:
    """Return one [B, H, N, C] view a layer over the flat int8 buffer ``raw``, in the spec's dtype.

    Where the layout scatters the bytes of an element (C isn't innermost), strides can't say that: the view is int8,
    its C in bytes. Raises LayoutError where a view would leave ``raw`` or can't be made in that dtype.
    """
    if raw.dtype != torch.int8 or raw.dim() != 1 or not raw.is_contiguous():
        raise LayoutError("raw", f"{raw.dtype} {tuple(raw.shape)}", "must be a flat, contiguous int8 buffer")
    geometry = tensor_geometry(spec, num_blocks, layout, kv_cache_tensor, kernel_block_size)
    dtype = view_dtype(one_layer_spec(spec), geometry)
    planned = layer_views(geometry, kv_cache_tensor.layers, dtype, raw.numel())
    item = getattr(torch, dtype).itemsize
    if raw.storage_offset() % item:
        raise LayoutError("raw", raw.storage_offset(), f"must begin at a multiple of {item} bytes of its storage")
    storage = torch.as_strided(raw, (raw.numel() // item * item,), (1,)).view(getattr(torch, dtype))
    return [storage.as_strided(view.shape, view.stride_elements,
                               storage.storage_offset() + view.storage_offset_elements) for view in planned]


class KVCache:
    """An allocated cache. ``views`` maps each layer to its [B, H, N, C] tensor; use it as a context manager.

    Attributes:
        buffer: the int8 backing allocation, one element a byte; None once freed
        views: {layer name: typed view}; empty once freed
        config, layout, kernel_block_sizes, address_map: what it was made from
        nbytes: bytes of the backing allocation
    """

    def __init__(self, buffer: torch.Tensor, address_map: AddressMap):
        self.address_map = address_map
        self.config, self.layout = address_map.config, address_map.layout
        self.kernel_block_sizes = address_map.kernel_block_sizes
        self.device, self.nbytes = buffer.device, buffer.numel()
        self.buffer: torch.Tensor | None = buffer
        self._writing = threading.Lock()
        made: dict[str, torch.Tensor] = {}
        sizes = self.kernel_block_sizes or [None] * len(self.config.kv_cache_groups)
        for region in address_map.regions:
            views = create_kv_cache_views(buffer, region.spec, self.config.num_blocks, self.layout, region.tensor,
                                          sizes[region.group])
            made.update(zip(region.tensor.layers, views))
        self.views: dict[str, torch.Tensor] = {name: made[name] for name in address_map.layers}

    def free(self) -> None:
        """Drop the buffer and all views; a view kept elsewhere holds the memory until it is dropped too."""
        # The buffer first: a proof in another thread that misses a view then knows why.
        is_held = self.buffer is not None
        left = [weakref.ref(one) for one in (self.buffer, *self.views.values()) if one is not None]
        self.buffer, self.views = None, {}
        if is_held:
            # Only a reference cycle needs it, and it takes a second where a notebook holds many widgets.
            if any(one() is not None for one in left):
                gc.collect()
            give_back(self.device)

    @contextmanager
    def exclusive(self, wait_seconds: float = 0) -> Iterator[None]:
        """Be the only one who writes to this cache; LayoutError where another still does after ``wait_seconds``."""
        if not self._writing.acquire(timeout=wait_seconds):
            raise LayoutError("cache", self, "is being proven or written to by another",
                              "Wait for that verify to end, or stop it")
        try:
            yield
        finally:
            self._writing.release()

    def __enter__(self) -> KVCache:
        return self

    def __exit__(self, *exc_info) -> None:
        self.free()

    def __repr__(self) -> str:
        state = "freed" if self.buffer is None else f"{self.nbytes:,} bytes on {self.device}"
        return f"KVCache({self.layout.name}, {self.config.num_blocks:,} blocks, {len(self.views)} layers, {state})"


def give_back(device: torch.device) -> None:
    """Return unused memory to the device, so that others see it as free."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def allocate_kv_cache(
    kv_cache_config: KVCacheConfig,
    device: torch.device | str,
    layout: KVCacheLayout | None = None,
    kernel_block_sizes: Sequence[int | None] | None = None,
    *,
    interiors: dict[str, Interior] | None = None,
) -> KVCache:
    """Allocate the config's one buffer, zeroed, on ``device`` and view it.

    ``device``: "cuda:i", "cpu", or "meta" (shapes and strides only; any size). ``layout`` None means the
    config's own. Raises CacheMemoryError, with the bytes asked for and free, before memory is taken; nothing
    stays allocated after an error.
    """
    place = as_device(device)
    address_map = AddressMap(kv_cache_config, layout, kernel_block_sizes, interiors)
    size = address_map.size_bytes
    if size == 0:
        raise CacheMemoryError("kv_cache_config", f"{kv_cache_config.num_blocks} blocks", "has no bytes to allocate",
                               "Give it memory for at least one block")
    info = memory_info(place)
    if info is not None and size > info[0]:
        raise CacheMemoryError(
            "size", size, f"asks for {size / 2**30:,.2f} GiB ({size:,} bytes), but {place} has "
            f"{info[0] / 2**30:,.2f} GiB ({info[0]:,} bytes) free",
            "Lower num_blocks or available_memory, or plan on 'meta'")
    buffer = None
    try:
        buffer = torch.zeros(size, dtype=torch.int8, device=place)
        return KVCache(buffer, address_map)
    except (RuntimeError, MemoryError) as error:
        # Without the error's traceback nothing holds the frame that holds the buffer.
        reason = str(error).splitlines()[0]
        buffer = None
    except LayoutError:
        buffer = None
        gc.collect()
        give_back(place)
        raise
    gc.collect()
    give_back(place)
    free = memory_info(place)
    raise CacheMemoryError("size", size, f"could not be allocated on {place} ({free[0] if free else 0:,} bytes "
                           f"free): {reason}", "Lower num_blocks or available_memory, or plan on 'meta'")
