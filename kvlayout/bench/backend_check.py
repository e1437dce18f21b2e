"""What a backend's class lacks or gets wrong, all at once, before any of it is planned with."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from kvlayout.bench.own_backend import PrototypeBackend
from kvlayout.errors import LayoutError, shown
from kvlayout.facts.backends import as_backend
from kvlayout.facts.catalogue import Backend, load
from kvlayout.facts.user_backend import UserBackend, asking, name_of
from kvlayout.finding import Finding
from kvlayout.layout import KVCacheLayout
from kvlayout.spec import KVCacheSpec
from kvlayout.spec_io import as_spec
from kvlayout.versions import NEWEST

_OPTIONAL = {
    "get_supported_kernel_block_sizes": "any block size is taken, as in vLLM's base class",
    "customize_spec": "pages stay as the layers report them",
    "interior": "a page is taken to hold what vLLM's default does",
}
_CONTENT = ("num_kv_heads", "head_size", "head_size_v", "dtype")


def check_backend(obj: object, specs: Iterable[KVCacheSpec] = (), *, vllm_version: str = NEWEST) -> list[Finding]:
    """Return what ``obj`` (a class, an object of one, a Backend or a name of one) lacks or gets wrong; errors first.

    ``specs``: pages that it would be handed, as layers report them, ours or vLLM's. Rules: "missing-method",
    "wrong-answer", "unsteady-answer" (two calls that differ), "abstract-method", "misspelt-name", "prototype-layout",
    "changed-block", "changed-content" (a page of other heads or elements than the layer writes). LayoutError for a
    bad ``specs`` or ``vllm_version`` alone.
    """
    load(vllm_version)  # refuses an unknown release
    specs = _checked(specs)
    found: list[Finding] = []
    try:
        with asking("backend"):
            found = [] if isinstance(obj, str) else [*_missing(obj), *_misspelt(obj)]
        if any(one.is_error for one in found):
            return found
        backend = as_backend(obj, vllm_version)
    except LayoutError as error:
        return [_wrong(error), *found]
    if isinstance(backend, UserBackend):
        found += _prototypes(backend)
    for spec in specs:
        found += _packs(backend, spec)
    told = {(one.rule, one.message): one for one in found}  # several pages may give the same one
    return sorted(told.values(), key=lambda one: not one.is_error)


def _checked(specs: object) -> list[KVCacheSpec]:
    if isinstance(specs, (str, bytes)) or not isinstance(specs, Iterable):
        raise LayoutError("specs", specs, "must be a list of specs", "Write specs=[spec]")
    return list(dict.fromkeys(as_spec(one, "specs") for one in specs))


def _misspelt(obj: object) -> list[Finding]:
    """Attributes of a PrototypeBackend that nobody asks for, named nearly as one that is."""
    kind = obj if isinstance(obj, type) else type(obj)
    if not issubclass(kind, PrototypeBackend):
        return []
    own = {name for base in kind.__mro__ for name in vars(base) if not hasattr(PrototypeBackend, name)}
    known = list(PrototypeBackend.__annotations__)
    pairs = [(name, near) for name in sorted(own) for near in difflib.get_close_matches(name, known, 1, 0.85)]
    return [Finding("misspelt-name", "warning", f"{name_of(obj)}.{name} is asked for by nobody.", {"name": name},
                    None, f"Did you mean {near}") for name, near in pairs]


def _missing(obj: object) -> list[Finding]:
    name = name_of(obj)
    found = []
    if not callable(getattr(obj, "supported_kv_cache_layouts", None)):
        found.append(Finding("missing-method", "error", f"{name} has no supported_kv_cache_layouts(), so no "
                             "layout can be resolved for it.", {"method": "supported_kv_cache_layouts"}, None,
                             "Add a classmethod that returns layouts, most preferred first, or None for any"))
    for method, instead in _OPTIONAL.items():
        if not hasattr(obj, method):
            found.append(Finding("missing-method", "note", f"{name} has no {method}(): {instead}.",
                                 {"method": method}))
    abstract = sorted(map(str, getattr(obj, "__abstractmethods__", ())))
    if abstract:
        found.append(Finding("abstract-method", "warning", f"{name} leaves {', '.join(abstract)} of its base class "
                             "abstract; the cache doesn't need them, but vLLM will ask.", {"methods": abstract}))
    return found


def _wrong(error: LayoutError) -> Finding:
    return Finding("wrong-answer", "error", f"{error.argument}={shown(error.value, 80)}: {error.rule}.",
                   {"argument": error.argument}, None, error.cure)


def _prototypes(backend: UserBackend) -> list[Finding]:
    names = [one.name for one in backend.declared_layouts() or () if one.name not in KVCacheLayout.__members__]
    if not names:
        return []
    alone = len(names) == len(backend.layouts)
    return [Finding("prototype-layout", "warning", f"vLLM {backend.vllm_version} has no layout {', '.join(names)}: "
                    f"its resolver can choose {'none that this backend takes' if alone else 'the others only'}.",
                    {"layouts": names}, None, "Force it (a selection's layout) to see the cache in it")]


def _packs(backend: Backend, spec: KVCacheSpec) -> list[Finding]:
    """What goes wrong where the backend is handed one page."""
    try:
        packed = backend.customize_spec(spec)
        questions = {"supported_kv_cache_layouts": _layouts_of(backend),
                     "get_supported_kernel_block_sizes": lambda: backend.get_supported_kernel_block_sizes(packed),
                     "customize_spec": lambda: backend.customize_spec(spec),
                     "interior": lambda: backend.interior(packed)}
        unsteady = [method for method, ask in questions.items() if ask() != ask()]
    except LayoutError as error:
        return [_wrong(error)]
    return [*(Finding("unsteady-answer", "error", f"{method} of {backend.name} gives two answers to the same "
                      "question: each layer would get its own.", {"method": method}, None,
                      "Let it depend on the spec alone")
              for method in unsteady), *_changes(backend.name, spec, packed)]


def _layouts_of(backend: Backend) -> Callable[[], tuple | None]:
    return backend.declared_layouts if isinstance(backend, UserBackend) else backend.supported_kv_cache_layouts


def _changes(name: str, spec: KVCacheSpec, packed: KVCacheSpec) -> list[Finding]:
    """What a page mustn't become by being repacked."""
    found = []
    changed = ["block_size"] if packed.block_size != spec.block_size else []
    if type(packed) is not type(spec):
        changed.append(f"the kind of spec ({type(spec).__name__} to {type(packed).__name__})")
    if changed:
        found.append(Finding("changed-block", "warning", f"customize_spec of {name} changes {' and '.join(changed)}, "
                             "which the block tables of the layer's group count on.", {"changed": changed}, None,
                             "Change what a page holds, not how many tokens it is for"))
    values = {one: (getattr(spec, one), getattr(packed, one)) for one in _CONTENT
              if hasattr(spec, one) and hasattr(packed, one) and getattr(spec, one) != getattr(packed, one)}
    if values:
        said = ", ".join(f"{one} {old} to {new}" for one, (old, new) in values.items())
        found.append(Finding("changed-content", "warning", f"customize_spec of {name} changes {said}: the page is "
                             "for other heads or elements than the layer writes.", {"changed": list(values)}, None,
                             "Say how the same content is packed: num_head_slots, state_content_bytes, an interior"))
    return found
