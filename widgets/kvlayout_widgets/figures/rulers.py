"""Rulers along the edges of an axes: ticks, numbers and a title.

matplotlib's own axes take most of the time of a redraw; these are one line of markers and one set of outlines.
"""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.lines import TICKDOWN, TICKLEFT, TICKRIGHT

from kvlayout_widgets.figures.glyphs import Glyphs, Label
from kvlayout_widgets.figures.theme import Theme, byte_unit

# Side: (marker, where the edge is in fractions of the axes, distance of numbers and of the title in pixels).
_SIDES = {"bottom": (TICKDOWN, 0, 12, 31), "left": (TICKLEFT, 0, 7, 0), "right": (TICKRIGHT, 1, 7, 0)}


class Ruler:
    """The ruler on one side of an axes: "bottom", "left" or "right".

    Attributes:
        positions: data coordinates of the ticks
        labels: what stands beside them; ``title``
    """

    def __init__(self, axes: Axes, side: str, theme: Theme, size: float = 8):
        self._axes, self._side, self._theme, self._size = axes, side, theme, size
        marker, edge, self._numbers_at, self._title_at = _SIDES[side]
        self._is_flat = side == "bottom"
        transform = axes.get_xaxis_transform() if self._is_flat else axes.get_yaxis_transform()
        box = axes.get_window_extent()
        self._pixels = box.height if self._is_flat else box.width
        self._edge = edge
        self._ticks, = axes.plot([], [], ls="none", marker=marker, ms=3, mew=0.8, color=theme.soft, clip_on=False,
                                 transform=transform, zorder=2)
        self._glyphs = Glyphs(axes, transform=transform)
        self._title = Glyphs(axes, transform=axes.transAxes)
        self.title = ""
        self.positions: tuple[float, ...] = ()
        self.labels: tuple[str, ...] = ()

    def set(self, positions: Iterable[float], labels: Iterable[str]) -> None:
        """Set the ticks and what stands beside them; those outside of the axes are left out."""
        low, high = sorted(self._axes.get_xlim() if self._is_flat else self._axes.get_ylim())
        kept = [(position, label) for position, label in zip(positions, labels) if low <= position <= high]
        self.positions = tuple(position for position, _ in kept)
        self.labels = tuple(label for _, label in kept)
        edges = [self._edge] * len(kept)
        self._ticks.set_data(*((self.positions, edges) if self._is_flat else (edges, self.positions)))
        ink = self._theme.ink
        if self._is_flat:
            shown = [Label(x, -self._numbers_at / self._pixels, text, self._size, ink) for x, text in kept]
        else:
            sign, align = (1, "left") if self._edge else (-1, "right")
            at = self._edge + sign * self._numbers_at / self._pixels
            shown = [Label(at, y, text, self._size, ink, align) for y, text in kept]
        self._glyphs.set(shown)

    def set_title(self, text: str, colour: str, distance: float = 0) -> None:
        """Set the title; ``distance`` in pixels from the edge, for an upright one."""
        self.title = text
        away = -(self._title_at if self._is_flat else distance) / self._pixels
        place = (0.5, away) if self._is_flat else (away, 0.5)
        self._title.set([Label(*place, text, 9, colour, upright=not self._is_flat)])

    def set_bytes(self, size: int, most: int) -> str:
        """Tick ``size`` bytes at powers of two, in at most ``most`` steps; return the unit of the numbers."""
        step = 1
        while size > most * step:
            step *= 2
        divisor, unit = byte_unit(step)
        positions = range(0, size + 1, step)
        self.set(positions, [f"{position // divisor:,}" for position in positions])
        return unit


def index_ticks(first: int, count: int, most: int) -> list[int]:
    """Return at most ``most`` + 1 round indices among ``count`` from ``first``."""
    if count <= 0:
        return []
    step = next(step * 10 ** power for power in range(12) for step in (1, 2, 5) if count <= most * step * 10 ** power)
    start = first + -first % step
    return list(range(start, first + count, step))
