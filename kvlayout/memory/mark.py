"""One element written through a layer's view and found in the raw buffer: the smallest proof of a living cache."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvlayout.errors import LayoutError, check_int
from kvlayout.memory.cache import KVCache
from kvlayout.memory.checks import check_provable

_MARKS = (0x5A, 0xA5)


class Mark(NamedTuple):
    """``offset``: where the element begins in the buffer, bytes; ``data``: what was written and read there."""

    offset: int
    data: bytes


def write_and_read_back(cache: KVCache, layer: str | int, block: int, head: int = 0, state: int = 0,
                        byte: int = 0) -> Mark:
    """Write the element that holds this byte through ``layer``'s view, and read it from the raw buffer.

    Raises LayoutError where the cache has no such coordinate or no memory, where the backend packs elements its own
    way, and where the buffer doesn't hold at the predicted offset what was written.
    """
    check_provable(cache)
    for name, value in (("block", block), ("head", head), ("state", state), ("byte", byte)):
        check_int(name, value, minimum=0)
    offset = cache.address_map.offset(layer, block, head, state, byte)
    interior = cache.address_map.region(layer).interior
    if interior.scope != "state":
        raise LayoutError("layer", layer, f"keeps an order of its own inside a {interior.scope}, which its view "
                          "doesn't follow", "Choose another backend or layer")
    with cache.exclusive():
        view = cache.views[cache.address_map.layers[cache.address_map.layer_index(layer)]]
        item = view.element_size()
        element = view[block, head, state, byte // item].reshape(1).view(torch.uint8)
        start = offset - byte % item
        before = bytes(element.tolist())
        mark = bytes(_MARKS[(i + (before[0] == _MARKS[0])) % 2] for i in range(item))
        element.copy_(torch.tensor(list(mark), dtype=torch.uint8))
        found = bytes(cache.buffer[start:start + item].view(torch.uint8).tolist())
    if found != mark:
        raise LayoutError("offset", start, f"holds {found.hex()} although {mark.hex()} was written through the view")
    return Mark(start, mark)
