"""One case of a writer: fingerprints everywhere, the kernel's call, and every element of the memory read again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kvlayout.bench.arena import Arena, far_arena, has_background, near_arena, neighbourhood, sorted_once, without
from kvlayout.bench.calling import call_kernel
from kvlayout.bench.case import Case
from kvlayout.bench.fault import Fault
from kvlayout.bench.observation import UNKNOWN, Observation, expected_offsets, observe_writes

Writer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], object]


def run_writer(writer: Writer, case: Case, device: torch.device) -> Observation | Fault | str:
    """Return what ``writer`` did in ``case``; a Fault where it raised, a clause where the machine can't run it."""
    count = (len(case.requests.slots) + case.padded_rows) * sum(len(side.slot) for side in case.sides)
    if has_background(case):
        with near_arena(case, device, count) as arena:
            return _run(writer, arena, count, np.arange(*arena.marked))
    slots = case.requests.slots
    near = neighbourhood(case, expected_offsets(case, slots[slots >= 0]).ravel())
    with far_arena(case, device, count + len(near)) as arena:
        if isinstance(arena, str):
            return arena
        near += arena.first
        return _run(writer, arena, count, near[(near >= 0) & (near < arena.size)])


def _run(writer: Writer, arena: Arena, count: int, marked: np.ndarray) -> Observation | Fault:
    # Numbers below ``count`` are the elements handed over, the rest the marked places themselves. Nobody can look at
    # all elements around: they are zero before, and what isn't zero then was written.
    own = count + np.arange(len(marked))
    inside, places, around = [], [], []
    for turn in range(arena.codes.turns):
        arena.clear()
        arena.write(own, turn, marked)
        fault = _call(writer, arena, turn)
        if fault is not None:
            return fault
        inside.append(arena.read(marked))
        places.append(without(arena.nonzero_around(), marked))
        around.append(arena.read(places[-1]))
    numbers = arena.codes.numbers(inside)
    changed = np.flatnonzero(numbers != own)
    other, other_numbers = _together(arena, places, around)
    ids = np.concatenate([numbers[changed], other_numbers])
    # Content of another place, or of a row of padding, is no token's.
    tokens = arena.case.requests.slots.size * sum(len(side.slot) for side in arena.case.sides)
    ids = np.where(ids < tokens, ids, UNKNOWN)
    changed = np.concatenate([marked[changed], other])
    order = np.argsort(changed)
    offsets = (changed[order] - arena.first) * arena.codes.dtype.itemsize
    return observe_writes(arena.case, offsets, ids[order])


def _together(arena: Arena, places: list[np.ndarray], elements: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The places that were found in any turn, and what number their elements stand for."""
    found = sorted_once(np.concatenate(places))
    turns = [np.zeros(len(found), dtype=arena.codes.dtype) for _ in places]
    for turn, here, there in zip(turns, places, elements):
        turn[np.searchsorted(found, here)] = there
    return found, arena.codes.numbers(turns)


def _call(writer: Writer, arena: Arena, turn: int) -> Fault | None:
    given = _inputs(arena, turn)
    return call_kernel(writer, arena.case, arena.view, given, _inputs(arena, turn), lambda kernel: kernel(
        given["key"], given["value"], arena.view, given["slot_mapping"]))[1]


def _inputs(arena: Arena, turn: int) -> dict[str, torch.Tensor]:
    """Fingerprints as key [rows, heads, head_size] and value [.., head_size_v], and the slot_mapping [tokens].

    Rows behind the tokens are padding. They are new each time: a writer may spoil them.
    """
    case, tokens = arena.case, len(arena.case.requests.slots)
    widths = [len(side.slot) for side in case.sides]
    numbers = np.arange((tokens + case.padded_rows) * sum(widths)).reshape(-1, sum(widths))
    rows = torch.from_numpy(arena.codes.patterns(numbers, turn)).to(arena.view.device).view(arena.view.dtype)
    parts = rows.split(widths, dim=1)
    if not case.strided_inputs:
        parts = [part.contiguous() for part in parts]
    key, value = (part.unflatten(1, (side.heads, side.width)) for part, side in zip(parts, case.sides))
    return {"key": key, "value": value, "slot_mapping": torch.tensor(case.requests.slots, device=key.device)}
