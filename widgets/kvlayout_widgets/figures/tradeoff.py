"""All 120 orders of the axes as points: two measures of theirs, and which are vLLM's."""

from __future__ import annotations

from collections.abc import Iterable
from math import log10

from matplotlib.figure import Figure

from kvlayout.bench.scores import MEASURES, Score
from kvlayout.errors import LayoutError
from kvlayout_widgets.figures.common import Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, text_width
from kvlayout_widgets.figures.rulers import Ruler
from kvlayout_widgets.figures.theme import Theme

_BOX = (100, 76, 930, 366)  # pixels: left, bottom, right, top
_KEY = (100, 376, 930, 402)


class TradeoffFigure(Drawing):
    """Points on two logarithmic scales; layouts of equal numbers share a point, and its number says how many.

    Attributes:
        points: {(x, y): names of the layouts there}, in the measures' own units
        unscored: names of the layouts that have no such numbers, or a 0, which this scale has not
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        self.axes = self.add_axes(*_BOX)
        self._key = self.add_axes(*_KEY, frame=False)
        self._key.set(xlim=(0, _KEY[2] - _KEY[0]), ylim=(0, _KEY[3] - _KEY[1]))
        self._left, self._below = Ruler(self.axes, "left", self.theme), Ruler(self.axes, "bottom", self.theme)
        self._names, self._words = Glyphs(self.axes), Glyphs(self._key)
        # Shape, fill and text tell the kinds apart; colour only helps.
        ink = self.theme.axis_ink
        looks = {"vllm": ("o", ink["L"], ink["L"]), "equal": ("o", self.theme.background, ink["L"]),
                 "more": ("x", ink["B"], ink["B"])}
        self._marks = {kind: (self._marker(self.axes, *look), self._marker(self._key, *look))
                       for kind, look in looks.items()}

    def update(self, scores: Iterable[Score], *, x: str = "block runs", y: str = "head shard runs",
               shade: str = "read lines", title: str = "") -> None:
        """Draw the layouts by two of MEASURES; those that do worse than vLLM's best by ``shade`` are crosses.

        LayoutError for a measure that isn't a count, and where no layout has these numbers.
        """
        for name, measure in (("x", x), ("y", y), ("shade", shade)):
            counts = [one for one, what in MEASURES.items() if what.unit != "yes/no"]
            if measure not in counts:
                raise LayoutError(name, measure, f"must be one of {', '.join(counts)}")
        scores = list(scores)
        scored = [one for one in scores if min(one.measures.get(x, 0), one.measures.get(y, 0)) > 0]
        self.unscored = tuple(one.layout.name for one in scores if one not in scored)
        if not scored:
            raise LayoutError("scores", scores, f"none has {x} and {y}", "Give what score_layouts returns")
        self._shade, best = shade, min if MEASURES[shade].better == "less" else max
        self._best = best(one.measures[shade] for one in ([one for one in scored if one.in_vllm] or scored))
        self.points: dict[tuple[int, int], list[str]] = {}
        members: dict[tuple[int, int], list[Score]] = {}
        for one in scored:
            at = one.measures[x], one.measures[y]
            self.points.setdefault(at, []).append(one.layout.name)
            members.setdefault(at, []).append(one)
        self._scale([at[0] for at in members], [at[1] for at in members], x, y)
        self._place(members)
        kinds = [self._kind(one) for one in scored]
        self._write_key({kind: kinds.count(kind) for kind in self._marks})
        total = f"{len(scored)} layouts" + (f", {len(self.unscored)} more can't be scored" if self.unscored else "")
        headline = " · ".join(filter(None, ("what each order of the axes costs", title, total)))
        subline = f"{MEASURES[x].meaning}, against {MEASURES[y].meaning[0].lower()}{MEASURES[y].meaning[1:]}"
        corner = " ".join(("lower" if MEASURES[y].better == "less" else "upper",
                           "left" if MEASURES[x].better == "less" else "right"))
        best = next((names for at, names in self.points.items() if all(
            self._beats(at[i], other[i], measure) for other in self.points for i, measure in enumerate((x, y)))), [])
        footer = (f"better is {corner}; a number counts the layouts that share a point, which shows the best of them")
        self.say(headline, subline, footer)
        six = ", ".join(f"{one.layout.name} {one.measures[x]:,} and {one.measures[y]:,}" for one in scored
                        if one.in_vllm)
        self.tell((f"Scatter plot: {headline}", subline, f"vLLM's, {x} and {y}: {six}" if six else "",
                   f"Best in both: {', '.join(best)}" if best else "No layout is best in both"))

    def _marker(self, axes, marker: str, face: str, edge: str):
        line, = axes.plot([], [], ls="none", marker=marker, ms=7, mfc=face, mec=edge, mew=1.6, zorder=3)
        return line

    def _kind(self, one: Score) -> str:
        if one.in_vllm:
            return "vllm"
        return "equal" if self._beats(one.measures[self._shade], self._best, self._shade) else "more"

    @staticmethod
    def _beats(one: int, other: int, measure: str) -> bool:
        """Whether one is as good as the other, or better."""
        return one <= other if MEASURES[measure].better == "less" else one >= other

    def _scale(self, xs: list[int], ys: list[int], x: str, y: str) -> None:
        for values, name, ruler, is_flat in ((xs, x, self._below, True), (ys, y, self._left, False)):
            top = max(1, -int(-log10(max(values)) // 1))
            low, high = -0.06 * top, 1.06 * top
            (self.axes.set_xlim if is_flat else self.axes.set_ylim)(low, high)
            step = 1 if top <= 8 else 2
            ticks = range(0, top + 1, step)
            ruler.set(ticks, [f"{10 ** tick:,}" for tick in ticks])
            ruler.set_title(f"{name}  ({MEASURES[name].unit}, logarithmic)", self.theme.ink, 76)

    def _place(self, members: dict[tuple[int, int], list[Score]]) -> None:
        places = {kind: [] for kind in self._marks}
        texts = []
        for at, those in members.items():
            kinds = {self._kind(one) for one in those}
            kind = next(kind for kind in self._marks if kind in kinds)
            place = log10(at[0]), log10(at[1])
            places[kind].append(place)
            name = ", ".join(one.layout.name for one in those if one.in_vllm)
            others = len(those) - sum(one.in_vllm for one in those)
            count = f"+{others}" if name and others else str(others) if others > 1 else ""
            texts.append((place, " ".join(filter(None, (name, count))), bool(name)))
        for kind, (mark, _) in self._marks.items():
            mark.set_data([place[0] for place in places[kind]], [place[1] for place in places[kind]])
        self._names.set(self._labels(sorted(texts, key=lambda one: not one[2])))

    def _labels(self, texts: list[tuple[tuple[float, float], str, bool]]) -> list[Label]:
        """Each text beside its point, where it covers no point and no text before it."""
        wide, high = _BOX[2] - _BOX[0], _BOX[3] - _BOX[1]
        (left, right), (low, top) = self.axes.get_xlim(), self.axes.get_ylim()
        across, up = (right - left) / wide, (top - low) / high  # data units a pixel
        taken = [(x / across - 6, y / up - 6, x / across + 6, y / up + 6) for (x, y), _, _ in texts]
        labels = []
        for (x, y), text, is_name in texts:
            size = 9 if is_name else 7.5
            length = text_width(text, size, is_name)
            for side, rise in ((1, 8), (1, -8), (-1, 8), (-1, -8), (1, 0)):
                begin, middle = x / across + side * 8 - (length if side < 0 else 0), y / up + rise
                box = begin, middle - size * 0.75, begin + length, middle + size * 0.75
                inside = left / across <= box[0] and box[2] <= right / across
                if inside and not any(box[0] < other[2] and other[0] < box[2] and box[1] < other[3]
                                      and other[1] < box[3] for other in taken):
                    break
            taken.append(box)
            ink = self.theme.ink if is_name else self.theme.soft
            labels.append(Label(begin * across, middle * up, text, size, ink, "left", bold=is_name))
        return labels

    def _write_key(self, counts: dict[str, int]) -> None:
        does = "more" if MEASURES[self._shade].better == "less" else "less"
        words = {"vllm": f"vLLM's: {counts['vllm']}",
                 "equal": f"{self._shade} as vLLM's best ({self._best:,}), or better: {counts['equal']}",
                 "more": f"{does}: {counts['more']}"}
        labels, x = [], 8
        for kind, text in words.items():
            self._marks[kind][1].set_data([x], [13])
            labels.append(Label(x + 12, 13, text, 8.5, self.theme.ink, "left"))
            x += {"vllm": 120, "equal": 330, "more": 0}[kind]
        self._words.set(labels)


def tradeoff_figure(scores: Iterable[Score], *, theme: str | Theme = "light", **options) -> Figure:
    """Return the picture of :class:`TradeoffFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = TradeoffFigure(theme)
    drawing.update(scores, **options)
    return drawing.figure
