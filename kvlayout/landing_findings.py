"""What a landing contradicts, as findings with their numbers and the first place of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.finding import Finding
from kvlayout.slot_mapping import NULL_BLOCK
from kvlayout.snapshot import Changes

if TYPE_CHECKING:
    from kvlayout.landing import Landing


def findings_of(landing: Landing, address_map: AddressMap, changes: Changes, null_slots: int) -> tuple[Finding, ...]:
    """Return the findings of a landing, errors first."""
    found = [
        _cells(landing, landing.missing, "cell-missing", "were to be written, but none of their bytes changed",
               "Compare the slot mapping's group and block table with the request's"),
        _cells(landing, _outside_null(landing), "cell-unexpected", "changed, although no slot leads there",
               "Was another request running? If not, the writer follows another layout, group or block table"),
        _interior(landing, address_map), _outside(landing, changes), _null(landing, null_slots),
        _untouched(landing), _inexact(landing, changes), _undeclared(landing, address_map),
    ]
    order = ("error", "warning", "note")
    return tuple(sorted((one for one in found if one is not None), key=lambda one: order.index(one.severity)))


def _coordinate(landing: Landing, row: int) -> dict:
    return {"layer": landing.layers[landing.layer[row]], "block": int(landing.block[row]),
            "head": int(landing.head[row])}


def _at(coordinate: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in coordinate.items())


def _outside_null(landing: Landing) -> np.ndarray:
    return landing.unexpected[landing.block[landing.unexpected] != NULL_BLOCK]


def _cells(landing: Landing, rows: np.ndarray, rule: str, what: str, cure: str) -> Finding | None:
    if not len(rows):
        return None
    first = _coordinate(landing, rows[0])
    total = int(landing.predicted.sum())
    numbers = {"cells": len(rows), "predicted_cells": total, "changed_bytes": int(landing.changed_bytes[rows].sum())}
    return Finding(rule, "error", f"{len(rows):,} cells {what} ({total:,} were predicted); the first is "
                   f"{_at(first)}.", numbers, first, cure)


def _interior(landing: Landing, address_map: AddressMap) -> Finding | None:
    stray = landing.predicted & (landing.stray_bytes > 0)
    empty = landing.predicted & landing.changed & (landing.untouched_states > 0)
    rows = np.flatnonzero(stray | empty)
    if not len(rows):
        return None
    row = int(rows[0])
    first = _coordinate(landing, row)
    if landing.stray_state[row] >= 0:
        first["state"] = int(landing.stray_state[row])
    interior = address_map.region(int(landing.layer[row])).interior
    fields = ", ".join(field.name for field in interior.fields)
    numbers = {"cells": len(rows), "stray_bytes": int(landing.stray_bytes[rows].sum()),
               "untouched_states": int(landing.untouched_states[rows].sum())}
    return Finding(
        "interior-contradiction", "error",
        f"In {len(rows):,} cells {numbers['stray_bytes']:,} bytes changed that the declared interior gives to other "
        f"states, and {numbers['untouched_states']:,} states that were to be written are as before; the first is "
        f"{_at(first)}. The declaration is {fields} inside one {interior.scope} "
        f"({interior.source or 'the default'}).", numbers, first,
        "The cells are right, so the layout is; declare the order that the backend's kernels keep inside a cell")


def _outside(landing: Landing, changes: Changes) -> Finding | None:
    if not landing.outside_bytes:
        return None
    return Finding("outside", "error" if changes.is_exact else "note",
                   f"{landing.outside_bytes:,} bytes changed that no layer of any group owns (padding or unused).",
                   {"bytes": landing.outside_bytes})


def _null(landing: Landing, null_slots: int) -> Finding | None:
    rows = np.flatnonzero(landing.changed & (landing.block == NULL_BLOCK))
    if not null_slots and not len(rows):
        return None
    changed = int(landing.changed_bytes[rows].sum())
    return Finding("null-block", "note", f"{null_slots:,} slots lie in block 0, the null block, and {changed:,} of "
                   "its bytes changed; nothing is read from there.", {"slots": null_slots, "changed_bytes": changed})


def _untouched(landing: Landing) -> Finding | None:
    count = int(landing.untouched_elements[landing.untouched_states == 0].sum())
    if not count:
        return None
    return Finding("same-value", "note", f"{count:,} elements of predicted states hold the bytes that they held "
                   "before, as a zero written over a zero does.", {"elements": count})


def _inexact(landing: Landing, changes: Changes) -> Finding | None:
    if changes.is_exact:
        return None
    count = int((~changes.exact).sum())
    return Finding("digest-only", "note", f"Of {count:,} pieces of {changes.granule_bytes:,} bytes only a digest "
                   f"was kept, so {int((~landing.is_exact).sum()):,} cells are known to lie in a changed piece, not "
                   "which of their bytes changed.", {"granules": count},
                   cure="Give the snapshot more bytes, or the blocks that matter")


def _undeclared(landing: Landing, address_map: AddressMap) -> Finding | None:
    rows = np.flatnonzero(landing.predicted & landing.changed & ~landing.is_declared)
    if not len(rows):
        return None
    region = address_map.region(int(landing.layer[rows[0]]))
    return Finding("interior-unknown", "note", f"The order inside {len(rows):,} cells isn't declared "
                   f"({region.interior.source or 'a packed page'}), so they are checked as whole cells only.",
                   {"cells": len(rows)})
