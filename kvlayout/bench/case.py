"""One shape that a kernel is tried with, and what is special about it."""

from __future__ import annotations

from dataclasses import dataclass

from kvlayout.address import AddressMap
from kvlayout.bench.requests import Requests
from kvlayout.bench.sides import Side
from kvlayout.spec import AttentionSpec

# Properties that a kernel may stumble over. A latent never has the first three, and the last four are of what a
# writer is handed.
FEATURES = ("several heads", "odd head count", "head_size_v ≠ head_size", "kernel blocks", "page padding",
            "several layers", "mixed pages", "offsets past 2^31", "strided key and value", "ignored tokens",
            "padded key and value", "over 32 tokens")
WRITER_FEATURES = FEATURES[-4:]
# Those in which a case differs from the given spec, as the kernel sees it.
CHANGES = {"block_size": "another block size", "num_kv_heads": "another head count",
           "head_size": "another head size", "head_size_v": "another head size of V"}


@dataclass(frozen=True, eq=False)
class Case:
    """One shape: a plan of some layers, the layer under test, and what is asked of it.

    ``number`` counts from 0; the far cases come after all others. ``given``: {name of CHANGES: its value in the spec
    that the user gave}, as the backend repacks it. ``strided_inputs``: key and value are handed over as slices of
    one wider tensor, as a model's fused projection gives them. ``padded_rows``: how many rows they have behind those
    of slot_mapping, as vLLM hands out the padded batch of a CUDA graph.
    """

    number: int
    address_map: AddressMap
    layer: str
    spec: AttentionSpec
    given: dict[str, int]
    sides: tuple[Side, Side]
    requests: Requests
    strided_inputs: bool
    padded_rows: int = 0
    is_far: bool = False

    @property
    def layout(self):
        """Its layout."""
        return self.address_map.layout

    @property
    def block_size(self) -> int:
        """Tokens of a block as the kernel sees it: of a kernel block where those split the manager's."""
        return (self.address_map.kernel_block_sizes or [None])[0] or self.spec.block_size

    @property
    def shape(self) -> dict[str, object]:
        """What distinguishes it, by vLLM's names; sizes in tokens, elements and bytes as there."""
        config, spec = self.address_map.config, self.spec
        shape = dict(num_layers=len(self.address_map.layers), num_blocks=config.num_blocks,
                     block_size=spec.block_size, num_kv_heads=spec.num_kv_heads, head_size=spec.head_size,
                     head_size_v=spec.head_size_v, dtype=spec.dtype)
        if self.block_size != spec.block_size:
            shape["kernel_block_size"] = self.block_size
        if spec.page_size_padded is not None:
            shape["page_size_padded"] = spec.page_size_padded
        return shape

    @property
    def features(self) -> tuple[str, ...]:
        """Its properties, as words: the element type, those of FEATURES and of CHANGES that it has."""
        spec, layers = self.spec, self.address_map.layers
        has = dict(zip(FEATURES, (
            spec.num_kv_heads > 1, spec.num_kv_heads % 2 == 1 and spec.num_kv_heads > 1,
            spec.head_size_v not in (0, spec.head_size), self.block_size != spec.block_size,
            spec.page_size_padded is not None, len(layers) > 1, len(self.address_map.regions) > 1, self.is_far,
            self.strided_inputs, bool((self.requests.slots < 0).any()), self.padded_rows > 0,
            len(self.requests.slots) > 32)))
        now = {name: getattr(spec, name) for name in CHANGES} | {"block_size": self.block_size}
        changed = [word for name, word in CHANGES.items() if now[name] != self.given[name]]
        return (spec.dtype, *(name for name, holds in has.items() if holds), *changed)
