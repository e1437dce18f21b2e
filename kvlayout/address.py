"""Coordinates to byte offsets and back, for everything that lies in one KV cache allocation.

Law: ``owners(offset(layer, block, head, state, byte))`` holds exactly that coordinate in the layer's group, and
every byte of the allocation is either owned in a group or named padding there. All addresses are 64-bit byte
offsets from the start of the backing allocation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvlayout.arrays import integers
from kvlayout.config import KVCacheConfig, KVCacheTensor
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.interior import Interior
from kvlayout.layout import KVCacheLayout, as_layout
from kvlayout.ownership import Located, Overlap, Owner, Padding
from kvlayout.region import Region, make_regions
from kvlayout.strided import first_shared, merge_runs

_MOST_RUNS = 1 << 25


class AddressMap:
    """The address map of a config.

    ``kernel_block_sizes``: tokens, one a group (None: not split); blocks are then counted in kernel blocks.
    ``interiors``: {layer: Interior} where the backend doesn't keep the default one.
    Raises LayoutError where the config's tensors and groups contradict each other or the layout.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        layout: KVCacheLayout | None = None,
        kernel_block_sizes: Sequence[int | None] | None = None,
        interiors: dict[str, Interior] | None = None,
    ):
        check_type("kv_cache_config", kv_cache_config, KVCacheConfig)
        self.config = kv_cache_config
        self.layout = as_layout(kv_cache_config.kv_cache_layout if layout is None else layout)
        self.size_bytes = kv_cache_config.size_bytes
        self.layers = tuple(kv_cache_config.layer_specs)
        self._index = {name: index for index, name in enumerate(self.layers)}
        self.kernel_block_sizes = kernel_block_sizes
        self.regions = make_regions(kv_cache_config, self.layout, kernel_block_sizes, interiors or {}, self._index)
        # Behind the regions, which name the block count where that is too large.
        if self.size_bytes >= 2**63:
            raise LayoutError("kv_cache_tensors", self.size_bytes, "is a size of 2^63 bytes or more",
                              "Give the tensors' size in bytes, as allocated")
        self._region_of: list[Region] = [None] * len(self.layers)
        self._base = np.zeros(len(self.layers), dtype=np.int64)
        self._strides = np.zeros((len(self.layers), 4), dtype=np.int64)
        self._extents = np.zeros((len(self.layers), 4), dtype=np.int64)
        for region in self.regions:
            for local, index in enumerate(region.layers):
                self._region_of[index] = region
                self._base[index] = region.geometry.offset + local * region.geometry.strides[0]
            self._strides[region.layers] = region.geometry.strides[1:]
            self._extents[region.layers] = region.geometry.shape[1:]
        if None in self._region_of:
            raise LayoutError("kv_cache_tensors", self.layers[self._region_of.index(None)],
                              "is a layer of a group, but of no tensor",
                              "Give every layer of every group a place in one tensor")
        self._has_plain_interiors = all(region.interior.scope == "state" for region in self.regions)

    def __repr__(self) -> str:
        shapes = "; ".join(f"{len(r.layers)} x {r.geometry.shape[1:]} at {r.geometry.offset} by {r.geometry.strides}"
                           for r in self.regions)
        return f"AddressMap({self.layout.name}, {self.size_bytes:,} bytes: {shapes})"

    @property
    def end_of_use(self) -> int:
        """Byte behind the last one that any layer owns."""
        return max((region.addresses.end for region in self.regions), default=0)

    def layer_index(self, layer: str | int) -> int:
        """Return the index of a layer in ``layers``, given by name or index."""
        if isinstance(layer, str):
            if layer not in self._index:
                raise LayoutError("layer", layer, "is not a layer of this config",
                                  f"Use one of {', '.join(self.layers[:4])}{' ...' if len(self.layers) > 4 else ''}")
            return self._index[layer]
        index = check_int("layer", layer, minimum=0)
        if index >= len(self.layers):
            raise LayoutError("layer", layer, f"must be below the {len(self.layers)} layers of this config")
        return index

    def region(self, layer: str | int) -> Region:
        """Return the region (tensor, spec, geometry, interior) that ``layer`` lies in."""
        return self._region_of[self.layer_index(layer)]

    def shape(self, layer: str | int) -> tuple[int, int, int, int]:
        """Return (B, H, N, C bytes) of one layer; B and N count kernel blocks where those split it."""
        return tuple(int(n) for n in self._extents[self.layer_index(layer)])

    def strides(self, layer: str | int) -> tuple[int, int, int, int]:
        """Return the byte strides of one layer's (B, H, N, C)."""
        return tuple(int(n) for n in self._strides[self.layer_index(layer)])

    def offset(self, layer, block, head=0, state=0, byte=0):
        """Return the byte offset of a coordinate, or an int64 array of them.

        ``layer`` is a name, or an index (or array of indices) into ``layers``; the rest are ints or integer
        arrays; all are broadcast. Raises LayoutError naming the coordinate that is out of range.
        """
        layer = self.layer_index(layer) if isinstance(layer, str) else layer
        index = [integers(name, value) for name, value in
                 zip(("layer", "block", "head", "state", "byte"), (layer, block, head, state, byte))]
        _check_range("layer", index[0], len(self.layers))
        extents, strides = self._extents[index[0]], self._strides[index[0]]
        for axis, name in enumerate(("block", "head", "state", "byte")):
            _check_range(name, index[axis + 1], extents[..., axis])
        found = self._base[index[0]]
        if self._has_plain_interiors:
            for axis in range(4):
                found = found + index[axis + 1] * strides[..., axis]
        else:
            layer, block, head, state, byte = np.broadcast_arrays(*index)
            found = found + block * strides[..., 0]
            inner = np.empty(found.shape if found.shape else (1,), dtype=np.int64)
            flat = [np.atleast_1d(a) for a in (layer, head, state, byte)]
            for region in self.regions:
                here = np.isin(flat[0], region.layers)
                if here.any():
                    inner[here] = region.inner_offsets(*(a[here] for a in flat[1:]))
            found = found + inner.reshape(found.shape)
        return int(found) if np.ndim(found) == 0 else found

    def owners(self, offset: int) -> list[Owner]:
        """Return the owners of one byte, one per group that owns it; none for padding or out of the allocation.

        A broken config in which one group's layers share bytes gives several for that group.
        """
        offset = check_int("offset", offset, minimum=0)
        found = []
        for region in self.regions:
            for local in region.addresses.all_indices(offset):
                head, state, byte = region.logical(offset, local)
                name, element = region.interior.field_of(head, byte)
                found.append(Owner(region.tensor.layers[local[0]], local[1], head, state, byte, name, element,
                                   region.tensor_index, region.group))
        return sorted(found, key=lambda owner: owner.group)

    def locate(self, offsets: np.ndarray, group: int = 0) -> Located:
        """Return the owners in ``group`` of an integer array of byte offsets (any shape), as int32 arrays."""
        if not 0 <= check_int("group", group, minimum=0) < max(1, len(self.config.kv_cache_groups)):
            raise LayoutError("group", group, f"must be below the {len(self.config.kv_cache_groups)} groups")
        offsets = integers("offsets", offsets)
        flat = np.ascontiguousarray(offsets).reshape(-1)
        axes = [np.empty(len(flat), dtype=np.int32) for _ in range(5)]
        tensor = np.full(len(flat), -1, dtype=np.int32)
        regions = [region for region in self.regions if region.group == group]
        if len(regions) == 1:
            tensor[regions[0].locate(flat, axes)] = regions[0].tensor_index
        else:
            axes[0][:] = -1
            for region in regions:
                todo = np.flatnonzero(tensor < 0)
                parts = [np.empty(len(todo), dtype=np.int32) for _ in range(5)]
                inside = region.locate(flat[todo], parts)
                hit = todo[inside]
                for axis, part in zip(axes, parts):
                    axis[hit] = part[inside]
                tensor[hit] = region.tensor_index
        if not regions:
            axes[0][:] = -1
        shape = offsets.shape
        return Located(*(axis.reshape(shape) for axis in axes), tensor.reshape(shape))

    def padding_of(self, offset: int) -> list[Padding]:
        """Return what an unowned byte is padding of, one entry for each group that doesn't own it."""
        offset = check_int("offset", offset, minimum=0)
        if offset >= self.size_bytes:
            raise LayoutError("offset", offset, f"is past the end of the allocation of {self.size_bytes:,} bytes")
        owned = {owner.group for owner in self.owners(offset)}
        return [self._padding_in(group, offset) for group in range(len(self.config.kv_cache_groups))
                if group not in owned]

    def _padding_in(self, group: int, offset: int) -> Padding:
        start, end, region, local = 0, self.size_bytes, None, None
        for candidate in self.regions:
            if candidate.group != group:
                continue
            below, above = candidate.addresses.floor(offset), candidate.addresses.ceil(offset)
            if below is not None and candidate.addresses.at(below) + 1 > start:
                start, region, local = candidate.addresses.at(below) + 1, candidate, below
            if above is not None:
                end = min(end, above)
        if region is None:
            return Padding(group, "pool", None, -1, start, end)
        strides = region.geometry.strides
        page = region.geometry.offset + local[0] * strides[0] + local[1] * strides[1]
        kind = "pool"
        if self.layout.is_block_compact and offset < page + region.page_size_bytes:
            kind = "page"
        elif self.layout.is_block_outermost and offset < region.geometry.offset + (local[1] + 1) * strides[1]:
            kind = "block"
        return Padding(group, kind, region.tensor.layers[local[0]], local[1], start, end)

    def runs(self, layer=None, block=None, head=None, state=None) -> list[tuple[int, int]]:
        """Return the contiguous byte runs (offset, length) of a selection, merged, in address order.

        Each argument is None (all), one index (``layer`` also by name) or a sequence of them. Bytes that several
        groups own count once.
        """
        starts, lengths = self.run_arrays(layer, block, head, state)
        return list(zip(starts.tolist(), lengths.tolist()))

    def run_arrays(self, layer=None, block=None, head=None, state=None) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`runs`, as two int64 arrays: offsets and lengths in bytes."""
        wanted = None
        if layer is not None:
            listed = [layer] if isinstance(layer, (str, int, np.integer)) else layer
            wanted = {self.layer_index(one) for one in listed}
        all_starts, all_lengths = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for region in self.regions:
            local = None if wanted is None else np.flatnonzero(np.isin(region.layers, list(wanted)))
            chosen = [local]
            for axis, (name, choice) in enumerate((("block", block), ("head", head), ("state", state)), start=1):
                if choice is None or (local is not None and len(local) == 0):
                    chosen.append(None)
                    continue
                indices = np.unique(np.atleast_1d(integers(name, choice)))
                _check_range(name, indices, region.geometry.shape[axis])
                chosen.append(indices)
            starts, length = region.runs(chosen, _MOST_RUNS - sum(map(len, all_starts)))
            all_starts.append(starts)
            all_lengths.append(np.broadcast_to(np.asarray(length, dtype=np.int64), starts.shape))
        return merge_runs(np.concatenate(all_starts), np.concatenate(all_lengths))

    def overlaps(self) -> list[Overlap]:
        """Return the pairs of tensors that share bytes; legal where their groups differ."""
        found = []
        for i, a in enumerate(self.regions):
            for b in self.regions[i + 1:]:
                shared = first_shared(a.addresses, b.addresses)
                if shared is not None:
                    found.append(Overlap(a.tensor_index, b.tensor_index, shared, a.group != b.group))
        return found

    def tensor(self, index: int) -> KVCacheTensor:
        """Return the config's tensor of that index."""
        return self.config.kv_cache_tensors[index]


def _check_range(name: str, index: np.ndarray, extent) -> None:
    wrong = (index < 0) | (index >= extent)
    if np.any(wrong):
        shown = np.broadcast_to(index, wrong.shape)[wrong].flat[0]
        limit = np.broadcast_to(np.asarray(extent), wrong.shape)[wrong].flat[0]
        raise LayoutError(name, int(shown), f"must be at least 0 and below {int(limit):,}")
