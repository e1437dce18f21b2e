"""One labelled control: its widget, vLLM's term as a tooltip, and a place beside it for the reason of a refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape

import ipywidgets as widgets

from kvlayout.as_typed import decimal_number, whole_number
from kvlayout.errors import LayoutError
from kvlayout_widgets.html import paragraph
from kvlayout_widgets.labels import LABELS

WIDTH = "196px"
_NOTHING = ""
_MOST = 10**18
_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


class Control:
    """A row of label and widget, and below it a note or the reason why the value is refused.

    ``arguments``: the arguments of a Selection that it sets. ``read`` returns them from the widgets, or raises a
    LayoutError for text that means nothing; ``write`` shows them.
    """

    def __init__(self, arguments: Sequence[str], parts: Sequence[widgets.Widget], read: Callable[[], dict],
                 write: Callable[[dict], None], below: Sequence[widgets.Widget] = ()):
        self.arguments, self.read, self.write = tuple(arguments), read, write
        self.parts = tuple(parts)
        label, tooltip = LABELS[arguments[0]]
        for part in parts:
            part.tooltip = tooltip
        self.label = widgets.HTML(f'<label class="kvl-label" title="{escape(tooltip)}">{escape(label)}</label>')
        self.message = widgets.HTML()
        self.row = widgets.VBox([widgets.HBox([self.label, *parts]), *below, self.message])
        self.row.add_class("kvl-control")
        self._note = ""
        self.refusal = ""
        self.is_readable = True

    def refuse(self, reason: str) -> None:
        """Show why the value is refused, and mark the control; "" takes that back."""
        self.refusal = reason
        (self.row.add_class if reason else self.row.remove_class)("kvl-wrong")
        self._show()

    def disable(self, is_disabled: bool) -> None:
        """Take no input, where the choice isn't open."""
        for part in self.parts:
            part.disabled = is_disabled

    def note(self, text: str) -> None:
        """Show a remark where there is no refusal."""
        self._note = text
        self._show()

    def _show(self) -> None:
        shown = paragraph(f"✗ {self.refusal}", "refused") if self.refusal else paragraph(self._note, "note")
        if self.message.value != shown:
            self.message.value = shown
        self.message.layout.display = None if shown else "none"


def dropdown(argument: str, options: Sequence[tuple[str, object]]) -> Control:
    """Return a control for one of ``options``, (text, value) pairs; None is a value like any other."""
    widget = widgets.Dropdown(layout=widgets.Layout(width=WIDTH))
    choose(widget, options[0][1], options)
    return Control([argument], [widget], lambda: {argument: chosen(widget)},
                   lambda choices: choose(widget, choices[argument]))


def choose(widget: widgets.Dropdown, value: object, options: Sequence[tuple[str, object]] | None = None) -> None:
    """Show ``value`` among ``options`` (None: those there are); one that isn't among them is added and marked."""
    # ipywidgets takes a value of None for "nothing is chosen".
    value = _NOTHING if value is None else value
    listed = list(widget.options) if options is None else \
        [(text, _NOTHING if one is None else one) for text, one in options]
    if value not in [one for _, one in listed]:
        listed.append((f"{value} (unknown here)", value))
    if list(widget.options) != listed:
        widget.options = listed
    widget.value = value


def chosen(widget: widgets.Dropdown) -> object:
    """Return the value that a dropdown shows."""
    return None if widget.value == _NOTHING else widget.value


def integer(argument: str, minimum: int, maximum: int) -> Control:
    """Return a control for a whole number."""
    widget = widgets.BoundedIntText(min=minimum, max=maximum, value=minimum, layout=widgets.Layout(width="90px"))
    return Control([argument], [widget], lambda: {argument: widget.value},
                   lambda choices: setattr(widget, "value", choices[argument]))


def optional_integer(argument: str, suggestions: Sequence[int]) -> Control:
    """Return a control for a whole number, or "auto" for None."""
    widget = widgets.Combobox(options=["auto", *map(str, suggestions)], value="auto", ensure_option=False,
                              continuous_update=False, layout=widgets.Layout(width="90px"))
    return Control([argument], [widget],
                   lambda: {argument: parse_integer(widget.value, argument)},
                   lambda choices: setattr(widget, "value", _shown(choices[argument])))


def checkbox(argument: str) -> Control:
    """Return a control for a yes or no."""
    widget = widgets.Checkbox(indent=False, layout=widgets.Layout(width="24px"))
    return Control([argument], [widget], lambda: {argument: widget.value},
                   lambda choices: setattr(widget, "value", choices[argument]))


def amount(default_blocks: int) -> Control:
    """Return the control for how large the pool is: a number of blocks, or the memory to fill with blocks."""
    text = widgets.Text(placeholder=f"{default_blocks}", continuous_update=False,
                        layout=widgets.Layout(width="104px"))
    unit = widgets.Dropdown(options=["blocks", "GiB"], layout=widgets.Layout(width="88px"))

    def read() -> dict:
        empty = not text.value.strip()
        if unit.value == "blocks":
            return {"num_blocks": parse_integer(text.value, "num_blocks"), "available_memory": None}
        return {"num_blocks": None, "available_memory": None if empty else parse_size(text.value)}

    def write(choices: dict) -> None:
        blocks, memory = choices["num_blocks"], choices["available_memory"]
        unit.value = "blocks" if memory is None else "GiB"
        text.value = "" if blocks is memory is None else _shown(blocks) if memory is None else _shown_size(memory)
    return Control(["num_blocks", "available_memory"], [text, unit], read, write)


def parse_integer(text: str, argument: str, empty: str = "auto") -> int | None:
    """Return the whole number in ``text`` (also in groups of three, as 1,024), None for ``empty`` or nothing."""
    if text.strip().lower() in ("", empty):
        return None
    number = whole_number(text)
    if number is None or abs(number) >= _MOST:
        raise LayoutError(argument, text, "is not a whole number", f"Write one such as 64, or {empty}")
    return number


def parse_size(text: str, argument: str = "available_memory", unit: str = "GiB") -> int:
    """Return the bytes of a size such as "1.5 GiB", "500 MiB" or "68,681,728 B"; a bare number is in ``unit``."""
    plain = text.strip()
    found = re.search(r"([KMGT]i)?B$", plain, re.IGNORECASE)
    number = decimal_number(plain[:found.start()] if found else plain)
    if number is None or number < 0:
        raise LayoutError(argument, text, "is not a size",
                          f"Write 1.5 GiB, 500 MiB or 68,681,728 B; a bare number is in {unit}")
    return int(number * _UNITS[(found[0] if found else unit).lower()])


def _shown(value: object) -> str:
    return "auto" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _shown_size(memory: object) -> str:
    if not isinstance(memory, int):
        return str(memory)
    gib = memory / 2**30
    return f"{gib:.6f}".rstrip("0").rstrip(".") if int(float(f"{gib:.6f}") * 2**30) == memory else f"{memory:,} B"
