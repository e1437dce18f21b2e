"""Random specs as plain JSON: every class, dense and repacked and padded pages, shared and split states."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from random import Random

from kvlayout.errors import LayoutError
from kvlayout.spec import KVQuantMode
from kvlayout.spec_io import SPEC_TYPES, spec_from_dict
from kvlayout.upstream.fuzz.kind import World

# Fields that change no page, but decide whether layers may share one spec or one block table: (share, values).
AGREEMENTS: dict[str, tuple[float, tuple]] = {
    "cache_dtype_str": (0.1, ("fp8_ds_mla", "auto")), "topk_buffer_width": (0.03, (2048,)),
    "model_version": (0.05, ("deepseek_v4",)), "cache_role": (0.05, ("indexer",)),
    "is_index_group_leader": (0.03, (True,)), "non_causal_multi_token_decode": (0.03, (True,)),
    "bounded_replay": (0.05, (True,)), "extra_retained_tokens": (0.05, (1, 3)), "non_causal": (0.03, (True,)),
    "max_tp_shards": (0.03, (1, 8)), "is_draft": (0.05, (True,)),
}
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
DTYPES = ("bfloat16", "float16", "float32", "int8", "uint8", "float8_e4m3fn")
STATE_DTYPES = ("bfloat16", "float32", "float16")
BLOCK_SIZES = (1, 2, 3, 4, 8, 16, 16, 16, 32, 48, 64, 128, 256)
MLA_CLASSES = ("MLAAttentionSpec", "SlidingWindowMLASpec", "HiddenStateCacheSpec")
FULL = ("FullAttentionSpec", "SinkFullAttentionSpec", "RSWASpec", "MLAAttentionSpec")
# What a class requires besides the fields of all attention.
REQUIRED = {"SlidingWindowSpec": "sliding_window", "SlidingWindowMLASpec": "sliding_window",
            "ChunkedLocalAttentionSpec": "attention_chunk_size", "RSWASpec": "rswa_window"}
ATTENTION = ("FullAttentionSpec", "FullAttentionSpec", "SlidingWindowSpec", "SlidingWindowSpec", "MLAAttentionSpec",
             "MLAAttentionSpec", "ChunkedLocalAttentionSpec", "CrossAttentionSpec", "SlidingWindowMLASpec",
             "SinkFullAttentionSpec", "RSWASpec", "CircularBufferSpec", "HiddenStateCacheSpec")


def chance(rng: Random, share: float) -> bool:
    """Return true in ``share`` of all calls."""
    return rng.random() < share


def layer_names(count: int, start: int = 0) -> list[str]:
    """Return names of layers as models have them."""
    return [f"model.layers.{index}.attn" for index in range(start, start + count)]


def any_spec(rng: Random, world: World, **fixed: object) -> dict:
    """Return a spec of any class that keeps a cache."""
    return state_spec(rng, world, **fixed) if chance(rng, 0.15) else attention_spec(rng, world, **fixed)


def attention_spec(rng: Random, world: World, kind: str | None = None, **fixed: object) -> dict:
    """Return an attention spec of class ``kind``, or of any. ``fixed`` fields are taken as they are."""
    if kind is None:
        kind = rng.choice([name for name in ATTENTION if name not in world.lacking])
    is_mla = kind in MLA_CLASSES
    spec = {"type": kind, "block_size": rng.choice(BLOCK_SIZES),
            "num_kv_heads": 1 if is_mla and chance(rng, 0.9) else rng.choice((1, 1, 2, 3, 4, 8)),
            "head_size": rng.choice((1, 3, 8, 64, 80, 128, 132, 512, 576)), "dtype": rng.choice(DTYPES)}
    if kind in REQUIRED:
        spec[REQUIRED[kind]] = rng.choice((1, 16, 128, 1024))
    optional = {
        "head_size_v": 0.0 if is_mla else 0.2, "state_content_bytes": 0.2, "num_head_slots": 0.15,
        "tokens_per_state": 0.2, "kv_quant_mode": 0.1, "page_size_padded": 0.2, "block_stride_alignment": 0.15,
        "dcp_sharded": 0.1, "alignment": 0.3 if is_mla else 0.0,
        "sink_len": 0.5 if kind == "SinkFullAttentionSpec" else 0.0}
    chosen = {name for name, share in optional.items()
              if chance(rng, share) and f"{kind}.{name}" not in world.lacking}
    if "head_size_v" in chosen:
        spec["head_size_v"] = rng.choice((1, 8, 64, 128))
    if "state_content_bytes" in chosen:
        spec["state_content_bytes"] = rng.choice((1, 7, 8, 36, 132, 136, 576, 584, 656))
    if "num_head_slots" in chosen:
        spec["num_head_slots"] = rng.choice((1, 2, 2 * spec["num_kv_heads"]))
    if "tokens_per_state" in chosen:
        spec["tokens_per_state"] = rng.choice((2, 4, 4, 3, 128, "1/2", "1/4", "3/2"))
    if "kv_quant_mode" in chosen:
        spec["kv_quant_mode"] = rng.choice([mode.name for mode in KVQuantMode
                                            if f"KVQuantMode.{mode.name}" not in world.lacking])
    if "block_stride_alignment" in chosen:
        spec["block_stride_alignment"] = block_stride_alignment(rng, world)
    if "dcp_sharded" in chosen:
        spec["dcp_sharded"] = False
    if "sink_len" in chosen:
        spec["sink_len"] = rng.choice((1, 4))
    if "alignment" in chosen:
        spec["alignment"] = rng.choice((1, 64, 512, 576, 1000))
    for name in agreements(kind, world):
        if chance(rng, AGREEMENTS[name][0]):
            spec[name] = rng.choice(AGREEMENTS[name][1])
    if kind in FULL and chance(rng, 0.1):  # local attention that is allocated in full
        spec[rng.choice(("sliding_window", "sliding_window", "attention_chunk_size"))] = rng.choice((64, 128))
    spec.update(fixed)
    if "page_size_padded" in chosen and "page_size_padded" not in fixed:
        pad(rng, spec)
    return spec


@cache
def agreements(kind: str, world: World) -> tuple[str, ...]:
    """Return those of AGREEMENTS that a class has, in the world's vLLM too."""
    own = {f.name for f in fields(SPEC_TYPES[kind])}
    return tuple(name for name in AGREEMENTS if name in own and f"{kind}.{name}" not in world.lacking)


