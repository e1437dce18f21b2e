"""Layouts: every order of the axes scored for the selected layer's pages, to be sorted, filtered and forced."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import ipywidgets as widgets

from kvlayout.bench import MEASURES, DecodeShape, Score, score_layouts
from kvlayout.captured import is_captured
from kvlayout.errors import LayoutError
from kvlayout.plan import Plan, make_plan
from kvlayout.selection import Selection
from kvlayout.spec import KVCacheSpec
from kvlayout_widgets.control import parse_integer
from kvlayout_widgets.figures.scores import ScoresFigure, ranked, value_words
from kvlayout_widgets.figures.wording import count, layer_words
from kvlayout_widgets.html import layout_chips, paragraph, span, table
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
        self.measure = widgets.Dropdown(
            options=[(f"{name} ({one.unit})", name) for name, one in MEASURES.items()], description="Sort by",
            value="head shard runs", tooltip="The measure that ranks the layouts; its meaning is under the "
            "figure's title", layout=widgets.Layout(width="270px"), style={"description_width": "52px"})
        self.direction = widgets.Dropdown(options=[_BEST, _WORST], tooltip="Which end of the ranking is on top",
                                          layout=widgets.Layout(width="108px"))
        self.filter = widgets.Dropdown(
            options=list(FILTERS), description="Show", layout=widgets.Layout(width="250px"),
            tooltip="Which of the layouts the table lists", style={"description_width": "42px"})
        self.context = _text("Context", "4,096", "Tokens of the request whose decode step is counted", 56, 130)
        self.shards = _text("Shards", "2", "Ranks that the head slots are dealt out to, for the head shard", 50, 100)
        self.row = widgets.Dropdown(options=[], description="Layout", tooltip="A layout of the table; a click on its "
                                    "dot chooses it too", layout=widgets.Layout(width="170px"),
                                    style={"description_width": "50px"})
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
        spec, _ = self._scored()
        chosen = self.state.plan.layout.name
        return (paragraph(self._decode().sentence(spec, self.state.plan.config.num_blocks), "line")
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
        plan, layer = self.state.plan, self.state.coordinate.layer
        group = plan.address_map.config.kv_cache_groups[plan.address_map.region(layer).group]
        specs = group.layer_specs
        return specs[layer], sum(one == specs[layer] for one in specs.values())

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
        rows.append((place, layout_chips(one.layout.name) + f"<b>{marks}</b>", f"<b>{value}</b>", *(
            _cells(one.measures) if not one.refused else ("–",) * 6), _expressible(one)))
    header = ("place", "layout", escape(f"{measure} ({MEASURES[measure].unit})"), *(
        span(f"{name}: runs × bytes", "", MEASURES[f"{name} runs"].meaning)
        for name in ("block", "layer", "head shard", "token")), *(
        span(f"decode {name}: sectors / lines", "", MEASURES[f"{name} sectors"].meaning)
        for name in ("read", "write")), "stays expressible")
    left_out = len(scores) - len(listed)
    note = paragraph(f"{left_out:,} of {len(scores):,} are left out by the filter", "note") if left_out else ""
    if not rows:
        return paragraph("· None of the orders is like that for these pages.", "note")
    caption = f"Scores for {title}; ▶ is this cache's layout"
    return f'{paragraph(caption, "section")}<div class="kvl-scroll">{table(header, rows)}</div>{note}'


def _cells(measures: dict[str, int]) -> list[str]:
    runs = [f"{measures[f'{name} runs']:,} × {measures[f'{name} run bytes']:,}"
            for name in ("block", "layer", "head shard", "token")]
    lines = [f"{measures[f'{name} sectors']:,} / {measures[f'{name} lines']:,}" for name in ("read", "write")]
    return [f"<span>{one}</span>" for one in (*runs, *lines)]


def _value(measure: str, value: int) -> str:
    """A value without its unit, which stands above it."""
    return value_words(measure, value) if measure in _FLAGS else f"{value:,}"


def _expressible(one: Score) -> str:
    if one.refused:
        return span("✗ refused", "bad") + paragraph(one.refused, "note")
    there = [name for name in _FLAGS if one.measures.get(name)]
    lacks = [name for name in _FLAGS if name not in there]
    tooltip = f"not: {', '.join(lacks)}" if lacks else "all of them"
    return f'<div title="{escape(tooltip)}">{escape(", ".join(there) or "none")}</div>'


def _number(field: widgets.Text, name: str) -> int:
    try:
        value = parse_integer(field.value, name)
    except LayoutError:
        value = None
    if value is None or value < 1:
        raise LayoutError(name, field.value, "must be a whole number of at least 1",
                          f"Write one such as {field.placeholder}")
    return value


def _text(description: str, value: str, tooltip: str, label_width: int, width: int) -> widgets.Text:
    return widgets.Text(description=description, value=value, placeholder=value, tooltip=tooltip,
                        continuous_update=False, layout=widgets.Layout(width=f"{width}px"),
                        style={"description_width": f"{label_width}px"})
