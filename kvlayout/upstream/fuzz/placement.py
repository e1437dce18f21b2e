"""Where groups of layers lie in memory, rank by rank, with the block count that the smallest rank allows."""

from __future__ import annotations

from random import Random

from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.grouping import get_kv_cache_groups, project_kv_cache_groups
from kvlayout.placement import get_kv_cache_config_from_groups, validate_kv_cache_layout
from kvlayout.spec_io import spec_from_dict, spec_to_dict
from kvlayout.upstream.fuzz import theirs
from kvlayout.upstream.fuzz.draw import LAYOUTS, chance
from kvlayout.upstream.fuzz.draw_layers import draw_layers
from kvlayout.upstream.fuzz.facts import config_facts, groups_facts
from kvlayout.upstream.fuzz.kind import Kind, World


def ask(rng: Random, world: World) -> dict:
    layout = rng.choice(LAYOUTS)
    groups = [] if chance(rng, 0.003) else _draw_groups(rng, world, layout)
    names = [name for group in groups for name in group["layer_names"]]
    return {"groups": groups, "layout": layout, "ranks": _deal(rng, names, groups),
            "available_memory": [rng.choice((0, 1000, 10**6, 3 * 10**8, 80 << 30, 140 << 30)) + rng.randrange(10**6)
                                 for _ in range(4)],
            "num_gpu_blocks_override": rng.choice((0, 1, 5, 1000, 10**6)) if chance(rng, 0.3) else None}


def _draw_groups(rng: Random, world: World, layout: str) -> list[dict]:
    """Groups as grouping leaves them, mostly; else one group for each spec, which few layouts can express."""
    model = draw_layers(rng, world)
    specs = [spec_from_dict(spec) for spec in model["specs"]]
    layers = {name: specs[index] for name, index in model["layers"]}
    groups: list[KVCacheGroupSpec] = []
    if chance(rng, 0.85):
        try:
            groups = get_kv_cache_groups(layers, layout, vllm_version=world.vllm_version)
        except LayoutError:
            return _draw_groups(rng, world, layout)
    else:
        for index in sorted({index for _, index in model["layers"]}):
            groups.append(KVCacheGroupSpec([name for name, i in model["layers"] if i == index], specs[index]))
    return [group_to_dict(group) for group in groups]


def group_to_dict(group: KVCacheGroupSpec) -> dict:
    """Return a group of ours as a question has it; a uniform type takes its sharding from its first spec."""
    spec = spec_to_dict(group.kv_cache_spec)
    if "kv_cache_specs" in spec:
        spec.pop("dcp_sharded", None)
    return {"layer_names": list(group.layer_names), "spec": spec}


def _deal(rng: Random, names: list[str], groups: list[dict]) -> list[list[str]]:
    """Return each rank's layers: contiguous stages, where every rank has at least one layer of some group."""
    count = min(rng.choice((1, 1, 2, 3, 4)), len(names))
    if count < 2:
        return [names]
    ordered = sorted(names, key=lambda name: int(name.split(".")[2]))
    bounds = [0, *sorted(rng.sample(range(1, len(names)), count - 1)), len(names)]
    return [ordered[start:end] for start, end in zip(bounds, bounds[1:])]


def ours(question: dict, world: World) -> dict:
    layout, override = question["layout"], question["num_gpu_blocks_override"]
    groups = [KVCacheGroupSpec(one["layer_names"], spec_from_dict(one["spec"])) for one in question["groups"]]
    validate_kv_cache_layout(layout, groups)
    projected = [project_kv_cache_groups(groups, names) for names in question["ranks"]]

    def place(rank: int, num_blocks: int | None) -> object:
        return get_kv_cache_config_from_groups(
            projected[rank], question["available_memory"][rank], layout, num_gpu_blocks_override=num_blocks,
            vllm_version=world.vllm_version)

    return _all_ranks(projected, place, override, world)


def their_answer(question: dict, world: World) -> dict:
    layout, planner = theirs.layout(question["layout"]), theirs.planner()
    groups = theirs.groups(question["groups"])
    if groups:  # without groups there is no page size, and vLLM doesn't ask
        planner.validate_kv_cache_layout(layout, groups)
    projected = [planner._project_kv_cache_groups_to_worker(groups, dict.fromkeys(names))
                 for names in question["ranks"]]

    def place(rank: int, num_blocks: int | None) -> object:
        config = theirs.vllm_config(question["layout"], num_gpu_blocks_override=num_blocks)
        return planner.get_kv_cache_config_from_groups(config, projected[rank], question["available_memory"][rank])

    return _all_ranks(projected, place, question["num_gpu_blocks_override"], world)


def _all_ranks(projected: list, place, override: int | None, world: World) -> dict:
    """Place every rank, and again with the fewest blocks of any, as vLLM's get_kv_cache_configs does."""
    first = [place(rank, override) for rank in range(len(projected))]
    fewest = min(config.num_blocks for config in first)
    final = [config if config.num_blocks == fewest else place(rank, fewest) for rank, config in enumerate(first)]
    return {"groups": [groups_facts(groups, world.lacking) for groups in projected],
            "first": [config.num_blocks for config in first], "configs": [config_facts(config) for config in final]}


KIND = Kind("placement", "_project_kv_cache_groups_to_worker, validate_kv_cache_layout and "
            "get_kv_cache_config_from_groups of 1 to 4 ranks, then again with the fewest blocks of any",
            "HiSparse's host pool; ranks without any layer; specs whose block holds no state; the placement of "
            "GLM-5 in 0.30 and 0.31", ask, ours, their_answer)
