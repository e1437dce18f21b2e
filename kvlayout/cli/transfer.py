"""transfer: in how many pieces a part of the cache moves."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kvlayout.as_typed import block_ids
from kvlayout.cli.show import AsJson, Backend, Blocks, Layout, Model, TpSize, command, put_json, table
from kvlayout.cli.source import read_plan
from kvlayout.clinic.transfers import Transfer, registered_regions, transfer_by_layout, transfer_selections
from kvlayout.errors import LayoutError

_MOST_BLOCKS = 100_000


@command
def transfer(
    model: Model,
    request: Annotated[str | None, typer.Option(help="A request's block ids: 1,2,5. All but block 0 if left "
                                                "out.")] = None,
    backend: Backend = None,
    layout: Layout = None,
    tp: TpSize = 1,
    blocks: Blocks = None,
    as_json: AsJson = False,
) -> int:
    """Count the contiguous runs of one block, layer, head shard (of two) and request, and of other layouts."""
    plan = read_plan(model, backend=backend, layout=layout, tp_size=tp, num_blocks=blocks)
    ids = None if request is None else _ids(request)
    if not plan.address_map.layers:
        raise LayoutError("model", model, "has no layer that caches anything")
    num_blocks = plan.address_map.shape(0)[0]
    if not num_blocks:
        raise LayoutError("blocks", num_blocks, "leave nothing to move", "Plan some, as with --blocks 64")
    wanted = range(1, num_blocks) if ids is None else ids
    try:
        parts = transfer_selections(plan.address_map, request=wanted)
    except LayoutError as error:  # only the head shard asks for anything of a rank of two
        parts = transfer_selections(plan.address_map, request=wanted, tp_size=1)
        parts["one head shard"] = error.rule
    # As the parts: of the first layer's group alone, since a block id belongs to one group at a time.
    group = plan.config.kv_cache_groups[plan.address_map.region(0).group].layer_names
    by_layout = transfer_by_layout(plan, blocks=wanted, layers=list(group))
    if as_json:
        put_json({"layout": plan.layout.name, "selections": {name: _facts(one) for name, one in parts.items()},
                  "request_by_layout": {name: _facts(one) for name, one in by_layout.items()},
                  "regions": [asdict(one) for one in registered_regions(plan.address_map)]})
        return 0
    columns = ("#runs", "#shortest", "#longest", "#bytes")
    table(("part", *columns), [_row(*one) for one in parts.items()],
          title=f"{plan.model.name}, {plan.layout.name}: contiguous runs, in bytes")
    table(("layout", *columns), [_row(*one) for one in by_layout.items()], title="The request in each layout")
    return 0


def _ids(request: str) -> list[int]:
    ids = block_ids(request, "request", _MOST_BLOCKS)
    if not ids:
        raise LayoutError("request", request, f"must be 1 to {_MOST_BLOCKS:,} block ids with commas between them")
    return ids


def _facts(one: Transfer | str) -> dict:
    if isinstance(one, str):
        return {"refused": one}
    return {"num_runs": one.num_runs, "total_bytes": one.total_bytes, "shortest_bytes": one.smallest,
            "longest_bytes": one.largest, "runs": {str(length): count for length, count in one.run_bytes.items()}}


def _row(name: str, one: Transfer | str) -> tuple:
    if isinstance(one, str):
        return name, "can't", "", "", ""
    return name, one.num_runs, one.smallest, one.largest, one.total_bytes
