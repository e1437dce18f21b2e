"""One tensor of a config with the spec, geometry and interior of its layers: the unit an AddressMap is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvlayout.config import KVCacheConfig, KVCacheTensor
from kvlayout.errors import LayoutError
from kvlayout.geometry import Geometry, tensor_geometry
from kvlayout.interior import Interior, default_interior
from kvlayout.layout import KVCacheLayout
from kvlayout.spec import KVCacheSpec
from kvlayout.strided import StridedSet, merge_runs


@dataclass(frozen=True, eq=False)
class Region:
    """A tensor's layers [L, B, H, N, C] in memory; ``layers`` are their indices in the whole config."""

    tensor: KVCacheTensor
    tensor_index: int
    group: int
    spec: KVCacheSpec
    page_size_bytes: int
    geometry: Geometry
    interior: Interior
    layers: np.ndarray
    addresses: StridedSet

    def inner_offsets(self, head: np.ndarray, state: np.ndarray, byte: np.ndarray) -> np.ndarray:
        """Return bytes from the page's first byte to logical coordinates (1-D arrays)."""
        _, _, head_stride, state_stride, byte_stride = self.geometry.strides
        if self.interior.scope == "state":
            return head * head_stride + state * state_stride + byte * byte_stride
        found = np.empty(len(head), dtype=np.int64)
        for slot in np.unique(head):
            here = head == slot
            position = self.interior.positions(int(slot), state[here], byte[here])
            if self.interior.scope == "cell":
                row, rest = np.divmod(position, self.geometry.shape[4])
                position = slot * head_stride + row * state_stride + rest * byte_stride
            found[here] = position
        return found

    def logical(self, offset: int, local: Sequence[int]) -> tuple[int, int, int]:
        """Return (head, state, byte) of a byte whose place in the container view is ``local``."""
        _, _, heads, states, content = self.geometry.shape
        layer, block, head, row, column = local
        if self.interior.scope == "state":
            return head, row, column
        if self.interior.scope == "cell":
            state, byte = self.interior.cell_coordinates(head, states, np.array([row * content + column]))
            return head, int(state[0]), int(byte[0])
        page = self.geometry.offset + layer * self.geometry.strides[0] + block * self.geometry.strides[1]
        return tuple(int(part[0]) for part in self.interior.coordinates(heads, states, np.array([offset - page])))

    def locate(self, offsets: np.ndarray, axes: list[np.ndarray]) -> np.ndarray:
        """Write (layer index in the config, block, head, state, byte) of each offset; return who is inside."""
        if not self.addresses.is_nested:
            raise LayoutError("kv_cache_tensors", self.tensor, "gives several coordinates the same byte",
                              "Look single bytes up with owners(), or mend the strides")
        inside = self.addresses.indices(offsets, axes)
        if self.interior.scope != "state":
            self._to_logical(offsets, axes, np.flatnonzero(inside))
        if len(self.layers) == 1:
            axes[0][:] = self.layers[0]
        elif self.layers[0] or self.layers[-1] != len(self.layers) - 1:
            hit = np.flatnonzero(inside)
            axes[0][hit] = self.layers[axes[0][hit]]
        axes[0][~inside] = -1
        return inside

    def _to_logical(self, offsets, axes, hit):
        layer, block, head, row, column = (axis[hit].astype(np.int64) for axis in axes)
        _, _, heads, states, content = self.geometry.shape
        if self.interior.scope == "page":
            page = self.geometry.offset + layer * self.geometry.strides[0] + block * self.geometry.strides[1]
            axes[2][hit], axes[3][hit], axes[4][hit] = self.interior.coordinates(heads, states, offsets[hit] - page)
            return
        for slot in np.unique(head):
            here = hit[head == slot]
            position = axes[3][here].astype(np.int64) * content + axes[4][here]
            axes[3][here], axes[4][here] = self.interior.cell_coordinates(int(slot), states, position)

    def runs(self, chosen: list[np.ndarray | None], most: int) -> tuple[np.ndarray, np.ndarray | int]:
        """Return (starts, length or lengths) in bytes of chosen (layer, block, head, state) indices."""
        scope = self.interior.scope
        whole = scope == "state" or (chosen[3] is None and (scope == "cell" or chosen[2] is None))
        counts = [n if c is None else len(c) for n, c in zip(self.geometry.shape, chosen)]
        if whole:
            _check_number(self.addresses.count_runs([*chosen, None]), most)
            return self.addresses.runs([*chosen, None])
        pages = math.prod(counts[:2])
        _check_number(pages, most)
        heads = range(self.geometry.shape[2]) if chosen[2] is None else chosen[2]
        states = np.arange(self.geometry.shape[3]) if chosen[3] is None else chosen[3]
        inner = [self._inner_starts(int(head), states) for head in heads]
        starts = np.sort(np.concatenate(inner))
        starts, lengths = merge_runs(starts, np.ones(len(starts), dtype=np.int64))
        _check_number(pages * len(starts), most)
        grid = StridedSet(self.geometry.offset, (*self.geometry.shape[:2], 1), (*self.geometry.strides[:2], 1))
        at, _ = grid.runs([_all(chosen[0], counts[0]), _all(chosen[1], counts[1]), None])
        return (at[:, None] + starts).ravel(), np.tile(lengths, len(at))

    def _inner_starts(self, head: int, states: np.ndarray) -> np.ndarray:
        content = self.geometry.shape[4]
        state = np.repeat(states, content)
        byte = np.tile(np.arange(content), len(states))
        return self.inner_offsets(np.full(len(state), head), state, byte)


