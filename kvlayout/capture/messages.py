"""Pasted text as messages: log prefixes, quoting and wrapping taken off, so that one repr is one run of text.

A message is what one log call printed: lines of one process with the same origin. Whitespace between lines and at
their ends means nothing in a repr, so the lines are joined without any: a wrap may fall inside a number or a name.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[[0-9;]{1,5}m(?=[(\w])")
_HUGE_ENTITY = re.compile(r"&#[xX]?[0-9a-fA-F]{9,};?")  # no character's, and more digits than an int is made of
_QUOTE = re.compile(r"\s*(?:>\s?)+")
# What may stand in front of a line, in any order and number.
_CONTAINER = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?:\s+std(?:out|err)\s+[FP])?"
_PROCESS = r"\((?P<process>[\w ]*?\s?pid=\d+(?:,\s*ip=[\d.a-f:]+)?)\)|\[(?P<rank>rank ?\d+)\]:"
_TIME = r"\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?"
_ORIGIN = rf"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+(?P<origin>{_TIME}(?:\s*\[?[\w./-]+:\d+\])?)"
_COMPOSE = r"[\w.-]++\s++\|(?=\s)"
_PREFIX = re.compile(rf"\s*+(?:{_CONTAINER}|{_PROCESS}|{_ORIGIN}|{_COMPOSE})\s*")
_CLEANED = str.maketrans({"`": "", "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\xa0": " ",
                          "\ufeff": "", "\u200b": "", "\u2026": "..."})


@dataclass
class Message:
    """One message's text, all lines joined. ``origin``: what its prefix says of time and place, or None."""

    process: str | None
    origin: str | None
    lines: list[tuple[int, str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The lines without the whitespace around them, joined without any."""
        return "".join(body for _, body in self.lines)

    @property
    def line_starts(self) -> list[int]:
        """Where in ``text`` each line begins."""
        starts, at = [], 0
        for _, body in self.lines:
            starts.append(at)
            at += len(body)
        return starts


def split_messages(text: str) -> list[Message]:
    """Return the messages of ``text`` in the order in which they begin; lines of several processes are sorted apart.

    A line without any prefix continues the message before it.
    """
    if "&lt;" in text or "&gt;" in text or "&#" in text:
        text = html.unescape(_HUGE_ENTITY.sub("", text))
    text = _ANSI.sub("", text)
    messages: list[Message] = []
    current: dict[str | None, Message] = {}
    last = None
    for number, line in enumerate(text.splitlines(), 1):
        process, origin, body = _take_prefix(line)
        if process is None:
            process = last.process if last else None
        message = current.get(process)
        if message is None or (origin is not None and origin != message.origin):
            message = current[process] = Message(process, origin)
            messages.append(message)
        message.lines.append((number, body))
        last = message
    return messages


def _take_prefix(line: str) -> tuple[str | None, str | None, str]:
    """Return (process or None, origin or None, what the line says)."""
    line = line.translate(_CLEANED).strip()
    quote = _QUOTE.match(line) if line.startswith(">") else None
    position, process, origin = quote.end() if quote else 0, None, None
    while found := _PREFIX.match(line, position):
        process = found["process"] or found["rank"] or process
        origin = found["origin"] or origin
        position = found.end()
    return process, origin, line[position:].strip()
