"""Lints of live tensors alone, {layer: tensor}: what shapes, strides and pointers say without any config.

Tensors are asked for .shape, .stride() in elements, .element_size(), .data_ptr(), .storage_offset() and
.untyped_storage().nbytes(); torch isn't needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvlayout.clinic.alignment import Alignment, alignment_note, misaligned, power_of_two, residues, singleton_finding
from kvlayout.clinic.interleaved import meets_itself
from kvlayout.clinic.limits import limit_rows, lint_limits
from kvlayout.errors import LayoutError, check_int
from kvlayout.finding import Finding
from kvlayout.strided import StridedSet, first_shared

_MOST_PAIRS = 1 << 14


@dataclass(frozen=True)
class LiveView:
    """A tensor as facts: ``strides`` and ``offset`` (from its storage's start) in bytes, ``storage_bytes`` long."""

    layer: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    address: int
    offset: int
    storage_bytes: int

    @property
    def storage(self) -> int:
        """Address of its storage's first byte."""
        return self.address - self.offset

    @property
    def addresses(self) -> StridedSet:
        """Its bytes, from the storage's start."""
        return StridedSet(self.offset, (*self.shape, self.item_bytes), (*self.strides, 1))


def live_view(layer: str, tensor: object) -> LiveView:
    """Return the facts of one tensor; LayoutError for what isn't one."""
    try:
        item = check_int("element_size", tensor.element_size(), minimum=1)
        shape = tuple(check_int("shape", n, minimum=0) for n in tensor.shape)
        strides = tuple(check_int("stride", n, minimum=0) * item for n in tensor.stride())
        offset = check_int("storage_offset", tensor.storage_offset(), minimum=0) * item
        address = check_int("data_ptr", tensor.data_ptr(), minimum=0)
        size = check_int("storage", tensor.untyped_storage().nbytes(), minimum=0)
    except LayoutError as error:
        raise LayoutError(f"tensors[{layer!r}].{error.argument}", error.value, error.rule, error.cure) from None
    except Exception as error:  # whatever a stranger's object raises when it is asked like a tensor
        raise LayoutError(f"tensors[{layer!r}]", type(tensor).__name__,
                          f"can't be asked like a tensor: {error!r}"[:300],
                          "Give tensors with .shape, .stride(), .element_size(), .data_ptr(), .storage_offset() and "
                          ".untyped_storage()") from None
    if len(shape) != len(strides):
        raise LayoutError(f"tensors[{layer!r}]", shape, f"has {len(shape)} axes, but {len(strides)} strides")
    # A tensor on "meta" has no address; its offset stands in.
    return LiveView(str(layer), shape, strides, item, address or offset, offset, size)


def lint_tensors(tensors: Mapping[str, object]) -> list[Finding]:
    """Return the findings of live tensors, in no order of severity. LayoutError for an empty dict or no tensors."""
    if not tensors:
        raise LayoutError("subject", tensors, "must hold at least one layer's tensor")
    views = [live_view(layer, tensor) for layer, tensor in tensors.items()]
    found = []
    for view in views:
        if 0 in view.shape:
            continue
        if view.addresses.end > view.storage_bytes:
            found.append(_outside(view))
        met = meets_itself(view.addresses)
        if met:
            found.append(_self_overlap(view))
        elif met is None:
            found.append(Finding("sharing-unproven", "note", f"Whether coordinates of {view.layer} share bytes is "
                                 "not decided: too many pieces to compare.", {"strides": list(view.strides)},
                                 {"layer": view.layer}))
    found += _shared(views)
    for layers, view in _alike(views):
        if not view.shape or 0 in view.shape:
            continue
        found += _alignment(layers, view)
        axis = _block_axis(view.shape)
        if view.strides[axis]:
            last = sum((n - 1) * s for n, s in zip(view.shape, view.strides)) + view.item_bytes - 1
            found += lint_limits(limit_rows(layers, view.item_bytes, view.strides[axis], view.shape[axis], last))
    storages = {view.storage for view in views}
    if len(storages) > 1:
        found.append(Finding("storages", "note", f"{len(views):,} tensors lie in {len(storages):,} storages: each "
                             "must be registered, and no offset leads from one to another.",
                             {"tensors": len(views), "storages": len(storages)}))
    return found


def _block_axis(shape: tuple[int, ...]) -> int:
    """Axis 0 of a view [B, H, N, C]; of any other shape the longest, for older caches put K and V first."""
    return 0 if len(shape) == 4 else max(range(len(shape)), key=lambda axis: shape[axis])


def _alike(views: list[LiveView]) -> list[tuple[list[str], LiveView]]:
    """Layers whose shape, strides and alignment agree, with one of them."""
    kinds: dict[tuple, tuple[list[str], LiveView]] = {}
    for view in views:
        key = (view.shape, view.strides, view.item_bytes, power_of_two(view.address), view.address % 16)
        kinds.setdefault(key, ([], view))[0].append(view.layer)
    return list(kinds.values())


def _alignment(layers: list[str], view: LiveView) -> list[Finding]:
    axes = list(zip(view.shape, view.strides))[:-1]
    start = np.array([view.address % (1 << 20)], dtype=np.int64)
    common = math.gcd(int(start[0]), *(stride for count, stride in axes if count > 1))
    size = view.shape[-1] * view.item_bytes
    row = Alignment(tuple(layers), "row", size, power_of_two(common), 16, residues(start, axes, 16),
                    {"layer": layers[0]})
    found = [alignment_note(layers, [row])]
    if row.aligned_to < 16 <= size:
        found.append(misaligned(layers, [row]))
    names = ("block", "head", "state") if len(view.shape) == 4 else tuple(f"axis {i}" for i in range(len(axes)))
    return found + [singleton_finding(layers, name, stride) for name, (count, stride) in zip(names, axes)
                    if count == 1 and stride % 16]


def _outside(view: LiveView) -> Finding:
    end, size = view.addresses.end, view.storage_bytes
    axis = _block_axis(view.shape)
    rest = end - (view.shape[axis] - 1) * view.strides[axis]
    block = max(0, -(-(size - rest + 1) // view.strides[axis])) if view.strides[axis] else 0
    return Finding("view-outside", "error", f"The tensor of {view.layer} ends at byte {end:,} of its storage of "
                   f"{size:,} bytes, {end - size:,} past it; the first block to leave it is {block:,}.",
                   {"end": end, "storage_bytes": size, "past_end_bytes": end - size, "shape": list(view.shape),
                    "strides": list(view.strides)}, {"layer": view.layer, "block": block},
                   "Allocate more, or view fewer blocks")


def _self_overlap(view: LiveView) -> Finding:
    return Finding("self-overlap", "error", f"The strides {view.strides} of {view.layer} (bytes, shape {view.shape}) "
                   "give several coordinates one byte.", {"shape": list(view.shape), "strides": list(view.strides)},
                   {"layer": view.layer}, "Make each stride at least the span of all smaller ones")


def _shared(views: list[LiveView]) -> list[Finding]:
    """One finding on layers that share bytes: whether they may, only their groups can tell."""
    known: dict[tuple, bool | None] = {}
    pairs, first, unknown = 0, None, 0
    views = sorted((view for view in views if 0 not in view.shape), key=lambda view: (view.storage, view.offset))
    for i, a in enumerate(views):
        one = a.addresses
        for b in views[i + 1:]:
            if a.storage != b.storage or b.offset >= one.end:
                break
            key = (a.shape, a.strides, a.item_bytes, b.shape, b.strides, b.item_bytes, b.offset - a.offset)
            if key not in known and len(known) < _MOST_PAIRS:
                try:
                    known[key] = first_shared(one, b.addresses) is not None
                except LayoutError:
                    known[key] = None
            met = known.get(key)
            unknown += met is None
            if met:
                pairs += 1
                first = first or (a, b)
    found = []
    if first:
        a, b = first
        found.append(Finding("shared-bytes", "warning", f"{pairs:,} pairs of layers share bytes, such as {a.layer} "
                             f"and {b.layer}: legal for layers of different groups only.",
                             {"pairs": pairs, "first": a.layer, "second": b.layer}, {"layer": a.layer},
                             "Lint the KVCacheConfig, which knows the groups"))
    if unknown:
        found.append(Finding("sharing-unproven", "note", f"Whether {unknown:,} pairs of layers share bytes is not "
                             "decided.", {"pairs": unknown}))
    return found


def lint_views(cache: object) -> list[Finding]:
    """Return how a KVCache's views differ from its own address map: start, shape and strides in bytes."""
    address_map, found = cache.address_map, []
    buffer = live_view("buffer", cache.buffer)
    if buffer.shape[0] * buffer.item_bytes < address_map.size_bytes:
        found.append(Finding("buffer-short", "error", f"The buffer has {buffer.shape[0]:,} bytes, the config needs "
                             f"{address_map.size_bytes:,}.",
                             {"nbytes": buffer.shape[0], "size_bytes": address_map.size_bytes}))
    for layer, tensor in cache.views.items():
        view = live_view(layer, tensor)
        if 0 in view.shape:
            continue
        region, index = address_map.region(layer), address_map.layer_index(layer)
        start = region.geometry.offset + region.layers.tolist().index(index) * region.geometry.strides[0]
        *counts, content = address_map.shape(layer)
        expected = (start, (*counts, content // view.item_bytes),
                    tuple(s for n, s in zip(counts, address_map.strides(layer)) if n > 1))
        actual = (view.offset - buffer.offset, view.shape,
                  tuple(s for n, s in zip(view.shape[:3], view.strides[:3]) if n > 1))
        if actual != expected:
            found.append(Finding(
                "view-differs", "error", f"The view of {layer} begins at byte {actual[0]:,} with shape {actual[1]} "
                f"and strides {actual[2]} bytes; its config says {expected[0]:,}, {expected[1]}, {expected[2]}.",
                {"offset": actual[0], "expected_offset": expected[0], "shape": list(actual[1]),
                 "expected_shape": list(expected[1])}, {"layer": layer}, "Make the views anew from the config"))
    return found
