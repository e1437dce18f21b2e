"""The five strides of a layer as a table, and one address computed from them by hand."""

from __future__ import annotations

from dataclasses import dataclass

from kvlayout.address import AddressMap
from kvlayout.layout import AXES
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.theme import exact_address, exact_bytes
from kvlayout_widgets.figures.wording import formula, jump, physical_axes


@dataclass(frozen=True)
class StrideRow:
    """One axis: its extent, its stride in bytes, what that is the product of, and why it is so."""

    axis: str
    extent: int
    stride_bytes: int
    formula: str
    why: str


def stride_rows(address_map: AddressMap, layer: str) -> list[StrideRow]:
    """Return the rows of L, B, H, N, C in physical order, outermost first."""
    geometry = address_map.region(layer).geometry
    extents, strides = dict(zip(AXES, geometry.shape)), dict(zip(AXES, geometry.strides))
    return [StrideRow(axis, extents[axis], strides[axis], formula(address_map, layer, axis),
                      "" if axis == "C" else jump(address_map, layer, axis)) for axis in physical_axes(address_map)]


def worked_example(address_map: AddressMap, at: Coordinate) -> list[str]:
    """Return the lines of a sum that ends in the offset of ``at``."""
    region = address_map.region(at.layer)
    geometry, offset = region.geometry, at.offset(address_map)
    index = (region.tensor.layers.index(at.layer), at.block, at.head, at.state, at.byte)
    parts = list(zip(AXES, index, geometry.strides))
    lines = [f"{geometry.offset:>20,}    where the tensor begins"]
    if region.interior.scope != "state":
        parts = parts[:2]
    total = geometry.offset
    for axis, number, stride in parts:
        total += number * stride
        lines.append(f"+ {number * stride:>18,}    {axis} {number:,} × {stride:,} B")
    if total != offset:
        lines.append(f"+ {offset - total:>18,}    head slot {at.head}, state {at.state}, byte {at.byte} in the page, "
                     f"which the backend orders itself")
    return [*lines, f"= {offset:>18,}    B = {offset:#x}"]


def page_sentence(address_map: AddressMap, layer: str) -> str:
    """Return the size of the layer's page and how much of it holds content."""
    region = address_map.region(layer)
    content = region.geometry.shape[2] * region.geometry.shape[3] * region.geometry.shape[4]
    text = f"A page is {exact_bytes(region.page_size_bytes)}"
    if content < region.page_size_bytes:
        text += f", of which {exact_bytes(content)} hold content"
    return f"{text}. The tensor begins at {exact_address(region.geometry.offset)}."
