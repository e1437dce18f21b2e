"""vLLM's own backend classes beside our catalogue: layouts and kernel blocks that they declare, pages they repack.

A class answers for the hardware of its process, so it is asked only where the plan's machine is this one: a CPU
without settings. Sources: ``supported_kv_cache_layouts``, ``get_supported_kernel_block_sizes`` and ``customize_spec``
of ``vllm/v1/attention/backend.py`` and its subclasses, 0.29.0 to 0.33.0.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace

from kvlayout.captured import is_captured
from kvlayout.facts.backends import Backend
from kvlayout.facts.machine import Machine
from kvlayout.plan import Plan, reported_specs
from kvlayout.spec import AttentionSpec
from kvlayout.upstream.convert import to_vllm
from kvlayout.upstream.facts import paired_specs
from kvlayout.upstream.inputs import different_backends
from kvlayout.upstream.release import Release
from kvlayout.upstream.verdict import Check, compare, plain


def check(plan: Plan, release: Release) -> Check:
    """Compare every backend of ``plan`` that can be asked; those that can't are named in the reason."""
    reason = _elsewhere(plan)
    if reason:
        return Check("backends", None, reason=reason)
    before = {} if is_captured(plan.selection.model) else reported_specs(plan)
    ours, theirs, left = {}, {}, []
    for name, backend in different_backends(plan).items():
        unasked = _unasked(backend, release)
        if unasked:
            left.append(f"{name} {unasked}")
            continue
        try:
            kind = _class(backend.class_path)
        except (ImportError, AttributeError, RuntimeError, AssertionError, OSError) as error:
            left.append(f"{name} doesn't import here ({type(error).__name__}: {_first_line(error)})")
            continue
        specs = {layer: spec for layer, spec in before.items()
                 if plan.backends[layer].name == name and isinstance(spec, AttentionSpec)}
        ours[name], theirs[name] = _answers(plan, backend, kind, specs)
    reason = f"not asked: {'; '.join(left)}" if left else ""
    return compare("backends", ours, theirs, reason) if ours else Check("backends", None, reason=reason)


def _elsewhere(plan: Plan) -> str:
    """Return why this process can't answer for the plan's machine; empty where it can."""
    from vllm.platforms import current_platform

    if replace(plan.selection.machine, cpu_isa=Machine.cpu_isa) != Machine():
        return "vLLM's backends answer for this machine, and the plan is for another"
    for kind in ("cuda", "rocm", "xpu"):
        if getattr(current_platform, f"is_{kind}")():
            return f"vLLM runs on {kind} here, and the plan's machine is a CPU"
    return ""


def _unasked(backend: Backend, release: Release) -> str:
    """Return why a backend's class isn't even imported; empty where it can be asked."""
    if hasattr(backend, "asked"):
        return "is a class of yours"
    # Kernels of other platforms abort the process there: they register the build's own operators a second time.
    if release.build == "cpu" and not {"cpu", "any"} & set(backend.platforms):
        return "isn't a backend of the CPU build"
    return ""


def _class(path: str) -> type:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _answers(plan: Plan, backend: object, kind: type, specs: dict[str, AttentionSpec]) -> tuple[dict, dict]:
    """Return both sides' declarations, and the pages of ``specs`` as each side repacks them."""
    asked = next((plan.specs[layer] for layer in specs), None)
    ask = kind.get_supported_kernel_block_sizes
    takes_spec = bool(inspect.signature(ask).parameters)
    given = [to_vllm(asked)] if takes_spec and asked is not None else []
    ours = {"layouts": _names(backend.supported_kv_cache_layouts()),
            "kernel_block_sizes": [plain(one) for one in backend.get_supported_kernel_block_sizes(
                asked if takes_spec else None)]}
    theirs = {"layouts": _names(kind.supported_kv_cache_layouts()),
              "kernel_block_sizes": [plain(one) for one in ask(*given)]}
    mine = {layer: plan.specs[layer] for layer in specs}
    repacked = {layer: kind.customize_spec(to_vllm(spec)) for layer, spec in specs.items()}
    ours["repacked"], theirs["repacked"] = paired_specs(mine, repacked)
    return ours, theirs


def _names(layouts: object) -> list[str] | None:
    return None if layouts is None else [layout.name for layout in layouts]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


