"""decode: an address or a slot, back to whose it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kvlayout.cli.show import AsJson, Layout, Model, command, put_json, say, table
from kvlayout.cli.source import guess_notes, other_plans, read_plan, whole
from kvlayout.clinic.meaning import Meaning, explain_address
from kvlayout.clinic.slot_reports import SlotEntry, is_replicated, slot_report
from kvlayout.clinic.slots import compare_block_sizes, context_parallel_slot
from kvlayout.errors import LayoutError
from kvlayout.plan import Plan

_SHOWN = 8


@command
def decode(
    file: Model,
    address: Annotated[str | None, typer.Option(help="A byte address, decimal or 0x.")] = None,
    base: Annotated[str, typer.Option(help="Where the allocation begins; 0 takes the address as an offset.")] = "0",
    slot: Annotated[str | None, typer.Option(help="A slot of slot_mapping; below 0 is an ignored token.")] = None,
    block_size: Annotated[list[str] | None, typer.Option(help="With --slot: blocks of so many tokens too; "
                                                         "repeat.")] = None,
    position: Annotated[str | None, typer.Option(help="A token's position under decode context parallelism, with "
                                                 "--block-id and --ranks: its rank and slot.")] = None,
    block_id: Annotated[str | None, typer.Option(help="The block table's entry for --position.")] = None,
    ranks: Annotated[str, typer.Option(help="Context-parallel ranks, for --position.")] = "1",
    interleave: Annotated[str, typer.Option(help="Tokens in a row on one rank, for --position.")] = "1",
    layout: Layout = None,
    as_json: AsJson = False,
) -> int:
    """Say whose byte an address is and what lies around it, or where a slot lies in each layer."""
    if [address, slot, position].count(None) != 2:
        raise LayoutError("address", address, "or a slot or a position must be given, one of the three",
                          "Use --address N, --slot N or --position N")
    if block_size and slot is None:
        raise LayoutError("block_size", block_size, "is for a slot", "Use it with --slot N")
    if slot is not None:
        sizes = [whole("block_size", one) for one in block_size or ()]
        return _slot(whole("slot", slot), read_plan(file, layout=layout), as_json, sizes)
    if position is not None:
        if block_id is None:
            raise LayoutError("block_id", None, "must be given with a position", "Use --block-id N")
        numbers = [whole(name, text) for name, text in (
            ("position", position), ("block_id", block_id), ("cp_size", ranks), ("interleave", interleave))]
        return _position(*numbers, read_plan(file, layout=layout), as_json)
    plan = read_plan(file, layout=layout)
    meaning = explain_address(address, plan.address_map, base)
    notes, others = guess_notes(plan), {one.layout.name: explain_address(address, one.address_map, base)
                                        for one in other_plans(plan)}
    if as_json:
        put_json({**address_facts(meaning), "layout": plan.layout.name, "guess": notes,
                  "in_other_layouts": {name: address_facts(one) for name, one in others.items()}})
    else:
        say(*notes, *meaning.sentences())
        for name, one in others.items():
            say(f"In {name}: {one.sentences()[1 if one.where == 'inside' else 0]}")
    return int(meaning.where != "inside")


def address_facts(meaning: Meaning) -> dict:
    """Return all that is known of an address, as plain JSON."""
    return {**asdict(meaning), "sentences": meaning.sentences()}


def slot_facts(entry: SlotEntry) -> dict:
    """Return where a slot lies in one group, as plain JSON; offsets are bytes, one a head, by layer."""
    offsets = {name: [at for at in row if at >= 0] for name, row in zip(entry.layers, entry.addresses.tolist())}
    numbers = {name: getattr(entry, name) for name in (
        "group", "spec", "block_size", "kernel_block_size", "block", "row", "kernel_block", "kernel_row", "in_pool",
        "lines", "notes")}
    return {**numbers, "offsets": {name: at for name, at in offsets.items() if at}}


def _position(position: int, block_id: int, ranks: int, interleave: int, plan: Plan, as_json: bool) -> int:
    """The rank and slot of a position in each group; a group that every rank keeps whole has no such slot."""
    found = []
    for group, one in enumerate(plan.config.kv_cache_groups):
        if any(is_replicated(spec) for spec in one.layer_specs.values()):
            found.append({"group": group, "rank": None, "slot": None})
            continue
        rank, slot = context_parallel_slot(position, block_id, one.kv_cache_spec.block_size, ranks, interleave)
        found.append({"group": group, "rank": rank, "slot": slot})
    if as_json:
        put_json({"position": position, "block_id": block_id, "groups": found})
    for one in [] if as_json else found:
        where = "replicated on every rank, its slots aren't transformed." if one["rank"] is None else \
            f"position {position:,} is on rank {one['rank']}, slot {one['slot']:,}."
        say(f"group {one['group']}: {where}")
    return 0


def _slot(slot: int, plan: Plan, as_json: bool, sizes: list[int]) -> int:
    entries = slot_report(slot, plan.address_map)
    groups, notes = [slot_facts(entry) for entry in entries], guess_notes(plan)
    others = {one.layout.name: [slot_facts(entry) for entry in slot_report(slot, one.address_map)]
              for one in other_plans(plan)}
    readings = compare_block_sizes(slot, sizes, plan.config.num_blocks) if sizes else []
    if as_json:
        put_json({"slot": slot, "block_sizes": [asdict(one) for one in readings], "layout": plan.layout.name,
                  "guess": notes, "groups": groups, "in_other_layouts": others})
    else:
        say(*notes, *(one.line for one in readings))
    for one in [] if as_json else groups:
        say(f"group {one['group']} ({one['spec']}):", *one["lines"], *one["notes"])
        offsets = [(name, at[0]) for name, at in one["offsets"].items()]
        if offsets:
            table(("layer", "#head 0 from byte"), offsets[:_SHOWN])
        if len(offsets) > _SHOWN:
            say(f"and {len(offsets) - _SHOWN} more layers; --json lists all, with every head.")
    for name, found in ({} if as_json else others).items():
        say(f"In {name}:", *(line for one in found for line in one["lines"]))
    return int(any(entry.in_pool is False for entry in entries))
