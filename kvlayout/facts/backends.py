"""vLLM's attention backends by name, and a user's own class as one.

The facts are recorded per release by ``python -m kvlayout.facts.record_backends``, in ``data/backends-VERSION.json``.
"""

from __future__ import annotations

import difflib

from kvlayout.errors import LayoutError
from kvlayout.facts.catalogue import Backend, Branch, load, placeholders
from kvlayout.facts.user_backend import user_backend
from kvlayout.versions import NEWEST

__all__ = ["Backend", "Branch", "as_backend", "backends", "get_backend"]


def backends(vllm_version: str = NEWEST) -> dict[str, Backend]:
    """Return {name: Backend} of a vLLM release, sorted by name; LayoutError for a release that isn't recorded."""
    return dict(load(vllm_version))


def get_backend(name: str, vllm_version: str = NEWEST) -> Backend:
    """Return a backend by name: the enum's, vLLM's own where only one has it, or the unique end of a class path.

    LayoutError names the nearest ones.
    """
    known = load(vllm_version)
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
