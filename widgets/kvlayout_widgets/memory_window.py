"""Which bytes the Memory tab shows: a window of the allocation, moved and zoomed in whole bytes."""

from __future__ import annotations

from dataclasses import dataclass

from kvlayout.address import AddressMap
from kvlayout.layout import AXES
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.wording import physical_axes

_SMALLEST = 16


@dataclass(frozen=True)
class Window:
    """``length`` bytes from byte ``start`` of an allocation of ``size`` bytes."""

    start: int
    length: int
    size: int

    @classmethod
    def of(cls, start: int, length: int, size: int) -> Window:
        """Return the window nearest to the one asked for that lies inside the allocation."""
        length = max(1, min(length, size))
        return cls(min(max(start, 0), size - length), length, size)

    @classmethod
    def at(cls, start: int, length: int, size: int) -> Window:
        """Return the window from ``start`` on; it is shorter than asked for where the allocation ends."""
        start = min(max(start, 0), size - 1)
        return cls(start, max(1, min(length, size - start)), size)

    @classmethod
    def whole(cls, size: int) -> Window:
        """Return the window of everything."""
        return cls(0, size, size)

    @classmethod
    def between(cls, first: int, last: int, size: int) -> Window:
        """Return the window from one byte to another, both included, in either order."""
        return cls.of(min(first, last), abs(last - first) + 1, size)

    def zoomed(self, at: int, factor: float) -> Window:
        """Return the window ``factor`` times as long in which byte ``at`` keeps its place."""
        length = max(_SMALLEST, round(self.length * factor))
        return Window.of(at - (at - self.start) * length // self.length, length, self.size)

    def moved(self, share: float) -> Window:
        """Return the window moved by ``share`` of its length."""
        return Window.of(self.start + round(self.length * share), self.length, self.size)


def window_of(address_map: AddressMap, at: Coordinate, axis: str) -> Window:
    """Return the bytes from the selected index of ``axis`` to the next one: what lies inside it in memory.

    Axes outside of ``axis`` in the physical order stay at the selection. For C it is the selected state's content.
    """
    geometry = address_map.region(at.layer).geometry
    local = address_map.region(at.layer).tensor.layers.index(at.layer)
    index = dict(zip(AXES, (local, at.block, at.head, at.state, 0)))
    strides = dict(zip(AXES, geometry.strides))
    order = physical_axes(address_map)
    outer = order[:order.index(axis) + 1]
    start = geometry.offset + sum(index[one] * strides[one] for one in outer)
    length = geometry.shape[4] if axis == "C" else strides[axis]
    return Window.of(start, length, address_map.size_bytes)
