"""The Jupyter side of kvlayout: pictures, controls, and the explorer. Each name is loaded on first use."""

from importlib import import_module

_HOME = {"Explorer": "kvlayout_widgets.explorer", "Picture": "kvlayout_widgets.picture"}

__all__ = ["Explorer", "Picture"]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'kvlayout_widgets' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
