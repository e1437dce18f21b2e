"""One case of a reader: the memory says of itself where each element lies, and so does what the kernel returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from kvlayout.bench.arena import (
    Arena,
    far_arena,
    has_background,
    integer_type,
    near_arena,
    neighbourhood,
    sorted_once,
    without,
)
from kvlayout.bench.calling import call_kernel
from kvlayout.bench.case import Case
from kvlayout.bench.fault import Fault, case_fault, raised
from kvlayout.bench.observation import NOWHERE, Observation, Rows, expected_offsets, reader_rows
from kvlayout.dtypes import dtype_size_bytes

Reader = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def run_reader(reader: Reader, case: Case, device: torch.device) -> Observation | Fault | str:
    """Return what ``reader`` read in ``case``; a Fault where it raised or returned nothing that can be compared.

    A clause where the machine can't run the case.
    """
    rows = reader_rows(case)
    expected = expected_offsets(case, rows.slot).ravel()
    if has_background(case):
        with near_arena(case, device, 0) as arena:
            return _read(reader, arena, np.arange(*arena.marked), rows, expected)
    places = sorted_once(np.concatenate([_with_wraps(case, expected), neighbourhood(case, expected)]))
    with far_arena(case, device, len(places)) as arena:
        if isinstance(arena, str):
            return arena
        places = arena.first + places
        return _read(reader, arena, places[(places >= 0) & (places < arena.size)], rows, expected)


def takes_head_size(reader: Reader) -> bool:
    """Whether a reader wants to be told, as ``head_size``, how many elements of a state are K."""
    return _head_size_parameter(reader) is not None


def with_head_size(reader: Reader, *given: object, head_size: object) -> tuple[tuple, dict[str, object]]:
    """Return the arguments by place and by name that a reader is called with."""
    asked = _head_size_parameter(reader)
    if asked is None:
        return given, {}
    return ((*given, head_size), {}) if asked.kind is asked.POSITIONAL_ONLY else (given, {"head_size": head_size})


def _head_size_parameter(reader: Reader) -> inspect.Parameter | None:
    try:
        return inspect.signature(reader).parameters.get("head_size")
    except (TypeError, ValueError):  # built in, or no signature
        return None


def _with_wraps(case: Case, expected: np.ndarray) -> np.ndarray:
    """The elements at ``expected`` offsets in a far case, and where products that wrap would look for them.

    Of elements and of bytes, signed and unsigned, at 32 bits, counted from where the layer's view begins.
    """
    item = dtype_size_bytes(case.spec.dtype)
    inside = expected - case.address_map.offset(case.layer, 0)
    wraps = [(inside + sign) // unit * unit for unit in {2**32, 2**32 * item} for sign in (0, unit // 2)]
    return np.concatenate([expected, *((expected - lost)[lost != 0] for lost in wraps)]) // item


def _read(reader: Reader, arena: Arena, places: np.ndarray, rows: Rows, expected: np.ndarray) -> Observation | Fault:
    """``places``: those, in order, that say where they lie; all others are zero."""
    codes, item = arena.codes, arena.codes.dtype.itemsize
    numbers, returned, kept, around = np.arange(len(places)), [], [], []
    for turn in range(codes.turns):
        arena.clear()
        arena.write(numbers, turn, places)
        found = _call(reader, arena, rows)
        if isinstance(found, Fault):
            return found
        returned.append(found)
        kept.append(arena.read(places))
        around.append(arena.nonzero_around())
    number = codes.numbers(returned)
    known = (number >= 0) & (number < len(places))  # places that the memory lacks have codes too
    found = np.where(known, (places[np.where(known, number, 0)] - arena.first) * item, NOWHERE)
    changed = places[codes.numbers(kept) != numbers]
    others = np.concatenate(around)
    stray = sorted_once(np.concatenate([changed, without(others, places)]))
    return replace(Observation(arena.case, rows, expected, found), stray=(stray - arena.first) * item)


def _call(reader: Reader, arena: Arena, rows: Rows) -> np.ndarray | Fault:
    """All elements that were returned for the requests' tokens, as integers; what lies behind a request's end isn't
    looked at."""
    case, device = arena.case, arena.view.device
    given = _inputs(case, device)
    by_place, by_name = with_head_size(reader, arena.view, given["block_table"], given["seq_lens"],
                                       head_size=case.sides[0].width)
    returned, fault = call_kernel(reader, case, arena.view, given, _inputs(case, device),
                                  lambda kernel: kernel(*by_place, **by_name))
    if fault is not None:
        return fault
    try:
        wrong = _refusal(returned, arena)
        parts = [] if wrong else [_elements(tensor, arena.codes.dtype) for tensor in returned]
    except Exception as error:  # tensors of many kinds refuse to be looked at
        wrong = f"returned what can't be read: {raised(case, error).message}"
    if wrong is not None:
        return case_fault(case, "wrong-shape", wrong)
    return np.concatenate([part[rows.request, rows.position].reshape(len(rows.slot), -1) for part in parts],
                          axis=1).ravel()


def _elements(tensor: torch.Tensor, kind: np.dtype) -> np.ndarray:
    """The tensor's elements as integers; a copy, and of what a lazily negated or conjugated one stands for."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    return plain.view(integer_type(kind)).numpy().copy()


def _inputs(case: Case, device: torch.device) -> dict[str, torch.Tensor]:
    """The block table and lengths, new each time: a reader may spoil them."""
    return {name: torch.tensor(getattr(case.requests, name), device=device) for name in ("block_table", "seq_lens")}


def _refusal(returned: object, arena: Arena) -> str | None:
    """Why what was returned isn't key and value of the requests, or None."""
    case, lengths = arena.case, arena.case.requests.seq_lens
    if not isinstance(returned, (tuple, list)) or len(returned) != 2 \
            or not all(isinstance(one, torch.Tensor) for one in returned):
        return f"returned {type(returned).__name__}, not the two tensors (key, value)"
    for tensor, side in zip(returned, case.sides):
        name, wanted = ("value", "key")[side.name == "K"], (len(lengths), int(lengths.max()), side.heads, side.width)
        if tensor.is_nested or tensor.layout is not torch.strided:
            return f"returned a {name} that is nested or sparse; it must be a plain tensor"
        if tuple(tensor.shape) != wanted:
            return f"returned a {name} of shape {tuple(tensor.shape)}; [requests, longest, heads, size] is {wanted}"
        if tensor.dtype != arena.view.dtype or tensor.device != arena.view.device:
            return (f"returned a {name} in {tensor.dtype} on {tensor.device}; the cache is {arena.view.dtype} on "
                    f"{arena.view.device}")
    return None
