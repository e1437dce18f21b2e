"""Lints: what is wrong, or easily done wrong, with this cache; with the tables that the findings come from."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import ipywidgets as widgets

from kvlayout.address import AddressMap
from kvlayout.capture.config_json import config_from_dict
from kvlayout.captured import CONFIG, is_captured, read_capture
from kvlayout.clinic import alignments, lint, offset_limits, padding_shares, row_fits
from kvlayout.errors import LayoutError
from kvlayout.finding import SEVERITIES, Finding
from kvlayout.selection import Selection
from kvlayout_widgets.figures.theme import exact_bytes
from kvlayout_widgets.html import paragraph, span, table
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, TextTab

_KINDS = {"error": "bad", "warning": "amber", "note": "soft"}
_SIGNS = {"error": "✗ error", "warning": "! warning", "note": "· note"}
_SHOWN = 12


class LintsPanel(TextTab):
    """The findings of the plan, or of the allocated cache's own tensors, or of a pasted config that is refused."""

    title = "Lints"
    asks = "What overflows, is misaligned, overlaps, leaves its block, or is easily read wrongly?"
    depends_on = frozenset({"plan", "problem", "cache"})

    def __init__(self, state: State, act: Act):
        self.subject = widgets.Dropdown(
            options=[("the plan", "plan"), ("the allocated tensors", "cache")], description="Check",
            tooltip="The plan's arithmetic, or the views that were really allocated",
            layout=widgets.Layout(width="270px"), style={"description_width": "46px"})
        self.least = widgets.Dropdown(
            options=[("all", "note"), ("warnings and errors", "warning"), ("errors", "error")], description="Show",
            tooltip="The least severity that is listed", layout=widgets.Layout(width="230px"),
            style={"description_width": "46px"})
        self.go_to = widgets.Dropdown(options=[("a finding's coordinate …", 0)], description="Select",
                                      tooltip="Select the coordinate of a finding in all tabs",
                                      layout=widgets.Layout(width="310px"), style={"description_width": "46px"})
        super().__init__(state, act, (self.subject, self.least, self.go_to))
        self.found: list[Finding] = []
        self._listed: list[Finding] = []
        self._is_setting = False
        for one in (self.subject, self.least):
            one.observe(lambda _: self.later(), "value")
        self.go_to.observe(lambda _: None if self._is_setting else self.act(self._go), "value")

    def html(self) -> str:
        self.found, self._listed = [], []
        try:
            self.found, note, address_map = self._check()
            least = SEVERITIES.index(self.least.value)
            self._listed = [one for one in self.found if SEVERITIES.index(one.severity) <= least]
        finally:
            self._offer()
        tables = "" if address_map is None else map_tables(address_map)
        return paragraph(note, "note") + findings_table(self.found, self._listed) + tables

    def _check(self) -> tuple[list[Finding], str, AddressMap | None]:
        state, model = self.state, self.state.choices["model"]
        if state.problem is not None and is_captured(model):
            # A captured config that contradicts itself has no plan, and is what the findings are for.
            config = config_from_dict(model[CONFIG])
            return (lint(config, state.choices["layout"], kernel_block_sizes=_kernel_block_sizes(state)),
                    "Of the pasted config, which can't be planned.", None)
        if self.subject.value == "plan":
            return lint(state.plan), "", state.plan.address_map
        if state.cache is None:
            raise LayoutError("Check", "the allocated tensors", "is empty: no cache is allocated",
                              "Press Allocate, or check the plan")
        note = "Of the cache as allocated; the choices have changed since." if state.cache_is_stale else ""
        return lint(state.cache), note, state.cache.address_map

    def _offer(self) -> None:
        self._is_setting = True
        layers = self.state.plan.address_map.layers
        there = [(f"{index}. {one.rule}", index) for index, one in enumerate(self._listed, 1)
                 if one.coordinate and one.coordinate.get("layer") in layers]
        self.go_to.options = [("a finding's coordinate …", 0), *there]
        self.go_to.disabled = not there
        self._is_setting = False

    def _go(self) -> None:
        if self.go_to.value:
            at = self._listed[self.go_to.value - 1].coordinate
            self.state.select(at["layer"], *(at.get(name, 0) for name in ("block", "head", "state", "byte")))


