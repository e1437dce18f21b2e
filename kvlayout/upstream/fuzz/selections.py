"""Whole selections: a model, its ranks, backend, layout and blocks, from the layers' specs to the views.

What a layer reports before planning is ours on both sides (``kvlayout.facts``, checked against vLLM's own layers in
tests/recorded); from there on vLLM's side uses vLLM's functions alone: repacking by its backend classes where they
import, resolution, get_kv_cache_configs for all stages, kernel blocks, allocate_kv_cache.
"""

from __future__ import annotations

import inspect
from functools import cache, lru_cache
from random import Random

from kvlayout.errors import LayoutError
from kvlayout.facts.backends import Backend, backends
from kvlayout.facts.kv_dtypes import kv_cache_dtypes
from kvlayout.facts.models import get_preset, presets
from kvlayout.plan import Plan, choose_backends, make_plan, preferred_block_size
from kvlayout.selection import Selection
from kvlayout.spec import AttentionSpec
from kvlayout.spec_io import spec_to_dict
from kvlayout.upstream.fuzz import theirs
from kvlayout.upstream.fuzz.connectors import transfer_config
from kvlayout.upstream.fuzz.draw import LAYOUTS, chance
from kvlayout.upstream.fuzz.facts import config_facts, groups_facts
from kvlayout.upstream.fuzz.kind import Double, Kind, World
from kvlayout.upstream.fuzz.repack import backend_class
from kvlayout.upstream.fuzz.resolve import environment


def ask(rng: Random, world: World) -> dict:
    while True:
        pp_size = rng.choice((1, 1, 1, 2, 3, 4))
        question = {
            "model": rng.choice(_models()), "tp_size": rng.choice((1, 1, 1, 2, 4, 8)), "pp_size": pp_size,
            "pp_rank": rng.randrange(pp_size), "vllm_version": world.vllm_version,
            "kv_cache_dtype": rng.choice(kv_cache_dtypes(world.vllm_version)) if chance(rng, 0.5) else "auto",
            "backend": rng.choice(_attention(world.vllm_version)) if chance(rng, 0.6) else None,
            "layout": rng.choice(LAYOUTS) if chance(rng, 0.4) else None,
            "requested": rng.choice(LAYOUTS) if chance(rng, 0.2) else None,
            "connector": rng.choice(world.connectors) if world.connectors and chance(rng, 0.2) else None,
            "block_size": rng.choice((16, 32, 64, 128, 256)) if chance(rng, 0.6) else None,
            "disable_hybrid_kv_cache_manager": chance(rng, 0.1)}
        if chance(rng, 0.5):
            question["num_blocks"] = rng.choice((1000, 4096, 11_632)) + rng.randrange(1000)
        else:
            question["available_memory"] = (rng.choice((16, 70, 140)) << 30) + rng.randrange(1 << 20)
        question = {name: value for name, value in question.items() if value is not None}
        try:
            chosen, specs = _layers(Selection.from_dict(question).to_json())
            for name, spec in specs.items():
                if chosen[name].name not in world.backends and isinstance(spec, AttentionSpec):
                    chosen[name].customize_spec(spec)
        except LayoutError:
            continue  # no such model on such ranks, or a page that vLLM's class can't be asked about
        return question


@cache
def _models() -> tuple[str, ...]:
    return tuple(name for name, model in presets().items() if model.kind != "diffusion")


@cache
def _attention(vllm_version: str) -> tuple[str, ...]:
    return tuple(name for name, backend in backends(vllm_version).items() if not backend.is_ssm)


@lru_cache(maxsize=64)
def _layers(selection: str) -> tuple[dict[str, Backend], dict[str, object]]:
    """Return each layer's backend, and its spec before the backend repacks it, as make_plan takes them."""
    selection = Selection.from_json(selection)
    model = get_preset(selection.model)
    chosen = choose_backends(model, selection)
    attention = [chosen[name] for name, kind in model.layer_kinds.items() if kind not in model.STATE_KINDS]
    block_size = selection.block_size or max(map(preferred_block_size, attention), default=16)
    specs = model.aligned_kv_cache_specs(
        backend=attention[0] if attention else None, tp_size=selection.tp_size, pp_size=selection.pp_size,
        block_size=block_size, kv_cache_dtype=selection.kv_cache_dtype, vllm_version=selection.vllm_version)
    return chosen, specs


@lru_cache(maxsize=4)
def _plan(selection: str) -> Plan:
    """Return the plan; asked for twice, once to see whether the question is left out."""
    return make_plan(Selection.from_json(selection))


def ours(question: dict, world: World) -> dict:
    from kvlayout.memory.cache import allocate_kv_cache

    plan = _plan(Selection.from_dict(question).to_json())
    cache = allocate_kv_cache(plan.config, "meta", kernel_block_sizes=plan.kernel_block_sizes)
    return _facts(plan.layout.name, plan.config, list(plan.kernel_block_sizes), cache.views, world)


