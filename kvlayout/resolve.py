"""The resolver: backends' declared layouts -> common candidates -> one layout for the whole model.

Every step is data (:class:`kvlayout.steps.Step`), so that a person can see which rule dropped which layout; an
error carries the steps up to and with the one that failed. Sources: vLLM 0.29.0 to 0.33.0,
``vllm/v1/attention/backends/utils.py`` and ``vllm/config/cache.py``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import ModuleType

from kvlayout.candidates import CommonLayouts, common_layouts, get_supported_kv_cache_layouts, vllm_layout
from kvlayout.errors import LayoutConflict, LayoutError
from kvlayout.facts.connectors import wished_layout
from kvlayout.layout import LAYOUT_ALIASES, KVCacheLayout, PhysicalLayout, as_layout
from kvlayout.spec import AttentionSpec, KVCacheSpec
from kvlayout.steps import Resolution, ResolutionError, Step, StepTable
from kvlayout.strides import one_layer_spec
from kvlayout.versions import NEWEST, at_least

__all__ = ["CommonLayouts", "Resolution", "ResolutionError", "Step", "common_layouts", "explain_kv_cache_layout",
           "get_resolved_kv_cache_layout", "get_supported_kv_cache_layouts", "record_kv_cache_layout", "resolve",
           "resolve_kv_cache_layout"]

logger = logging.getLogger(__name__)

ENVIRONMENT_VARIABLE = "VLLM_KV_CACHE_LAYOUT"


def resolve(
    supported_layouts: Sequence[Sequence[str | KVCacheLayout]],
    specs: Mapping[str, KVCacheSpec] | Iterable[KVCacheSpec] | None,
    *,
    pinned: str | KVCacheLayout | PhysicalLayout | None = None,
    requested: str | KVCacheLayout | None = None,
    connector: str | KVCacheLayout | None = None,
    vllm_version: str = NEWEST,
) -> Resolution:
    """Return the layout for the whole model and the steps to it; reads no environment and records nothing.

    ``supported_layouts``: one list of names for each worker, most preferred first. ``specs``: those of all layers
    (vLLM's own too). ``pinned``: what is already on cache_config; ``requested``: VLLM_KV_CACHE_LAYOUT;
    ``connector``: the connector's wish. Raises ResolutionError, with the steps, where vLLM raises.
    """
    return _resolve(supported_layouts, specs, pinned, requested, lambda: connector, vllm_version)


def _resolve(supported_layouts, specs, pinned, requested, ask_connector: Callable, vllm_version) -> Resolution:
    at_least(vllm_version, NEWEST)  # refuses a release that we don't know
    reports = _reports(supported_layouts)
    table = StepTable(dict.fromkeys(name for report in reports for name in _meanings(report)))
    if pinned is not None:
        layout = table.layout("pinned", "pinned", pinned)
        unsupported = table.candidates and layout.name not in table.candidates
        return table.decide("pinned", f"{_named(pinned, layout)} is on cache_config already and wins unchecked"
                            f"{', although no worker reports it' if unsupported else ''}.", layout)
    table.step("pinned", "No layout is on cache_config yet, so one is chosen.")
    _check_workers(table, reports)
    specs = _counted_specs(specs, vllm_version)
    _narrow_by_shapes(table, specs)
    _narrow_by_dcp(table, specs, vllm_version)
    if requested is not None:
        layout = table.layout("requested", "requested", requested)
        if layout.name not in table.candidates:
            raise table.failure("requested", LayoutError(
                "requested", requested, f"{ENVIRONMENT_VARIABLE} must be one of the candidates "
                f"{', '.join(table.candidates)}; {table.why_gone(layout.name)}", "Ask for a candidate, or unset it"),
                dict.fromkeys(table.candidates, f"is not the requested {layout.name}"))
        return table.decide("requested", f"{ENVIRONMENT_VARIABLE} asks for {_named(requested, layout)}, a candidate; "
                            "the connector isn't asked.", layout)
    table.step("requested", f"{ENVIRONMENT_VARIABLE} is not set.")
    try:
        wish = ask_connector()
    except LayoutError as error:
        raise table.failure("connector", error) from error
    if wish is None:
        table.step("connector", "No connector wishes for a layout.")
    else:
        layout = table.layout("connector", "connector", wish)
        if layout.name in table.candidates:
            return table.decide("connector", f"The connector wishes for {_named(wish, layout)}, a candidate.", layout)
        table.step("connector", f"The connector wishes for {_named(wish, layout)}, which is not a candidate: "
                   f"{table.why_gone(layout.name)}. Its wish is dropped.",
                   dropped={layout.name: "is the connector's wish, but not a candidate"})
    first = KVCacheLayout[table.candidates[0]]
    return table.decide("default", f"Nothing else decides, so the first candidate, {first.name}, is taken.", first)


def _named(given: object, layout: KVCacheLayout | PhysicalLayout) -> str:
    return f"{given} ({layout.name})" if isinstance(given, str) and given != layout.name else layout.name


def _reports(supported_layouts: object) -> list[tuple[str, ...]]:
    """Return each worker's names as they were given; members by name."""
    workers = () if supported_layouts is None else supported_layouts
    well_formed = _is_list(workers) and all(_is_list(worker) for worker in workers)
    reports = [tuple(layout.name if isinstance(layout, Enum) else layout for layout in worker)
               for worker in workers] if well_formed else []
    if not well_formed or not all(isinstance(name, str) for report in reports for name in report):
        raise LayoutError("supported_layouts", supported_layouts, "must be a list of lists of layout names",
                          "Give one list for each worker, for example [['LBHNC', 'BLHNC']]")
    return reports


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _meanings(report: Iterable[str]) -> tuple[str, ...]:
    """Return the names with aliases replaced; unknown ones stay, to be refused later."""
    return tuple(LAYOUT_ALIASES[name].name if name in LAYOUT_ALIASES else name for name in report)


def _check_workers(table: StepTable, reports: list[tuple[str, ...]]) -> None:
    """Record the step that all workers report the same known names, at least one; otherwise it fails."""
    shown = [list(report) for report in reports]
    if not reports or not all(reports):
        raise table.failure("workers-agree", LayoutError(
            "supported_layouts", shown, "must hold at least one layout for each of at least one worker"))
    if any(report != reports[0] for report in reports):
        common = set.intersection(*(set(_meanings(report)) for report in reports))
        raise table.failure("workers-agree", LayoutError(
            "supported_layouts", shown, "must be the same list from every worker, since all run the same backends"),
            {name: "is reported by every worker, but their lists differ" if name in common
             else "is not reported by every worker" for name in table.candidates})
    for name in table.candidates:
        table.layout("workers-agree", "supported_layouts", name)
    table.step("workers-agree", f"Every worker ({len(reports)} asked) reports the same layouts.")


def _counted_specs(specs: object, vllm_version: str) -> list[KVCacheSpec]:
    specs = specs.values() if isinstance(specs, Mapping) else () if specs is None else specs
    if not isinstance(specs, Iterable):
        raise LayoutError("specs", specs, "must be the specs of all layers", "Give a list or a dict by layer name")
    if at_least(vllm_version, "0.31.0"):
        # Layers without a view of their own lay out their bytes themselves.
        specs = (spec for spec in specs if getattr(spec, "has_layer_views", True))
    return [one_layer_spec(spec) for spec in specs]


def _narrow_by_shapes(table: StepTable, specs: list[KVCacheSpec]) -> None:
    """Different pages share one pool only where a page is one contiguous run."""
    shapes = sorted({(spec.num_heads, spec.num_states, spec.page_size_bytes) for spec in specs})
    if len(shapes) < 2:
        table.step("mixed-specs", "All layers have pages of the same shape." if specs else "No layers are given.")
        return
    shown = ", ".join(f"{heads} x {states} in {size:,} bytes" for heads, states, size in shapes[:4])
    table.narrow("mixed-specs", f"The layers have {len(shapes)} page shapes (heads x states: {shown}"
                 f"{', ...' if len(shapes) > 4 else ''}), so a page must be one contiguous run",
                 lambda layout: layout.is_block_compact, "block-compact",
                 "Use backends that support LBHNC, LBNHC, BLHNC or BLNHC")


def _narrow_by_dcp(table: StepTable, specs: list[KVCacheSpec], vllm_version: str) -> None:
    """DCP-sharded and replicated layers with different pages need groups that are packed into blocks."""
    if not at_least(vllm_version, "0.31.0"):
        table.step("dcp", f"vLLM {vllm_version} has no rule for DCP.")
        return
    only_mapped = at_least(vllm_version, "0.32.0")
    sharding = {spec.dcp_sharded for spec in specs
                if isinstance(spec, AttentionSpec) and (spec.uses_slot_mapping or not only_mapped)}
    sizes = sorted({spec.page_size_bytes for spec in specs})
    if len(sharding) < 2 or len(sizes) < 2:
        table.step("dcp", "No DCP-sharded layers lie beside replicated ones." if len(sharding) < 2
                   else "DCP-sharded and replicated layers have pages of one size.")
        return
    table.narrow("dcp", f"DCP-sharded and replicated layers have pages of different sizes ({len(sizes)}, from "
                 f"{sizes[0]:,} to {sizes[-1]:,} bytes), so all bytes of a block must lie together",
                 lambda layout: layout.is_block_outermost, "block-outermost",
                 "Use backends that support BLHNC or BLNHC")


def explain_kv_cache_layout(
    vllm_config: object, supported_layouts: Sequence[Sequence[str]],
    kv_cache_specs: Iterable[KVCacheSpec] | None = None, *, vllm_version: str = NEWEST,
) -> Resolution:
    """Return what :func:`resolve_kv_cache_layout` would choose, with its steps; records nothing."""
    return _resolve(supported_layouts, kv_cache_specs, getattr(_cache_config(vllm_config), "kv_cache_layout", None),
                    os.environ.get(ENVIRONMENT_VARIABLE),
                    lambda: wished_layout(vllm_config, vllm_version=vllm_version), vllm_version)


def resolve_kv_cache_layout(
    vllm_config: object, supported_layouts: Sequence[Sequence[str]],
    kv_cache_specs: Iterable[KVCacheSpec] | None = None, *, vllm_version: str = NEWEST,
) -> KVCacheLayout:
    """Return the layout for the whole model, and record its name on ``vllm_config.cache_config``.

    Reads VLLM_KV_CACHE_LAYOUT and the connector of ``vllm_config.kv_transfer_config``, which may be None. A layout
    that is already recorded stays as it is written. ResolutionError, with steps: nothing is recorded.
    """
    resolution = explain_kv_cache_layout(vllm_config, supported_layouts, kv_cache_specs, vllm_version=vllm_version)
    for step in resolution.steps:
        if step.rule == "connector" and step.dropped and step.after == step.before:
            logger.warning("%s", step.sentence)
    if resolution.steps[-1].rule != "pinned":
        vllm_config.cache_config.kv_cache_layout = resolution.layout.name
    return resolution.layout


def _cache_config(vllm_config: object) -> object:
    cache_config = getattr(vllm_config, "cache_config", None)
    if cache_config is None:
        raise LayoutError("vllm_config.cache_config", None, "must be there, to record the layout on")
    return cache_config


def record_kv_cache_layout(cache_config: object, layout_name: str) -> None:
    """Write a layout resolved elsewhere on ``cache_config``, once; the same name again is fine.

    An alias is recorded as what it means. LayoutError for an unknown name, LayoutConflict for a second layout
    (names are compared: a preset alias conflicts with its own meaning, as in vLLM); then nothing is recorded.
    """
    layout = vllm_layout(layout_name, "layout_name")
    existing = getattr(cache_config, "kv_cache_layout", None)
    if existing is not None and existing != layout.name:
        raise LayoutConflict("layout_name", layout_name, f"conflicts with {existing}, which is recorded already",
                             "A layout is final once recorded; make a new config to change it")
    cache_config.kv_cache_layout = layout.name


def get_resolved_kv_cache_layout(cache_config: object) -> KVCacheLayout:
    """Return the layout recorded on ``cache_config``; LayoutError if none is."""
    name = getattr(cache_config, "kv_cache_layout", None)
    if name is None:
        raise LayoutError("cache_config.kv_cache_layout", None, "is not resolved yet",
                          "Call resolve_kv_cache_layout or record_kv_cache_layout first")
    return as_layout(name, "cache_config.kv_cache_layout")


class _CallableModule(ModuleType):
    """``kvlayout.resolve`` is this module once anything imported it, and the public function all the same."""

    __call__ = staticmethod(resolve)


sys.modules[__name__].__class__ = _CallableModule