def _check_number(runs: int, most: int) -> None:
    if runs > most:
        raise LayoutError("runs", runs, "are more runs than can be listed", "Choose fewer blocks or layers")


def _all(choice: np.ndarray | None, extent: int) -> np.ndarray:
    return np.arange(extent) if choice is None else choice


def make_regions(
    config: KVCacheConfig,
    layout: KVCacheLayout,
    kernel_block_sizes: Sequence[int | None] | None,
    interiors: dict[str, Interior],
    layer_index: dict[str, int],
) -> list[Region]:
    """Return one region a tensor; LayoutError where a tensor's layers are unknown, repeated or of several specs."""
    if kernel_block_sizes is None:
        kernel_block_sizes = [None] * len(config.kv_cache_groups)
    if not isinstance(kernel_block_sizes, Sequence) or len(kernel_block_sizes) != len(config.kv_cache_groups):
        raise LayoutError("kernel_block_sizes", kernel_block_sizes,
                          f"must be a list of one for each of the {len(config.kv_cache_groups)} groups")
    if not isinstance(interiors, dict) or not all(isinstance(one, Interior) for one in interiors.values()):
        raise LayoutError("interiors", interiors, "must be a dict {layer: Interior}", "Give plan.interiors")
    specs, groups = config.layer_specs, {}
    for index, group in enumerate(config.kv_cache_groups):
        for name in group.layer_names:
            if name in groups:
                raise LayoutError("kv_cache_groups", name, "is named twice", "A layer is in one group, once")
            groups[name] = index
    regions, seen = [], set()
    for index, tensor in enumerate(config.kv_cache_tensors):
        for name in tensor.layers:
            if name not in specs or name in seen:
                raise LayoutError("kv_cache_tensors", name, "is in several tensors" if name in seen else
                                  "is a tensor's layer, but of no group")
            seen.add(name)
        if not tensor.layers:
            raise LayoutError(f"kv_cache_tensors[{index}]", tensor, "has no layers",
                              "Leave out a tensor that nobody uses")
        first = tensor.layers[0]
        if any(specs[name] != specs[first] or groups[name] != groups[first] for name in tensor.layers):
            raise LayoutError("kv_cache_tensors", list(tensor.layers), "must be layers of one group and one spec")
        regions.append(_make_region(tensor, index, groups[first], specs[first], config.num_blocks, layout,
                                    kernel_block_sizes[groups[first]], interiors.get(first), layer_index))
    return regions


def _make_region(tensor, index, group, spec, num_blocks, layout, kernel_block_size, interior, layer_index):
    kernel_spec = spec if kernel_block_size is None else spec.copy_with_new_block_size(kernel_block_size)
    if kernel_spec.num_states * (spec.block_size // kernel_spec.block_size) != spec.num_states:
        raise LayoutError("kernel_block_size", kernel_block_size,
                          f"must hold whole states: a block of {spec.block_size} tokens has {spec.num_states}, "
                          f"a kernel block {kernel_spec.num_states}", "Don't split this group")
    if num_blocks:
        geometry = tensor_geometry(spec, num_blocks, layout, tensor, kernel_block_size)
    else:
        content = (kernel_spec.num_heads, kernel_spec.num_states, kernel_spec.state_content_size_bytes)
        geometry = Geometry((len(tensor.layers), 0, *content), (0, 0, 0, 0, 1), tensor.offset)
    last = geometry.offset + sum(max(n - 1, 0) * stride for n, stride in zip(geometry.shape, geometry.strides))
    if max(last, *geometry.strides, *geometry.shape) >= 2**63:
        raise LayoutError("num_blocks", num_blocks, f"needs addresses beyond 63 bits: {tensor.layers[0]} would end "
                          f"at byte {last + 1:,}", "Plan fewer or smaller blocks")
    addresses = StridedSet(geometry.offset, geometry.shape, geometry.strides)
    if kernel_spec.block_size != spec.block_size and not addresses.is_nested:
        raise LayoutError("kernel_block_size", kernel_block_size,
                          f"can't be expressed in {layout.name}: head slots would lie {geometry.strides[2]:,} bytes "
                          f"apart and kernel blocks {geometry.strides[1]:,}",
                          "Don't split this group, or use LBNHC or LBHNC")
    interior = default_interior(spec) if interior is None else interior.check(kernel_spec)
    if interior.scope == "page" and not layout.is_block_compact:
        raise LayoutError("layout", layout.name, "scatters a page whose interior needs it contiguous",
                          "Use a layout whose two outermost axes are L and B")
    return Region(tensor, index, group, spec, kernel_spec.page_size_bytes, geometry, interior,
                  np.array([layer_index[name] for name in tensor.layers], dtype=np.int32), addresses)
