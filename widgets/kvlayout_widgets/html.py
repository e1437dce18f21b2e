"""Small pieces of HTML; every text that comes from a user or a model is escaped in here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from kvlayout_widgets.figures.theme import AXIS_COLOURS, AXIS_WORDS, ink_on

STYLE = Path(__file__).with_name("explorer.css").read_text()


def span(text: object, kind: str = "", tooltip: str = "") -> str:
    """Return ``text`` in a span of class ``kvl-<kind>``."""
    title = f' title="{escape(tooltip)}"' if tooltip else ""
    return f'<span class="kvl-{escape(kind)}"{title}>{escape(str(text))}</span>'


def chip(axis: str) -> str:
    """Return an axis' letter on its colour."""
    colour = AXIS_COLOURS[axis]
    style = f"background:{colour};color:{ink_on(colour)}"
    return f'<span class="kvl-chip" title="{AXIS_WORDS[axis][0]}" style="{style}">{axis}</span>'


def layout_chips(name: str) -> str:
    """Return a layout's name with each letter on its axis' colour."""
    return f'<span class="kvl-chips" aria-label="{escape(name)}">{"".join(chip(axis) for axis in name)}</span>'


def paragraph(text: object, kind: str) -> str:
    """Return a line of class ``kvl-<kind>``; nothing for an empty text."""
    return f'<div class="kvl-{escape(kind)}">{escape(str(text))}</div>' if text else ""


def outcome(text: str, older: str = "") -> str:
    """Return what came of an action: green, or red where it begins with ✗.

    ``older``: the cache that it is of, where that isn't the one which is shown; then it is no longer green.
    """
    if not text:
        return ""
    is_bad = text.startswith("✗")
    said = f"Of the older cache ({older}), not of the plan that is shown: {text}" if older else text
    return paragraph(said, "refused" if is_bad else "note" if older else "good")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Return a table of cells that are HTML already; one that is wider than its page scrolls by itself."""
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    shown = f'<table class="kvl-table">{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="kvl-wide">{shown}</div>'


def code(text: str) -> str:
    """Return program text as a block that keeps its lines and can be selected."""
    return f'<pre class="kvl-code" tabindex="0">{escape(text)}</pre>'


def fold(summary: object, body: str, *, is_open: bool = False) -> str:
    """Return HTML below a line of text that opens and closes it."""
    return (f'<details class="kvl-fold"{" open" if is_open else ""}><summary>{escape(str(summary))}</summary>'
            f"{body}</details>")
