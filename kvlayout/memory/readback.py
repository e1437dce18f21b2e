"""What the wrong reader sees, on real memory: one page is written through its view, and read as the reader would."""

from __future__ import annotations

import math

import numpy as np
import torch

from kvlayout.errors import LayoutError, check_int
from kvlayout.memory.cache import KVCache
from kvlayout.memory.checks import check_provable
from kvlayout.readers import WrongReader

_MOST_BYTES = 1 << 26  # of a page; its addresses take eight times as much


def read_as(cache: KVCache, reader: WrongReader, layer: str | int, block: int) -> np.ndarray:
    """Return the share (0 to 1) of bytes that the reader gets wrong of one page, cell by cell: [head slots, states].

    Random bytes are written through the cache's own view of the page, then the bytes at the reader's addresses are
    compared with them; a byte is right where all of four fillings arrive. The page's content is put back.
    Raises LayoutError for a cache without bytes, that is being proven, or of another map than ``reader.writer``,
    and for a page of more than 64 MiB.
    """
    check_provable(cache)
    if not isinstance(reader, WrongReader):
        raise LayoutError("reader", reader, "must be a WrongReader", "Make one with compare_readers")
    writer = cache.address_map
    index = writer.layer_index(layer)
    block = check_int("block", block, minimum=0)
    start = writer.offset(index, block)
    if writer.layers != reader.writer.layers or any(
            getattr(writer, what)(index) != getattr(reader.writer, what)(index) for what in ("shape", "strides")
    ) or start != reader.writer.offset(index, block):
        raise LayoutError("cache", cache, f"isn't the one that {reader} was written in", "Allocate that plan")
    page_bytes = math.prod(writer.shape(index)[1:])
    if page_bytes > _MOST_BYTES:
        raise LayoutError("block", block, f"is a page of {page_bytes:,} bytes; at most {_MOST_BYTES:,} are read back")
    with cache.exclusive():
        return _read(cache, reader, index, block)


def _read(cache: KVCache, reader: WrongReader, index: int, block: int) -> np.ndarray:
    view = cache.views[cache.address_map.layers[index]][block].view(torch.int8)
    kept = view.clone()
    _, heads, states, content = cache.address_map.shape(index)
    right = torch.ones((heads, states, content), dtype=torch.bool, device=cache.device)
    try:
        for _ in range(4):
            filling = torch.randint(-128, 128, view.shape, dtype=torch.int8, device=cache.device)
            view.copy_(filling)
            for head in range(heads):
                right[head] &= _equal(cache, reader, index, block, head, filling)
    finally:
        view.copy_(kept)
    return 1 - right.float().mean(dim=2).cpu().numpy().astype(float)


def _equal(cache: KVCache, reader: WrongReader, layer: int, block: int, head: int, filling) -> torch.Tensor:
    """Whether each byte of a head slot reads as it was written, [states, C]; places outside the buffer don't."""
    _, _, states, content = reader.writer.shape(layer)
    inside = np.arange(states)[:, None], np.arange(content)
    looked = reader.reader.offset(layer, block, head, *inside)
    is_inside = looked < cache.nbytes
    written = filling[head]
    if reader.writer.region(layer).interior.scope != "state":  # the kernel's order in the page isn't the view's
        written = cache.buffer[_indices(reader.writer.offset(layer, block, head, *inside), cache)]
    read = cache.buffer[_indices(np.minimum(looked, cache.nbytes - 1), cache)]
    return (read == written) & torch.from_numpy(is_inside).to(cache.device)


def _indices(offsets: np.ndarray, cache: KVCache) -> torch.Tensor:
    return torch.from_numpy(offsets).to(cache.device)
