"""Shapes and strides of one layer: every class of spec, padded pages, kernel blocks, fixed strides."""

from __future__ import annotations

from random import Random

from kvlayout.spec_io import spec_from_dict
from kvlayout.strides import compute_layer_kv_cache_shape_bytes, compute_layout_strides
from kvlayout.upstream.fuzz import theirs
from kvlayout.upstream.fuzz.draw import LAYOUTS, any_spec, attention_spec, chance
from kvlayout.upstream.fuzz.kind import Kind, World


def ask(rng: Random, world: World) -> dict:
    spec = attention_spec(rng, world, "EncoderOnlyAttentionSpec") if chance(rng, 0.04) else any_spec(rng, world)
    return {"spec": spec, "num_blocks": rng.choice((0, 1, 2, 7, 64, 1000, 11_632, 10**6)),
            "num_layers": rng.choice((0, 1, 1, 2, 5, 28, 80)), "layout": rng.choice(LAYOUTS),
            "kernel_block_size": kernel_block_size(rng, spec), "fixed_strides": fixed_strides(rng)}


def kernel_block_size(rng: Random, spec: dict) -> int | None:
    """Return mostly None or the block size for a padded page, since it can't be split; else mostly a divisor."""
    size = spec["block_size"]
    if chance(rng, 0.8 if "page_size_padded" in spec else 0.4):
        return None
    if chance(rng, 0.15):
        return rng.choice((1, 3, 16, 64))
    return rng.choice([divisor for divisor in range(1, size + 1) if size % divisor == 0])


def fixed_strides(rng: Random) -> list[int | None]:
    if chance(rng, 0.6):
        return [None] * 5
    return [rng.choice((1, 2, 64, 4096, 10**7, 1 << 33)) if chance(rng, 0.3) else None for _ in range(5)]


def ours(question: dict, world: World) -> dict:
    spec = spec_from_dict(question["spec"])
    return _facts(spec, compute_layer_kv_cache_shape_bytes, compute_layout_strides, question, question["layout"])


def their_answer(question: dict, world: World) -> dict:
    module = theirs.interface()
    return _facts(theirs.spec(question["spec"]), module.compute_layer_kv_cache_shape_bytes,
                  module.compute_layout_strides, question, theirs.layout(question["layout"]))


def _facts(spec, shape, strides, question: dict, layout: object) -> dict:
    kernel_block_size = question["kernel_block_size"]
    return {"page_size_bytes": spec.page_size_bytes, "num_heads": spec.num_heads, "num_states": spec.num_states,
            "state_content_size_bytes": spec.state_content_size_bytes,
            "shape": list(shape(spec, question["num_blocks"], kernel_block_size)),
            "strides": list(strides(spec, question["num_blocks"], question["num_layers"], layout, kernel_block_size,
                                    tuple(question["fixed_strides"])))}


KIND = Kind("strides", "compute_layer_kv_cache_shape_bytes, compute_layout_strides and the spec's sizes",
            "specs of no possible page (0 heads, 0 tokens), which ours refuses as it makes them", ask, ours,
            their_answer)
