"""One shape that a kernel is tried with, and what is special about it."""

from __future__ import annotations

from dataclasses import dataclass

from kvlayout.address import AddressMap
from kvlayout.bench.requests import Requests
from kvlayout.bench.sides import Side
from kvlayout.spec import AttentionSpec


@dataclass(frozen=True, eq=False)
class Case:
    """One shape: a plan of some layers, the layer under test, and what is asked of it.

    ``number`` counts from 0; the far cases come after all others. ``strided_inputs``: key and value are handed over
    as slices of one wider tensor, as a model's fused projection gives them.
    """

    number: int
    address_map: AddressMap
    layer: str
    spec: AttentionSpec
    sides: tuple[Side, Side]
    requests: Requests
    strided_inputs: bool
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
        """The properties that a kernel may stumble over, as words."""
        spec, layers = self.spec, self.address_map.layers
        found = {
            "odd head count": spec.num_kv_heads % 2 == 1 and spec.num_kv_heads > 1,
            "head_size_v ≠ head_size": spec.head_size_v not in (0, spec.head_size),
            "kernel blocks": self.block_size != spec.block_size,
            "page padding": spec.page_size_padded is not None,
            "several layers": len(layers) > 1,
            "mixed pages": len(self.address_map.regions) > 1,
            "strided key and value": self.strided_inputs,
            "ignored tokens": bool((self.requests.slots < 0).any()),
            "offsets past 2^31": self.is_far,
        }
        return (spec.dtype, *(name for name, holds in found.items() if holds))
