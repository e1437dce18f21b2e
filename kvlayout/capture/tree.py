"""A repr as a tree: calls, lists, tuples, dicts, enums, names, numbers, strings; what is elided or cut is marked.

The grammar is that of Python's reprs of dataclasses and of what vLLM puts into them. It needs no balanced input: at
the end of the text, or at what fits nowhere, every open bracket is closed and what was read is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvlayout.capture.tokens import Token, number_value, string_value, tokens

_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_DEEPEST = 60
_LONGEST_NUMBER = 40
_LONGEST_PATH = 120


@dataclass(frozen=True)
class Name:
    """A bare or dotted name: ``torch.bfloat16``."""

    text: str


@dataclass(frozen=True)
class EnumMember:
    """``<KVQuantMode.NONE: 0>``: class, member, value."""

    kind: str
    member: str
    value: object


@dataclass(frozen=True)
class Opaque:
    """``<... object at 0x7f...>``, or other text that says no value."""

    text: str


@dataclass(frozen=True)
class Elided:
    """Something that was there and isn't in the text: left out by ``...``, or cut off."""

    what: str


@dataclass
class Call:
    """``Name(arguments, key=arguments)``. ``is_cut``: the text broke off inside; ``key``: its key in a dict."""

    name: str
    args: list = field(default_factory=list)
    kwargs: dict = field(default_factory=dict)
    is_cut: bool = False
    key: str | None = None

    @property
    def short_name(self) -> str:
        """The name behind the last dot."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Mapping:
    """A dict, in the order of its text; keys need not be hashable."""

    items: list[tuple[object, object]]


class TreeParser:
    """Parses one value that begins at ``start``. ``end``: behind it; ``cut``: where and how the text broke off."""

    def __init__(self, text: str, start: int):
        self.text = text
        self._tokens: Iterator[Token] = tokens(text, start)
        self.token = next(self._tokens)
        self.end = start
        self.cut: tuple[int, str] | None = None
        self._path: list[str] = []

    def parse(self) -> object:
        """Return the value's tree."""
        return self._value()

    @property
    def is_cut(self) -> bool:
        """The text has broken off inside the value; nothing more is read."""
        return self.cut is not None

    def _next(self) -> Token:
        token = self.token
        self.end = token.end
        if token.kind != "end":
            self.token = next(self._tokens)
        return token

    def _break(self, why: str) -> Elided:
        """Note that the text can't be followed from here on."""
        where = "".join(self._path)
        if len(where) > _LONGEST_PATH:
            where = "..." + where[-_LONGEST_PATH:]
        if self.cut is None:
            self.cut = (self.token.start, f"{why} inside {where}" if where else why)
        return Elided(f"what follows {self.text[max(0, self.end - 20):self.end]!r}")

    def _value(self) -> object:
        token = self.token
        if len(self._path) > _DEEPEST:
            return self._break(f"brackets nest more than {_DEEPEST} deep")
        if token.kind == "end":
            return self._break("the text ends")
        if token.kind == "cut":
            self._next()
            return self._break("the text ends in a name")
        if token.kind == "dots":
            return self._elision()
        if token.kind == "string":
            return self._string()
        if token.kind == "number":
            return self._number()
        if token.kind == "name":
            return self._name()
        if token.kind in _CLOSERS:
            return self._brackets()
        if token.kind == "<":
            return self._angles()
        return self._break(f"{token.text!r} fits nowhere")

    def _elision(self) -> Elided:
        """Dots, and the words that people put behind them: ``... (25 more layers)``."""
        self._next()
        while self.token.kind in ("name", "number", "dots", "(") and not self._is_before_equals():
            if self._next().kind == "(":
                while self.token.kind not in (")", "end"):
                    self._next()
                self._next()
        return Elided("...")

    def _is_before_equals(self) -> bool:
        return self.text[self.token.end:self.token.end + 2].lstrip().startswith("=")

    def _string(self) -> object:
        value = string_value(self._next().text)
        while self.token.kind == "string":  # Python joins neighbours, and pretty printers make use of it
            value += string_value(self._next().text)
        return Elided(value) if "..." in value else value

    def _number(self) -> object:
        token = self._next()
        if self._is_unfinished(token):
            return Elided(token.text)
        if len(token.text) > _LONGEST_NUMBER:
            return self._break(f"a number has more than {_LONGEST_NUMBER} digits")
        return number_value(token.text)

    def _name(self) -> object:
        token = self._next()
        if self._is_unfinished(token):
            return Elided(token.text)
        if self.token.kind == "(":
            return self._call(token)
        return {"None": None, "True": True, "False": False}.get(token.text, Name(token.text))

    def _is_unfinished(self, token: Token) -> bool:
        """A number or name at the very end of the text, or right before dots, may have gone on."""
        if self.token.kind == "dots" and self.token.start == token.end:
            self._next()
            return True
        if self.token.kind == "end" and self._path:
            self._break("the text ends")
            return True
        return False

    def _call(self, token: Token) -> Call:
        call = Call(token.text)
        self._open(call.short_name + "(")
        while self._more(")"):
            at = self.token
            value = self._value()
            if self.token.kind == "=" and isinstance(value, Name):
                self._next()
                self._path.append(value.text + "=")
                call.kwargs[value.text] = self._value()
                self._path.pop()
            elif self.token.kind == "=":
                call.args.append(self._break(f"{at.text!r} is no field's name"))
            else:
                call.args.append(value)
        self._path.pop()
        call.is_cut = self.is_cut
        return call

    def _brackets(self) -> object:
        opener = self.token.kind
        closer = _CLOSERS[opener]
        self._open(opener)
        items, pairs, commas = [], [], 0
        while self._more(closer):
            value = self._value()
            if self.token.kind == ":" and opener == "{":
                self._next()
                self._path.append(f"{value!r}: ")
                inner = self._value()
                self._path.pop()
                if isinstance(inner, Call) and isinstance(value, str):
                    inner.key = value
                pairs.append((value, inner))
            elif opener == "{" and isinstance(value, Elided):
                pairs.append((value, value))
            else:
                items.append(value)
            commas += self.text[self.end - 1] == "," or self.token.kind == ","
        self._path.pop()
        if opener == "{":
            return Mapping(pairs) if pairs or not items else items
        if opener == "(":
            return items[0] if len(items) == 1 and not commas and not self.is_cut else tuple(items)
        return items

    def _open(self, shown: str) -> None:
        self._next()
        self._path.append(shown)

    def _more(self, closer: str) -> bool:
        """Whether another item follows; takes the comma before it, or the closer."""
        if self.is_cut:
            return False
        if self.token.kind == ",":
            self._next()
        elif self.token.kind in ("end", "other", ")", "]", "}") and self.token.kind != closer:
            self._break("the text ends" if self.token.kind == "end" else f"{self.token.text!r} fits nowhere")
            return False
        if self.token.kind == closer:
            self._next()
            return False
        return True

    def _angles(self) -> object:
        """``<Class.MEMBER: value>`` or ``<anything>``; the closing bracket may have been taken for a quote's."""
        start = self._next().start
        if self.token.kind == "dots":
            self._next()
            self._skip_angle()
            return Elided("<...>")
        name = self._next() if self.token.kind == "name" else None
        if name is not None and "." in name.text and self.token.kind == ":":
            self._next()
            value = self._value()
            self._skip_angle()
            kind, _, member = name.text.rpartition(".")
            return EnumMember(kind.rpartition(".")[2], member, value)
        if name is not None and self.token.kind == "dots":
            self._next()
            self._skip_angle()
            return Elided(f"<{name.text}...>")
        while self.token.kind not in (">", ",", ")", "]", "}", "end"):
            self._next()
        self._skip_angle()
        if self.token.kind == "end" and self.text[self.end - 1:self.end] != ">":
            return self._break("the text ends")
        return Opaque(self.text[start:self.end])

    def _skip_angle(self) -> None:
        if self.token.kind == ">":
            self._next()
