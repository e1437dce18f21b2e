"""What the clinic's cases show beside figures: right against wrong, findings, what a shape can mean, sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvlayout.clinic import Reading
from kvlayout.errors import LayoutError
from kvlayout.finding import Finding
from kvlayout_widgets.course.tables import Table
from kvlayout_widgets.html import STYLE, paragraph


def versus(facts: Mapping[str, Sequence], caption: str = "") -> Table:
    """Return a table of {what: (right, wrong)}; whole numbers get their commas."""
    for what, pair in facts.items():
        if isinstance(pair, str) or len(pair) != 2:
            raise LayoutError(what, pair, "must be the right and the wrong value", "Give two values")
    return Table(("", "right", "wrong"), tuple((what, *map(_shown, pair)) for what, pair in facts.items()), caption)


def findings_table(findings: Iterable[Finding], caption: str = "Findings") -> Table:
    """Return the findings of a lint, one a row, with what to do."""
    rows = tuple((f"{one.severity}: {one.rule}", one.message, f"{one.cure}." if one.cure else "") for one in findings)
    return Table(("", "what", "cure"), rows or (("none", "", ""),), caption, is_prose=True)


def readings_table(readings: Mapping[object, Sequence[Reading]]) -> Table:
    """Return every reading of each shape: its axes in the order of the shape, and how many of each."""
    rows = []
    for shape, found in readings.items():
        for index, one in enumerate(found):
            rows.append((str(shape) if index == 0 else "or", ", ".join(one.axes), *map(_shown, (
                one.num_blocks, one.num_heads, one.num_states, one.content)),
                "ambiguous" if len(found) > 1 else "the only one"))
    return Table(("shape", "axes", "blocks", "heads", "tokens a block", "elements of C", ""), tuple(rows),
                 "What each axis means; 2 is K and V apart")


@dataclass(frozen=True)
class Sentences:
    """Lines that a notebook shows as prose: printed ones would be broken in the middle of a word."""

    lines: tuple[str, ...]

    def _repr_html_(self) -> str:
        lines = "".join(paragraph(line, "line") for line in self.lines)
        return f"<style>{STYLE}</style><div class='kvl'>{lines}</div>"

    def __repr__(self) -> str:
        return "\n".join(self.lines)


def says(lines: Iterable[object]) -> Sentences:
    """Return lines of text, one a paragraph."""
    return Sentences(tuple(map(str, lines)))


def _shown(value: object) -> str:
    if isinstance(value, (tuple, range, list)):
        return ", ".join(map(_shown, value))
    if value is None:
        return "not said"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
