"""All 120 layouts by one measure: a dot each, ranked; vLLM's six and the cache's own are named."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from kvlayout.bench import MEASURES, Score, ranked
from kvlayout_widgets.figures.common import WIDTH, Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, text_width
from kvlayout_widgets.figures.rulers import Ruler, index_ticks
from kvlayout_widgets.figures.theme import Theme, format_bytes

_BOX = (96, 64, 936, 346)  # pixels: left, bottom, right, top
_NAMES = 364  # pixels: how high the names stand
_LEGEND = 394
_SIZE = 8.5


def value_words(measure: str, value: int) -> str:
    """Return a measure's value with its unit: "28 runs", "65,536 bytes", "yes"."""
    unit = MEASURES[measure].unit
    if unit == "yes/no":
        return "yes" if value else "no"
    return f"{value:,} {unit.removesuffix('s') if value == 1 else unit}"


class ScoresFigure(Drawing):
    """One dot a layout, updated in place.

    Attributes:
        order: the scores that are drawn, from the left
        names: the layouts that are named
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        self.axes = self.add_axes(*_BOX)
        for side in ("top", "right"):
            self.axes.spines[side].set_visible(False)
        six, own = self.theme.axis_ink["L"], self.theme.axis_ink["B"]
        self._leaders = LineCollection([], colors=self.theme.line, linewidths=0.8, zorder=1)
        self._leaders.set_clip_on(False)
        self.axes.add_collection(self._leaders, autolim=False)
        self._styles = {
            "vLLM's six": dict(marker="o", ms=7, mfc=six, mec=self.theme.background, mew=0.6, zorder=4),
            "others": dict(marker="s", ms=3.6, mfc=self.theme.soft, mec="none", zorder=3),
            "left out by the filter": dict(marker="s", ms=3.6, mfc="none", mec=self.theme.soft, mew=0.7, zorder=2),
            "this cache": dict(marker="D", ms=11, mfc="none", mec=own, mew=1.8, zorder=5),
        }
        self._dots = {name: self.axes.plot([], [], ls="none", clip_on=False, **style)[0]
                      for name, style in self._styles.items()}
        self._bottom, self._left = Ruler(self.axes, "bottom", self.theme), Ruler(self.axes, "left", self.theme)
        self._labels, self._around = Glyphs(self.axes), Glyphs(self.figure)
        self._draw_legend()

    def update(self, scores: Sequence[Score], measure: str, *, best_first: bool = True, chosen: str = "",
               kept: Collection[str] | None = None, title: str = "") -> None:
        """Draw the scores by ``measure``.

        ``chosen``: the cache's own layout; ``kept``: names of the layouts that a filter leaves, None for all.
        LayoutError for an unknown measure.
        """
        self._measure, self._chosen = measure, chosen
        in_order = ranked(scores, measure, best_first=best_first)
        self.order = [one for one in in_order if measure in one.measures]
        self._refused = sum(bool(one.refused) for one in in_order)
        self._missing = next((one.no_shard for one in in_order if one.no_shard), "")
        self._scale()
        groups: dict[str, list[int]] = {name: [] for name in self._dots}
        for at, one in enumerate(self.order):
            is_kept = kept is None or one.layout.name in kept
            groups["vLLM's six" if one.in_vllm else "others" if is_kept else "left out by the filter"].append(at)
            if one.layout.name == chosen:
                groups["this cache"].append(at)
        for name, found in groups.items():
            self._dots[name].set_data([at + 1 for at in found], [self._height(at) for at in found])
        self._name([at for at, one in enumerate(self.order) if one.in_vllm or one.layout.name == chosen])
        self._say(best_first, title)

    def at(self, x: float, y: float) -> Score | None:
        """Return the score whose dot is nearest to a point of the axes (data coordinates); None beside them."""
        index = round(x) - 1
        return self.order[index] if 0 <= index < len(self.order) else None

    def words_at(self, x: float, y: float) -> str:
        """Return what the tip says about a point."""
        one = self.at(x, y)
        if one is None:
            return ""
        mark = ", one of vLLM's" if one.in_vllm else ""
        return f"{one.layout.name}{mark}\n{self._measure}: {value_words(self._measure, one.measures[self._measure])}"

    def _height(self, at: int) -> float:
        return self._transform(self.order[at].measures[self._measure])

    def _transform(self, value: int) -> float:
        return float(value) if MEASURES[self._measure].unit == "yes/no" else math.log2(1 + value)

    def _scale(self) -> None:
        unit, number = MEASURES[self._measure].unit, max(1, len(self.order))
        heights = [self._height(at) for at in range(len(self.order))] or [0.0]
        low, high = (0.0, 1.0) if unit == "yes/no" else (min(heights), max(heights))
        spare = max(0.08 * (high - low), 0.12 if unit == "yes/no" else 0.5)
        self.axes.set_xlim(0.2, number + 0.8)
        self.axes.set_ylim(low - spare, high + spare)
        if unit == "yes/no":
            self._left.set([0, 1], ["no", "yes"])
        else:
            steps = (1, 16) if unit == "bytes" else (1, 10)
            values = [one for one in _rounds(*steps) if low - spare <= self._transform(one) <= high + spare]
            if len(values) < 3:
                steps = (1, 2, 4, 8, 16) if unit == "bytes" else (1, 2, 5, 10)
                values = [one for one in _rounds(*steps) if low - spare <= self._transform(one) <= high + spare]
            values = values[::-(-len(values) // 9) or 1]
            if heights[0] == 0 or heights[-1] == 0:
                values = [0, *(one for one in values if one > 1)]
            self._left.set([self._transform(one) for one in values],
                           [format_bytes(one) if unit == "bytes" else f"{one:,}" for one in values])
        scale = "" if unit == "yes/no" else "   (log scale)"
        self._left.set_title(f"{self._measure}: {unit}{scale}", self.theme.ink, 80)
        ticks = sorted({1, *index_ticks(1, number, 12)})
        self._bottom.set(ticks, [str(one) for one in ticks])

    def _name(self, named: list[int]) -> None:
        """Names in a row above, as near to their dots as there is room, and a line from each to its dot."""
        self.names = [self.order[at].layout.name for at in named]
        (x0, x1), (y0, y1) = self.axes.get_xlim(), self.axes.get_ylim()
        pixel, rise = (_BOX[2] - _BOX[0]) / (x1 - x0), (_BOX[3] - _BOX[1]) / (y1 - y0)
        widths = [text_width(name, _SIZE, True) for name in self.names]
        centres = spread([(at + 1 - x0) * pixel for at in named], widths, 8, _BOX[2] - _BOX[0])
        top = y0 + (_NAMES - _BOX[1]) / rise
        labels, lines = [], []
        for at, name, centre in zip(named, self.names, centres):
            ink = self.theme.axis_ink["B" if name == self._chosen else "L"]
            x = x0 + centre / pixel
            labels.append(Label(x, top, name, _SIZE, ink, bold=True))
            lines.append([(x, top - 8 / rise), (at + 1, self._height(at))])
        self._leaders.set_segments(lines)
        self._labels.set(labels)

    def _draw_legend(self) -> None:
        axes = self.add_axes(0, _LEGEND - 9, WIDTH, _LEGEND + 9, frame=False)
        axes.set(xlim=(0, WIDTH), ylim=(0, 18))
        labels, x = [], _BOX[0]
        for name, style in self._styles.items():
            axes.plot([x + 6], [9], ls="none", **{**style, "ms": min(style["ms"], 8)})
            labels.append(Label(x + 18, 9, name, _SIZE, self.theme.ink, "left"))
            x += 18 + text_width(name, _SIZE) + 26
        Glyphs(axes).set(labels)

    def _say(self, best_first: bool, title: str) -> None:
        one, name = MEASURES[self._measure], self._measure
        headline = " · ".join(part for part in (f"{name}, of all orders of the axes", title) if part)
        better = "more" if one.better == "more" else "less"
        subline = f"{one.meaning}; {'yes' if one.unit == 'yes/no' else better} is better"
        order = "best" if best_first else "worst"
        self._bottom.set_title(f"layouts, {order} first (1 to {len(self.order)})", self.theme.ink)
        refused = f"{self._refused} layouts can't hold these pages, and have no dot" if self._refused else ""
        own = next((score for score in self.order if score.layout.name == self._chosen), None)
        words = "" if own is None else f"{self._chosen}, this cache: {value_words(name, own.measures[name])}"
        footer = "    ".join(part for part in (words, refused) if part)
        why = f"No head shard is counted: {self._missing}." if self._missing else "No layout can hold these pages."
        why = "" if self.order else why
        self._around.set([Label(0.5, 0.5, why, 10, self.theme.soft)] if why else [])
        self.say(headline, subline, footer)
        six = [f"{score.layout.name}: {value_words(name, score.measures[name])}" for score in self.order
               if score.in_vllm]
        self.tell((f"Dot plot of {len(self.order)} layouts, {order} first. {headline}", subline,
                   f"vLLM's six: {'; '.join(six)}" if six else "", words, refused, why))


def spread(centres: Sequence[float], widths: Sequence[float], gap: float, room: float) -> list[float]:
    """Return centres near the wished ones, in their order, that keep ``gap`` between the widths, inside ``room``."""
    lefts, end = [], 0.0
    for centre, width in zip(centres, widths):
        left = max(end, centre - width / 2)
        lefts.append(left)
        end = left + width + gap
    end = room + gap
    for index in reversed(range(len(lefts))):
        lefts[index] = min(lefts[index], end - gap - widths[index])
        end = lefts[index]
    return [left + width / 2 for left, width in zip(lefts, widths)]


def _rounds(*steps: int) -> list[int]:
    """Round numbers up to 2^63: ``steps`` but the last, times the powers of the last."""
    *steps, base = steps
    return [step * base ** power for power in range(63) for step in steps if step * base ** power < 2 ** 63]


def scores_figure(scores: Sequence[Score], measure: str, *, theme: str | Theme = "light", **options) -> Figure:
    """Return the dot plot of :class:`ScoresFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = ScoresFigure(theme)
    drawing.update(scores, measure, **options)
    return drawing.figure
