"""One case of a writer: fingerprints everywhere, the kernel's call, and every element of the memory read again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kvlayout.bench.arena import Arena, SparseArena, far_arena, near_arena
from kvlayout.bench.fault import Fault, case_fault
from kvlayout.bench.observation import UNKNOWN, Observation, observe_writes
from kvlayout.bench.shapes import Case

Writer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], object]


def run_writer(writer: Writer, case: Case, device: torch.device) -> Observation | Fault | str:
    """Return what ``writer`` did in ``case``; a Fault where it raised, a clause where the machine can't run it."""
    count = len(case.requests.slots) * sum(len(side.slot) for side in case.sides)
    arena = far_arena(case, device, count) if case.is_far else near_arena(case, device, count)
    if isinstance(arena, str):
        return arena
    try:
        return (_far if case.is_far else _near)(writer, arena, count)
    finally:
        if isinstance(arena, SparseArena):
            arena.close()


def _near(writer: Writer, arena: Arena, count: int) -> Observation | Fault:
    # Numbers below ``count`` are the elements handed over, the rest the arena's own places.
    own = count + np.arange(arena.count)
    seen = []
    for turn in range(arena.codes.turns):
        arena.write(own, turn)
        fault = _call(writer, arena, turn)
        if fault is not None:
            return fault
        seen.append(arena.read())
    numbers = arena.codes.numbers(seen)
    changed = np.flatnonzero(numbers != own)
    return _observe(arena, changed, numbers[changed], count)


def _far(writer: Writer, arena: Arena, count: int) -> Observation | Fault:
    # Nobody can look at all elements of a huge arena: it is zero before, and what isn't zero then was written.
    touched, turns = [], []
    for turn in range(arena.codes.turns):
        arena.clear()
        fault = _call(writer, arena, turn)
        if fault is not None:
            return fault
        touched.append(arena.nonzero())
        turns.append(arena.read(touched[-1]))
    changed = np.unique(np.concatenate(touched))
    seen = [np.zeros(len(changed), dtype=arena.codes.dtype) for _ in turns]
    for one, places, elements in zip(seen, touched, turns):
        one[np.searchsorted(changed, places)] = elements
    return _observe(arena, changed, arena.codes.numbers(seen), count)


def _observe(arena: Arena, changed: np.ndarray, numbers: np.ndarray, count: int) -> Observation:
    ids = np.where(numbers < count, numbers, UNKNOWN)  # content of another place is nothing that was handed over
    return observe_writes(arena.case, (changed - arena.first) * arena.codes.dtype.itemsize, ids)


def _call(writer: Writer, arena: Arena, turn: int) -> Fault | None:
    key, value = _inputs(arena, turn)
    slots = torch.from_numpy(arena.case.requests.slots).to(key.device)
    try:
        writer(key, value, arena.view, slots)
        if key.is_cuda:
            torch.cuda.synchronize(key.device)
    except Exception as error:
        return case_fault(arena.case, "raised", f"{type(error).__name__}: {error}")
    return None


def _inputs(arena: Arena, turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Key [tokens, heads, head_size] and value [tokens, heads, head_size_v] whose elements are fingerprints."""
    case, tokens = arena.case, len(arena.case.requests.slots)
    widths = [len(side.slot) for side in case.sides]
    numbers = np.arange(tokens * sum(widths)).reshape(tokens, sum(widths))
    rows = torch.from_numpy(arena.codes.patterns(numbers, turn)).to(arena.view.device).view(arena.view.dtype)
    parts = rows.split(widths, dim=1)
    if not case.strided_inputs:
        parts = [part.contiguous() for part in parts]
    return tuple(part.unflatten(1, (side.heads, side.width)) for part, side in zip(parts, case.sides))
