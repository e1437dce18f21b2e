"""Prototype: a backend that is only designed yet, or one of the catalogue, tried on the model that is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import ipywidgets as widgets

from kvlayout.bench import PackedPage, Trial, Verdict, try_backend
from kvlayout.errors import LayoutError
from kvlayout.facts.backends import as_backend, get_backend
from kvlayout.facts.user_backend import name_of
from kvlayout.plan import Plan
from kvlayout.selection import Selection
from kvlayout_widgets.catalogue import backend_options
from kvlayout_widgets.control import choose, chosen
from kvlayout_widgets.figures.theme import exact_bytes
from kvlayout_widgets.html import code, layout_chips, paragraph, span, table
from kvlayout_widgets.panels.lints import findings_table
from kvlayout_widgets.panels.scores import force_choices
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, TextTab

SAMPLE = '''from kvlayout.bench import PrototypeBackend
from kvlayout_widgets import Explorer

class Mine(PrototypeBackend):                # any class with vLLM's methods will do as well
    layouts = ("BLHNC", "LBHNC")             # most preferred first; any order of L, B, H, N, C; None for any
    kernel_block_sizes = (16, 32)            # tokens
    page_alignment = 4096                    # bytes

Explorer(backends=[Mine])'''
_EMPTY = ("None of your own is given. Copy this into a cell, change what differs, and run it; or try one of the "
          "catalogue.")
_OWN = "yours:"
_SHOWN = 12


class PrototypePanel(TextTab):
    """What the resolver and the planning make of a backend, alone and beside others."""

    title = "Prototype"
    asks = "What would the resolver make of my backend, alone and with others, and which page is it handed?"
    depends_on = frozenset({"plan", "problem"})

    def __init__(self, state: State, act: Act):
        self.backend = widgets.Dropdown(options=[("a backend …", "")], description="Try",
                                        tooltip="One of your own, Explorer(backends=[...]), or of the catalogue",
                                        layout=widgets.Layout(width="330px"), style={"description_width": "32px"})
        self.beside = widgets.SelectMultiple(
            options=[], description="Together with", rows=5, layout=widgets.Layout(width="400px"),
            tooltip="Backends that the same worker runs as well, a draft model's say; Ctrl or Shift chooses several",
            style={"description_width": "92px"})
        self.show = widgets.Button(description="Show it in all tabs", disabled=True,
                                   layout=widgets.Layout(width="150px"),
                                   tooltip="Choose this backend, so that all tabs show its cache")
        super().__init__(state, act, (self.backend, self.beside, self.show),
                         "The model, its options and the machine are those chosen on the left; the backend there is "
                         "left out of account.")
        self.said = widgets.HTML()
        row, *below = self.widget.children
        self.widget.children = (row, self.said, *below)
        self.trial: Trial | None = None
        self._told: Plan | None = None  # the plan of which ``said`` tells
        self._is_setting = False
        self._offer()
        own = [value for _, value in self.backend.options if value.startswith(_OWN)]
        if own:
            self._set(lambda: setattr(self.backend, "value", own[0]))
        for one in (self.backend, self.beside):
            one.observe(lambda _: None if self._is_setting else self._chosen(), "value")
        self.show.on_click(lambda _: self.act(self._show))

    def html(self) -> str:
        self.trial, self.show.disabled = None, True
        if self.state.plan is not self._told:
            self.said.value = ""
        self._offer()
        name = chosen(self.backend)
        if name is None:
            return paragraph("Choose a backend to try." if self._own else _EMPTY, "note") + code(SAMPLE)
        selection = Selection.from_dict(self.state.choices)
        beside = [self._of(one) for one in self.beside.value if one != name]
        self.trial = try_backend(self._of(name), selection, beside=beside)
        self.show.disabled = self.trial.plan is None
        return trial_html(self.trial)

    def _chosen(self) -> None:
        self.said.value = ""
        self.later()

    def _of(self, name: str) -> object:
        if name.startswith(_OWN):
            return self._own[int(name.removeprefix(_OWN))]
        return get_backend(name, self.state.choices["vllm_version"])

    @property
    def _own(self) -> list[object]:
        """The user's own: those that can be planned with, then the broken ones."""
        return [*self.state.backends, *(one for one, _ in self.state.broken)]

    def _offer(self) -> None:
        """List the user's own and those of the chosen release."""
        version = self.state.choices["vllm_version"]
        usable = [(f"{as_backend(one, version).name} (yours)", f"{_OWN}{index}")
                  for index, one in enumerate(self.state.backends)]
        broken = [(f"{name_of(one)} (yours, ✗)", f"{_OWN}{index}")
                  for index, (one, _) in enumerate(self.state.broken, len(usable))]
        usable += [(text, name) for text, name in backend_options(version) if name is not None]

        def fill() -> None:
            choose(self.backend, chosen(self.backend), [("a backend …", None), *broken, *usable])
            if list(self.beside.options) != usable:
                kept = tuple(one for one in self.beside.value if one in [name for _, name in usable])
                self.beside.options = usable
                self.beside.value = kept
        self._set(fill)

    def _set(self, change) -> None:
        self._is_setting = True
        try:
            change()
        finally:
            self._is_setting = False

    def _show(self) -> None:
        trial, forced = self.trial, self.state.choices["layout"]
        shown = trial.plan.layout.name
        if forced is None and trial.together.layout is None:
            forced = shown  # the resolver has none for it
        try:
            force_choices(self.state, backend=trial.backend.name, layout=forced)
            if self.state.plan.layout.name != shown:  # no other tab knows of the backends beside it
                force_choices(self.state, layout=shown)
        except LayoutError as error:
            self.said.value = paragraph(f"✗ {error}", "refused")
            return
        self._told = self.state.plan
        forced = ", forced" if self.state.choices["layout"] is not None else ""
        self.said.value = paragraph(f"✓ All tabs show {trial.backend.name} in {shown} now{forced}.", "good")


