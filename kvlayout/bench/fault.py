"""What is wrong with a kernel, told: each kind of fault of a case once, by its first place."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kvlayout.address import AddressMap
from kvlayout.bench.case import Case
from kvlayout.bench.observation import NOWHERE, OLD, Observation
from kvlayout.dtypes import dtype_size_bytes

WRITE_FAULTS = ("raised", "input-changed", "not-written", "written-elsewhere", "wrong-value", "ignored-token-written",
                "stray-other-token", "stray-other-layer", "stray-padding", "stray-outside")
READ_FAULTS = ("raised", "input-changed", "wrong-shape", "read-elsewhere", "unknown-value", "cache-changed")


@dataclass(frozen=True)
class Fault:
    """The first place of one kind of fault in one case.

    Attributes:
        kind: one of WRITE_FAULTS or READ_FAULTS
        case: number of the case
        layout: its name; ``shape``: {name: number} of the case, by vLLM's names
        coordinate: whose element it is: token or request and position, slot, block, state, head, side ("K" or "V"),
            element; of a stray write the victim's, as far as there is one
        expected, found: byte offsets into the allocation where it should lie and where it was found, or None; below
            0 before the allocation
        message: one sentence
    """

    kind: str
    case: int
    layout: str
    shape: dict
    coordinate: dict
    expected: int | None
    found: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.kind}, case {self.case} ({self.layout}): {self.message}"


@dataclass(frozen=True, eq=False)
class Places:
    """Where each element of K and V should be and where the kernel had it, as flat arrays.

    Attributes:
        token: index in the batch (writer), or position in the request (reader)
        request: index of the request; None for a writer
        side: 0 for K, 1 for V; ``head``, ``element``: as in key and value
        expected, found: byte offsets into the allocation; NOWHERE (the least int64) for none
    """

    token: np.ndarray
    request: np.ndarray | None
    side: np.ndarray
    head: np.ndarray
    element: np.ndarray
    expected: np.ndarray
    found: np.ndarray


def places(seen: Observation) -> Places:
    """Return the table of an observation."""
    index = np.arange(len(seen.expected))
    row, side, head, element = _split(seen.case, index)
    reads = seen.rows.position is not None
    return Places(seen.rows.position[row] if reads else row, seen.rows.request[row] if reads else None,
                  side, head, element, seen.expected, seen.found)


def case_fault(case: Case, kind: str, message: str) -> Fault:
    """Return a fault of a whole case: it raised, or gave back nothing that can be compared."""
    return Fault(kind, case.number, case.layout.name, case.shape, {}, None, None, message)


def raised(case: Case, error: BaseException) -> Fault:
    """Return the fault of a kernel that raised: the error's first line, and where in the kernel's own code."""
    try:
        lines = str(error).strip().splitlines() or ["without a message"]
    except Exception:  # an error may have a __str__ of its own
        lines = ["with a message that can't be shown"]
    where = traceback.extract_tb(error.__traceback__)[2:]  # the first frames are the bench's own
    place = f" ({Path(where[0].filename).name}, line {where[0].lineno})" if where else ""
    return case_fault(case, "raised", f"{type(error).__name__}: {lines[0][:300]}{place}")


def input_changed(case: Case, given: dict[str, torch.Tensor], before: dict[str, torch.Tensor],
                  keeps_cache: bool) -> Fault | None:
    """Return the fault of a kernel that changed what it was given to read, {name: tensor}; else None.

    ``keeps_cache``: whether the tensor kv_cache, its bytes aside, is what it was.
    """
    changed = [name for name, tensor in given.items() if not _same_bytes(tensor, before[name])]
    if not keeps_cache:
        changed.append("kv_cache's shape, strides or memory")
    if not changed:
        return None
    return case_fault(case, "input-changed", f"{' and '.join(changed)} was changed; what runs after the kernel is "
                      "given the same tensor.")


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    # As bytes, since fingerprints can be NaN, which differs from itself.
    return (one.shape, one.dtype, one.device, one.layout) == (other.shape, other.dtype, other.device, other.layout) \
        and torch.equal(one.detach().contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def find_faults(seen: Observation) -> list[Fault]:
    """Return the first fault of each kind: first those of the elements in their order, then stray writes."""
    classes = _write_classes(seen) if seen.held is not None else _read_classes(seen)
    found = [(int(np.argmax(mask)), kind) for kind, mask in classes if mask.any()]
    return [_element_fault(seen, index, kind) for index, kind in sorted(found)] + _stray_faults(seen)


def _write_classes(seen: Observation) -> list[tuple[str, np.ndarray]]:
    lost = seen.wrong & (seen.found == NOWHERE)
    return [("not-written", lost & (seen.held == OLD)), ("wrong-value", lost & (seen.held != OLD)),
            ("written-elsewhere", seen.wrong & (seen.found != NOWHERE)),
            ("ignored-token-written", seen.ignored & (seen.found != NOWHERE))]


def _read_classes(seen: Observation) -> list[tuple[str, np.ndarray]]:
    return [("unknown-value", seen.found == NOWHERE),
            ("read-elsewhere", seen.wrong & (seen.found != NOWHERE))]


def _split(case: Case, index):
    """Row, side, head and element of elements by their index."""
    key, value = case.sides
    row, rest = np.divmod(index, len(key.slot) + len(value.slot))
    side = (rest >= len(key.slot)).astype(np.int64)
    width = np.where(side == 1, value.width, key.width)
    head, element = np.divmod(rest - side * len(key.slot), np.maximum(width, 1))
    return row, side, head, element


def _coordinate(seen: Observation, index: int) -> dict:
    row, side, head, element = (int(part) for part in _split(seen.case, np.int64(index)))
    rows, slot = seen.rows, int(seen.rows.slot[row])
    found = dict(token=row) if rows.position is None else dict(request=int(rows.request[row]),
                                                               position=int(rows.position[row]))
    found |= dict(slot=slot)
    if slot >= 0:
        found |= dict(block=slot // seen.case.block_size, state=slot % seen.case.block_size)
    return found | dict(head=head, side="KV"[side], element=element)


def _name(coordinate: dict) -> str:
    who = (f"token {coordinate['token']}" if "token" in coordinate
           else f"request {coordinate['request']}, position {coordinate['position']}")
    where = f": block {coordinate['block']:,}, state {coordinate['state']}" if "block" in coordinate else ""
    return (f"{who} (slot {coordinate['slot']:,}{where}), {coordinate['side']}, head {coordinate['head']}, element "
            f"{coordinate['element']}")


def _element_fault(seen: Observation, index: int, kind: str) -> Fault:
    case, amap = seen.case, seen.case.address_map
    coordinate = _coordinate(seen, index)
    expected, found = (None if offset == NOWHERE else int(offset)
                       for offset in (seen.expected[index], seen.found[index]))
    head = _name(coordinate)
    if expected is not None:
        head += f" belongs at byte {expected:,}"
    if kind == "not-written":
        touched = (seen.held != OLD).any() or len(seen.stray)
        tail = "; nothing was written there"
        if not touched:
            tail += (", nor anywhere else: perhaps a copy of the cache was written to (reshape() makes one of a view "
                     "that isn't contiguous)")
    elif kind == "wrong-value":
        tail = f"; there is now {_held(seen, int(seen.held[index]))}"
    elif kind == "unknown-value":
        tail = "; the value that was returned is none of the cache's"
    elif kind == "ignored-token-written":
        tail = f" is to be ignored, but was written at byte {found:,}, {whose(amap, found)}"
    else:
        verb = "written at" if kind == "written-elsewhere" else "read from"
        tail = f"; it was {verb} byte {found:,}, {whose(amap, found)}{_wrap(case, found - expected)}"
    return Fault(kind, case.number, case.layout.name, case.shape, coordinate, expected, found, f"{head}{tail}.")


def _held(seen: Observation, held: int) -> str:
    return _name(_coordinate(seen, held)) if held >= 0 else "a value that wasn't handed over"


def _stray_faults(seen: Observation) -> list[Fault]:
    case, amap, stray = seen.case, seen.case.address_map, seen.stray
    layer = amap.locate(stray).layer
    under_test = amap.layer_index(case.layer)
    outside = (stray < 0) | (stray >= amap.size_bytes)
    if seen.held is None:
        classes = [("cache-changed", np.ones(len(stray), dtype=bool))]
    else:
        classes = [("stray-other-token", ~outside & (layer == under_test)),
                   ("stray-other-layer", ~outside & (layer >= 0) & (layer != under_test)),
                   ("stray-padding", ~outside & (layer < 0)), ("stray-outside", outside)]
    faults = []
    for kind, mask in classes:
        if mask.any():
            at = int(np.argmax(mask))
            offset = int(stray[at])
            what = "" if seen.held is None else f" with {_held(seen, int(seen.stray_held[at]))}"
            message = f"byte {offset:,}, {whose(amap, offset)}, was written over{what}; nobody asked for that."
            faults.append(Fault(kind, case.number, case.layout.name, case.shape, _victim(amap, offset), None, offset,
                                message))
    return faults


def _victim(amap: AddressMap, offset: int) -> dict:
    owners = amap.owners(offset) if 0 <= offset < amap.size_bytes else []
    return {} if not owners else dict(layer=owners[0].layer, block=owners[0].block, head=owners[0].head,
                                      state=owners[0].state, side=owners[0].field, element=owners[0].element)


def whose(amap: AddressMap, offset: int) -> str:
    """Say whose byte it is: a layer's, padding, or none of the allocation's."""
    if offset < 0:
        return f"{-offset:,} bytes before the allocation"
    if offset >= amap.size_bytes:
        return f"{offset - amap.size_bytes:,} bytes past the allocation's end"
    owners = amap.owners(offset)
    if owners:
        one = owners[0]
        return (f"{one.layer}, block {one.block:,}, head {one.head}, state {one.state}, {one.field} element "
                f"{one.element}")
    padding = amap.padding_of(offset)[0]
    return "padding" + (f" behind {padding.layer}, block {padding.block:,}" if padding.layer else "")


def _wrap(case: Case, distance: int) -> str:
    """Whether a distance in bytes is what an integer of 32 bits loses."""
    item = dtype_size_bytes(case.spec.dtype)
    for unit, size in (("elements", item), ("bytes", 1)):
        if distance % (2**32 * size) == 0:
            return f"; that is exactly {abs(distance) // size:,} {unit} off: a product wrapped at 32 bits"
    return ""
