"""score: all 120 orders of the axes for one model's pages."""

from __future__ import annotations

from typing import Annotated

import typer

from kvlayout.bench.footprint import DecodeShape
from kvlayout.bench.scores import KEEPS, MEASURES, Score, layers_alike, ranked, score_layouts, shard_words
from kvlayout.cli.show import (
    AsJson,
    Backend,
    Blocks,
    BlockSize,
    CacheDtype,
    Model,
    TpSize,
    command,
    put_json,
    say,
    table,
)
from kvlayout.cli.source import read_plan
from kvlayout.errors import LayoutError, check_int
from kvlayout.plan import Plan
from kvlayout.region import Region
from kvlayout.spec import AttentionSpec

_COLUMNS = {"block": "block runs", "layer": "layer runs", "shard": "head shard runs", "token": "token runs",
            "read": "read sectors", "write": "write sectors"}


@command
def score(
    model: Model,
    sort: Annotated[str, typer.Option(help=f"The measure that ranks: {', '.join(MEASURES)}.")] = "block runs",
    top: Annotated[int, typer.Option(help="How many besides vLLM's six are listed.")] = 6,
    shards: Annotated[int, typer.Option(help="Ranks that a head shard is one of.")] = 2,
    context: Annotated[int, typer.Option(help="Tokens of the request that decodes.")] = 4096,
    tensor: Annotated[int | None, typer.Option(help="Which tensor's pages; of attention the one of most "
                                               "layers if left out.")] = None,
    backend: Backend = None,
    tp: TpSize = 1,
    blocks: Blocks = None,
    block_size: BlockSize = None,
    kv_dtype: CacheDtype = None,
    as_json: AsJson = False,
) -> int:
    """Score every order of the axes: runs of usual parts, sectors a decode step touches, what stays possible."""
    check_int("top", top, minimum=0)
    if sort not in MEASURES:
        raise LayoutError("sort", sort, "is not a measure", f"Use one of {', '.join(MEASURES)}")
    plan = read_plan(model, backend=backend, tp_size=tp, num_blocks=blocks, block_size=block_size,
                     kv_cache_dtype=kv_dtype)
    region = _region(plan, tensor)
    decode = DecodeShape(context)
    spec, layers = layers_alike(plan.address_map, region.tensor.layers[0])
    scores = ranked(score_layouts(spec, plan.config.num_blocks, layers, shards=shards, decode=decode), sort)
    if as_json:
        put_json({"model": plan.model.name, "tensor": region.tensor_index, "num_layers": layers,
                  "num_blocks": plan.config.num_blocks, "page_size_bytes": region.spec.page_size_bytes,
                  "context_tokens": decode.context_tokens, "scores": [_facts(one) for one in scores]})
        return 0
    others = [one for one in scores if not one.in_vllm][:top]
    say(f"{plan.model.name}: {layers} layers like those of tensor {region.tensor_index} (of 0 to "
        f"{len(plan.address_map.regions) - 1}), {plan.config.num_blocks:,} blocks of {region.spec.page_size_bytes:,} "
        "bytes a layer")
    table(("layout", *(f"#{name}" for name in _COLUMNS), "keeps"),
          [_row(one) for one in scores if one.in_vllm or one in others],
          title=f"By {sort}; vLLM's six have a *, the {len(others)} best of the other 114 follow the same order")
    say("", "block, layer, shard, token: contiguous runs of one block of all layers, of one layer, of one of "
        f"{shards:,} head shards of a block, and of one state of one layer. read, write: 32-byte sectors in one "
        f"layer. {shard_words(spec, shards)} {decode.sentence(region.spec, plan.config.num_blocks)}",
        f"keeps: {', '.join(f'{letter} {name}' for letter, name in KEEPS.items())}. --json has all measures of all.")
    return 0


def _region(plan: Plan, index: int | None) -> Region:
    regions = plan.address_map.regions
    if not regions:
        raise LayoutError("model", plan.model.name, "has no layer that caches anything")
    if index is None:
        return max(regions, key=lambda region: (isinstance(region.spec, AttentionSpec), len(region.layers)))
    if check_int("tensor", index, minimum=0) >= len(regions):
        raise LayoutError("tensor", index, f"must be below the {len(regions)} tensors of this cache")
    return regions[index]


def _facts(one: Score) -> dict:
    return {"layout": one.layout.name, "in_vllm": one.in_vllm, "measures": one.measures, "refused": one.refused,
            "no_shard": one.no_shard}


def _row(one: Score) -> tuple:
    kept = "".join(letter if one.measures.get(name) else "-" for letter, name in KEEPS.items())
    return (f"{one.layout.name}{'*' if one.in_vllm else ''}",
            *(_short(one.measures[name]) if name in one.measures else "can't" if one.refused else "-"
              for name in _COLUMNS.values()), kept)


def _short(number: int) -> str:
    """A count in at most seven characters."""
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:,.3g}{unit}" if number < 1000 * size else f"{number / size:,.0f}{unit}"
    return f"{number:,}"
