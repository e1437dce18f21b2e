"""Ranges on one axis: rows of named bars, so that a right and a wrong range are seen against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kvlayout.errors import LayoutError, check_int
from kvlayout_widgets.figures.common import MARGIN, Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, fit, text_width
from kvlayout_widgets.figures.rulers import Ruler, index_ticks
from kvlayout_widgets.figures.theme import AXIS_COLOURS, Theme, ink_on, mix

LOOKS = ("right", "wrong", "plain", "other", "padding")
_RIGHT, _WRONG = "#009E73", "#D55E00"
_BOX = (150, 80, 930, 374)  # pixels of the rows: left, bottom, right, top
_TALLEST_ROW, _TALLEST_BAR, SIZE, _THIN = 150, 62, 8.5, 3
_FOOT = 22  # pixels below the rows for what lies outside


@dataclass(frozen=True)
class Span:
    """A range from ``start`` to ``end``, the first one behind it, in the figure's unit; ``look`` is one of LOOKS."""

    start: int
    end: int
    text: str = ""
    look: str = "plain"


def as_spans(name: str, given: object) -> tuple[Span, ...]:
    """Return the spans of the row ``name``.

    ``given``: Spans; or one (start, end), or a list of (start, end) or (start, end, text), or {text: (start, end)},
    which look right or wrong where the row's name begins so. LayoutError for anything else, and for an empty range.
    """
    if isinstance(given, Mapping):
        given = [(*_several(name, pair), str(text)) for text, pair in given.items()]
    elif isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], (tuple, Span)):
        given = [given]
    return tuple(_as_span(name, one) for one in _several(name, given))


def _several(name: str, given: object) -> Sequence:
    if isinstance(given, (str, bytes, Span)) or not isinstance(given, Sequence):
        raise LayoutError(name, given, "must be (start, end), or a list of such", "Give two whole numbers")
    return given


def _as_span(name: str, given: object) -> Span:
    if isinstance(given, Span):
        check_int(f"{name}: end", given.end, minimum=check_int(f"{name}: start", given.start, minimum=-(2**64)))
        if given.look not in LOOKS:
            raise LayoutError(f"{name}: look", given.look, f"must be one of {', '.join(LOOKS)}")
        return given
    parts = _several(name, given)
    if len(parts) not in (2, 3) or not isinstance(parts[-1] if len(parts) == 3 else "", str):
        raise LayoutError(name, given, "must be (start, end), or (start, end, text)", "Give two whole numbers")
    start = check_int(f"{name}: start", parts[0], minimum=-(2**64))
    end = check_int(f"{name}: end", parts[1], minimum=start + 1)
    text = parts[2] if len(parts) == 3 else f"{start:,} to {end:,}" if end > start + 1 else f"{start:,}"
    return Span(start, end, text, next((look for look in ("right", "wrong") if name.startswith(look)), "plain"))


