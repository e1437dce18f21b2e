"""How long the runs of a transfer are: a histogram a layout, on one log scale, with a threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kvlayout.clinic import Transfer
from kvlayout.errors import LayoutError, check_int
from kvlayout_widgets.figures.common import Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, fit, text_width, wrap
from kvlayout_widgets.figures.rulers import Ruler
from kvlayout_widgets.figures.theme import Theme, format_bytes, mix

MOST_BYTES = 1 << 50  # far beyond any run
_BOX = (96, 66, 680, 384)  # pixels: left, bottom, right, top
_SIDE = 694  # where the words beside each row begin
_WIDE = 9  # pixels of a bar
LONG, SHORT = "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Bar:
    """Runs of about one length: how many, the shortest and longest in bytes, and where the bar stands (log2)."""

    layout: str
    count: int
    shortest: int
    longest: int
    at: float

    @property
    def words(self) -> str:
        """Return "28 × 64 KiB", or "31 × 8 KiB to 9 KiB"."""
        return f"{self.count:,} × {range_words(self.shortest, self.longest)}"


def range_words(shortest: int, longest: int) -> str:
    """Return one length, or two, for reading."""
    return format_bytes(shortest) if shortest == longest else f"{format_bytes(shortest)} to {format_bytes(longest)}"


class TransferFigure(Drawing):
    """One row a layout, updated in place.

    Attributes:
        rows: the layouts, as drawn from the top
        bars: all that are drawn
        beside: the words beside each row
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        self.axes = self.add_axes(*_BOX)
        for side in ("top", "right", "left"):
            self.axes.spines[side].set_visible(False)
        self._mark = Rectangle((0, 0), 1, 1, facecolor=self.theme.panel, zorder=0)
        self._short_side = Rectangle((0, 0), 0, 0, facecolor=mix(SHORT, self.theme.background, 0.9), zorder=0.5,
                                     alpha=0.7)
        for patch in (self._mark, self._short_side):
            self.axes.add_artist(patch)
        self._strokes = [LineCollection([], colors=self.theme.line, linewidths=0.8, zorder=1),
                       LineCollection([], colors=self.theme.ink, linewidths=1.3, linestyles="dashed", zorder=2)]
        colours = [mix(face, self.theme.background, 0.15 if self.theme.name == "dark" else 0)
                   for face in (LONG, SHORT)]
        self._bars = [PolyCollection([], facecolors=colours[0], edgecolors=self.theme.background, linewidths=0.4,
                                     zorder=3),
                      PolyCollection([], facecolors=colours[1], edgecolors=self.theme.background, linewidths=0.4,
                                     hatch="/////", zorder=3)]
        for one in (*self._strokes, *self._bars):
            self.axes.add_collection(one, autolim=False)
        self._ruler = Ruler(self.axes, "bottom", self.theme)
        self._ruler.set_title("bytes of a run   (log scale)  ·  height of a bar: number of runs (log scale)",
                              self.theme.ink)
        self._labels, self._around = Glyphs(self.axes), Glyphs(self.figure)
        legend = self.add_axes(_SIDE, _BOX[3] + 4, 940, _BOX[3] + 22, frame=False)
        legend.set(xlim=(0, 940 - _SIDE), ylim=(0, 18))
        for x, face, hatch in ((0, colours[0], None), (106, colours[1], "/////")):
            legend.add_artist(Rectangle((x, 4), 14, 10, facecolor=face, hatch=hatch, lw=0.4,
                                        edgecolor=self.theme.background))
        Glyphs(legend).set([Label(20, 9, "long enough", 8.5, self.theme.ink, "left"),
                            Label(126, 9, "below the threshold", 8.5, self.theme.ink, "left")])

    def update(self, by_layout: Mapping[str, Transfer | str], *, chosen: str = "", threshold_bytes: int = 0,
               what: str = "", title: str = "") -> None:
        """Draw the runs of each layout, or why it can't be.

        ``chosen``: the layout to mark, the cache's own; ``threshold_bytes``: runs shorter than this are told apart,
        0 for none; ``what``: what is moved, in words. LayoutError for a threshold that is no number of bytes.
        """
        if check_int("threshold_bytes", threshold_bytes, minimum=0) > MOST_BYTES:
            raise LayoutError("threshold_bytes", threshold_bytes, f"must be at most {format_bytes(MOST_BYTES)}")
        self.rows, self.threshold, self._by_layout = tuple(by_layout), threshold_bytes, dict(by_layout)
        self._scale()
        self.bars = [bar for name in self.rows for bar in self._gather(name)]
        self._draw(chosen)
        self._say(chosen, what, title)

    def words_at(self, x: float, y: float) -> str:
        """Return what stands at a point of the axes (data coordinates): the row's nearest runs."""
        row = math.floor(y + 0.5)
        if not 0 <= row < len(self.rows):
            return ""
        name = self.rows[row]
        mine = [bar for bar in self.bars if bar.layout == name]
        if not mine:
            return f"{name}: {self._words(name)}"
        bar = min(mine, key=lambda one: abs(one.at - x))
        return f"{name}: {bar.words}, {format_bytes(self._bytes_of(bar))} in all"

    def _scale(self) -> None:
        counted = [one for one in self._by_layout.values() if isinstance(one, Transfer)]
        lengths = [length for one in counted for length in one.run_bytes]
        if self.threshold:
            lengths.append(self.threshold)
        logs = [math.log2(max(1, length)) for length in lengths] or [0.0]
        low, high = math.floor(min(logs)), math.ceil(max(logs))
        spare = max(0, 4 - (high - low)) / 2
        self._low, self._high = low - spare - 0.4, high + spare + 0.4
        self._pixel = (self._high - self._low) / (_BOX[2] - _BOX[0])
        self.axes.set_xlim(self._low, self._high)
        self.axes.set_ylim(max(1, len(self.rows)) - 0.5, -0.5)
        step = next(step for step in (1, 2, 4, 8, 16) if (self._high - self._low) / step <= 10)
        powers = range(max(0, math.ceil(self._low)), int(self._high) + 1, step)
        self._ruler.set(powers, [format_bytes(2 ** power) for power in powers])

    def _gather(self, name: str) -> list[Bar]:
        """Bars of one row: lengths that would lie over each other are one, but never across the threshold."""
        one, bars, group = self._by_layout[name], [], []
        if isinstance(one, str):
            return []

        def close() -> None:
            count = sum(one.run_bytes[length] for length in group)
            at = sum(math.log2(max(1, length)) * one.run_bytes[length] for length in group) / count
            bars.append(Bar(name, count, group[0], group[-1], at))
        for length in sorted(one.run_bytes):
            if group and (math.log2(length) - math.log2(max(1, group[0])) > (_WIDE + 2) * self._pixel
                          or group[0] < self.threshold <= length):
                close()
                group = []
            group.append(length)
        if group:
            close()
        return bars

    def _bytes_of(self, bar: Bar) -> int:
        runs = self._by_layout[bar.layout].run_bytes
        return sum(length * count for length, count in runs.items() if bar.shortest <= length <= bar.longest)

    def _draw(self, chosen: str) -> None:
        row_pixels = (_BOX[3] - _BOX[1]) / max(1, len(self.rows))
        at = math.log2(self.threshold) if self.threshold else None
        most = max((bar.count for bar in self.bars), default=1)
        tops = {bar: 0.34 - 0.5 * math.log1p(bar.count) / math.log1p(most) for bar in self.bars}
        verts = ([], [])
        for bar, top in tops.items():
            row, half = self.rows.index(bar.layout), _WIDE / 2 * self._pixel
            left, right, base = bar.at - half, bar.at + half, row + 0.44
            verts[bar.shortest < self.threshold].append(
                [(left, base), (right, base), (right, row + top), (left, row + top)])
        for collection, polygons in zip(self._bars, verts):
            collection.set_verts(polygons)
        self._strokes[0].set_segments([[(self._low, row + 0.44), (self._high, row + 0.44)]
                                     for row in range(len(self.rows))])
        self._strokes[1].set_segments([] if at is None else [[(at, -0.5), (at, len(self.rows) - 0.5)]])
        self._short_side.set_bounds(self._low, -0.5, 0 if at is None else at - self._low, len(self.rows))
        is_marked = chosen in self.rows
        self._mark.set_visible(is_marked)
        if is_marked:
            self._mark.set_bounds(self._low, self.rows.index(chosen) - 0.5, self._high - self._low, 1)
        self._labels.set([label for name in self.rows
                          for label in self._label([bar for bar in self.bars if bar.layout == name], tops, at,
                                                   row_pixels)])
        self._write(chosen, at, row_pixels)

    def _label(self, bars: list[Bar], tops: dict[Bar, float], at: float | None, row_pixels: float) -> list[Label]:
        """The words of one row's bars; the tallest come first, where there isn't room for all."""
        labels, taken, gap = [], [], 4 * self._pixel
        for bar in sorted(bars, key=lambda one: -one.count):
            wide = text_width(bar.words, 8) * self._pixel
            low, high = self._low + gap, self._high - gap
            if at is not None and bar.longest < self.threshold and bar.at + wide / 2 + gap > at:
                high = at - gap  # on its own side of the line
            elif at is not None and bar.shortest >= self.threshold and bar.at - wide / 2 - gap < at:
                low = at + gap
            left = max(low, min(bar.at - wide / 2, high - wide))
            if left + wide > high or not left - 2 * gap <= bar.at <= left + wide + 2 * gap:
                continue
            bottom, half = tops[bar] - 3 / row_pixels, (_WIDE / 2 + 2) * self._pixel
            hides = any(left < one.at + half and one.at - half < left + wide and tops[one] < bottom
                        for one in bars if one is not bar)
            if hides or any(left - gap < end and start < left + wide + gap for start, end in taken):
                continue
            taken.append((left, left + wide))
            labels.append(Label(left, self.rows.index(bar.layout) + tops[bar] - 8 / row_pixels, bar.words, 8,
                                self.theme.ink, "left"))
        return labels

    def _write(self, chosen: str, at: float | None, row_pixels: float) -> None:
        """The words around the axes: layouts on the left, what their runs come to on the right, the threshold."""
        around, self.beside, room = [], [], 940 - _SIDE
        for row, name in enumerate(self.rows):
            y = _BOX[3] - (row + 0.5) * row_pixels
            is_own, one = name == chosen, self._by_layout[name]
            around.append(Label((_BOX[0] - 10) / 960, (y + (6 if is_own else 0)) / 460, fit(name, 80, 9.5, True), 9.5,
                                self.theme.ink, "right", True))
            if is_own:
                around.append(Label((_BOX[0] - 10) / 960, (y - 9) / 460, "this cache", 7.5, self.theme.soft, "right"))
            first, second = self._two_lines(one)
            self.beside.append(first)
            lines = [(first, 8.5, self.theme.ink),
                     *((line, 8, self.theme.soft) for line in wrap(second, room, 8)[:2])]
            top = y + 7.5 * (len(lines) - 1)
            around += [Label(_SIDE / 960, (top - 15 * i) / 460, fit(text, room + 1, size), size, colour, "left")
                       for i, (text, size, colour) in enumerate(lines)]
        if at is not None:
            text = f"threshold {format_bytes(self.threshold)}"
            x = _BOX[0] + (at - self._low) / self._pixel
            half = text_width(text, 8.5) / 2
            around.append(Label(min(max(x, _BOX[0] + half), _BOX[2] - half) / 960, (_BOX[3] + 12) / 460, text, 8.5,
                                self.theme.ink))
        self._around.set(around)

    def _two_lines(self, one: Transfer | str) -> tuple[str, str]:
        if isinstance(one, str):
            return "refused", one
        if not one.num_runs:
            return "no byte", ""
        each = " each" if one.smallest == one.largest and one.num_runs > 1 else ""
        first = (f"{one.num_runs:,} run{'' if one.num_runs == 1 else 's'}, "
                 f"{range_words(one.smallest, one.largest)}{each}")
        return first, below_words(one, self.threshold) if self.threshold else ""

    def _words(self, name: str) -> str:
        return ", ".join(part for part in self._two_lines(self._by_layout[name]) if part)

    def _say(self, chosen: str, what: str, title: str) -> None:
        headline = " · ".join(part for part in (f"{what}: contiguous runs in each layout" if what else
                                                "Contiguous runs in each layout", title) if part)
        total = next((one.total_bytes for one in self._by_layout.values() if isinstance(one, Transfer)), 0)
        subline = f"{total:,} bytes in all; each run is one copy, or one descriptor of a connector"
        footer = f"{chosen}, this cache:   {self._words(chosen)}" if chosen in self.rows else ""
        self.say(headline, subline, footer)
        threshold = f"; runs below {format_bytes(self.threshold)} are told apart" if self.threshold else ""
        self.tell((f"Histogram of the bytes of a run. {headline}{threshold}", subline,
                   *(f"{name}: {self._words(name)}" for name in self.rows)))


def below_words(one: Transfer, threshold_bytes: int) -> str:
    """Return how many runs, and what share of the bytes, are shorter than the threshold."""
    below = sum(count for length, count in one.run_bytes.items() if length < threshold_bytes)
    return f"{below:,} of {one.num_runs:,} below, {percent(one.byte_share_below(threshold_bytes))} % of bytes"


def percent(share: float) -> str:
    """A share from 0 to 1 in per cent; never 0 or 100 unless it is."""
    value = 100 * share
    return f"{value:.0f}" if value in (0, 100) else f"{min(max(value, 0.01), 99.99):.4g}"


def transfer_figure(by_layout: Mapping[str, Transfer | str], *, theme: str | Theme = "light", **options) -> Figure:
    """Return the histogram of :class:`TransferFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = TransferFigure(theme)
    drawing.update(by_layout, **options)
    return drawing.figure
