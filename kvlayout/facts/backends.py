"""vLLM's attention backends by name, and a user's own class as one.

The facts are recorded per release by ``python -m kvlayout.facts.record_backends``, in ``data/backends-VERSION.json``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from kvlayout.entry_points import Plugin, read_plugins
from kvlayout.errors import LayoutError
from kvlayout.facts.catalogue import Backend, Branch, load, placeholders
from kvlayout.facts.user_backend import UserBackend, user_backend
from kvlayout.versions import NEWEST, VLLM_VERSIONS

__all__ = ["Backend", "Branch", "as_backend", "backends", "get_backend", "plugin_backends"]


def backends(vllm_version: str = NEWEST) -> dict[str, Backend]:
    """Return {name: Backend} of a vLLM release, sorted by name, and then those that plugins register.

    LayoutError for a release that isn't recorded.
    """
    return {**load(vllm_version), **plugin_backends(vllm_version)}


@cache
def plugin_backends(vllm_version: str = NEWEST) -> dict[str, UserBackend]:
    """Return {name: Backend} of what plugins register, as they answer for a release. Shared: don't change it."""
    def refuse(name: str) -> str:
        for known in reversed(VLLM_VERSIONS):
            for one in (*load(known), *placeholders(known)):
                if one.lower() == name.lower():
                    return f"vLLM {known} has a backend {one}"
        return ""

    def make(plugin: Plugin) -> UserBackend:
        return replace(user_backend(plugin.value, vllm_version), name=plugin.name, plugin=plugin.package)

    load(vllm_version)  # refuses an unknown release
    return read_plugins("backends", refuse, make)


def get_backend(name: str, vllm_version: str = NEWEST) -> Backend:
    """Return a backend by name: the enum's, vLLM's own where only one has it, or the unique end of a class path.

    LayoutError names the nearest ones.
    """
    known = backends(vllm_version)
    if not isinstance(name, str):
        raise LayoutError("backend", name, "must be a backend's name", "Give a class to as_backend")
    if name in known:
        return known[name]
    found = [one for one in known.values() if one.vllm_name == name or f".{one.class_path}".endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise LayoutError("backend", name, f"names {len(found)} backends of vLLM {vllm_version}",
                          f"Use one of {', '.join(one.name for one in found)}")
    if name in placeholders(vllm_version):
        raise LayoutError("backend", name, f"is no backend to choose: {placeholders(vllm_version)[name]}",
                          "Give the class itself for one of your own")
    near = difflib.get_close_matches(name.upper(), known, n=5, cutoff=0.5)
    raise LayoutError("backend", name, f"is not a backend of vLLM {vllm_version}",
                      f"Did you mean {' or '.join(near)}" if near else f"Use one of {', '.join(known)}")


def own_backends(backends: object, argument: str = "backends") -> tuple:
    """Return the user's own backends as a tuple; LayoutError where they come without a list around them."""
    if isinstance(backends, (str, bytes)) or not isinstance(backends, Iterable):
        raise LayoutError(argument, backends, "must be a list of classes", f"Write {argument}=[MyBackend]")
    return tuple(backends)


def as_backend(obj: object, vllm_version: str = NEWEST) -> Backend:
    """Return ``obj`` as a Backend: a name, a Backend, or any class (or object) with ``supported_kv_cache_layouts``.

    A class may also have ``get_supported_kernel_block_sizes``, ``customize_spec`` and ``interior``. vLLM's own
    classes will do. LayoutError for a class that declares nothing, or nonsense.
    """
    if isinstance(obj, Backend):
        return obj
    if isinstance(obj, str):
        return get_backend(obj, vllm_version)
    return user_backend(obj, vllm_version)
