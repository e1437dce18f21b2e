"""verify: allocate the cache and prove its layout from its bytes."""

from __future__ import annotations

from typing import Annotated

import typer

from kvlayout.cli.show import AsJson, Backend, Blocks, Layout, Model, TpSize, command, fail, put_json, say
from kvlayout.cli.source import read_plan


@command
def verify(
    model: Model,
    device: Annotated[str, typer.Option(help="cpu or cuda:i.")] = "cpu",
    blocks: Blocks = None,
    backend: Backend = None,
    layout: Layout = None,
    tp: TpSize = 1,
    as_json: AsJson = False,
) -> int:
    """Allocate a cache, write through every view, and compare every byte."""
    plan = read_plan(model, backend=backend, layout=layout, tp_size=tp, num_blocks=blocks, device=device)
    try:
        from kvlayout.memory.cache import allocate_kv_cache
        from kvlayout.memory.probe import verify as prove
    except ModuleNotFoundError as error:
        fail(f"verify needs {error.name}: pip install 'kvlayout[torch]'")
    with allocate_kv_cache(plan.config, device, plan.layout, plan.kernel_block_sizes,
                           interiors=plan.interiors) as cache:
        report = prove(cache)
    if as_json:
        put_json({"ok": report.ok, "layout": plan.layout.name, "device": report.device,
                  "bytes_checked": report.bytes_checked, "padding_bytes": report.padding_bytes,
                  "mismatched_bytes": report.mismatched_bytes, "seconds": report.seconds,
                  "mismatches": [str(one) for one in report.mismatches]})
    else:
        say(f"{plan.model.name}, {plan.layout.name}, {plan.config.num_blocks:,} blocks", report.summary)
    return int(not report.ok)
