"""All plugins: what installed packages add to the catalogues, and what was left out and why.

A package registers under the entry-point groups ``kvlayout.backends`` (a class, as :func:`as_backend` takes),
``kvlayout.layouts`` (an order of the axes, "BNHLC" or a PhysicalLayout) and ``kvlayout.models`` (a Hugging Face
config as a dict, JSON text or path, or a Model). Nothing is loaded before a catalogue is asked.
"""

from __future__ import annotations

from kvlayout.entry_points import Plugin, PluginWarning, findings_so_far
from kvlayout.facts.backends import plugin_backends
from kvlayout.facts.models import plugin_models
from kvlayout.finding import Finding
from kvlayout.layout import plugin_layouts

__all__ = ["Plugin", "PluginWarning", "plugin_findings", "registered"]


def registered() -> dict[str, list[str]]:
    """Return {"backends", "layouts", "models": the names that installed packages add}."""
    return {"backends": list(plugin_backends()), "layouts": list(plugin_layouts()), "models": list(plugin_models())}


def plugin_findings() -> list[Finding]:
    """Return why plugins were left out; rules "plugin-broken" and "plugin-name". Reads them all."""
    registered()
    return findings_so_far()