class SpansFigure(Drawing):
    """Rows of bars over one axis, updated in place.

    Attributes:
        rows: {name: spans} as drawn, the first at the top
        window: (first, last + 1) of the axis, in its unit
        unlabelled: number of bars whose text has no room
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        self.axes = self.add_axes(*_BOX)
        self._texts, self._names = Glyphs(self.axes, zorder=6), Glyphs(self.axes, transform=self.axes.transAxes)
        self._mark_texts = Glyphs(self.axes, transform=self.axes.transAxes)
        # Both behind the bars, whose texts they would cross.
        self._guides = LineCollection([], colors=self.theme.soft, linewidths=0.7, linestyles="dotted", zorder=2)
        self._marks = LineCollection([], colors=self.theme.ink, linewidths=1.4, linestyles="dashed", zorder=2)
        for lines in (self._guides, self._marks):
            self.axes.add_collection(lines, autolim=False)
        self.ruler = Ruler(self.axes, "bottom", self.theme)
        self._bars: list[Rectangle] = []

    def update(
        self,
        rows: Mapping[str, object],
        *,
        window: tuple[int, int] | None = None,
        inside: tuple[int, int] | None = None,
        outside_words: tuple[str, str] = ("before it", "past its end"),
        marks: Mapping[str, int] | None = None,
        unit: str = "byte offset",
        title: str = "",
        subline: str = "",
        footer: str = "",
    ) -> None:
        """Draw the rows from the top down.

        ``rows``: {name: what :func:`as_spans` takes}. ``window``: what part of the axis is drawn, by default all
        spans and marks. ``inside``: the range that exists; what lies outside is hatched and named by
        ``outside_words``. ``marks``: {text: place} of lines through all rows. LayoutError for a span that ends before
        it starts, and for an unknown look.
        """
        self.rows = {name: as_spans(name, given) for name, given in rows.items()}
        marks = {text: check_int("marks", at, minimum=-(2**64)) for text, at in (marks or {}).items()}
        self.window = _window(self.rows, marks.values()) if window is None else _checked_window(window)
        self._pixels = (_BOX[2] - _BOX[0]) / (self.window[1] - self.window[0])
        self.axes.set_xlim(0, self.window[1] - self.window[0])
        self.axes.set_ylim(0, _BOX[3] - _BOX[1])
        for bar in self._bars:
            bar.remove()
        self._bars = []
        self._shade(inside, outside_words)
        self._draw_rows()
        self._draw_marks(marks)
        self._ticks(unit)
        self.say(title, subline, footer)
        spoken = [f"Row {name}: {'; '.join(_words(span) for span in spans[:12])}"
                  f"{f' and {len(spans) - 12} more' if len(spans) > 12 else ''}" for name, spans in self.rows.items()]
        self.tell((title, subline, f"One axis of {unit}, {self.window[0]:,} to {self.window[1]:,}", *spoken,
                   *(f"A line at {at:,}: {text}" for text, at in marks.items()), footer))

    def _x(self, at: int) -> float:
        """Distance from the window's start; integers are exact where floats aren't."""
        return float(at - self.window[0])

    def _clip(self, start: int, end: int) -> tuple[float, float] | None:
        low, high = max(start, self.window[0]), min(end, self.window[1])
        return (self._x(low), self._x(high)) if low < high else None

    def _add(self, left: float, bottom: float, width: float, high: float, **look) -> None:
        bar = Rectangle((left, bottom), width, high, **look)
        self.axes.add_patch(bar)
        self._bars.append(bar)

    def _shade(self, inside: tuple[int, int] | None, words: tuple[str, str]) -> None:
        self._outside = []
        if inside is None:
            return
        for (start, end), text in zip(((self.window[0], inside[0]), (inside[1], self.window[1])), words):
            part = self._clip(start, end)
            if part is not None:
                self._add(part[0], 0, part[1] - part[0], _BOX[3] - _BOX[1], facecolor=self.theme.panel,
                          edgecolor=self.theme.line, hatch="////", lw=0, zorder=1)
                self._outside.append((*part, text))

    def _draw_rows(self) -> None:
        labels, names, guides = [], [], []
        room = _BOX[3] - _BOX[1] - (_FOOT if self._outside else 0)
        high = min(_TALLEST_ROW, room / max(1, len(self.rows)))
        self.unlabelled = 0
        for index, (name, spans) in enumerate(self.rows.items()):
            middle = _BOX[3] - _BOX[1] - (index + 0.5) * high
            names.append(Label(-10 / (_BOX[2] - _BOX[0]), middle / (_BOX[3] - _BOX[1]),
                               fit(name, _BOX[0] - MARGIN - 12, 9, True), 9, self.theme.ink, "right", True))
            taken = []
            for span in sorted(spans, key=lambda one: one.start):
                part = self._clip(span.start, span.end)
                if part is not None:
                    taken.append((span, *self._draw_bar(span, part, middle, min(0.62 * high, _TALLEST_BAR))))
                    if span.look in ("right", "wrong"):
                        guides += [[(self._x(at), middle), (self._x(at), _BOX[3] - _BOX[1])]
                                   for at in (span.start, span.end) if self.window[0] <= at <= self.window[1]]
            labels += self._bar_labels(taken, middle)
        for left, right, text in self._outside:
            if text_width(text, 8.5) < (right - left) * self._pixels - 6:
                labels.append(Label((left + right) / 2, 12, text, 8.5, self.theme.ink))
        self._texts.set(labels)
        self._names.set(names)
        self._guides.set_segments(guides if len(guides) <= 24 else [])

    def _draw_bar(self, span: Span, part: tuple[float, float], middle: float, high: float) -> tuple[float, float]:
        left, right = part
        thin = _THIN / self._pixels
        if right - left < thin:  # a thin one is widened, so that it is seen
            left, right = left - (thin - right + left) / 2, left + (thin + right - left) / 2
        face, hatch = self._look(span.look)
        self._add(left, middle - high / 2, right - left, high, facecolor=face, hatch=hatch, zorder=3,
                  edgecolor=mix(face, self.theme.ink, 0.3), lw=0.8 if (right - left) * self._pixels > 4 else 0)
        return left, right

    def _look(self, look: str) -> tuple[str, str]:
        plain = mix(AXIS_COLOURS["L"], self.theme.background, 0.72)
        return {"right": (_RIGHT, ""), "wrong": (_WRONG, "//"), "plain": (plain, ""),
                "other": (mix(AXIS_COLOURS["B"], self.theme.background, 0.72), ""),
                "padding": (self.theme.unowned, "\\\\\\")}[look]

    def _bar_labels(self, taken: list, middle: float) -> list[Label]:
        """Text inside a bar that has room for it, or else beside it where nothing else is."""
        labels, room = [], _BOX[2] - _BOX[0]
        edges = [(left * self._pixels, right * self._pixels) for _, left, right in taken]
        free_from = 0.0
        for index, (span, left, right) in enumerate(taken):
            low, high = edges[index]
            wide = text_width(span.text, SIZE)
            next_low = edges[index + 1][0] if index + 1 < len(edges) else room
            if not span.text:
                pass
            elif wide + 8 <= high - low:
                face = self._look(span.look)[0]
                labels.append(Label((left + right) / 2, middle, span.text, SIZE, ink_on(face)))
            elif high + 6 + wide <= next_low:
                labels.append(Label(right + 6 / self._pixels, middle, span.text, SIZE, self.theme.ink, "left"))
                high += 6 + wide
            elif low - 6 - wide >= free_from:
                labels.append(Label(left - 6 / self._pixels, middle, span.text, SIZE, self.theme.ink, "right"))
            else:
                self.unlabelled += 1
            free_from = high + 4
        return labels

    def _draw_marks(self, marks: dict[str, int]) -> None:
        high, wide = _BOX[3] - _BOX[1], _BOX[2] - _BOX[0]
        shown = sorted((at, text) for text, at in marks.items() if self.window[0] <= at <= self.window[1])
        self._marks.set_segments([[(self._x(at), 0), (self._x(at), high)] for at, _ in shown])
        labels, ends = [], [0.0, 0.0]  # two lines of text above the rows
        for at, text in shown:
            x, half = self._x(at) * self._pixels, text_width(text, 8) / 2
            left = min(max(x - half, 0), wide - 2 * half)
            line = 0 if left >= ends[0] else 1
            left = max(left, ends[line])
            ends[line] = left + 2 * half + 10
            labels.append(Label(left / wide, 1 + (10 + 15 * line) / high, text, 8, self.theme.ink, "left"))
        self._mark_texts.set(labels)

    def _ticks(self, unit: str) -> None:
        first, behind = self.window
        widest = max(text_width(f"{at:,}", 8) for at in self.window)
        most = int(np.clip((_BOX[2] - _BOX[0]) / (widest + 26), 2, 8))
        ticks = index_ticks(first, behind - first, most)
        self.ruler.set([self._x(at) for at in ticks], [f"{at:,}" for at in ticks])
        self.ruler.set_title(unit, self.theme.ink)


def _checked_window(window: tuple[int, int]) -> tuple[int, int]:
    first = check_int("window", window[0], minimum=-(2**64))
    return first, check_int("window", window[1], minimum=first + 1)


def _window(rows: Mapping[str, Sequence[Span]], marks) -> tuple[int, int]:
    """All spans and marks, with some room on both sides."""
    places = [at for spans in rows.values() for span in spans for at in (span.start, span.end)] + list(marks)
    low, high = (min(places), max(places)) if places else (0, 1)
    spare = max(1, (high - low) // 16)
    return low - spare, high + spare


def _words(span: Span) -> str:
    place = f"{span.start:,} to {span.end:,}"
    text = place if span.text in ("", place) else f"{span.text}, {place}"
    return text if span.look in ("plain", "other") else f"{text} ({span.look})"


def spans_figure(rows: Mapping[str, object], *, theme: str | Theme = "light", **options) -> Figure:
    """Return the rows of :class:`SpansFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = SpansFigure(theme)
    drawing.update(rows, **options)
    return drawing.figure
