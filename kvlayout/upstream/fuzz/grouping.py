"""Which layers share a block table, for random models, layouts and the hybrid manager on or off."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from kvlayout.grouping import get_kv_cache_groups
from kvlayout.spec_io import spec_from_dict
from kvlayout.upstream.fuzz import theirs
from kvlayout.upstream.fuzz.draw import LAYOUTS, chance
from kvlayout.upstream.fuzz.draw_layers import draw_layers
from kvlayout.upstream.fuzz.facts import groups_facts
from kvlayout.upstream.fuzz.kind import Kind, World


def ask(rng: Random, world: World) -> dict:
    return {**draw_layers(rng, world), "layout": rng.choice(LAYOUTS),
            "disable_hybrid_kv_cache_manager": chance(rng, 0.2)}


def is_special_model(question: dict, world: World) -> bool:
    """0.30 and 0.31 group Mamba beside MLA with a compressing indexer (GLM-5) in a way that isn't reproduced."""
    if world.vllm_version not in ("0.30.0", "0.31.0"):
        return False
    used = [question["specs"][index] for index in sorted({index for _, index in question["layers"]})]
    attention = [spec for spec in used if spec["type"] != "MambaSpec"]
    return (len(attention) < len(used) and all(spec["type"] == "MLAAttentionSpec" for spec in attention)
            and any(Fraction(spec.get("tokens_per_state", 1)) > 1 for spec in attention))


def ours(question: dict, world: World) -> list:
    specs = [spec_from_dict(spec) for spec in question["specs"]]
    groups = get_kv_cache_groups(
        {name: specs[index] for name, index in question["layers"]}, question["layout"],
        disable_hybrid_kv_cache_manager=question["disable_hybrid_kv_cache_manager"], vllm_version=world.vllm_version)
    return groups_facts(groups, world.lacking)


def their_answer(question: dict, world: World) -> list:
    specs = [theirs.spec(spec) for spec in question["specs"]]
    config = theirs.vllm_config(
        question["layout"], disable_hybrid_kv_cache_manager=question["disable_hybrid_kv_cache_manager"])
    groups = theirs.groups_of(config, {name: specs[index] for name, index in question["layers"]})
    return groups_facts(groups, world.lacking)


KIND = Kind("grouping", "get_kv_cache_groups: the layers of each group, and every field of its spec",
            "HiSparse; encoder-only layers, which keep no cache; specs whose block holds no state or whose padding "
            "is too small; for 0.30 and 0.31 Mamba beside MLA of several tokens a state (GLM-5)",
            ask, ours, their_answer, is_special_model)
