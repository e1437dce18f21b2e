"""explain: the layout and why, the groups, the strides, and what it all takes."""

from __future__ import annotations

from typing import Annotated

import typer

from kvlayout.cli.pictures import draw
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
    table,
)
from kvlayout.cli.source import read_plan
from kvlayout.clinic.byte_map import fingerprint
from kvlayout.group_report import explain_groups
from kvlayout.plan import Plan

_AXES = ("layer", "block", "head", "state", "byte")


@command
def explain(
    model: Model,
    backend: Backend = None,
    layout: Layout = None,
    tp: TpSize = 1,
    blocks: Blocks = None,
    block_size: BlockSize = None,
    kv_dtype: CacheDtype = None,
    out: Annotated[str | None, typer.Option(help="Draw the offsets into this file: .png or .svg.")] = None,
    as_json: AsJson = False,
) -> int:
    """Say which layout a cache has and why, its groups, pages and strides in bytes."""
    plan = read_plan(model, backend=backend, layout=layout, tp_size=tp, num_blocks=blocks, block_size=block_size,
                     kv_cache_dtype=kv_dtype)
    if out is not None:
        draw(out, "offsets_figure", plan.address_map, title=plan.model.name)
    facts = facts_of(plan)
    if as_json:
        put_json(facts)
        return 0
    say(f"{facts['model']}: layout {facts['layout']}", facts["why"],
        f"fingerprint {facts['fingerprint']}",
        f"{facts['num_blocks']:,} blocks × {facts['bytes_per_block']:,} bytes = {facts['size_bytes']:,} bytes")
    table(("#group", "#layers", "kind", "#tokens", "#kernel", "#page bytes", "#unused"),
          [(index, group["num_layers"], group["kind"], group["block_size"], group["kernel_block_size"],
            " ".join(f"{size:,}" for size in group["page_sizes_bytes"]), f"{group['padding_share']:.1%}")
           for index, group in enumerate(facts["groups"])], title="Groups (tokens a block and a kernel block)")
    for index, one in enumerate(facts["tensors"]):
        table(("axis", "#count", "#stride, bytes"), list(zip(_AXES, one["shape"], one["strides"])),
              title=f"Tensor {index}: group {one['group']}, {one['layers'][0]} and "
                    f"{len(one['layers']) - 1} more, from byte {one['offset']:,}")
    return 0


def facts_of(plan: Plan) -> dict:
    """Return all that explain says, as plain JSON."""
    reports = explain_groups(plan.groups, plan.layout, vllm_version=plan.selection.vllm_version)
    groups = [{
        "num_layers": len(report.layer_names), "layers": list(report.layer_names), "kind": ", ".join(report.kinds),
        "block_size": report.block_size, "kernel_block_size": size,
        "page_sizes_bytes": sorted(set(report.page_sizes_bytes)), "content_bytes": report.content_bytes,
        "padding_share": report.padding_share,
    } for report, size in zip(reports, plan.kernel_block_sizes)]
    tensors = [{
        "group": region.group, "layers": list(region.tensor.layers), "offset": region.geometry.offset,
        "shape": list(region.geometry.shape), "strides": list(region.geometry.strides),
    } for region in plan.address_map.regions]
    return {
        "model": plan.model.name, "layout": plan.layout.name, "why": plan.resolution.why,
        "fingerprint": fingerprint(plan.address_map),
        "steps": [{"rule": step.rule, "after": list(step.after), "sentence": step.sentence}
                  for step in plan.resolution.steps],
        "backends": sorted({backend.name for backend in plan.backends.values()}),
        "num_blocks": plan.config.num_blocks, "bytes_per_block": plan.bytes_per_block,
        "size_bytes": plan.config.size_bytes, "groups": groups, "tensors": tensors,
    }
