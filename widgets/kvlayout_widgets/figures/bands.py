"""Where one group's layers, or one tensor's, end along the layer axis of a heatmap, and the groups' names."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.text import Text

from kvlayout.address import AddressMap
from kvlayout.region import Region
from kvlayout_widgets.figures import wording
from kvlayout_widgets.figures.glyphs import text_width
from kvlayout_widgets.figures.theme import FONT, Theme


class GroupBands:
    """Lines between bands of layers, updated in place; ``names`` are the texts that are drawn."""

    def __init__(self, axes: Axes, theme: Theme):
        self._axes, self._theme = axes, theme
        self.lines = LineCollection([], colors=theme.background, linewidths=2, zorder=3)
        axes.add_collection(self.lines, autolim=False)
        self.names: list[Text] = []

    def clear(self) -> None:
        """Draw none."""
        for name in self.names:
            name.remove()
        self.names = []
        self.lines.set_segments([])

    def update(self, address_map: AddressMap, first: int, number: int, *, down: bool, right: bool) -> None:
        """Mark the bands of ``number`` layers from ``first``, ``down`` or across; names stand ``right`` or left."""
        self.clear()
        regions = [address_map.region(i) for i in range(first, first + number)]
        ends = [i for i, (before, after) in enumerate(zip(regions, regions[1:])) if before is not after]
        if len(ends) >= len(set(regions)):  # layers of several tensors take turns: lines would hide them
            ends = [i for i in ends if regions[i].group != regions[i + 1].group]
        lines = []
        for i in ends:
            far, at = (-0.5, 1e12), (first + i + 0.5,) * 2
            lines.append(list(zip(far, at) if down else zip(at, far)))
        self.lines.set_segments(lines)
        if lines:
            bands = [regions[i + 1:j + 1] for i, j in zip([-1, *ends], [*ends, number - 1])]
            self._name(address_map, bands, down, down and right)

    def _name(self, address_map: AddressMap, bands: list[list[Region]], down: bool, right: bool) -> None:
        box, total, start = self._axes.get_window_extent(), sum(map(len, bands)), 0
        pixels = (box.height if down else box.width) / total
        for band in bands:
            words = wording.region_words(address_map, band[0]) if len(set(band)) == 1 else \
                wording.group_words(address_map, band[0].group)
            words = words if down else f"group {band[0].group}"
            share, start = start / total, start + len(band)
            if len(band) * pixels < (17 if down else text_width(words, 8) + 8):
                continue
            place = (0.992 if right else 0.008, 1 - share) if down else (share + 0.004, 0.99)
            self.names.append(self._axes.text(
                *place, words, transform=self._axes.transAxes, ha="right" if right else "left", va="top", fontsize=8,
                color=self._theme.ink, fontfamily=FONT, zorder=4, parse_math=False,
                bbox={"facecolor": self._theme.background, "edgecolor": "none", "pad": 2, "alpha": 0.85}))
