"""decode: an address or a slot, back to whose it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kvlayout.address import AddressMap
from kvlayout.cli.show import AsJson, Layout, Model, command, put_json, say, table
from kvlayout.cli.source import read_plan, whole
from kvlayout.errors import LayoutError
from kvlayout.plan import Plan
from kvlayout.spec import AttentionSpec

_SHOWN = 8


@command
def decode(
    file: Model,
    address: Annotated[str | None, typer.Option(help="A byte address, decimal or 0x.")] = None,
    base: Annotated[str, typer.Option(help="Where the allocation begins; 0 takes the address as an offset.")] = "0",
    slot: Annotated[str | None, typer.Option(help="A slot of slot_mapping; below 0 is an ignored token.")] = None,
    layout: Layout = None,
    as_json: AsJson = False,
) -> int:
    """Say whose byte an address is, or where a slot lies in each layer."""
    if (address is None) == (slot is None):
        raise LayoutError("address", address, "or a slot must be given, one of the two",
                          "Use --address N or --slot N")
    number = whole("address", address) - whole("base", base) if slot is None else whole("slot", slot)
    plan = read_plan(file, layout=layout)
    if slot is not None:
        found = slot_facts(number, plan)
        put_json(found) if as_json else _say_slot(found)
        return int(any(group["is_past_end"] for group in found["groups"]))
    found = address_facts(number, plan.address_map)
    put_json(found) if as_json else _say_address(found)
    return int(not found["inside"])


def address_facts(offset: int, address_map: AddressMap) -> dict:
    """Return whose byte ``offset`` is, or what it is padding of, as plain JSON."""
    inside = 0 <= offset < address_map.size_bytes
    return {"offset": offset, "size_bytes": address_map.size_bytes, "inside": inside,
            "owners": [asdict(owner) for owner in address_map.owners(offset)] if inside else [],
            "padding": [asdict(one) for one in address_map.padding_of(offset)] if inside else []}


def slot_facts(slot: int, plan: Plan) -> dict:
    """Return where ``slot`` lies in each attention group and layer, as plain JSON; offsets are bytes."""
    groups = []
    for index, group in enumerate(plan.config.kv_cache_groups):
        layers = {name: spec for name, spec in group.layer_specs.items() if isinstance(spec, AttentionSpec)}
        if not layers or slot < 0:
            continue
        tokens, kernel = group.kv_cache_spec.block_size, plan.kernel_block_sizes[index]
        block, row = divmod(slot, tokens)
        past = block >= plan.config.num_blocks
        offsets = {}
        for name, spec in layers.items():
            state = int(slot % kernel / spec.tokens_per_state)
            shape = plan.address_map.shape(name)
            if not past and state < shape[2]:
                offsets[name] = plan.address_map.offset(name, slot // kernel, 0, state)
        groups.append({"group": index, "block_size": tokens, "kernel_block_size": kernel, "block": block, "row": row,
                       "kernel_block": slot // kernel, "kernel_row": slot % kernel, "is_null_block": block == 0,
                       "is_past_end": past, "num_blocks": plan.config.num_blocks, "offsets": offsets})
    return {"slot": slot, "is_ignored": slot < 0, "groups": groups}


def _say_address(found: dict) -> None:
    offset, size = found["offset"], found["size_bytes"]
    if not found["inside"]:
        where = f"{-offset:,} bytes before the base" if offset < 0 else f"{offset - size:,} bytes past the end"
        say(f"{offset:,} is outside the allocation of {size:,} bytes: {where}.")
        return
    say(f"Byte {offset:,} ({offset:#x}) of {size:,}")
    for one in found["owners"]:
        say(f"group {one['group']}: {one['layer']}, block {one['block']:,}, head {one['head']}, state "
            f"{one['state']}, byte {one['byte']:,}: {one['field']}, element {one['element']:,}")
    for one in found["padding"]:
        of = f" behind {one['layer']}, block {one['block']:,}" if one["layer"] else ""
        say(f"group {one['group']}: {one['kind']} padding{of}, bytes {one['start']:,} to {one['end']:,}")


def _say_slot(found: dict) -> None:
    if found["is_ignored"]:
        say(f"Slot {found['slot']:,} is a token that is not stored.")
        return
    if not found["groups"]:
        say("No group has attention, so nothing is addressed by slots.")
    for one in found["groups"]:
        say(f"group {one['group']}: {found['slot']:,} = block {one['block']:,} × {one['block_size']} + row "
            f"{one['row']}")
        if one["kernel_block_size"] != one["block_size"]:
            say(f"kernel block {one['kernel_block']:,} × {one['kernel_block_size']} + row {one['kernel_row']}")
        if one["is_past_end"]:
            say(f"Past the end: there are {one['num_blocks']:,} blocks.")
        elif one["is_null_block"]:
            say("Block 0 is vLLM's null block: no token is kept there.")
        offsets = list(one["offsets"].items())
        if offsets:
            table(("layer", "#head 0 from byte"), offsets[:_SHOWN])
        if len(offsets) > _SHOWN:
            say(f"and {len(offsets) - _SHOWN} more layers; --json lists all.")
