"""Layouts: every order of the axes scored for the selected layer's pages, to be sorted, filtered and forced."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from kvlayout.bench import KEEPS, MEASURES, DecodeShape, Score, layers_alike, ranked, score_layouts, shard_words
from kvlayout.captured import is_captured
from kvlayout.errors import LayoutError
from kvlayout.plan import Plan, make_plan
from kvlayout.selection import Selection
from kvlayout.spec import KVCacheSpec
from kvlayout_widgets.control import parse_integer
from kvlayout_widgets.figures.scores import ScoresFigure, value_words
from kvlayout_widgets.figures.wording import count, layer_words
from kvlayout_widgets.html import layout_chips, paragraph, span, table
from kvlayout_widgets.panels.choices import dropdown, text_field
from kvlayout_widgets.panels.picture_panel import PicturePanel
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act

_FLAGS = tuple(name for name, one in MEASURES.items() if one.unit == "yes/no")
FILTERS: dict[str, Callable[[Score], bool]] = {
    "all 120": lambda one: True,
    "the six of vLLM": lambda one: one.in_vllm,
    "not vLLM's": lambda one: not one.in_vllm,
    "views exist": lambda one: one.measures.get("typed view") == 1,
    "blocks can be split": lambda one: one.measures.get("kernel blocks") == 1,
    "pages can be padded": lambda one: one.measures.get("padding") == 1,
    "pages can be mixed in a group": lambda one: one.measures.get("mixed pages") == 1,
    "groups can have other pages": lambda one: one.measures.get("mixed groups") == 1,
    "C isn't innermost": lambda one: not one.layout.name.endswith("C"),
}
_BEST, _WORST = "best first", "worst first"


class ScoresPanel(PicturePanel):
    """All 120 orders by a measure, as dots and as a table; one of them can be forced on the whole explorer."""

    title = "Layouts"
    asks = "What would each order of the axes cost, what stays expressible in it, and how do vLLM's six compare?"

    def __init__(self, state: State, act: Act):
        self.measure = dropdown("Sort by", [(f"{name} ({one.unit})", name) for name, one in MEASURES.items()],
                                "The measure that ranks the layouts; its meaning is under the figure's title", 52,
                                270, value="head shard runs")
        self.direction = dropdown("", [_BEST, _WORST], "Which end of the ranking is on top", 0, 108)
        self.filter = dropdown("Show", list(FILTERS), "Which of the layouts the table lists", 42, 250)
        self.context = text_field("Context", "Tokens of the request whose decode step is counted", 56, 130,
                                  value="4,096", placeholder="4,096")
        self.shards = text_field("Shards", "Ranks that the heads are dealt out to, for the head shard", 50, 130,
                                 value="2", placeholder="2")
        self.row = dropdown("Layout", [], "A layout of the table; a click on its dot chooses it too", 50, 170)
        self.force = widgets.Button(description="Force this layout", layout=widgets.Layout(width="150px"),
                                    tooltip="Plan the cache in it, unasked, as a value on cache_config would")
        controls = (self.measure, self.direction, self.filter, self.context, self.shards)
        super().__init__(state, act, controls, "Click a dot to choose its layout below. Equal scores share a place.")
        self.said = widgets.HTML()
        forcing = widgets.HBox([self.row, self.force, self.said], layout=widgets.Layout(flex_flow="row wrap"))
        *above, text = self._below.children
        self._below.children = (*above, forcing, text)
        self.scores: list[Score] = []
        self._known: tuple | None = None
        self._told: Plan | None = None  # the plan of which ``said`` tells
        for one in controls:
            one.observe(lambda _: self.later(), "value")
        self.row.observe(lambda _: setattr(self.said, "value", ""), "value")
        self.force.on_click(lambda _: self.act(self._force))

    def make(self, theme: str) -> ScoresFigure:
        return ScoresFigure(theme)

    def update(self, drawing: ScoresFigure) -> None:
        plan, at = self.state.plan, self.state.coordinate
        spec, layers = self._scored()
        self.scores = self._count(spec, layers)
        kept = [one for one in self.scores if FILTERS[self.filter.value](one)]
        self.listed = ranked(kept, self.measure.value, best_first=self.direction.value == _BEST)
        blocks = plan.config.num_blocks
        self._title = (f"{count(layers, 'L')} like {layer_words(plan.address_map, at.layer)}, {count(blocks, 'B')}")
        drawing.update(self.scores, self.measure.value, best_first=self.direction.value == _BEST,
                       chosen=plan.layout.name, kept={one.layout.name for one in kept}, title=self._title)
        self._offer([one.layout.name for one in self.listed])
        if plan is not self._told:
            self.said.value = ""

    def html(self) -> str:
        (spec, _), chosen = self._scored(), self.state.plan.layout.name
        sentences = (self._decode().sentence(spec, self.state.plan.config.num_blocks),
                     shard_words(spec, _number(self.shards, "Shards")))
        return ("".join(paragraph(one, "line") for one in sentences)
                + scores_table(self.listed, self.measure.value, chosen, self._title, self.scores))

    def hovered(self, x: float, y: float, axes: int) -> str:
        return self._drawing.words_at(x, y) if axes == 0 else ""

    def clicked(self, x: float, y: float, axes: int) -> None:
        one = self._drawing.at(x, y) if axes == 0 else None
        if one is not None and one.layout.name in self.row.options:
            self.row.value = one.layout.name

    def _offer(self, names: list[str]) -> None:
        """List the layouts that can be chosen; the one that is stays so where it can."""
        self.force.disabled = not names
        if list(self.row.options) != names:
            wished = self.row.value
            self.row.options = names
            self.row.value = wished if wished in names else next(iter(names), None)

    def _scored(self) -> tuple[KVCacheSpec, int]:
        """The selected layer's spec, and how many layers of its group have such pages."""
        return layers_alike(self.state.plan.address_map, self.state.coordinate.layer)

    def _decode(self) -> DecodeShape:
        return DecodeShape(_number(self.context, "Context"))

    def _count(self, spec: KVCacheSpec, layers: int) -> list[Score]:
        """The scores, counted anew only where what they depend on has changed."""
        key = spec, self.state.plan.config.num_blocks, layers, _number(self.shards, "Shards"), self._decode()
        if self._known is None or self._known[0] != key:
            *parts, shards, decode = key
            self._known = key, score_layouts(*parts, shards=shards, decode=decode)
        return self._known[1]

    def _force(self) -> None:
        name, state = self.row.value, self.state
        try:
            force_choices(state, layout=name)
        except LayoutError as error:
            self.said.value = paragraph(f"✗ {error}", "refused")
            return
        self._told = state.plan
        self.said.value = paragraph(f"✓ The cache is planned in {name} now, forced.", "good")


