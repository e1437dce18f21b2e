"""One rank of a transfer between two engines: its map, its heads, its layers, and the blocks of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.arrays import integers
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.facts.parallel import kv_heads_per_rank
from kvlayout.spec import AttentionSpec, MambaSpec

_MOST_HEADS = 1 << 20  # far beyond any model; heads are listed


@dataclass(frozen=True, eq=False)
class Side:
    """One rank that sends or receives.

    Attributes:
        address_map: of this rank's own cache
        tp_rank, tp_size: its place among the tensor-parallel ranks
        total_num_kv_heads: KV heads of the whole model; MLA's latent is one head on every rank, whatever stands here
        layers: names of the layers that take part (a pipeline stage's); None for all of the map
        block_ids: "map" where blocks are counted as the map counts them, "manager" where the ids are the block
            manager's and a map that is split counts several kernel blocks for each
    Raises LayoutError where the map's heads aren't those of such a rank.
    """

    address_map: AddressMap
    tp_rank: int
    tp_size: int
    total_num_kv_heads: int
    layers: Sequence[str] | None = None
    block_ids: str = "map"

    def __post_init__(self):
        check_type("address_map", self.address_map, AddressMap)
        if check_int("total_num_kv_heads", self.total_num_kv_heads, minimum=1) > _MOST_HEADS:
            raise LayoutError("total_num_kv_heads", self.total_num_kv_heads, f"must be at most {_MOST_HEADS:,}")
        check_int("tp_rank", self.tp_rank, minimum=0)
        if self.tp_rank >= check_int("tp_size", self.tp_size, minimum=1):
            raise LayoutError("tp_rank", self.tp_rank, f"must be below tp_size={self.tp_size}")
        kv_heads_per_rank(self.total_num_kv_heads, self.tp_size)
        if self.block_ids not in ("map", "manager"):
            raise LayoutError("block_ids", self.block_ids, 'must be "map" or "manager"')
        layers = self.address_map.layers if self.layers is None else self.layers
        if isinstance(layers, (str, bytes)) or not isinstance(layers, Sequence) \
                or not all(isinstance(name, str) for name in layers):
            raise LayoutError("layers", layers, "must be a list of layer names, or None for all")
        for name in layers:
            self.address_map.layer_index(name)
            self.slot_keys(name)
        object.__setattr__(self, "layers", tuple(dict.fromkeys(layers)))

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """The model's KV heads that this rank holds; one, shared with others, where there are fewer than ranks."""
        each = kv_heads_per_rank(self.total_num_kv_heads, self.tp_size)
        first = self.tp_rank * self.total_num_kv_heads // self.tp_size
        return tuple(range(first, first + each))

    def slot_keys(self, layer: str) -> list[tuple]:
        """Return what each head slot of ``layer`` holds; equal keys on two sides are the same content."""
        spec = self.address_map.region(layer).spec
        if isinstance(spec, MambaSpec):
            return [("state",) if spec.tp_replicated else ("state", self.tp_rank, self.tp_size)]
        if not isinstance(spec, AttentionSpec):
            return [("slot", slot, self.tp_rank, self.tp_size) for slot in range(spec.num_heads)]
        if spec.head_size_v == 0 and spec.num_kv_heads == 1:
            return [("latent", slot) for slot in range(spec.num_heads)]
        if spec.num_kv_heads != len(self.heads):
            raise LayoutError("total_num_kv_heads", self.total_num_kv_heads,
                              f"gives rank {self.tp_rank} of {self.tp_size} {len(self.heads)} heads, but layer "
                              f"{layer} has {spec.num_kv_heads}",
                              "Give the whole model's KV heads and this rank's tp_size")
        if spec.num_head_slots is None:
            return [("head", head) for head in self.heads]
        return [("slot", slot, self.heads) for slot in range(spec.num_heads)]

    def map_blocks(self, name: str, blocks: object) -> dict[int, np.ndarray]:
        """Return {group: the map's block ids in the request's order} of a list for all groups, or a dict of lists.

        ``name``: what to call it in an error.
        """
        found = {}
        for group in sorted({self.address_map.region(layer).group for layer in self.layers}):
            given = blocks
            if isinstance(blocks, Mapping):
                if group not in blocks:
                    raise LayoutError(name, blocks, f"has no blocks for group {group}")
                given = blocks[group]
            ids = integers(name, given, ndim=1)
            region = next(one for one in self.address_map.regions if one.group == group)
            _, num_blocks, _, states, _ = region.geometry.shape
            ratio = region.spec.num_states // states if self.block_ids == "manager" and states else 1
            if len(ids) and (ids.min() < 0 or ids.max() >= num_blocks // ratio):
                wrong = ids.min() if ids.min() < 0 else ids.max()
                raise LayoutError(name, int(wrong), f"must be at least 0 and below the {num_blocks // ratio:,} "
                                  f"blocks of group {group}")
            found[group] = (ids[:, None] * ratio + np.arange(ratio)).ravel()
        return found