def state_spec(rng: Random, world: World, **fixed: object) -> dict:
    """Return a Mamba spec of one to three state tensors."""
    count = rng.choice((1, 2, 2, 3))
    spec = {"type": "MambaSpec", "block_size": rng.choice(BLOCK_SIZES),
            "shapes": [[rng.choice((1, 3, 4, 16, 64)) for _ in range(rng.choice((1, 2, 3)))] for _ in range(count)],
            "dtypes": [rng.choice(STATE_DTYPES) for _ in range(count)]}
    for name, values in (("num_speculative_blocks", (1, 2)), ("tp_replicated", (True,)),
                         ("num_prefill_checkpoint_blocks", (1,)), ("prefill_checkpoint_alignment", (64,))):
        if chance(rng, 0.04) and f"MambaSpec.{name}" not in world.lacking:
            spec[name] = rng.choice(values)
    if chance(rng, 0.1) and "MambaSpec.block_stride_alignment" not in world.lacking:
        spec["block_stride_alignment"] = block_stride_alignment(rng, world)
    spec.update(fixed)
    if chance(rng, 0.3) and "page_size_padded" not in fixed:
        pad(rng, spec)
    return spec


def block_stride_alignment(rng: Random, world: World) -> int | dict:
    """Return bytes, or a multiple of so many tokens."""
    if "block_stride_alignment.MultipleOf" not in world.lacking and chance(rng, 0.5):
        return {"multiple_of": rng.choice((8, 16, 64))}
    return rng.choice((1, 16, 132, 256, 576, 656, 4096))


def pad(rng: Random, spec: dict) -> None:
    """Give the spec a padded page; one in thirty is too small."""
    try:
        own = spec_from_dict(spec).unpadded_page_size_bytes
    except LayoutError:
        return
    padded = rng.choice((own, own + 4, own + 64, -(-own // 512) * 512, own * 2, own + 2 * rng.randrange(5000)))
    spec["page_size_padded"] = max(1, own - 2 if chance(rng, 0.03) else padded)
