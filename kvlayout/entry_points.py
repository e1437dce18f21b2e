"""What installed packages register under kvlayout's entry points: read on first use, one by one. A leaf module.

A plugin that can't be loaded, or whose name is taken, is left out and told: a :class:`PluginWarning`, and a Finding.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from typing import TypeVar

from kvlayout.errors import LayoutError, raised
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


_findings: dict[tuple[str, str, str, str], Finding] = {}


def read_plugins(kind: str, refuse: Callable[[str], str], make: Callable[[Plugin], T]) -> dict[str, T]:
    """Return {name: what ``make`` makes of a plugin's value} for the plugins of a kind, sorted by name.

    ``refuse`` says why a name can't be had, "" if it can; names that differ in case alone are one. What ``make`` or
    the plugin itself raises leaves that one plugin out. Not cached: callers do.
    """
    found: dict[str, T] = {}
    told = set(_findings)
    for point in sorted(_points(kind), key=lambda point: (point.name, point.value)):
        taken = next((name for name in found if name.lower() == point.name.lower()), None)
        reason = refuse(point.name) or (f"another package registers {taken} too" if taken else "")
        if reason:
            _tell("plugin-name", kind, point, f"its name is taken: {reason}", "Register it under another name")
            continue
        try:
            found[point.name] = make(Plugin(kind, point.name, point.value, _package(point), _loaded(point)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a module that is imported may do anything, also end the process
            cure = error.cure if isinstance(error, LayoutError) else ""
            _tell("plugin-broken", kind, point, raised(error), cure)
    for key in set(_findings) - told:
        warnings.warn(str(_findings[key]), PluginWarning, stacklevel=3)
    return found


def findings_so_far() -> list[Finding]:
    """Return why plugins were left out, of the kinds that were read so far."""
    return [_findings[key] for key in sorted(_findings)]


def _points(kind: str) -> list[EntryPoint]:
    """The entry points of a kind; a package whose list can't be read is left out and told."""
    group = f"kvlayout.{kind}"
    try:
        return list(entry_points(group=group))
    except Exception:  # one broken file among all that are installed
        return _points_by_package(kind, group)


def _points_by_package(kind: str, group: str) -> list[EntryPoint]:
    found: list[EntryPoint] = []
    met: set[str] = set()
    for package in distributions():
        try:
            name = re.sub(r"[-_.]+", "-", package.name).lower()
            if name in met:  # the first on the path is the one that is imported
                continue
            met.add(name)
            found += package.entry_points.select(group=group)
        except Exception as error:
            if _mentions(package, group):
                _tell("plugin-broken", kind, EntryPoint("all", "entry_points.txt", group),
                      f"its list can't be read: {raised(error)}", "", _named(package))
    return found


def _mentions(package: Distribution, group: str) -> bool:
    try:
        return group in (package.read_text("entry_points.txt") or "")
    except Exception:  # not even text: it may
        return True


@cache
def _loaded(point: EntryPoint) -> object:
    return point.load()


def _package(point: EntryPoint) -> str:
    return "an unnamed package" if point.dist is None else _named(point.dist)


def _named(package: Distribution) -> str:
    """Its name and version, as far as its metadata tell."""
    try:
        return f"{package.name} {package.version}"
    except Exception:
        return "an unnamed package"


def _tell(rule: str, kind: str, point: EntryPoint, reason: str, cure: str, package: str = "") -> None:
    package = package or _package(point)
    _findings[kind, point.name, point.value, package] = Finding(
        rule, "warning", f"kvlayout.{kind} of {package} leaves out {point.name} ({point.value}): {reason}".rstrip(".")
        + ".", {"kind": kind, "name": point.name, "target": point.value, "package": package}, None, cure)
