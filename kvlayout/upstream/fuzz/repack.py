"""How vLLM's backend classes that import here repack a page, which kernel blocks they take, and which layouts."""

from __future__ import annotations

import importlib
import inspect
from functools import cache
from random import Random

from kvlayout.facts.backends import Backend, backends
from kvlayout.facts.kv_dtypes import kv_cache_dtypes, resolve_kv_cache_dtype
from kvlayout.spec_io import spec_from_dict
from kvlayout.upstream.fuzz import theirs
from kvlayout.upstream.fuzz.draw import attention_spec, chance
from kvlayout.upstream.fuzz.facts import spec_facts
from kvlayout.upstream.fuzz.kind import Kind, World

HEAD_SIZES = (32, 64, 80, 96, 128, 132, 192, 256, 512, 576)


def ask(rng: Random, world: World) -> dict:
    name = rng.choice(_weighted(world))
    backend = backends(world.vllm_version)[name]
    known = [one for one in kv_cache_dtypes(world.vllm_version)
             if f"KVQuantMode.{resolve_kv_cache_dtype(one, 'bfloat16', world.vllm_version).quant_mode.name}"
             not in world.lacking]
    if chance(rng, 0.7):
        known = [one for one in backend.kv_cache_dtypes if one in known] or known
    stored = resolve_kv_cache_dtype(rng.choice(known), rng.choice(("bfloat16", "float16")), world.vllm_version)
    kinds = ("MLAAttentionSpec",) if backend.is_mla and chance(rng, 0.9) else (
        "FullAttentionSpec", "FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec",
        "CrossAttentionSpec")
    spec = attention_spec(rng, world, rng.choice(kinds), head_size=rng.choice(HEAD_SIZES), dtype=stored.storage,
                          kv_quant_mode=stored.quant_mode.name, page_size_padded=None)
    if chance(rng, 0.7):
        spec["block_size"] = rng.choice((1, 16, 32, 64, 128))
    for field in ("state_content_bytes", "num_head_slots", "page_size_padded"):
        if chance(rng, 0.9) or field == "page_size_padded":
            spec.pop(field, None)
    return {"backend": name, "spec": spec}


@cache
def _weighted(world: World) -> tuple[str, ...]:
    """The backends, those that repack a page four times as often."""
    known = backends(world.vllm_version)
    return tuple(name for name in world.backends for _ in range(4 if known[name].repacked_by else 1))


def ours(question: dict, world: World) -> dict:
    backend = backends(world.vllm_version)[question["backend"]].on(world.machine)
    spec = spec_from_dict(question["spec"])
    layouts = backend.supported_kv_cache_layouts()
    return {"spec": spec_facts(backend.customize_spec(spec), world.lacking),
            "kernel_block_sizes": _sizes(backend.get_supported_kernel_block_sizes(spec)),
            "layouts": layouts and [layout.name for layout in layouts]}


def their_answer(question: dict, world: World) -> dict:
    kind = backend_class(backends(world.vllm_version)[question["backend"]].class_path)
    spec = theirs.spec(question["spec"])
    layouts, sizes = kind.supported_kv_cache_layouts(), kind.get_supported_kernel_block_sizes
    return {"spec": spec_facts(kind.customize_spec(spec), world.lacking),
            "kernel_block_sizes": _sizes(sizes(spec) if inspect.signature(sizes).parameters else sizes()),
            "layouts": layouts and [layout.name for layout in layouts]}


def _sizes(sizes) -> list:
    return [size if isinstance(size, int) else {"multiple_of": size.base} for size in sizes]


@cache
def backend_class(class_path: str) -> type:
    """Return vLLM's class at a dotted path."""
    module, _, name = class_path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def importable_backends(vllm_version: str) -> tuple[str, ...]:
    """Return the catalogue's attention backends whose class can be imported here; others are named."""
    found, missing = [], []
    for name, backend in backends(vllm_version).items():
        (found if _imports(backend) else missing).append(name)
    print(f"backends asked: {len(found)}; not asked, since they don't import here or keep states: "
          f"{', '.join(missing)}")
    return tuple(found)


def _imports(backend: Backend) -> bool:
    if backend.is_ssm or backend.parts:
        return False  # states aren't repacked; a composite is made by a model
    try:
        backend_class(backend.class_path)
    except Exception:  # whatever a module does when its hardware or library is missing
        return False
    return True


KIND = Kind("repack", "customize_spec, get_supported_kernel_block_sizes and supported_kv_cache_layouts of every "
            "backend class that imports here", "backends that don't import without their hardware", ask, ours,
            their_answer)