def their_answer(question: dict, world: World) -> dict:
    from vllm.v1.worker import utils

    selection = Selection.from_dict(question)
    chosen, specs = _layers(selection.to_json())
    classes = {backend.name: _their_backend(backend, world) for backend in chosen.values()}
    specs = {name: _repacked(spec, chosen[name], classes[chosen[name].name]) for name, spec in specs.items()}
    layout = _resolved(selection, classes, specs)
    config = theirs.vllm_config(
        layout, num_gpu_blocks_override=selection.num_blocks,
        disable_hybrid_kv_cache_manager=selection.disable_hybrid_kv_cache_manager)
    stages = [{name: specs[name] for name in names}
              for names in get_preset(selection.model).stage_layers(selection.pp_size)]
    placed = _configs(config, stages, [selection.available_memory or 0] * len(stages))[selection.pp_rank]
    sizes = utils.prepare_kernel_block_sizes(placed, _attention_groups(placed, chosen, classes))
    views = utils.allocate_kv_cache(placed, "meta", theirs.layout(layout), sizes)
    return _facts(layout, placed, sizes, views, world)


def _their_backend(backend: Backend, world: World) -> object:
    """Return vLLM's class, or a stand-in with our facts where it doesn't import."""
    if backend.name in world.backends:
        return backend_class(backend.class_path)
    layouts = backend.supported_kv_cache_layouts()
    return Double(
        get_name=backend.get_name,
        supported_kv_cache_layouts=lambda: layouts and tuple(theirs.layout(layout.name) for layout in layouts),
        get_supported_kernel_block_sizes=lambda spec=None: [
            size if isinstance(size, int) else theirs.multiple_of(size.base)
            for size in backend.get_supported_kernel_block_sizes(spec)])


def _repacked(spec: object, backend: Backend, theirs_or_double: object) -> object:
    if not isinstance(spec, AttentionSpec):
        return theirs.spec(spec_to_dict(spec))
    if isinstance(theirs_or_double, Double):
        return theirs.spec(spec_to_dict(backend.customize_spec(spec)))
    return theirs_or_double.customize_spec(theirs.spec(spec_to_dict(spec)))


def _resolved(selection: Selection, classes: dict[str, object], specs: dict[str, object]) -> str:
    """Return the name of the layout that vLLM resolves for all ranks."""
    from vllm.v1.attention.backends import utils

    if selection.layout is not None:
        return selection.layout
    connector = None if selection.connector is None else {"kv_connector": selection.connector}
    if connector and selection.connector == "MultiConnector":
        connector["kv_connector_extra_config"] = {"connectors": []}
    uses_mla = "mla" in get_preset(selection.model).layer_kinds.values()
    config = Double(cache_config=theirs.cache_config(kv_cache_layout=None), model_config=Double(use_mla=uses_mla),
                    kv_transfer_config=transfer_config(connector), attention_config=Double(hisparse_config=None))
    names = [layout.name for layout in utils.get_supported_kv_cache_layouts(classes.values())]
    with environment(selection.requested):
        ranks = selection.tp_size * selection.pp_size
        return utils.resolve_kv_cache_layout(config, [names] * ranks, specs.values()).name


def _configs(config: object, stages: list[dict], memory: list[int]) -> list:
    """Return vLLM's config of every stage; 0.33 takes the groups of the whole model as an argument."""
    planner = theirs.planner()
    if len(inspect.signature(planner.get_kv_cache_configs).parameters) == 3:
        return planner.get_kv_cache_configs(config, stages, memory)
    return planner.get_kv_cache_configs(config, stages, memory, planner.get_global_kv_cache_groups(config, stages))


def _attention_groups(config: object, chosen: dict[str, Backend], classes: dict[str, object]) -> list[list]:
    """Return the attention groups of each KV cache group: its layers by backend and spec, as a model runner does."""
    from vllm.v1.worker.utils import AttentionGroup

    found = []
    for index, group in enumerate(config.kv_cache_groups):
        spec, served = group.kv_cache_spec, {}
        for name in group.layer_names:
            own = spec.kv_cache_specs[name] if hasattr(spec, "kv_cache_specs") else spec
            served.setdefault((chosen[name].name, own), []).append(name)
        found.append([AttentionGroup(classes[name], layers, own, index) for (name, own), layers in served.items()])
    return found


def _facts(layout: str, config: object, kernel_block_sizes: list[int], views: dict, world: World) -> dict:
    return {"layout": layout, "groups": groups_facts(config.kv_cache_groups, world.lacking),
            **config_facts(config), "kernel_block_sizes": kernel_block_sizes,
            "views": {name: [list(view.shape), list(view.stride()), view.storage_offset(), str(view.dtype)]
                      for name, view in views.items()}}


def is_left_out(question: dict, world: World) -> bool:
    """Kernel blocks in whose view several coordinates share a byte are refused by us, and not by vLLM. And a class of
    vLLM's that asks for the connector of the engine's own config can't be told of one here."""
    selection = Selection.from_dict(question)
    if selection.connector is not None:
        asked = [backend for backend in _layers(selection.to_json())[0].values() if backend.name in world.backends]
        branches = [branch for backend in asked for branch in backend.layout_branches]
        if any("kv_connector" in str(branch.when) for branch in branches):
            return True
    try:
        _plan(selection.to_json())
    except LayoutError as error:
        return error.argument.endswith("kernel_block_size") and "can't be expressed" in error.rule
    return False


KIND = Kind("selections", "make_plan and allocate_kv_cache on \"meta\" against vLLM's functions from specs to views",
            "ranks that the model can't be split into; memory for fewer than about 1000 blocks, which vLLM may find "
            "too few for one request; what a layer reports (ours, on both sides); kernel blocks whose view gives "
            "several coordinates one byte, which we refuse; connectors with a backend class that asks for one",
            ask, ours, their_answer, is_left_out)
