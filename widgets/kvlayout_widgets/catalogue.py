"""What the controls offer: models, backends, KV dtypes, connectors and layouts of the chosen vLLM version."""

from __future__ import annotations

from collections.abc import Iterable

from kvlayout.captured import is_captured
from kvlayout.facts.backends import as_backend, backends
from kvlayout.facts.connectors import connector_names
from kvlayout.facts.machine import Machine
from kvlayout.facts.models import presets
from kvlayout.layout import LAYOUT_ALIASES, KVCacheLayout, all_layouts, plugin_layouts
from kvlayout.plan import Plan
from kvlayout.resolve import Resolution, Step

FROM_CONFIG = "config.json"

MACHINES = {
    "CPU (as recorded)": Machine(),
    "CPU with AMX": Machine(cpu_isa="amx"),
    "NVIDIA Ampere": Machine("cuda", 8),
    "NVIDIA Hopper": Machine("cuda", 9),
    "NVIDIA Blackwell": Machine("cuda", 10),
    "NVIDIA Blackwell, RTX": Machine("cuda", 12),
    "AMD Instinct MI300": Machine("rocm", cdna_version=3),
    "AMD MI300, AITER shuffled": Machine("rocm", cdna_version=3, shuffle_kv_cache=True),
    "Intel GPU": Machine("xpu"),
}

# Rules that take a layout out of the race; the later ones only choose among those that are left.
_NARROWING = ("backends-support", "workers-agree", "mixed-specs", "dcp")

Options = list[tuple[str, object]]


def model_options() -> Options:
    """Return (title, name) of the presets, and the choice to give a config.json, a capture or a log."""
    return [*((model.title, name) for name, model in presets().items()), ("from a file or text …", FROM_CONFIG)]


def backend_options(vllm_version: str, own: Iterable[object] = ()) -> Options:
    """Return (name with platforms, name) of the attention backends of a release, the user's own first."""
    options: Options = [("auto (by the model)", None)]
    options += [(f"{as_backend(one, vllm_version).name} (yours)", as_backend(one, vllm_version).name) for one in own]
    for name, backend in backends(vllm_version).items():
        plugin = getattr(backend, "plugin", None)
        if (backend.registry == "attention" or plugin) and not backend.is_ssm:
            platforms = [] if backend.platforms == ("any",) else list(backend.platforms)
            marks = [*([f"by {plugin}"] if plugin else []), *(["MLA"] if backend.is_mla else []),
                     *(["sparse"] if backend.is_sparse else []), *platforms]
            options.append((f"{name} ({', '.join(marks)})" if marks else name, name))
    return options


def kv_dtype_options(vllm_version: str, backend: str | None, own: Iterable[object] = ()) -> Options:
    """Return the KV cache dtypes that the chosen backend lists, or that any does; "auto" first."""
    known = {**backends(vllm_version), **{as_backend(one, vllm_version).name: as_backend(one, vllm_version)
                                          for one in own}}
    listed = known[backend].kv_cache_dtypes if backend in known else ()
    if not listed:
        listed = sorted({dtype for one in known.values() for dtype in one.kv_cache_dtypes})
    return [(dtype, dtype) for dtype in dict.fromkeys(("auto", *listed))]


def connector_options(vllm_version: str) -> Options:
    """Return the KV connectors of a release; None first."""
    return [("none", None), *((name, name) for name in connector_names(vllm_version))]


def requested_options() -> Options:
    """Return the values that VLLM_KV_CACHE_LAYOUT may have; None, not set, first."""
    return [("not set", None), *((name, name) for name in KVCacheLayout.__members__),
            *((f"{alias} (alias of {layout.name})", alias) for alias, layout in LAYOUT_ALIASES.items())]


def machine_name(machine: dict) -> str:
    """Return what the machine with these fields is called here, or else its fields."""
    given = Machine(**machine)
    return next((name for name, one in MACHINES.items() if one == given), str(given))


def platform_note(plan: Plan) -> str:
    """Return that a plan's backends don't run on its machine's platform, as far as that is recorded; or ""."""
    selection, here = plan.selection, plan.selection.machine.platform
    away = {one.name: one.platforms for one in plan.backends.values()
            if "any" not in one.platforms and here not in one.platforms}
    if not away or is_captured(selection.model):
        return ""
    name, platforms = next(iter(away.items()))
    said = name if selection.backend else f"auto is {name}, as on a Hopper GPU; it"
    return (f"{said} runs on {', '.join(platforms)}, not on {here}, the machine below. Bench, Backends lists what "
            "does.")


def layout_options(resolution: Resolution | None, refusals: dict[str, str], forced: str | None = None) -> Options:
    """Return auto with what it resolves to, the six, marked where the resolver drops them, and plugins' layouts.

    ``forced``, the choice, is listed too where it is another order of the axes.
    """
    auto = "auto" if resolution is None else f"auto → {resolution.layout.name}"
    listed = [(auto, None), *((f"{name}  ✗ {refusals[name]}" if name in refusals else name, name)
                              for name in KVCacheLayout.__members__),
              *((f"{name} ({layout.name}, a plugin's)", name) for name, layout in plugin_layouts().items())]
    known = {name for _, name in listed}
    return listed + [(f"{one.name} (not vLLM's)", one.name) for one in all_layouts()
                     if one.name == forced and one.name not in known]


def refusals(steps: Iterable[Step]) -> dict[str, str]:
    """Return {layout: why} for the layouts that a rule of the resolver excludes."""
    found: dict[str, str] = {}
    for step in steps:
        if step.rule in _NARROWING:
            for name, reason in step.dropped.items():
                found.setdefault(name, reason)
    return found
