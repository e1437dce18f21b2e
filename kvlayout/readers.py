"""What a reader with the wrong map sees: which bytes of each page it takes from somebody else, and from whom.

Writer and reader agree on coordinates and differ in addresses: a coordinate is read rightly where both maps give it
the same byte. Inside a page that depends on the coordinate's place alone; for plain strides it is counted in closed
form.
"""

from __future__ import annotations

import math

import numpy as np

from kvlayout.address import AddressMap, Owner
from kvlayout.arrays import integers
from kvlayout.errors import LayoutError, check_int
from kvlayout.lattice import count_sums
from kvlayout.layout import KVCacheLayout, as_layout
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout.plan import Plan

_MOST_CELLS = 1 << 24  # of a page that are listed
_MOST_BYTES = 1 << 24  # of a page whose interior isn't plain strides, and has to be gone through


class WrongReader:
    """A cache written by one map and read by another, of the same layers, blocks, head slots and states.

    Attributes:
        writer, reader: the two maps; offsets of both count from the start of the same allocation
    Raises LayoutError where the maps' layers, groups or extents differ.
    """

    def __init__(self, writer: AddressMap, reader: AddressMap):
        for name, one in (("writer", writer), ("reader", reader)):
            if not isinstance(one, AddressMap):
                raise LayoutError(name, one, "must be an AddressMap", "Give a plan's address_map")
        if writer.layers != reader.layers:
            raise LayoutError("reader", reader.layers, f"must have the writer's layers, {writer.layers}")
        for name in writer.layers:
            ours, theirs = writer.region(name), reader.region(name)
            if ours.group != theirs.group or writer.shape(name) != reader.shape(name):
                raise LayoutError("reader", reader.shape(name), f"must see layer {name} as the writer does, as "
                                  f"{writer.shape(name)} (B, H, N, C bytes) in group {ours.group}",
                                  "Compare maps of the same blocks and kernel blocks")
        self.writer, self.reader = writer, reader
        self._kinds: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def __repr__(self) -> str:
        return f"WrongReader(written {self.writer.layout.name}, read {self.reader.layout.name})"

    def shares(self, layers: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """Return the share (0 to 1) of each page's bytes that is read from a wrong place, [layers, blocks].

        ``layers`` and ``blocks``: indices, 1-D. NaN stands where a layer has no such block, or no bytes. Raises
        LayoutError for a layer that isn't there, and for what is no index.
        """
        layers, blocks = _indices("layers", layers), _indices("blocks", blocks)
        found = np.full((len(layers), len(blocks)), np.nan)
        for row, layer in enumerate(layers.tolist()):
            shape = self.writer.shape(layer)
            if 0 in shape:
                continue
            here = blocks < shape[0]
            found[row, here] = 1 - self._right(layer, -self._page_moved(layer, blocks[here]))
        return found

    def cells(self, layer: str | int, block: int, heads: int | None = None, states: int | None = None) -> np.ndarray:
        """Return the share of wrongly read bytes of one page by cell, [head slots, states].

        ``heads``, ``states``: how many of them, from the first on; None for all. LayoutError for more
        than are listed.
        """
        index = self.writer.layer_index(layer)
        block = check_int("block", block, minimum=0)
        self.writer.offset(index, block)
        _, *extents, content = self.writer.shape(index)
        heads, states = (n if given is None else min(n, check_int(name, given, minimum=0)) for name, given, n in
                         zip(("heads", "states"), (heads, states), extents))
        if heads * states > _MOST_CELLS:
            raise LayoutError("states", states, f"are {heads * states:,} cells; at most {_MOST_CELLS:,} are listed",
                              "Ask for the first heads and states")
        moved = self._page_moved(index, np.array([block]))[0]
        if not self._is_plain(index):
            return (self._inner_moved(index)[:heads, :states] + moved != 0).mean(axis=2)
        of_head, of_state, of_byte = self._steps(index)
        moved = moved + np.arange(heads)[:, None] * of_head + np.arange(states) * of_state
        if not of_byte or content <= 1:
            return (moved != 0).astype(float)
        hit, rest = np.divmod(-moved, of_byte)  # the byte that is read rightly, if it is one of the cell's
        return 1 - ((rest == 0) & (hit >= 0) & (hit < content)) / content

    def reads(self, layer: str | int, block: int, head: int = 0, state: int = 0, byte: int = 0) -> Owner | None:
        """Return whose byte the reader takes for this coordinate; None for padding and outside the allocation."""
        index = self.writer.layer_index(layer)
        at = [check_int(name, value, minimum=0) for name, value in
              (("block", block), ("head", head), ("state", state), ("byte", byte))]
        offset = self.reader.offset(index, *at)
        group = self.writer.region(index).group
        return next((owner for owner in self.writer.owners(offset) if owner.group == group), None)

    @property
    def is_right(self) -> bool:
        """Whether every coordinate is read from where it was written."""
        # Two blocks tell: a wrong step from block to block shows in the second one.
        return all(not np.nan_to_num(self.shares([index], np.arange(min(2, self.writer.shape(index)[0])))).any()
                   for index in range(len(self.writer.layers)))

    def _right(self, layer: int, wanted: np.ndarray) -> np.ndarray:
        """The share of a page that is read at each of these distances from the page's own."""
        if self._is_plain(layer):
            extents = self.writer.shape(layer)[1:]
            return count_sums(extents, self._steps(layer), wanted) / math.prod(extents)
        values, right = self._moved(layer)
        place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
        return np.where(values[place] == wanted, right[place], 0)

    def _is_plain(self, layer: int) -> bool:
        return all(one.region(layer).interior.scope == "state" for one in (self.writer, self.reader))

    def _steps(self, layer: int) -> tuple[int, ...]:
        """Bytes by which one more head slot, state and byte is read further away than it was written."""
        return tuple(theirs - ours for ours, theirs in
                     zip(*(one.strides(layer)[1:] for one in (self.writer, self.reader))))

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
        """Bytes from where each byte of a page was written to where it is read, page starts aside: [H, N, C]."""
        _, heads, states, content = self.writer.shape(layer)
        if heads * states * content > _MOST_BYTES:
            raise LayoutError("block_size", states, f"states make a page of {heads * states * content:,} bytes in an "
                              f"order of its own; at most {_MOST_BYTES:,} are compared", "Choose smaller blocks")
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


def _indices(name: str, values: object) -> np.ndarray:
    array = integers(name, values, ndim=1)
    if array.size and array.min() < 0:
        raise LayoutError(name, values, "must be at least 0")
    return array


def compare_readers(plan: Plan, layout: KVCacheLayout | str) -> WrongReader:
    """Return what a reader sees that takes ``layout`` for the layout of the plan's cache.

    The reader's tensors are those that vLLM would place for the same groups and blocks in ``layout``. Where
    its kernel blocks can't be split as the plan's, both are compared in whole blocks. Raises LayoutError where
    ``layout`` can't express the groups' pages.
    """
    if not isinstance(plan, Plan):
        raise LayoutError("plan", plan, "must be a Plan", "Give what make_plan returned")
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