def _kernel_block_sizes(state: State) -> list[int] | None:
    """Of a captured config that can't be planned, perhaps because of them; None where they aren't known."""
    try:
        return read_capture(Selection.from_dict(state.choices)).kernel_block_sizes
    except LayoutError:
        return None


def findings_table(found: list[Finding], listed: list[Finding]) -> str:
    """Return the findings as a table, below a count of each severity."""
    counts = [sum(one.severity == kind for one in found) for kind in SEVERITIES]
    said = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for count, kind in zip(counts, SEVERITIES))
    worst = next((kind for kind, count in zip(SEVERITIES[:2], counts) if count), None)
    sign, kind = {"error": ("✗", "bad"), "warning": ("!", "amber"), None: ("✓", "good")}[worst]
    head = paragraph(f"{sign} {said}", kind)
    rows = [(str(index), span(_SIGNS[one.severity], _KINDS[one.severity]), escape(one.rule), escape(one.message)
             + paragraph(_where(one), "note"), escape(one.cure or "")) for index, one in enumerate(listed, 1)]
    return head + (table(("", "severity", "rule", "finding", "cure"), rows) if rows else "")


def _where(finding: Finding) -> str:
    return " · ".join(f"{name} {value}" for name, value in (finding.coordinate or {}).items())


def map_tables(address_map: AddressMap) -> str:
    """Return the first block beyond each limit, the alignment of every start, and the padding of each group."""
    limits = [(_layers(row.layers), row.unit, f"2^{row.limit.bit_length() - 1}", f"{row.block_stride:,}",
               f"{row.first_block:,}", _reached(row), f"{row.num_blocks:,}")
              for row in sorted(offset_limits(address_map), key=lambda row: (row.unit != "elements", row.limit))]
    starts = [(_layers(one.layers), escape(one.what), f"{one.size_bytes:,}", f"{one.aligned_to}",
               ", ".join(map(str, one.residues)) if one.aligned_to < one.modulus else "0")
              for one in alignments(address_map)]
    rows = [(_layers(one.layers), f"{one.block_stride:,}", f"{one.row_bytes:,}", f"{one.remainder_bytes:,}",
             f"{one.padding_bytes:,}") for one in row_fits(address_map)]
    shares = [("all groups" if one.group is None else f"group {one.group}", escape(exact_bytes(one.content_bytes)),
               escape(exact_bytes(one.block_bytes)), f"{100 * one.share:.4g} %")
              for one in padding_shares(address_map)]
    return "".join((
        _table(("layers", "unit", "limit", "block_stride (bytes)", "first block beyond", "", "blocks"), limits,
               "First block whose offset, inside one layer's view, passes a limit"),
        _table(("layers", "start of", "bytes", "aligned to (bytes)", "modulo 16"), starts,
               "The largest power of two, at most 512, that every start is a multiple of"),
        _table(("layers", "block_stride (bytes)", "row (bytes)", "left over", "padding that cures it"), rows,
               "Block stride in whole rows, as a kernel of flat slot × row needs it"),
        _table(("", "content of a block", "block", "padding"), shares, "Padding a block, over all layers"),
    ))


def _reached(row) -> str:
    if row.is_reached:
        return span("✗ the pool has it", "bad")
    return span("! inside the last block", "amber") if row.is_passed else span("not in this pool", "soft")


def _layers(layers: Iterable[str]) -> str:
    names = tuple(layers)
    text = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    return span(text, "", ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else ""))


def _table(header, rows: list, caption: str) -> str:
    if not rows:
        return ""
    more = paragraph(f"and {len(rows) - _SHOWN:,} more kinds of layer", "note") if len(rows) > _SHOWN else ""
    return table(header, rows[:_SHOWN], caption) + more
