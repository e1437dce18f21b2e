"""Public names that are imported on first use, so that importing a package stays light."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def attach(
    package: str, homes: Mapping[str, Sequence[str]], rooms: Sequence[str] = ()
) -> tuple[Callable, Callable, list[str]]:
    """Return (__getattr__, __dir__, __all__) of ``package`` for names that live in other modules.

    ``homes``: {module: names}; a module that begins with a dot is one of the package's own. ``rooms``: packages
    inside it that are reached as attributes, ``kvlayout.capture.load``, but aren't in __all__.
    """
    home = {name: package + module if module.startswith(".") else module
            for module, names in homes.items() for name in names}
    listed = sorted(home)

    def __getattr__(name: str):
        if name in rooms:
            return import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)  # asked for once only
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *listed, *rooms})

    return __getattr__, __dir__, listed
