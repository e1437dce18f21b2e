"""What a backend's class lacks or gets wrong, all at once, before any of it is planned with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from kvlayout.errors import LayoutError
from kvlayout.facts.catalogue import Backend
from kvlayout.facts.user_backend import UserBackend, user_backend
from kvlayout.finding import Finding
from kvlayout.layout import KVCacheLayout
from kvlayout.spec import KVCacheSpec
from kvlayout.versions import NEWEST

_OPTIONAL = {
    "get_supported_kernel_block_sizes": "any block size is taken, as in vLLM's base class",
    "customize_spec": "pages stay as the layers report them",
    "interior": "a page is taken to hold what vLLM's default does",
}


def check_backend(obj: object, specs: Iterable[KVCacheSpec] = (), *, vllm_version: str = NEWEST) -> list[Finding]:
    """Return what ``obj`` (a class, an object of one, or a Backend) lacks or gets wrong; errors first.

    ``specs``: pages that it would be handed, as layers report them. Rules: "missing-method", "wrong-answer",
    "abstract-method", "prototype-layout", "changed-block".
    """
    found = _missing(obj)
    if any(one.is_error for one in found):
        return found
    try:
        backend = obj if isinstance(obj, Backend) else user_backend(obj, vllm_version)
    except LayoutError as error:
        return [_wrong(error), *found]
    if isinstance(backend, UserBackend):
        found += _prototypes(backend)
    for spec in dict.fromkeys(specs):
        found += _packs(backend, spec)
    told = {(one.rule, one.message): one for one in found}  # several pages may give the same one
    return sorted(told.values(), key=lambda one: not one.is_error)


def _missing(obj: object) -> list[Finding]:
    name = getattr(obj, "__name__", type(obj).__name__)
    found = []
    if not callable(getattr(obj, "supported_kv_cache_layouts", None)):
        found.append(Finding("missing-method", "error", f"{name} has no supported_kv_cache_layouts(), so no "
                             "layout can be resolved for it.", {"method": "supported_kv_cache_layouts"}, None,
                             "Add a classmethod that returns layouts, most preferred first, or None for any"))
    for method, instead in _OPTIONAL.items():
        if not hasattr(obj, method):
            found.append(Finding("missing-method", "note", f"{name} has no {method}(): {instead}.",
                                 {"method": method}))
    abstract = sorted(getattr(obj, "__abstractmethods__", ()))
    if abstract:
        found.append(Finding("abstract-method", "warning", f"{name} leaves {', '.join(abstract)} of its base class "
                             "abstract; the cache doesn't need them, but vLLM will ask.", {"methods": abstract}))
    return found


def _wrong(error: LayoutError) -> Finding:
    return Finding("wrong-answer", "error", f"{error.argument}={error.value!r:.80}: {error.rule}.",
                   {"argument": error.argument}, None, error.cure)


def _prototypes(backend: UserBackend) -> list[Finding]:
    names = [one.name for one in backend.declared_layouts() or () if one.name not in KVCacheLayout.__members__]
    if not names:
        return []
    alone = len(names) == len(backend.layouts)
    return [Finding("prototype-layout", "warning", f"vLLM {backend.vllm_version} has no layout {', '.join(names)}: "
                    f"its resolver can choose {'none that this backend takes' if alone else 'the others only'}.",
                    {"layouts": names}, None, "Force it with layout= to see the cache in it")]


def _packs(backend: Backend, spec: KVCacheSpec) -> list[Finding]:
    """What goes wrong where the backend is handed one page."""
    try:
        packed = backend.customize_spec(spec)
        backend.get_supported_kernel_block_sizes(packed)
        backend.interior(packed)
    except LayoutError as error:
        return [_wrong(error)]
    changed = [one.name for one in dataclasses.fields(KVCacheSpec) if one.name == "block_size"
               and packed.block_size != spec.block_size]
    if type(packed) is not type(spec):
        changed.append(f"the kind of spec ({type(spec).__name__} to {type(packed).__name__})")
    if not changed:
        return []
    return [Finding("changed-block", "warning", f"customize_spec of {backend.name} changes {' and '.join(changed)}, "
                    "which the block tables of the layer's group count on.", {"changed": changed}, None,
                    "Change what a page holds, not how many tokens it is for")]
