"""Resolver: every rule that was applied, which layouts it left, and why it dropped the others."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import ipywidgets as widgets

from kvlayout.resolve import ResolutionError, Step
from kvlayout_widgets.figures.resolver import ResolverFigure
from kvlayout_widgets.html import layout_chips, paragraph, table
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, PictureTab


class ResolverTab(PictureTab):
    """The steps as a picture and as a table; where nothing could be resolved, the steps until then."""

    title = "Resolver"
    depends_on = frozenset({"plan", "problem"})

    def __init__(self, state: State, act: Act):
        super().__init__(state, act)
        self.table = widgets.HTML()
        self.widget = widgets.VBox([self.widget, self.table])

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the present choices."""
        problem = self.state.problem
        return problem.steps if isinstance(problem, ResolutionError) else self.state.plan.resolution.steps

    def make(self, theme: str) -> ResolverFigure:
        return ResolverFigure(theme)

    def draw(self, theme: str) -> None:
        super().draw(theme)
        self.table.value = steps_html(self.steps)

    def update(self, drawing: ResolverFigure) -> None:
        drawing.update(self.steps)


def steps_html(steps: Iterable[Step]) -> str:
    """Return the steps as a table: rule, what was there before and after, what was dropped and why, the sentence."""
    rows = []
    for step in steps:
        dropped = "".join(f"<div>{layout_chips(name)} {escape(why)}</div>" for name, why in step.dropped.items())
        rows.append((f"<code>{escape(step.rule)}</code>", _names(step.before), _names(step.after),
                     dropped or '<span class="kvl-soft">none</span>', paragraph(step.sentence, "line")))
    return table(("rule", "before", "after", "dropped, and why", "in words"), rows)


def _names(names: Iterable[str]) -> str:
    shown = " ".join(f'<span class="kvl-mono">{escape(name)}</span>' for name in names)
    return shown or '<span class="kvl-bad">none left</span>'