def force_choices(state: State, **choices: object) -> None:
    """Take these choices if a plan follows from them; else LayoutError, and everything stays as it was."""
    (name, value), *_ = choices.items()
    if is_captured(state.choices["model"]):
        raise LayoutError(name, value, "can't be tried on a captured config: it was planned elsewhere, and is shown "
                          "as it is", "Choose a model to plan anew")
    make_plan(Selection.from_dict({**state.choices, **choices}), backends=state.backends)
    state.try_change(**choices)


def scores_table(listed: list[Score], measure: str, chosen: str, title: str, scores: list[Score]) -> str:
    """Return the rows of ``listed``, the layouts that a filter left of ``scores``."""
    values = [one.measures.get(measure) for one in listed]
    rows = []
    for one in listed:
        place = "–" if measure not in one.measures else f"{values.index(one.measures[measure]) + 1}"
        marks = " ".join([*(["▶"] if one.layout.name == chosen else []), *(["vLLM"] if one.in_vllm else [])])
        value = "–" if measure not in one.measures else _value(measure, one.measures[measure])
        rows.append((place, layout_chips(one.layout.name) + f"<b>{marks}</b>",
                     f"<b>{span(value, 'number')}</b>", *_cells(one.measures), _expressible(one)))
    header = ("place", "layout", span(f"{measure} ({MEASURES[measure].unit})", "number"), *(
        span(f"{name}: runs × bytes", "number", MEASURES[f"{name} runs"].meaning)
        for name in ("block", "layer", "head shard", "token")), *(
        span(f"decode {name}: sectors / lines", "number", MEASURES[f"{name} sectors"].meaning)
        for name in ("read", "write")), span("keeps", "", "What stays expressible"))
    left_out = len(scores) - len(listed)
    note = paragraph(f"{left_out:,} of {len(scores):,} are left out by the filter", "note") if left_out else ""
    if not rows:
        return paragraph("· None of the orders is like that for these pages.", "note")
    caption = f"Scores for {title}; ▶ is this cache's layout"
    return f'{paragraph(caption, "section")}<div class="kvl-scroll">{table(header, rows)}</div>{note}{_legend()}'


def _cells(measures: dict[str, int]) -> list[str]:
    pairs = [*((f"{name} runs", "×", f"{name} run bytes") for name in ("block", "layer", "head shard", "token")),
             *((f"{name} sectors", "/", f"{name} lines") for name in ("read", "write"))]
    return [span(f"{measures[one]:,} {sign} {measures[other]:,}" if one in measures else "–", "number")
            for one, sign, other in pairs]


def _value(measure: str, value: int) -> str:
    """A value without its unit, which stands above it."""
    return value_words(measure, value) if measure in _FLAGS else f"{value:,}"


def _expressible(one: Score) -> str:
    if one.refused:
        return span("✗ refused", "bad") + paragraph(one.refused, "note")
    lacks = [name for name in KEEPS.values() if not one.measures.get(name)]
    letters = "".join("-" if name in lacks else letter for letter, name in KEEPS.items())
    tooltip = f"not: {', '.join(lacks)}" if lacks else "all of them"
    return span(letters, "mono", tooltip)


def _legend() -> str:
    return paragraph("keeps: " + ", ".join(f"{letter} {name}" for letter, name in KEEPS.items())
                     + ". Another order of the rows: Sort by, above the picture.", "note")


def _number(field: widgets.Text, name: str) -> int:
    try:
        value = parse_integer(field.value, name)
    except LayoutError:
        value = None
    if value is None or value < 1:
        raise LayoutError(name, field.value, "must be a whole number of at least 1",
                          f"Write one such as {field.placeholder}")
    return value
