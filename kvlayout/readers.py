"""What a reader with the wrong map sees: which bytes of each page it takes from somebody else, and from whom.

Writer and reader agree on coordinates and differ in addresses: a coordinate is read rightly where both maps give it
the same byte. Inside a page that depends on the coordinate's place alone, so a page's share is one look-up.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kvlayout.address import AddressMap, Owner
from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout, as_layout
from kvlayout.placement import get_kv_cache_config_from_groups

if TYPE_CHECKING:
    from kvlayout.plan import Plan


class WrongReader:
    """A cache written by one map and read by another, of the same layers, blocks, head slots and states.

    Attributes:
        writer, reader: the two maps; offsets of both count from the start of the same allocation
    Raises LayoutError where the maps' layers, groups or extents differ.
    """

    def __init__(self, writer: AddressMap, reader: AddressMap):
        if writer.layers != reader.layers:
            raise LayoutError("reader", reader.layers, f"must have the writer's layers, {writer.layers}")
        for name in writer.layers:
            ours, theirs = writer.region(name), reader.region(name)
            if ours.group != theirs.group or writer.shape(name) != reader.shape(name):
                raise LayoutError("reader", reader.shape(name), f"must see layer {name} as the writer does, as "
                                  f"{writer.shape(name)} (B, H, N, C bytes) in group {ours.group}",
                                  "Compare maps of the same blocks and kernel blocks")
        self.writer, self.reader = writer, reader

    def __repr__(self) -> str:
        return f"WrongReader(written {self.writer.layout.name}, read {self.reader.layout.name})"

    def shares(self, layers: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """Return the share (0 to 1) of each page's bytes that is read from a wrong place, [layers, blocks].

        ``layers``: indices; ``blocks``: indices, NaN where a layer has no such block.
        """
        layers, blocks = (np.asarray(one) for one in (layers, blocks))
        for name, indices in (("layers", layers), ("blocks", blocks)):
            if indices.ndim != 1 or (indices.size and (indices.dtype.kind not in "iu" or indices.min() < 0)):
                raise LayoutError(name, indices.tolist(), "must be a list of indices from 0")
        found = np.full((len(layers), len(blocks)), np.nan)
        for row, layer in enumerate(layers):
            here = blocks < self.writer.shape(int(layer))[0]
            if 0 in self.writer.shape(int(layer)):
                continue
            values, right = self._moved(int(layer))
            wanted = -self._page_moved(int(layer), blocks[here])
            place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
            found[row, here] = 1 - np.where(values[place] == wanted, right[place], 0)
        return found

    def cells(self, layer: str | int, block: int) -> np.ndarray:
        """Return the share of wrongly read bytes of one page by cell, [head slots, states]."""
        index = self.writer.layer_index(layer)
        self.writer.offset(index, block)
        inner = self._inner_moved(index)
        moved = inner + self._page_moved(index, np.array([block]))[0]
        return (moved != 0).mean(axis=2)

    def reads(self, layer: str | int, block: int, head: int = 0, state: int = 0, byte: int = 0) -> Owner | None:
        """Return whose byte the reader takes for this coordinate; None for padding and outside the allocation."""
        index = self.writer.layer_index(layer)
        offset = self.reader.offset(index, block, head, state, byte)
        group = self.writer.region(index).group
        return next((owner for owner in self.writer.owners(offset) if owner.group == group), None)

    @property
    def is_right(self) -> bool:
        """Whether every coordinate is read from where it was written."""
        return all((self.shares(np.array([index]), np.arange(min(2, self.writer.shape(index)[0]))) == 0).all()
                   and self.writer.strides(index)[0] == self.reader.strides(index)[0]
                   for index in range(len(self.writer.layers)))

    @cached_property
    def _kinds(self) -> dict:
        return {}

    def _moved(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (sorted distances, the share of a page that is read at that distance from the page's own)."""
        key = self._key(layer)
        if key not in self._kinds:
            values, counts = np.unique(self._inner_moved(layer), return_counts=True)
            self._kinds[key] = values, counts / counts.sum()
        return self._kinds[key]

    def _key(self, layer: int) -> tuple[int, int]:
        return self.writer.region(layer).tensor_index, self.reader.region(layer).tensor_index

    def _inner_moved(self, layer: int) -> np.ndarray:
        """Bytes from where each byte of a page was written to where it is read, page starts aside: [H, N, C or 1]."""
        _, heads, states, content = self.writer.shape(layer)
        plain = all(one.region(layer).interior.scope == "state" for one in (self.writer, self.reader))
        # Where both keep a state's bytes side by side, one stands for all.
        if plain and self.writer.strides(layer)[3] == self.reader.strides(layer)[3]:
            content = min(content, 1)
        inner = (np.arange(heads)[:, None, None], np.arange(states)[:, None], np.arange(content))
        offsets = [one.offset(layer, 0, *inner) - one.offset(layer, 0) for one in (self.writer, self.reader)]
        starts = [self._start(one, layer) - one.offset(layer, 0) for one in (self.writer, self.reader)]
        return (offsets[1] - starts[1]) - (offsets[0] - starts[0])

    def _page_moved(self, layer: int, blocks: np.ndarray) -> np.ndarray:
        """Bytes from the start of the writer's page to that of the reader's."""
        starts = [self._start(one, layer) + blocks * one.strides(layer)[0] for one in (self.writer, self.reader)]
        return starts[1] - starts[0]

    @staticmethod
    def _start(address_map: AddressMap, layer: int) -> int:
        region = address_map.region(layer)
        place = int(np.flatnonzero(region.layers == layer)[0])
        return region.geometry.offset + place * region.geometry.strides[0]


def compare_readers(plan: Plan, layout: KVCacheLayout | str) -> WrongReader:
    """Return what a reader sees that takes ``layout`` for the layout of the plan's cache.

    The reader's tensors are those that vLLM would place for the same groups and blocks in ``layout``. Where
    its kernel blocks can't be split as the plan's, both are compared in whole blocks. Raises LayoutError where
    ``layout`` can't express the groups' pages, and where ``plan`` is none.
    """
    if not hasattr(plan, "address_map"):
        raise LayoutError("plan", plan, "is no plan", "Give what make_plan returned")
    layout = as_layout(layout)
    config = get_kv_cache_config_from_groups(plan.groups, 0, layout, num_gpu_blocks_override=plan.config.num_blocks,
                                             vllm_version=plan.selection.vllm_version)
    interiors = dict(plan.interiors)
    try:
        return WrongReader(plan.address_map, AddressMap(config, layout, plan.kernel_block_sizes, interiors))
    except LayoutError:
        sizes = [group.kv_cache_spec.block_size for group in plan.groups]
        if tuple(sizes) == tuple(plan.kernel_block_sizes):
            raise
    return WrongReader(AddressMap(plan.config, plan.layout), AddressMap(config, layout))
