"""Random models as {layer: spec}: the mixtures that models have, and mixtures that none has."""

from __future__ import annotations

from dataclasses import fields
from random import Random

from kvlayout.errors import LayoutError
from kvlayout.spec_io import SPEC_TYPES, spec_from_dict
from kvlayout.upstream.fuzz.draw import (
    AGREEMENTS,
    ATTENTION,
    DTYPES,
    MLA_CLASSES,
    REQUIRED,
    agreements,
    any_spec,
    attention_spec,
    chance,
    layer_names,
    state_spec,
)
from kvlayout.upstream.fuzz.kind import World

PAGE_FIELDS = ("page_size_padded", "state_content_bytes", "num_head_slots", "alignment")


def draw_layers(rng: Random, world: World) -> dict:
    """Return ``{"specs": [...], "layers": [[name, index into specs], ...]}``, 1 to 40 layers, in model order."""
    specs = [spec for spec in rng.choice(MIXTURES)(rng, world) if is_possible(spec)]
    if not specs:
        return draw_layers(rng, world)
    count = rng.randint(len(specs), rng.choice((6, 6, 13, 40)))
    arrangement = rng.choice(("ratio", "ratio", "pattern", "random", "runs"))
    if arrangement == "ratio":  # n of one kind, then one of another, as Gemma's five windows to one full layer
        every = rng.choice((2, 3, 4, 6, 7))
        indices = [0 if i % every else 1 + i // every % max(1, len(specs) - 1) for i in range(count)]
    elif arrangement == "pattern":
        indices = list(range(len(specs))) * (count // len(specs) + 1)
    elif arrangement == "runs":
        indices = sorted(rng.randrange(len(specs)) for _ in range(count))
    else:
        indices = [rng.randrange(len(specs)) for _ in range(count)]
    indices = [index % len(specs) for index in indices[:count]]
    return {"specs": specs, "layers": [[name, index] for name, index in zip(layer_names(count), indices)]}


def is_possible(spec: dict) -> bool:
    """Whether a block of it holds anything, in a page that is large enough for it."""
    try:
        return spec_from_dict(spec).num_states > 0
    except LayoutError:
        return False


def variants(rng: Random, world: World) -> list[dict]:
    """One spec and one to three that differ from it a little: heads, head size, class, window, block size."""
    base = attention_spec(rng, world)
    return [base, *(varied(rng, world, base) for _ in range(rng.randint(1, 3)))]


def varied(rng: Random, world: World, base: dict) -> dict:
    """Return the spec with one or two of its fields changed, or as another class."""
    spec = dict(base)
    for _ in range(rng.choice((1, 1, 2))):
        change = rng.choice(("class", "class", "class", "heads", "heads", "head_size", "dtype", "window",
                             "block_size", "page", "draft", "agreement", "agreement"))
        if change == "class":
            spec = as_class(spec, rng.choice([name for name in ATTENTION if name not in world.lacking]), rng, world)
        elif change == "heads":
            spec["num_kv_heads"] = rng.choice((1, 2, 4, 8))
        elif change == "head_size":
            spec["head_size"] = rng.choice((64, 128, 132, 256, 576))
        elif change == "dtype":
            spec["dtype"] = rng.choice(DTYPES)
        elif change == "window" and spec["type"] in REQUIRED:
            spec[REQUIRED[spec["type"]]] = rng.choice((16, 64, 128))
        elif change == "block_size":
            spec["block_size"] *= rng.choice((2, 4))
        elif change == "page":
            fresh = attention_spec(rng, world, spec["type"])
            spec |= {name: fresh[name] for name in PAGE_FIELDS if name in fresh}
        elif change == "agreement" and agreements(spec["type"], world):
            name = rng.choice(agreements(spec["type"], world))
            spec[name] = rng.choice(AGREEMENTS[name][1])
        elif change == "draft" and f"{spec['type']}.dcp_sharded" not in world.lacking:
            spec["dcp_sharded"] = not spec.get("dcp_sharded", True)
    return spec


def as_class(spec: dict, kind: str, rng: Random, world: World) -> dict:
    """Return the spec's heads, sizes and page as another class."""
    own = {f.name for f in fields(SPEC_TYPES[kind])}
    dropped = {"type", *REQUIRED.values(), *(("head_size_v",) if kind in MLA_CLASSES else ())}
    alike = {name: value for name, value in spec.items()
             if name in own - dropped and f"{kind}.{name}" not in world.lacking}
    if kind in REQUIRED:
        alike[REQUIRED[kind]] = rng.choice((16, 128))
    return {"type": kind, **alike}


def full_and_window(rng: Random, world: World) -> list[dict]:
    """Full attention beside local attention of the same page, as gpt-oss, Gemma and Llama 4."""
    full = attention_spec(rng, world, "FullAttentionSpec")
    local = as_class(full, rng.choice(("SlidingWindowSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec")),
                     rng, world)
    if chance(rng, 0.4):
        local["num_kv_heads"] = rng.choice((1, 2, 4, 8, 16))
    return [local, full] + ([dict(local, **{REQUIRED[local["type"]]: 64})] if chance(rng, 0.15) else [])


def hybrid(rng: Random, world: World) -> list[dict]:
    """Recurrent states beside attention; mostly with pages brought to one size, as vLLM does before planning."""
    size = rng.choice((16, 32, 64, 400, 528))
    attention = attention_spec(rng, world, rng.choice(("FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec")),
                               block_size=size, page_size_padded=None)
    del attention["page_size_padded"]
    state = state_spec(rng, world, block_size=size, page_size_padded=None)
    del state["page_size_padded"]
    try:
        page, own = spec_from_dict(attention).page_size_bytes, spec_from_dict(state).page_size_bytes
    except LayoutError:
        return [state, attention]
    if own <= page and chance(rng, 0.7):
        state["page_size_padded"] = page
    more = [state_spec(rng, world, block_size=size)] if chance(rng, 0.2) else []
    return [state, attention, *more]


def latents(rng: Random, world: World) -> list[dict]:
    """MLA beside an indexer, sliding latents, plain windows or rings."""
    size = rng.choice((16, 64, 64, 256))
    main = attention_spec(rng, world, "MLAAttentionSpec", block_size=size)
    others = [attention_spec(rng, world, "MLAAttentionSpec", block_size=size, head_size=132, dtype="uint8"),
              as_class(main, "SlidingWindowMLASpec", rng, world),
              attention_spec(rng, world, "SlidingWindowSpec", block_size=size),
              attention_spec(rng, world, "MLAAttentionSpec", block_size=size)]
    if "CircularBufferSpec" not in world.lacking:
        others.append(attention_spec(rng, world, "CircularBufferSpec"))
    return [main, *rng.sample(others, rng.randint(1, 2))]


def with_hidden_states(rng: Random, world: World) -> list[dict]:
    """Layers of hidden states beside another mixture."""
    others = rng.choice((full_and_window, hybrid, latents))(rng, world)
    if "HiddenStateCacheSpec" in world.lacking:
        return others
    return [*others, attention_spec(rng, world, "HiddenStateCacheSpec", block_size=others[0]["block_size"])]


def encoder_decoder(rng: Random, world: World) -> list[dict]:
    """Cross attention beside self attention."""
    own = attention_spec(rng, world, "FullAttentionSpec")
    return [own, as_class(own, "CrossAttentionSpec", rng, world)]


def alone(rng: Random, world: World) -> list[dict]:
    """One spec for all layers."""
    return [any_spec(rng, world)]


def anything(rng: Random, world: World) -> list[dict]:
    """Up to four specs that have nothing to do with each other, mostly of one block size."""
    fixed = {"block_size": rng.choice((8, 16, 64))} if chance(rng, 0.6) else {}
    return [any_spec(rng, world, **fixed) for _ in range(rng.randint(2, 4))]


MIXTURES = (variants, variants, full_and_window, full_and_window, hybrid, hybrid, latents, with_hidden_states,
            encoder_decoder, alone, anything)
