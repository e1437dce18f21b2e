"""What installed packages register under kvlayout's entry points: read on first use, one by one. A leaf module.

A plugin that can't be loaded, or whose name is taken, is left out and told: a :class:`PluginWarning`, and a Finding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from kvlayout.errors import LayoutError
from kvlayout.finding import Finding

T = TypeVar("T")


class PluginWarning(UserWarning):
    """A plugin was left out; the message names it, its package and the reason."""


@dataclass(frozen=True)
class Plugin:
    """Something that a package registers.

    Attributes:
        kind: "backends", "layouts" or "models", the last part of its entry point's group
        name: the name that it is registered under
        target: "module:attribute"
        package: its distribution's name and version
        value: the object; None where it can't be loaded
    """

    kind: str
    name: str
    target: str
    package: str
    value: object = field(default=None, hash=False, compare=False, repr=False)


_findings: dict[tuple[str, str, str], Finding] = {}


def read_plugins(kind: str, refuse: Callable[[str], str], make: Callable[[Plugin], T]) -> dict[str, T]:
    """Return {name: what ``make`` makes of a plugin's value} for the plugins of a kind, sorted by name.

    ``refuse`` says why a name can't be had, "" if it can. What ``make`` or the plugin itself raises leaves that one
    plugin out. Not cached: callers do.
    """
    found: dict[str, T] = {}
    told = set(_findings)
    for point in sorted(entry_points(group=f"kvlayout.{kind}"), key=lambda point: (point.name, point.value)):
        reason = refuse(point.name) or (f"another package registers {point.name} too" if point.name in found else "")
        if reason:
            _tell("plugin-name", kind, point, f"its name is taken: {reason}", "Register it under another name")
            continue
        try:
            found[point.name] = make(Plugin(kind, point.name, point.value, _package(point), _loaded(point)))
        # A module that is imported may do anything, also end the process.
        except (Exception, SystemExit) as error:
            cure = error.cure if isinstance(error, LayoutError) else ""
            reason = " ".join(str(error).split()) or "no reason given"
            _tell("plugin-broken", kind, point, f"{type(error).__name__}: {reason}", cure)
    for key in set(_findings) - told:
        warnings.warn(str(_findings[key]), PluginWarning, stacklevel=3)
    return found


def findings_so_far() -> list[Finding]:
    """Return why plugins were left out, of the kinds that were read so far."""
    return [_findings[key] for key in sorted(_findings)]


@cache
def _loaded(point: EntryPoint) -> object:
    return point.load()


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unnamed package"


def _tell(rule: str, kind: str, point: EntryPoint, reason: str, cure: str) -> None:
    package = _package(point)
    _findings[kind, point.name, point.value] = Finding(
        rule, "warning", f"kvlayout.{kind} of {package} leaves out {point.name} ({point.value}): {reason}".rstrip(".")
        + ".", {"kind": kind, "name": point.name, "target": point.value, "package": package}, None, cure)
