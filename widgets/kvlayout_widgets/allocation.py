"""The panel that takes and gives back real memory, shows that the cache is alive, and proves it byte by byte."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from kvlayout.errors import LayoutError
from kvlayout.memory.mark import write_and_read_back
from kvlayout_widgets.figures.theme import exact_address, exact_bytes
from kvlayout_widgets.header import allocation_html, older_cache_words
from kvlayout_widgets.html import outcome
from kvlayout_widgets.state import State
from kvlayout_widgets.verification import Verification


class AllocationPanel:
    """Allocate, Verify, Free, and a write through the layer's view that is read back from the raw buffer."""

    def __init__(self, state: State, act: Callable[[Callable[[], None]], None], theme: Callable[[], str]):
        self.state, self._theme = state, theme
        self.verification = Verification(self.show)
        self.allocate = _button("Allocate", "allocate_kv_cache: take the pool's memory on the chosen device, one "
                                "int8 buffer and a typed [B, H, N, C] view a layer", "primary")
        self.free = _button("Free", "Give the memory back")
        self.poke = _button("Write and read back", "Write one element through the layer's view at the selection, "
                            "and read it from the raw buffer at the offset shown", width="190px")
        self.free_others = _button("Free theirs", "Give back the memory that other explorers of this kernel hold")
        self.text = widgets.HTML()
        self.proof, self._said, self._is_of_cache = widgets.HTML(), "", False
        self.verify = self.verification.button
        row = widgets.HBox([self.allocate, self.verify, self.verification.stop, self.free, self.free_others],
                           layout=widgets.Layout(flex_flow="row wrap"))
        row.add_class("kvl-actions")
        self.widget = widgets.VBox([row, self.text, self.verification.widget, self.poke, self.proof])
        for button, done in ((self.allocate, self._allocate), (self.free, self._free), (self.poke, self._poke),
                             (self.free_others, self._free_others), (self.verify, self._verify)):
            button.on_click(lambda _, done=done: act(lambda: self._say(done)))

    def _say(self, done: Callable[[], str]) -> None:
        """Do what a button says, and show beside it what came of it."""
        try:
            self._said = done()
        except LayoutError as error:
            self._said = f"✗ {error}"
        # Only what was written stands in a cache; "Freed" and a refusal are of this moment.
        self._is_of_cache = done == self._poke and not self._said.startswith("✗")
        self.show()

    def _allocate(self) -> str:
        self.verification.clear()
        self.state.allocate()
        return ""

    def _verify(self) -> str:
        self.verification.start(self.state.cache, self._theme())
        return ""

    def _free(self) -> str:
        freed = self.state.cache.nbytes
        self.verification.clear()
        self.state.free()
        return f"Freed {exact_bytes(freed)}."

    def _free_others(self) -> str:
        freed = sum(cache.nbytes for cache in self.state.other_caches())
        self.state.free_others()
        return f"Freed {exact_bytes(freed)} of other explorers."

    def _poke(self) -> str:
        at = self.state.coordinate
        mark = write_and_read_back(self.state.cache, at.layer, at.block, at.head, at.state, at.byte)
        return f"Wrote {mark.data.hex()} through the view; the buffer holds it at {exact_address(mark.offset)}."

    def show(self) -> None:
        """Show the state's cache."""
        self.text.value = allocation_html(self.state)
        older = older_cache_words(self.state)
        self.proof.value = outcome(self._said, older if self._is_of_cache else "")
        self.verification.say(older)
        cache, is_busy = self.state.cache, self.verification.is_running
        self.allocate.disabled = is_busy
        self.free.disabled = cache is None or is_busy
        self.verify.disabled = cache is None or is_busy or cache.device.type == "meta"
        self.poke.disabled = cache is None or is_busy or self.state.coordinate is None
        self.free_others.layout.display = None if self.state.other_caches() else "none"


def _button(label: str, tooltip: str, style: str = "", width: str = "94px") -> widgets.Button:
    return widgets.Button(description=label, tooltip=tooltip, button_style=style, layout=widgets.Layout(width=width))
