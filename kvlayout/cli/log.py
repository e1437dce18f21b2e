"""log: lines of vLLM's log against a cache."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kvlayout.cli.show import (
    AsJson,
    Backend,
    Blocks,
    BlockSize,
    CacheDtype,
    Layout,
    Model,
    TpSize,
    command,
    put_json,
    say,
)
from kvlayout.cli.source import STDIN, guess_notes, read_plan, read_text
from kvlayout.clinic.log_check import check_log
from kvlayout.errors import LayoutError


@command
def log(
    model: Model,
    logfile: Annotated[str, typer.Argument(help="The log, or - for stdin.")],
    backend: Backend = None,
    layout: Layout = None,
    tp: TpSize = 1,
    blocks: Blocks = None,
    block_size: BlockSize = None,
    kv_dtype: CacheDtype = None,
    as_json: AsJson = False,
) -> int:
    """Check each number that a log states: does it agree with the cache, differ, or can it not be?"""
    if model == logfile == STDIN:
        raise LayoutError("logfile", logfile, "is stdin, and so is the model", "Give one of them as a file")
    plan = read_plan(model, backend=backend, layout=layout, tp_size=tp, num_blocks=blocks, block_size=block_size,
                     kv_cache_dtype=kv_dtype)
    facts = check_log(read_text(logfile), plan)
    if not facts:
        raise LayoutError("logfile", logfile, "states nothing of a KV cache that could be checked")
    if as_json:
        put_json({"facts": [asdict(fact) for fact in facts], "guess": guess_notes(plan)})
    else:
        say(*guess_notes(plan))
        for fact in facts:
            ours = f", ours {fact.ours}" if fact.ours else ""
            say(f"{fact.verdict.upper()}  line {fact.number}, {fact.name}: {fact.said}{ours}", f"  {fact.why}")
    return int(not all(fact.is_right for fact in facts))
