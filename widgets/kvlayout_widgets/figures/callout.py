"""A cell outlined in a picture, and a box of text beside it that spells it out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from kvlayout_widgets.figures.glyphs import Glyphs, Label, text_width
from kvlayout_widgets.figures.theme import Theme

_LINE, _SIZE = 16, 8.5  # pixels from line to line, points


class Callout:
    """One selected cell of an axes of ``width`` x ``height`` pixels; ``lines`` is the text as drawn."""

    def __init__(self, axes: Axes, width: float, height: float, theme: Theme):
        self._width, self._height, self._theme = width, height, theme
        # A light line on a dark one is seen on every colour.
        self._outline = [axes.plot([], [], color=colour, lw=line, zorder=6, solid_joinstyle="miter", clip_on=False,
                                   transform=axes.transAxes)[0]
                         for colour, line in (("#101418", 4), ("#FFFFFF", 1.8))]
        self._leader = [axes.plot([], [], color=colour, lw=line, zorder=5, transform=axes.transAxes)[0]
                        for colour, line in (("#101418", 2.6), ("#FFFFFF", 1.2))]
        self._plate = Rectangle((0, 0), 0, 0, transform=axes.transAxes, zorder=7, lw=0.8,
                                facecolor=theme.background, edgecolor=theme.soft)
        axes.add_artist(self._plate)
        self._text = Glyphs(axes, 8, axes.transAxes)

    @property
    def lines(self) -> tuple[str, ...]:
        """The text as drawn."""
        return tuple(label.text for label in self._text.labels)

    def show(self, cell: tuple[float, float, float, float] | None, lines: Sequence[str]) -> None:
        """Outline ``cell`` (left, bottom, right, top in pixels) and put ``lines``, if any, beside it.

        None takes the outline away.
        """
        for artist in self._outline:
            artist.set_visible(cell is not None)
        for artist in (*self._leader, self._plate):
            artist.set_visible(cell is not None and bool(lines))
        self._text.set([])
        if cell is None:
            return
        left, bottom, right, top = cell
        for outline in self._outline:
            outline.set_data(np.array([left, right, right, left, left]) / self._width,
                             np.array([bottom, bottom, top, top, bottom]) / self._height)
        if lines:
            self._place(cell, lines)

    def _place(self, cell: tuple[float, float, float, float], lines: Sequence[str]) -> None:
        """Put the box below and to the right of the cell, or where there is room."""
        x, y = (cell[0] + cell[2]) / 2, (cell[1] + cell[3]) / 2
        wide, tall = max(text_width(line, _SIZE) for line in lines) + 16, _LINE * len(lines) + 10
        left = x + 46 if x + 46 + wide < self._width - 6 else max(6, x - 46 - wide)
        top = y - 34 if y - 34 - tall > 6 else min(self._height - 6, y + 34 + tall)
        self._plate.set_bounds(left / self._width, (top - tall) / self._height, wide / self._width,
                               tall / self._height)
        end = np.clip(x, left, left + wide), np.clip(y, top - tall, top)
        start = np.clip(end[0], cell[0], cell[2]), np.clip(end[1], cell[1], cell[3])
        for leader in self._leader:
            leader.set_data([start[0] / self._width, end[0] / self._width],
                            [start[1] / self._height, end[1] / self._height])
        self._text.set([Label((left + 8) / self._width, (top - 13 - _LINE * i) / self._height, line, _SIZE,
                              self._theme.ink, "left") for i, line in enumerate(lines)])
