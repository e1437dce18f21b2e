"""How a layout was resolved: one row a step, one column a layout."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from matplotlib.figure import Figure

from kvlayout.layout import KVCacheLayout
from kvlayout.steps import Resolution, Step
from kvlayout_widgets.figures.common import Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, fit, wrap
from kvlayout_widgets.figures.raster import Palette, Raster, blank_look
from kvlayout_widgets.figures.theme import Theme, mix

DECISIVE = ("pinned", "requested", "connector", "default", "captured")
_BOX = (20, 14, 940, 398)  # pixels: left, bottom, right, top
_CELL, _TABLE, _HEAD = 54, 134, 34  # widths of a column and of the rule names, height of the column heads
# What became of a layout in a step: colour, hatch, glyph, word.
STATES = {"kept": ("#8CCBF0", "", "✓", "kept"), "dropped": ("#D55E00", "/", "✗", "dropped"),
          "chosen": ("#009E73", "", "★", "chosen"), "passed": ("", "", "–", "not chosen"),
          "gone": ("", "", "·", "gone before")}


class ResolverFigure(Drawing):
    """The steps, updated in place.

    Attributes:
        columns: layout names
        states: for each step, what became of each column: "kept", "dropped", "chosen", "passed" (a
            candidate, but another was chosen) or "gone"
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        self.axes = self.add_axes(*_BOX, frame=False)
        self._width, self._height = _BOX[2] - _BOX[0], _BOX[3] - _BOX[1]
        self.raster, self.glyphs = Raster(self.axes), Glyphs(self.axes)
        self.axes.set_xlim(0, self._width)
        self.axes.set_ylim(0, self._height)

    def update(self, steps: Iterable[Step] | Resolution) -> None:
        """Draw the steps of a resolution, or those that a ResolutionError carries."""
        self.steps = tuple(getattr(steps, "steps", steps))
        named = [name for step in self.steps for name in (*step.before, *step.after, *step.dropped)]
        self.columns = tuple(dict.fromkeys([*KVCacheLayout.__members__, *named]))
        self.states = [self._row(step, step is self.steps[-1]) for step in self.steps]
        self._draw()
        chosen = next((name for row in self.states[-1:] for name, state in zip(self.columns, row)
                       if state == "chosen"), None)
        failed = bool(self.steps) and not self.steps[-1].after
        headline = f"{chosen} is chosen" if chosen else "No layout is left" if failed else \
            "Candidates, most preferred first: " + ", ".join(self.steps[-1].after if self.steps else ())
        key = "   ".join(f"{glyph} {word}" for _, _, glyph, word in STATES.values())
        self.say(headline, f"each step starts from what the one before it left   ·   {key}")
        self.tell((f"Table of {len(self.steps)} resolution steps. {headline}",
                   *(f"{step.rule}: {' '.join((step.sentence, *_reasons(step, 'passed' in row)))}"
                     for step, row in zip(self.steps, self.states))))

    def _row(self, step: Step, is_last: bool) -> list[str]:
        decided = is_last and step.rule in DECISIVE and len(step.after) == 1
        row = []
        for name in self.columns:
            if name in step.after:
                row.append("chosen" if decided else "kept")
            else:
                lost = name in step.before or name in step.dropped
                row.append(("passed" if decided else "dropped") if lost else "gone")
        return row

    def _draw(self) -> None:
        looks = [blank_look(self.theme), *((face, mix(face, "#FFFFFF", 0.45), hatch) for face, hatch, _, _ in
                                           STATES.values() if face), (self.theme.panel, self.theme.panel, "")]
        codes_of = {"kept": 1, "dropped": 2, "chosen": 3, "gone": 4, "passed": 4}
        image = np.zeros((self._height, self._width), dtype=np.int16)
        cell = min(_CELL, 400 // len(self.columns))
        text_left = _TABLE + cell * len(self.columns) + 16
        high = min(56, (self._height - _HEAD) / max(1, len(self.steps)))
        labels = [Label(_TABLE + cell * (i + 0.5), self._height - 14, name, 8.5, self.theme.ink, bold=True)
                  for i, name in enumerate(self.columns)]
        for number, (step, row) in enumerate(zip(self.steps, self.states)):
            top = _HEAD + number * high
            y = self._height - top - high / 2
            labels.append(Label(0, y, fit(step.rule, _TABLE - 6, 8.5, True), 8.5, self.theme.ink, "left", True))
            for i, state in enumerate(row):
                left = _TABLE + cell * i
                block = slice(int(top) + 2, int(top + high) - 2), slice(left + 2, left + cell - 2)
                image[block] = codes_of[state]
                plate = (slice(int(top + high / 2) - 8, int(top + high / 2) + 8),
                         slice(left + cell // 2 - 9, left + cell // 2 + 9))
                if state == "dropped":
                    image[plate] = 5
                colour = {"kept": "#101418", "dropped": "#FFFFFF", "chosen": "#FFFFFF"}.get(state, self.theme.soft)
                labels.append(Label(left + cell / 2, y, STATES[state][2], 11, colour))
            labels += self._sentences(step, "passed" in row, text_left, y, high)
        looks.append((STATES["dropped"][0], STATES["dropped"][0], ""))
        self.raster.set(image, Palette(looks), (0, self._width, 0, self._height))
        self.glyphs.set(labels)

    def _sentences(self, step: Step, decided: bool, left: int, y: float, high: float) -> list[Label]:
        """The step's sentence and, softer, why layouts were dropped: as many lines as the row has room for."""
        size, wide, most = 7.5, self._width - left, max(1, int(high / 11.5))
        lines = [(line, self.theme.ink) for line in wrap(step.sentence, wide, size)]
        lines += [(line, self.theme.soft) for reason in _reasons(step, decided) for line in wrap(reason, wide, size)]
        if len(lines) > most:
            lines = [*lines[:most - 1], (fit(lines[most - 1][0], wide - 12, size) + " …", lines[most - 1][1])]
        start = y + (len(lines) - 1) * 5.75
        return [Label(left, start - 11.5 * i, fit(line, wide, size), size, colour, "left")
                for i, (line, colour) in enumerate(lines)]


def _reasons(step: Step, decided: bool) -> list[str]:
    """Return "✗ LHBNC, BHLNC: not supported by X", names with the same reason together."""
    glyph = STATES["passed" if decided else "dropped"][2]
    names: dict[str, list[str]] = {}
    for name, reason in step.dropped.items():
        names.setdefault(reason, []).append(name)
    return [f"{glyph} {', '.join(found)}: {reason.removeprefix('is ')}" for reason, found in names.items()]


def resolver_figure(steps: Iterable[Step] | Resolution, theme: str | Theme = "light") -> Figure:
    """Return the step table of :class:`ResolverFigure` as a figure."""
    drawing = ResolverFigure(theme)
    drawing.update(steps)
    return drawing.figure
