"""Which bytes of a span are a coordinate's own, in closed form.

A coordinate is what a formula names: (layer, block) alone is a page, (block) alone that block of every layer. Its
own bytes are all that agree with it in the named indices, and with them the padding of its own pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.clinic.counting import count_within
from kvlayout.clinic.formula_names import AXES, item_bytes, kernel_blocks_per_block
from kvlayout.errors import LayoutError
from kvlayout.region import Region
from kvlayout.strided import StridedSet


@dataclass(frozen=True, eq=False)
class Spans:
    """Bytes [begin, end) that the formula touches at coordinates of one tensor's layers; flat int64 arrays.

    ``at``: the coordinate's indices; "layer" counts inside the tensor. ``named``: the axes that make it up.
    """

    region: Region
    named: frozenset[str]
    at: Mapping[str, np.ndarray]
    begin: np.ndarray
    end: np.ndarray

    def some(self, which: np.ndarray) -> Spans:
        """Return a part of them."""
        return Spans(self.region, self.named, {name: index[which] for name, index in self.at.items()},
                     self.begin[which], self.end[which])


def joined(spans: list[Spans]) -> Spans:
    """Return the spans of several layers of one tensor as one."""
    return Spans(spans[0].region, spans[0].named,
                 {axis: np.concatenate([one.at[axis] for one in spans]) for axis in AXES},
                 np.concatenate([one.begin for one in spans]), np.concatenate([one.end for one in spans]))


def allowed_bytes(address_map: AddressMap, spans: Spans) -> np.ndarray:
    """Return how many bytes of each span are its coordinate's own content or padding."""
    found = own_padding(address_map, spans)
    for region in _own_regions(address_map, spans):
        found = found + own_content(spans, region)
    return found


def own_content(spans: Spans, region: Region, layer: int | None = None) -> np.ndarray:
    """Return how many bytes of each span are own content in ``region``, in one ``layer`` of it (None: in any)."""
    found = _own_in_layers(spans, region, layer)
    if layer is not None and "layer" in spans.named:
        found = np.where(spans.at["layer"] == layer, found, 0)
    return found


def _own_in_layers(spans: Spans, region: Region, layer: int | None) -> np.ndarray:
    inner = spans.named & {"head", "token", "element"}
    if region.interior.scope != "state" and inner and not (region.interior.scope == "cell" and inner == {"head"}):
        return _own_by_position(spans, region)
    extents, strides = list(region.geometry.shape), region.geometry.strides
    shift, there = np.int64(0), np.True_
    for place, axis in enumerate(AXES):
        size = item_bytes(region) if axis == "element" else 1
        if axis in spans.named or (axis == "layer" and layer is not None):
            index = spans.at[axis] if axis in spans.named else layer
            there = there & ((index + 1) * size <= extents[place])
            extents[place] = min(size, extents[place])
            shift = shift + index * size * strides[place]
    own = StridedSet(region.geometry.offset, extents, strides)
    return np.where(there, count_within(own, spans.begin - shift, spans.end - shift), 0)


def _own_by_position(spans: Spans, region: Region) -> np.ndarray:
    """Where fields are spread over a cell or page, a state's bytes are listed, once for each place in the page."""
    if not spans.named >= {"layer", "block"}:
        raise LayoutError("formula", sorted(spans.named), "names a head, token or element without its layer and "
                          "block, in pages whose fields aren't side by side", "Name layer_offset and block too")
    geometry, item = region.geometry, item_bytes(region)
    page = geometry.offset + spans.at["layer"] * geometry.strides[0] + spans.at["block"] * geometry.strides[1]
    inner = np.stack([spans.at[axis] for axis in ("head", "token", "element")], axis=1)
    places, of_place = np.unique(inner, axis=0, return_inverse=True)
    order = np.argsort(of_place.ravel(), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(of_place.ravel(), minlength=len(places)))[:-1])
    found = np.zeros(len(page), dtype=np.int64)
    for (head, token, element), here in zip(places, parts):
        axes = [np.array([index]) if name in spans.named else np.arange(extent)
                for name, index, extent in (("head", head, geometry.shape[2]), ("token", token, geometry.shape[3]))]
        byte = element * item + np.arange(item) if "element" in spans.named else np.arange(geometry.shape[4])
        mesh = np.meshgrid(*axes, byte, indexing="ij")
        at = np.sort(region.inner_offsets(*(index.ravel() for index in mesh)))
        found[here] = (np.searchsorted(at, np.maximum(spans.begin, spans.end)[here] - page[here])
                       - np.searchsorted(at, spans.begin[here] - page[here]))
    return found


def own_padding(address_map: AddressMap, spans: Spans) -> np.ndarray:
    """Return how many bytes of each span are padding of the coordinate's own pages.

    A coordinate of all layers of a packed block has all that no layer of its group owns in that block.
    """
    found = np.zeros(len(spans.begin), dtype=np.int64)
    regions = _own_regions(address_map, spans)
    block = spans.at["block"] if "block" in spans.named else None
    strides = {region.geometry.strides[1] for region in regions}
    if "layer" not in spans.named and address_map.layout.is_block_outermost and len(strides) == 1:
        stride = strides.pop()
        low = 0 if block is None else block * stride
        high = address_map.size_bytes if block is None else low + stride
        found = np.maximum(np.minimum(spans.end, high) - np.maximum(spans.begin, low), 0)
        return found - sum(_own_pages(spans, region, region.geometry.shape[2:], region.geometry.strides[2:])
                           for region in regions)
    for region in regions if address_map.layout.is_block_compact else ():
        pages = StridedSet(0, (*region.geometry.shape[:2], region.page_size_bytes), (*region.geometry.strides[:2], 1))
        if pages.is_nested:
            found = found + _own_pages(spans, region, (region.page_size_bytes,), (1,))
            found = found - _own_pages(spans, region, region.geometry.shape[2:], region.geometry.strides[2:])
    return found


def _own_pages(spans: Spans, region: Region, extents: tuple, strides: tuple) -> np.ndarray:
    """Bytes of each span in the coordinate's own pages, each taken as a set of ``extents`` and ``strides``."""
    grid, shift = list(region.geometry.shape[:2]), np.int64(0)
    for place, axis in enumerate(("layer", "block")):
        if axis in spans.named:
            grid[place] = 1
            shift = shift + spans.at[axis] * region.geometry.strides[place]
    pages = StridedSet(region.geometry.offset, (*grid, *extents), (*region.geometry.strides[:2], *strides))
    return count_within(pages, spans.begin - shift, spans.end - shift)


def overlaid_content(address_map: AddressMap, spans: Spans, region: Region, layer: int) -> np.ndarray:
    """Return how many bytes of each span another group's ``layer`` has in the coordinate's own manager block.

    A block id belongs to one group at a time, so these are nobody's while it is the coordinate's.
    """
    ratio = kernel_blocks_per_block(address_map, region)
    manager = spans.at["block"] // kernel_blocks_per_block(address_map, spans.region)
    strides = region.geometry.strides
    shift = layer * strides[0] + manager * ratio * strides[1]
    block = StridedSet(region.geometry.offset, (1, ratio, *region.geometry.shape[2:]), strides)
    return count_within(block, spans.begin - shift, spans.end - shift)


def _own_regions(address_map: AddressMap, spans: Spans) -> list[Region]:
    if "layer" in spans.named:
        return [spans.region]
    return [region for region in address_map.regions if region.group == spans.region.group]
