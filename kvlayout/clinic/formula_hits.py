"""Whose bytes a wrong formula hits, added up by group and layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap, Owner, Padding
from kvlayout.clinic.counting import count_within
from kvlayout.clinic.formula_names import AXES, item_bytes, kernel_blocks_per_block
from kvlayout.clinic.formula_own import Spans, joined, overlaid_content, own_content, own_padding
from kvlayout.region import Region
from kvlayout.strided import StridedSet

MOST_HITS = 16
_PADDING = -1


@dataclass(frozen=True)
class Hit:
    """Whose bytes are hit by coordinates that they don't belong to.

    Attributes:
        group, layer: whose; ``layer`` is None for bytes that no layer of ``group``, the coordinate's own, has there
        bytes: how many; a byte that several coordinates hit counts for each
        offset, example: the first of them, in bytes from the allocation's start, and whose it is
        by: the coordinate (layer name, block, head, token, element) that hits it
    """

    group: int
    layer: str | None
    bytes: int
    offset: int
    example: Owner | Padding | None
    by: tuple


class Hits:
    """Collects what wrong coordinates touch. ``has_length``: as spans, whose own padding may be touched."""

    def __init__(self, address_map: AddressMap, has_length: bool):
        self._map, self._has_length = address_map, has_length
        self._bytes: dict[tuple[int, int], int] = {}
        self._first: dict[tuple[int, int], tuple] = {}
        self._kept: dict[int, list[Spans]] = {}

    def add(self, spans: Spans) -> None:
        """Take the spans of wrong coordinates, in the order of coordinates."""
        if self._has_length:
            self._kept.setdefault(spans.region.tensor_index, []).append(spans)
        elif len(spans.begin):
            self._add_elements(spans)

    def found(self) -> tuple[tuple[Hit, ...], int]:
        """Return the largest hits, and how many layers (and paddings) are hit in all."""
        for spans in self._kept.values():
            self._add_spans(joined(spans))
        self._kept = {}
        largest = sorted(self._bytes, key=lambda key: (-self._bytes[key], key))[:MOST_HITS]
        return tuple(self._hit(key) for key in largest), len(self._bytes)

    def _hit(self, key: tuple[int, int]) -> Hit:
        spans, offset = self._first[key]
        if offset is None:
            offset = self._first_byte(spans, key)
        group, layer = key
        if layer == _PADDING:
            named = [one for one in self._map.padding_of(offset) if one.group == group]
        else:
            named = [one for one in self._map.owners(offset) if one.layer == self._map.layers[layer]]
        by = [int(spans.at[axis][0]) for axis in AXES]
        name = self._map.layers[spans.region.layers[by[0]]]
        return Hit(group, None if layer == _PADDING else self._map.layers[layer], self._bytes[key], offset,
                   named[0] if named else None, (name, *by[1:]))

    def _note(self, key: tuple[int, int], count: int, spans: Spans, at: int, offset: int | None) -> None:
        self._bytes[key] = self._bytes.get(key, 0) + count
        if key not in self._first:
            self._first[key] = (spans.some(np.array([at])), offset)

    # One element each: its bytes are looked up.

    def _add_elements(self, spans: Spans) -> None:
        item, own = item_bytes(spans.region), spans.region
        offsets = (spans.begin[:, None] + np.arange(item)).ravel()
        by = np.repeat(np.arange(len(spans.begin)), item)
        inside = (offsets >= 0) & (offsets < self._map.size_bytes)
        offsets, by = offsets[inside], by[inside]
        manager = spans.at["block"][by] // kernel_blocks_per_block(self._map, own)
        for group in range(len(self._map.config.kv_cache_groups)):
            found = self._map.locate(offsets, group)
            hit = found.layer >= 0
            if group == own.group:
                mine = hit & (found.layer == own.layers[spans.at["layer"][by]])
                for part, axis in ((found.block, "block"), (found.head, "head"), (found.state, "token"),
                                   (found.byte // item, "element")):
                    mine &= part == spans.at[axis][by]
                self._tally(group, np.full(len(offsets), _PADDING), ~hit, spans, by, offsets)
                hit &= ~mine
            else:
                ratios = np.ones(len(self._map.layers), dtype=np.int64)
                for region in self._map.regions:
                    ratios[region.layers] = kernel_blocks_per_block(self._map, region)
                hit &= found.block // ratios[np.maximum(found.layer, 0)] != manager
            self._tally(group, found.layer, hit, spans, by, offsets)

    def _tally(self, group, layers, hit, spans, by, offsets) -> None:
        where = np.flatnonzero(hit)
        kinds, first, counts = np.unique(layers[where], return_index=True, return_counts=True)
        for layer, at, count in zip(kinds.tolist(), first.tolist(), counts.tolist()):
            at = where[at]
            self._note((group, layer), count, spans, int(by[at]), int(offsets[at]))

    # Long spans: what lies in each is counted in closed form.

    def _add_spans(self, spans: Spans) -> None:
        inside = self._clipped(spans)
        for region in self._map.regions:
            if region.group == spans.region.group or "block" in spans.named:
                for local, layer in enumerate(region.layers.tolist()):
                    self._tally_spans((region.group, layer), self._foreign(inside, region, local), inside)
        key = (spans.region.group, _PADDING)
        self._tally_spans(key, self._unowned(inside), inside)

    def _tally_spans(self, key, counts: np.ndarray, spans: Spans) -> None:
        total = int(counts.sum())
        if total > 0:
            self._note(key, total, spans, int(np.argmax(counts > 0)), None)

    def _clipped(self, spans: Spans) -> Spans:
        begin, end = (np.clip(one, 0, self._map.size_bytes) for one in (spans.begin, spans.end))
        return Spans(spans.region, spans.named, spans.at, begin, np.maximum(begin, end))

    def _foreign(self, spans: Spans, region: Region, local: int) -> np.ndarray:
        start = region.geometry.offset + local * region.geometry.strides[0]
        layer = StridedSet(start, region.geometry.shape[1:], region.geometry.strides[1:])
        found = count_within(layer, spans.begin, spans.end)
        if region.group != spans.region.group:
            return found - overlaid_content(self._map, spans, region, local)
        if "layer" in spans.named and region is not spans.region:
            return found
        return found - own_content(spans, region, local)

    def _unowned(self, spans: Spans) -> np.ndarray:
        group = spans.region.group
        owned = sum(count_within(region.addresses, spans.begin, spans.end)
                    for region in self._map.regions if region.group == group)
        return spans.end - spans.begin - owned - own_padding(self._map, spans)

    def _first_byte(self, spans: Spans, key: tuple[int, int]) -> int:
        """The first byte of one span that counts for ``key``: by halves, since the count only grows."""
        spans = self._clipped(spans)
        low, high = int(spans.begin[0]), int(spans.end[0])
        while high - low > 1:
            middle = (low + high) // 2
            part = Spans(spans.region, spans.named, spans.at, spans.begin, np.array([middle]))
            group, layer = key
            if layer == _PADDING:
                count = self._unowned(part)
            else:
                region = self._map.region(layer)
                count = self._foreign(part, region, region.layers.tolist().index(layer))
            low, high = (low, middle) if count[0] > 0 else (middle, high)
        return low
