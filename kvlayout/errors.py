"""The one error type of the library: what was given, which rule it breaks, what to do."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager


class LayoutError(ValueError):
    """A value that no KV cache layout can be built from.

    Attributes:
        argument: name of the offending argument or field
        value: what was given
        rule: the rule that the value breaks, as one clause
        cure: what to do instead; may be empty
    """

    def __init__(self, argument: str, value: object, rule: str, cure: str = ""):
        self.argument, self.value, self.rule, self.cure = argument, value, rule, cure
        message = f"{argument}={shown(value)}: {rule}."
        super().__init__(f"{message} {cure}." if cure else message)

    def __reduce__(self):
        # An exception is rebuilt from its text alone; a worker process hands on the four parts.
        return type(self), (self.argument, self.value, self.rule, self.cure)


def shown(value: object, most: int = 200) -> str:
    """Return ``repr(value)`` in at most ``most`` characters; what has none, or raises in it, by its kind."""
    try:
        text = repr(value)
    except RecursionError:  # lists in lists without end
        text = f"a deeply nested {type(value).__name__}"
    except Exception:
        text = f"a {type(value).__name__} whose repr fails"
    return text if len(text) <= most else f"{text[:most - 3]}..."


def raised(error: BaseException) -> str:
    """Return "ValueError: its text" in one line, or the kind alone of an exception that says nothing or can't."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class LayoutConflict(LayoutError):
    """Two parties that must agree on a layout don't: backends, ranks, or a pin."""


class CacheMemoryError(LayoutError):
    """More memory is asked for than the device has free."""


def check_int(argument: str, value: object, *, minimum: int) -> int:
    """Return ``value`` as an int of at least ``minimum``, or raise a LayoutError naming ``argument``."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:  # also of arrays, which have __index__ but are no one number
        number = None
    if number is None:
        raise LayoutError(argument, value, "must be a whole number", f"Give an integer of at least {minimum}")
    if number < minimum:
        raise LayoutError(argument, value, f"must be at least {minimum}")
    return number


def check_type(argument: str, value: object, kind: type) -> None:
    """Raise a LayoutError naming ``argument`` unless ``value`` is a ``kind``."""
    if not isinstance(value, kind):
        raise LayoutError(argument, value, f"must be {'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}, "
                          f"not {type(value).__name__}")


@contextmanager
def errors_in(where: str) -> Iterator[None]:
    """Put ``where`` in front of the argument of each LayoutError raised inside: "kv_cache_groups[1].head_size"."""
    try:
        yield
    except LayoutError as error:
        joint = "" if error.argument.startswith("[") else " " if where.endswith(":") else "."
        raise LayoutError(f"{where}{joint}{error.argument}", error.value, error.rule, error.cure) from None
