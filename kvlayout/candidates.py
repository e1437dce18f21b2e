"""The candidates: which layouts all backends of a worker support, and who doesn't support the others.

Source: vLLM 0.29.0 to 0.33.0, ``vllm/v1/attention/backends/utils.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout, as_layout
from kvlayout.steps import Step, StepTable

# What vLLM prefers where no backend declares anything, best first.
DEFAULT_PREFERENCE = tuple(
    KVCacheLayout[name] for name in ("LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC"))


@dataclass(frozen=True)
class CommonLayouts:
    """The layouts that all backends of a worker support, most preferred first, and the steps to them."""

    layouts: tuple[KVCacheLayout, ...]
    steps: tuple[Step, ...]


def backend_name(backend: object) -> str:
    """Return what to call a backend: its ``get_name()``, or else the name of its class."""
    try:
        return backend.get_name()
    except (AttributeError, NotImplementedError):
        return getattr(backend, "__name__", type(backend).__name__)


def get_supported_kv_cache_layouts(backends: Iterable[object]) -> list[KVCacheLayout]:
    """Return the layouts that every backend supports, most preferred first.

    Backends are vLLM's classes or anything with ``supported_kv_cache_layouts()``, which gives layouts (members or
    names), most preferred first, or None for any. ResolutionError where they have none in common.
    """
    declared = []
    for backend in backends:
        if not hasattr(backend, "supported_kv_cache_layouts"):
            raise LayoutError("backends", backend, "has no supported_kv_cache_layouts()",
                              "Give vLLM's backend classes, or objects with that method")
        declared.append((backend_name(backend), backend.supported_kv_cache_layouts()))
    return list(common_layouts(declared).layouts)


def common_layouts(declared: Mapping[str, Sequence | None] | Iterable[tuple[str, Sequence | None]]) -> CommonLayouts:
    """Return what ``declared`` (backend name -> its layouts, None for any) have in common, and who dropped which.

    Equal declarations keep their order. Otherwise the layout that most backends put first leads, and ties stand in
    the order of KVCacheLayout. Nobody declares: vLLM's default preference. Nothing in common: ResolutionError.
    """
    pairs = declared.items() if isinstance(declared, Mapping) else declared
    lists = [(name, _declared_layouts(name, layouts)) for name, layouts in pairs if layouts is not None]
    table = StepTable(KVCacheLayout.__members__)
    against = {layout.name: [name for name, layouts in lists if layout not in layouts] for layout in KVCacheLayout}
    dropped = {name: f"is not supported by {', '.join(dict.fromkeys(who))}" for name, who in against.items() if who}
    common = [layout for layout in KVCacheLayout if layout.name not in dropped]
    if not common:
        raise table.failure("backends-support", LayoutError(
            "backends", [name for name, _ in lists], "support no layout in common",
            "Choose backends that share one"), dropped)
    table.step("backends-support", f"{len(common)} of {len(KVCacheLayout)} layouts are supported by every backend "
               f"({len(lists)} declare any).", [layout.name for layout in common], dropped)
    if not lists:
        ordered, order = DEFAULT_PREFERENCE, "No backend declares a layout, so vLLM's default preference holds"
    elif all(layouts == lists[0][1] for _, layouts in lists):
        ordered, order = lists[0][1], "All declare the same list, so its order is kept"
    else:
        first = Counter(layouts[0] for _, layouts in lists)
        ordered = sorted(common, key=lambda layout: -first[layout])
        counts = ", ".join(f"{layout.name} {first[layout]}" for layout in ordered)
        order = f"Ordered by how many backends put a layout first ({counts}), ties as in KVCacheLayout"
    table.step("backends-prefer", f"{order}.", [layout.name for layout in ordered])
    return CommonLayouts(tuple(ordered), tuple(table.steps))


def vllm_layout(layout: object, argument: str) -> KVCacheLayout:
    """Return ``layout`` (a name, an alias or a member) as one of vLLM's six; LayoutError naming ``argument``."""
    known = as_layout(layout, argument)
    if known.name not in KVCacheLayout.__members__:
        raise LayoutError(argument, layout, "is no layout of vLLM", f"Use {', '.join(KVCacheLayout.__members__)}")
    return KVCacheLayout[known.name]


def _declared_layouts(backend: str, layouts: object) -> tuple[KVCacheLayout, ...]:
    argument = f"supported_kv_cache_layouts of {backend}"
    if isinstance(layouts, str) or not isinstance(layouts, Sequence) or not layouts:
        raise LayoutError(argument, layouts, "must be a tuple of at least one layout", "Return None for any layout")
    return tuple(vllm_layout(layout, argument) for layout in layouts)
