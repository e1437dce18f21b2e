"""What the user names, as a Plan: a preset, a config.json, a captured config, or text pasted from a log."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import typer

from kvlayout.as_typed import whole_number
from kvlayout.captured import capture_note, capture_of_text, captured_selection, is_captured
from kvlayout.errors import LayoutError
from kvlayout.facts.models import get_preset
from kvlayout.plan import Plan, make_plan
from kvlayout.selection import Selection, decode_json

STDIN = "-"


def read_plan(what: str, **choices: object) -> Plan:
    """Return the plan of ``what``, with those ``choices`` of a Selection that aren't None.

    LayoutError for what can't be read, is neither JSON nor a log, or leaves a choice not open.
    """
    return make_plan(read_selection(what, **choices))


def read_selection(what: str, **choices: object) -> Selection:
    """Return the selection of ``what``, as :func:`read_plan`; it may be one that no plan follows from.

    What a person must know of a capture, as that it is one of several in a log, is said on stderr.
    """
    chosen = {name: value for name, value in choices.items() if value is not None}
    if what != STDIN and not is_file(what):
        return Selection(model=get_preset(what).name, **chosen)
    text = read_text(what)
    data = decode_json(text, what) if text.lstrip().startswith("{") else capture_of_text(text)
    if note := capture_note(data):
        typer.echo(f"kvlayout: {what}: {' '.join(note.split())}.", err=True)
    return captured_selection(data, **chosen) if is_captured(data) else Selection(model=data, **chosen)


def guess_notes(plan: Plan) -> list[str]:
    """Return what to say where a captured config's layout is only a guess; an empty list where it is sure."""
    if not plan.resolution.is_guess:
        return []
    return [f"{plan.resolution.why} The answer depends on it: give --layout {plan.layout.name} or "
            f"{' or '.join(plan.resolution.others)}."]


def other_plans(plan: Plan) -> list[Plan]:
    """Return the plans of the same captured config in the other layouts that it may as well have."""
    return [make_plan(replace(plan.selection, layout=name)) for name in plan.resolution.others]


def is_file(what: str) -> bool:
    """Whether ``what`` means a file or a folder rather than a preset."""
    try:
        exists = Path(what).exists()
    except (OSError, ValueError):  # a name that no file system takes
        exists = False
    return exists or what.endswith((".json", ".txt", ".log")) or what.startswith((".", "/", "~"))


def read_text(what: str) -> str:
    """Return the text of a file, of a folder's config.json, or of stdin; LayoutError naming what can't be read."""
    try:
        if what == STDIN:
            raw = sys.stdin.buffer.read()
        else:
            path = Path(os.path.expanduser(what))
            raw = (path / "config.json" if path.is_dir() else path).read_bytes()
    except (OSError, ValueError) as error:
        if what != STDIN and isinstance(error, FileNotFoundError) and path.is_dir():
            raise LayoutError("file", what, "is a folder without a config.json",
                              "Give a file, or a folder that holds a config.json") from error
        raise LayoutError("file", what, f"can't be read: {getattr(error, 'strerror', None) or error}",
                          "Give a preset, a config.json, a captured config or a pasted log") from error
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LayoutError("file", what, f"is no text: byte {error.start} isn't UTF-8") from error


def whole(argument: str, text: str) -> int:
    """Return a decimal (1,024 too) or 0x number; LayoutError for anything else and beyond 64 bits."""
    number = whole_number(text, hexadecimal=True)
    if number is not None and abs(number) < 2**64:
        return number
    raise LayoutError(argument, text, "must be a whole number of at most 64 bits, decimal or 0x hexadecimal")
