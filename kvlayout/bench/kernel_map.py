"""The picture of one case: which cells of the cache a kernel treated rightly, left out, or took wrongly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.bench.observation import NOWHERE, OLD, Observation

UNTOUCHED, RIGHT, MISSING, WRONG, STRAY, CHANGED = range(6)
SIGNS = "·■○×!#"
_WRITER = ("untouched, as it should be", "written as it should be", "not written", "holds a wrong value",
           "written, and shouldn't be", None)
_READER = ("not read, as it should be", "read as it should be", "another place was read for it", None,
           "read, and nobody asked for it", "written over, by a reader")
_MOST_BLOCKS = 64
_MOST_LINES = 48


@dataclass(frozen=True, eq=False)
class KernelMap:
    """One case, cell by cell: the worst that happened to any element of a cell's K or V.

    Attributes:
        case, layout: number and name; ``layers``: names, and ``layer``: the one under test
        blocks: ids of the blocks that are shown: all of a small pool, else those that were touched or should be
        cells: int8 [layers, blocks, heads, states, 2 for K and V], of UNTOUCHED, RIGHT, MISSING,
            WRONG, STRAY, and CHANGED for what a reader wrote over
        padding_elements, outside_elements: how many were touched in padding, and outside the allocation
        is_writer: what the signs mean, see ``legend``
    """

    case: int
    layout: str
    layers: tuple[str, ...]
    layer: str
    blocks: np.ndarray
    cells: np.ndarray
    padding_elements: int
    outside_elements: int
    is_writer: bool

    @property
    def legend(self) -> dict[str, str]:
        """{sign: what it means}."""
        meanings = _WRITER if self.is_writer else _READER
        return {sign: meaning for sign, meaning in zip(SIGNS, meanings) if meaning}

    def __str__(self) -> str:
        lines = [f"case {self.case} in {self.layout}; a sign is one token state: "
                 + ", ".join(f"{sign} {meaning}" for sign, meaning in self.legend.items())]
        rows = [(layer, block, head) for layer, block, head in np.argwhere((self.cells != UNTOUCHED).any((3, 4)))]
        for layer, block, head in rows[:_MOST_LINES]:
            key, value = ("".join(SIGNS[cell] for cell in self.cells[layer, block, head, :, side]) for side in (0, 1))
            lines.append(f"{self.layers[layer]}, block {self.blocks[block]:,}, head {head}  K {key}  V {value}")
        if len(rows) > _MOST_LINES:
            lines.append(f"... and {len(rows) - _MOST_LINES:,} more lines")
        if self.padding_elements:
            lines.append(f"! {self.padding_elements:,} elements in padding")
        if self.outside_elements:
            lines.append(f"! {self.outside_elements:,} elements outside the allocation")
        return "\n".join(lines)


def kernel_map(seen: Observation) -> KernelMap:
    """Return the map of an observation."""
    amap, is_writer = seen.case.address_map, seen.held is not None
    right = seen.expected[~seen.ignored & ~seen.wrong]
    lost = seen.wrong & (seen.held == OLD) if is_writer else seen.wrong
    marks = [(RIGHT, right), (MISSING, seen.expected[lost]), (WRONG, seen.expected[seen.wrong & ~lost]),
             (STRAY if is_writer else CHANGED, seen.stray)]
    if not is_writer:
        other = seen.found[seen.wrong & (seen.found != NOWHERE)]
        marks.append((STRAY, other[~np.isin(other, seen.expected)]))
    located = [(mark, *_locate(amap, offsets)) for mark, offsets in marks]
    num_blocks = max(amap.shape(layer)[0] for layer in amap.layers)
    blocks = np.arange(num_blocks) if num_blocks <= _MOST_BLOCKS else np.unique(
        np.concatenate([axes[1] for _, axes, _, _ in located]))
    heads, states = (max(amap.shape(layer)[axis] for layer in amap.layers) for axis in (1, 2))
    cells = np.zeros((len(amap.layers), len(blocks), heads, states, 2), dtype=np.int8)
    for mark, (layer, block, head, state, side), _, _ in located:
        np.maximum.at(cells, (layer, np.searchsorted(blocks, block), head, state, side), mark)
    return KernelMap(seen.case.number, seen.case.layout.name, amap.layers, seen.case.layer, blocks, cells,
                     sum(padding for _, _, padding, _ in located), sum(outside for _, _, _, outside in located),
                     is_writer)


def _locate(amap: AddressMap, offsets: np.ndarray) -> tuple[tuple[np.ndarray, ...], int, int]:
    """(layer, block, head, state, side) of the offsets that a layer owns; how many are padding; how many outside."""
    inside = offsets[(offsets >= 0) & (offsets < amap.size_bytes)]
    found = amap.locate(inside)
    owned = found.layer >= 0
    layer, block, head, state, byte = (getattr(found, name)[owned] for name in
                                       ("layer", "block", "head", "state", "byte"))
    side = np.zeros(len(layer), dtype=np.int64)
    for index in np.unique(layer):
        here = layer == index
        side[here] = _value_bytes(amap, int(index))[head[here], byte[here]]
    return (layer, block, head, state, side), len(inside) - int(owned.sum()), len(offsets) - len(inside)


def _value_bytes(amap: AddressMap, layer: int) -> np.ndarray:
    """[heads, C] of 1 where a byte of a state belongs to V."""
    _, heads, _, content = amap.shape(layer)
    found = np.zeros((heads, content), dtype=np.int64)
    for head in range(heads):
        for begin, field in amap.region(layer).interior.slot_fields(head):
            found[head, begin:begin + field.size_bytes] = field.is_value
    return found
