"""decode: an address or a slot, back to whose it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kvlayout.address import AddressMap
from kvlayout.cli.show import AsJson, Layout, Model, command, put_json, say, table
from kvlayout.cli.source import read_plan, whole
from kvlayout.clinic.meaning import Meaning, explain_address
from kvlayout.clinic.slot_reports import SlotEntry, slot_report
from kvlayout.errors import LayoutError

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
    """Say whose byte an address is and what lies around it, or where a slot lies in each layer."""
    if (address is None) == (slot is None):
        raise LayoutError("address", address, "or a slot must be given, one of the two",
                          "Use --address N or --slot N")
    if slot is not None:
        return _slot(whole("slot", slot), read_plan(file, layout=layout).address_map, as_json)
    meaning = explain_address(address, read_plan(file, layout=layout).address_map, base)
    if as_json:
        put_json(address_facts(meaning))
    else:
        say(*meaning.sentences())
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


def _slot(slot: int, address_map: AddressMap, as_json: bool) -> int:
    entries = slot_report(slot, address_map)
    groups = [slot_facts(entry) for entry in entries]
    if as_json:
        put_json({"slot": slot, "groups": groups})
    for one in [] if as_json else groups:
        say(f"group {one['group']} ({one['spec']}):", *one["lines"], *one["notes"])
        offsets = [(name, at[0]) for name, at in one["offsets"].items()]
        if offsets:
            table(("layer", "#head 0 from byte"), offsets[:_SHOWN])
        if len(offsets) > _SHOWN:
            say(f"and {len(offsets) - _SHOWN} more layers; --json lists all, with every head.")
    return int(any(entry.in_pool is False for entry in entries))
