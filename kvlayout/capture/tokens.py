"""Words of a Python repr, one after another; nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(r"""
    (?P<space>\s+)
  | (?P<dots>\.{3,})
  | (?P<string>[bBrRuUfF]{0,2}(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"))
  | (?P<cut>[bBrRuUfF]{0,2}['"].*)
  | (?P<number>[-+]?0[xX][0-9a-fA-F]+|[-+]?(?:\d+(?:\.(?!\.\.)\d*)?|\.\d+)(?:[eE][-+]?\d+)?)
  | (?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)
  | (?P<mark>[()\[\]{}<>,:=])
  | (?P<other>.)
""", re.VERBOSE | re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True)
class Token:
    """``kind``: dots, string, number, name, a mark itself, "cut" (a string without its end), "other", or "end"."""

    kind: str
    text: str
    start: int
    end: int


def tokens(text: str, start: int = 0) -> Iterator[Token]:
    """Yield the tokens of ``text`` from ``start`` on, then one of kind "end"."""
    for found in _TOKEN.finditer(text, start):
        kind = found.lastgroup
        if kind == "space":
            continue
        yield Token(found[0] if kind == "mark" else kind, found[0], found.start(), found.end())
    yield Token("end", "", len(text), len(text))


def string_value(text: str) -> str:
    """Return what a string token says; only the escapes of quotes and of the backslash are undone."""
    body = text.lstrip("bBrRuUfF")[1:-1]
    return _ESCAPE.sub(lambda found: found[1] if found[1] in "'\"\\" else found[0], body)


def number_value(text: str) -> int | float:
    """Return what a number token says."""
    try:
        return int(text, 0) if "x" in text.lower() else int(text)
    except ValueError:
        return float(text)