def trial_html(trial: Trial) -> str:
    """Return all that came of a trial: in a word, what it lacks, the verdicts, and the pages."""
    head = paragraph("✓ A layout is resolved, and a cache can be planned." if trial.ok else
                     "✗ It can't be run like this.", "good" if trial.ok else "bad")
    parts = [head, paragraph("What it lacks or gets wrong", "section"),
             findings_table(list(trial.findings), list(trial.findings))]
    verdicts = {"Alone": trial.alone, "Together with the others": trial.together}
    if trial.alone == trial.together:
        verdicts = {"Alone, as no other backend is beside it": trial.alone}
    for title, verdict in verdicts.items():
        if verdict is not None:
            parts += [paragraph(title, "section"), verdict_html(verdict)]
    if trial.plan is not None:
        forced = ", as forced" if trial.forced else ""
        parts += [paragraph(f"The page as it is packed, in {trial.plan.layout.name}{forced}", "section"),
                  pages_html(trial.pages)]
    return "".join(parts)


def verdict_html(verdict: Verdict) -> str:
    """Return which layout is taken and why, and how each backend fares."""
    if verdict.layout is None:
        said = paragraph(f"✗ No layout: {verdict.why}", "refused")
    else:
        said = f'<div class="kvl-line">{layout_chips(verdict.layout)} {escape(verdict.why)}</div>'
    losers = verdict.losers
    if losers:
        said += paragraph(f"! Not its first choice: {', '.join(losers)}", "amber")
    common = ", ".join(verdict.candidates) or "none"
    rows = [(span(one.backend), escape("any" if one.declared is None else ", ".join(one.declared)), _gets(one.choice),
             "".join(f"<div>{layout_chips(name)} {escape(why)}</div>" for name, why in one.lost.items()) or
             span("nothing", "soft")) for one in verdict.standings]
    return said + table(("backend", "supports, most preferred first", "gets", "what is out of the race, and why"),
                        rows) + paragraph(f"All of them support: {common}", "note")


def _gets(choice: int | None) -> str:
    if choice is None:
        return span("✗ none", "bad")
    if choice == 0:
        return span("· doesn't mind", "soft")
    return span("✓ its first choice", "good") if choice == 1 else span(f"! its choice {choice}", "amber")


def pages_html(pages: Iterable[PackedPage]) -> str:
    """Return each different page: sizes and strides in bytes, and the view in elements."""
    pages = list(pages)
    if not pages:
        return paragraph("None of this rank's layers is served by it.", "note")
    rows = [(_layers(one.layers), f"{one.kernel_block_size:,}", _numbers(one.shape), _numbers(one.strides),
             span(exact_bytes(one.page_size_bytes)), span(exact_bytes(one.padding_bytes)), _view(one), _fields(one),
             _repacked(one)) for one in pages[:_SHOWN]]
    more = paragraph(f"and {len(pages) - _SHOWN:,} more pages", "note") if len(pages) > _SHOWN else ""
    header = ("layers", "kernel block (tokens)", "[B, H, N, C] (bytes of C)", "strides (bytes)", "page",
              "padding in it", "view (elements)", "fields (first byte)", "changed by it")
    return f'<div class="kvl-scroll">{table(header, rows)}</div>{more}'


def _layers(layers: tuple[str, ...]) -> str:
    text = layers[0] if len(layers) == 1 else f"{layers[0]} and {len(layers) - 1:,} more"
    names = ", ".join(layers[:_SHOWN]) + (" …" if len(layers) > _SHOWN else "")
    return f'<div class="kvl-long" title="{escape(names)}">{escape(text)}</div>'


def _numbers(values: Iterable[int]) -> str:
    return f"<span>[{', '.join(f'{one:,}' for one in values)}]</span>"


def _view(page: PackedPage) -> str:
    if page.view is None:
        return span("✗ none", "bad") + paragraph(page.view_refused, "note")
    return (f"{_numbers(page.view.shape)}<br>strides {_numbers(page.view.stride_elements)}<br>"
            f"{escape(page.view.dtype)}")


def _fields(page: PackedPage) -> str:
    return "<br>".join(f"<span>{escape(one.name)} {one.offset:,}</span>" for one in page.interior.fields[:_SHOWN])


def _repacked(page: PackedPage) -> str:
    """The spec's values that differ from what the layer reports."""
    old, new = (vars(one) for one in (page.reported, page.packed))
    lines = [f"{name}: {old.get(name)} → {value}" for name, value in new.items() if value != old.get(name)]
    if type(page.reported) is not type(page.packed):
        lines.insert(0, f"{type(page.reported).__name__} → {type(page.packed).__name__}")
    return "".join(paragraph(line, "line") for line in lines) or span("nothing", "soft")
