"""The panel that takes and gives back real memory, and shows that the cache is alive."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets
import torch

from kvlayout.errors import LayoutError
from kvlayout.memory.cache import KVCache
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.theme import exact_address, exact_bytes
from kvlayout_widgets.header import allocation_html
from kvlayout_widgets.html import paragraph
from kvlayout_widgets.state import State

_MARKS = (0x5A, 0xA5)


class AllocationPanel:
    """Allocate, Free, and a write through the layer's view that is read back from the raw buffer."""

    def __init__(self, state: State, act: Callable[[Callable[[], None]], None]):
        self.state = state
        self.allocate = _button("Allocate", "allocate_kv_cache: take the pool's memory on the chosen device, one "
                                "int8 buffer and a typed [B, H, N, C] view a layer", "primary")
        self.free = _button("Free", "Give the memory back")
        self.poke = _button("Write and read back", "Write one element through the layer's view at the selection, "
                            "and read it from the raw buffer at the offset shown", width="190px")
        self.text = widgets.HTML()
        self.proof = widgets.HTML()
        self.widget = widgets.VBox([widgets.HBox([self.allocate, self.free]), self.text, self.poke, self.proof])
        for button, done in ((self.allocate, self._allocate), (self.free, self._free), (self.poke, self._poke)):
            button.on_click(lambda _, done=done: act(lambda: self._say(done)))

    def _say(self, done: Callable[[], str]) -> None:
        """Do what a button says, and show beside it what came of it."""
        try:
            self.proof.value = paragraph(done(), "good")
        except LayoutError as error:
            self.proof.value = paragraph(f"✗ {error}", "refused")

    def _allocate(self) -> str:
        self.state.allocate()
        return ""

    def _free(self) -> str:
        freed = self.state.cache.nbytes
        self.state.free()
        return f"Freed {exact_bytes(freed)}."

    def _poke(self) -> str:
        return write_and_read_back(self.state.cache, self.state.coordinate)

    def show(self) -> None:
        """Show the state's cache."""
        self.text.value = allocation_html(self.state)
        self.free.disabled = self.poke.disabled = self.state.cache is None


def write_and_read_back(cache: KVCache, at: Coordinate) -> str:
    """Write one element through the view of ``at``'s layer, read it from the raw buffer, and say what was seen.

    Raises LayoutError where the cache has no such coordinate or no memory, or the backend packs elements its own way.
    """
    offset = at.offset(cache.address_map)
    region = cache.address_map.region(at.layer)
    if cache.device.type == "meta":
        raise LayoutError("device", "meta", "has no memory to write to", "Allocate on cpu or a CUDA device")
    if region.interior.scope != "state":
        raise LayoutError("layer", at.layer, f"keeps an order of its own inside a {region.interior.scope}, which its "
                          "view doesn't follow", "Choose another backend or layer")
    view = cache.views[at.layer]
    item = view.element_size()
    element = view[at.block, at.head, at.state, at.byte // item].reshape(1).view(torch.uint8)
    start = offset - at.byte % item
    before = bytes(element.tolist())
    mark = bytes(_MARKS[(i + (before[0] == _MARKS[0])) % 2] for i in range(item))
    element.copy_(torch.tensor(list(mark), dtype=torch.uint8))
    found = bytes(cache.buffer[start:start + item].view(torch.uint8).tolist())
    if found != mark:
        raise LayoutError("offset", start, f"holds {found.hex()} although {mark.hex()} was written through the view")
    return f"Wrote {mark.hex()} through the view; the buffer holds {found.hex()} at {exact_address(start)}."


def _button(label: str, tooltip: str, style: str = "", width: str = "94px") -> widgets.Button:
    return widgets.Button(description=label, tooltip=tooltip, button_style=style, layout=widgets.Layout(width=width))
