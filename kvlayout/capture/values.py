"""Small values of a repr's tree: as JSON holds them, as a message shows them, and what a gap between them hides."""

from __future__ import annotations

import re
from dataclasses import fields
from difflib import get_close_matches

from kvlayout.capture.tree import Call, Elided, EnumMember, Mapping, Name, Opaque
from kvlayout.errors import LayoutError
from kvlayout.spec import KVQuantMode
from kvlayout.spec_io import SPEC_TYPES

_NUMBER = re.compile(r"\d+")


def plain(value: object) -> object:
    """Return a tree's value as a spec's JSON has it: enums by name, fractions as text, MultipleOf as its dict."""
    if isinstance(value, EnumMember):
        return value.member.lower()
    if isinstance(value, Name):
        return value.text if value.text.startswith("torch.") else value.text.rpartition(".")[2].lower()
    if isinstance(value, Call) and value.short_name in ("Fraction", "MultipleOf") and not value.is_cut:
        numbers = [*value.args, *value.kwargs.values()]
        if all(isinstance(one, int) for one in numbers):
            if value.short_name == "Fraction" and len(numbers) in (1, 2):
                return "/".join(map(str, numbers))
            if value.short_name == "MultipleOf" and len(numbers) == 1:
                return {"multiple_of": numbers[0]}
    if isinstance(value, Call) and value.short_name == "Size" and len(value.args) == 1:
        return plain(value.args[0])
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def mode_name(value: object) -> object:
    """Return the name of a quantisation mode given as an enum, a name or a number; else the plain value."""
    if isinstance(value, EnumMember):
        return value.member
    if isinstance(value, Name):
        return value.text.rpartition(".")[2]
    if isinstance(value, int) and not isinstance(value, bool) and value in list(KVQuantMode):
        return KVQuantMode(value).name
    return plain(value)


def has_gap(value: object) -> bool:
    """Whether a plain value holds something that is elided, cut, or says no value."""
    if isinstance(value, list):
        return any(map(has_gap, value))
    return isinstance(value, (Elided, Opaque, Call, Mapping))


def shown(value: object) -> object:
    """Return a tree's value for a message or a table: numbers and texts as they are, the rest in short."""
    if isinstance(value, Elided):
        return "..." if value.what == "..." else f"{value.what} ..."
    if isinstance(value, (EnumMember, Name)):
        return value.text if isinstance(value, Name) else f"{value.kind}.{value.member}"
    if isinstance(value, Opaque):
        return value.text
    if isinstance(value, Call):
        return f"{value.short_name}({', '.join(str(shown(one)) for one in value.args)}{'...' * bool(value.kwargs)})"
    if isinstance(value, Mapping):
        return {str(shown(key)): shown(one) for key, one in value.items}
    if isinstance(value, (list, tuple)):
        return [shown(one) for one in value]
    return value


def gap(before: list, after: object) -> str:
    """Return what is missing between the last name ``before`` and the name ``after``, by their numbers if they count.

    ``gap(["layers.0", "layers.1"], "layers.27")``: "names between 'layers.1' and 'layers.27', numbers 2 to 26, are
    missing".
    """
    first = before[-1] if before and isinstance(before[-1], str) else None
    last = after if isinstance(after, str) else None
    if first is None and last is None:
        return "names are missing"
    if first is None or last is None:
        return f"names {f'before {last!r}' if first is None else f'after {first!r}'} are missing"
    low, high = _NUMBER.findall(first), _NUMBER.findall(last)
    counted = _NUMBER.sub("#", first) == _NUMBER.sub("#", last) and sum(a != b for a, b in zip(low, high)) == 1
    numbers = ""
    if counted:
        start, stop = next((int(a) + 1, int(b) - 1) for a, b in zip(low, high) if a != b)
        numbers = f", numbers {start} to {stop}," if start <= stop else ""
    return f"names between {first!r} and {last!r}{numbers} are missing"


def unknown_spec(call: Call, path: str) -> LayoutError:
    """Return the error for a spec class that we don't know: its name, and the nearest known by name and by fields."""
    def shared(name: str) -> int:
        return len({f.name for f in fields(SPEC_TYPES[name])} & set(call.kwargs))

    by_name = get_close_matches(call.short_name, SPEC_TYPES, n=3, cutoff=0.5)
    most = max(map(shared, SPEC_TYPES))
    by_fields = [name for name in SPEC_TYPES if most and shared(name) == most][:3]
    nearest = list(dict.fromkeys([*by_name, *by_fields])) or list(SPEC_TYPES)
    return LayoutError(path, call.short_name, "is not a KV cache spec that this release knows",
                       f"The nearest that it knows: {', '.join(nearest)}")
