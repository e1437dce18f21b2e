"""Kernels under test: a writer or a reader runs on real caches of many shapes, and each element is accounted for."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

import torch

from kvlayout.bench.backend_check import check_backend
from kvlayout.bench.calling import check_kernel
from kvlayout.bench.case import FEATURES, WRITER_FEATURES, Case
from kvlayout.bench.readers import Reader, run_reader, takes_head_size, with_head_size
from kvlayout.bench.report import KernelReport, Tally
from kvlayout.bench.shapes import VARY, Shapes
from kvlayout.bench.writers import Writer, run_writer
from kvlayout.errors import LayoutError, check_int
from kvlayout.facts.backends import Backend, as_backend
from kvlayout.facts.user_backend import UserBackend
from kvlayout.layout import KVCacheLayout, PhysicalLayout, as_layout
from kvlayout.memory.device import as_device
from kvlayout.spec import AttentionSpec, KVCacheSpec
from kvlayout.spec_io import as_spec


def check_writer(
    writer: Writer,
    spec: KVCacheSpec,
    *,
    layouts: Sequence[object] | None = None,
    cases: int = 500,
    seed: int = 0,
    backend: object | None = None,
    vary: Sequence[str] = VARY,
    device: object = "cpu",
) -> KernelReport:
    """Run ``writer(key, value, kv_cache, slot_mapping)`` and report where each element of K and V went.

    key [rows, heads, head_size] and value [rows, heads, head_size_v] come in the cache's dtype (fp8 as uint8),
    for their bytes to be stored unchanged; rows behind the tokens of slot_mapping are padding, as in vLLM.
    ``kv_cache`` is the layer's view [B, H, N, C] as vLLM 0.33 hands it out, B and N in kernel blocks where those
    split the manager's, to be written in place; slot_mapping int64 [tokens], up to some hundred, negative for a token
    to be ignored: mostly -1, vLLM's own. The whole allocation is watched: other tokens and layers, padding, and room
    around it.

    ``layouts``: members, names or PhysicalLayouts; None means those of ``backend``, or all six. ``backend``: a name,
    class or object as for :func:`kvlayout.as_backend`; it repacks the spec, chooses kernel blocks, limits head sizes
    and dtypes to those that it lists (V's size follows K's), and declares where in a page K and V lie, and scales,
    which then stand behind the values in key and value.
    ``cases``: how many shapes, the given spec first, then random ones; ``vary``: what may differ in them, of
    ``VARY``; its "far_blocks" adds one shape a layout whose offsets pass 2^31 elements, with "far_uint32" 2^32 where
    twice the cache is free, in memory that is only reserved. A kernel that copies its cache makes it real, which
    takes up to a minute a layout: leave both out for such a one. With TRITON_INTERPRET=1 the limit is 2^31.

    A writer that raises is a finding; one that touches an address over 4 GiB away from its cache (64 MiB on a GPU)
    can still end the process, and one that never returns isn't stopped. Zeros that are written are seen in the cache
    and 16 KiB around it, in far shapes near the tokens' places; anything else is seen everywhere. The report's
    ``not_checked`` says what was left out. Raises LayoutError for arguments that no shape can be made from.
    """
    return _check(run_writer, "writer", writer, spec, layouts, cases, seed, backend, vary, device)


def check_reader(
    reader: Reader,
    spec: KVCacheSpec,
    *,
    layouts: Sequence[object] | None = None,
    cases: int = 500,
    seed: int = 0,
    backend: object | None = None,
    vary: Sequence[str] = VARY,
    device: object = "cpu",
) -> KernelReport:
    """Run ``reader(kv_cache, block_table, seq_lens)`` and report where each element that it returned came from.

    block_table int32 [requests, columns] and seq_lens int32 [requests] are as vLLM's: blocks aren't contiguous, the
    last one is mostly partial, and columns behind a request's own blocks hold block 0 or stale ids. Where pages are
    large, requests are cut, so that a shape asks for about a million elements. The reader gives
    (key, value) [requests, longest, heads, head_size or head_size_v] in the cache's dtype; what it returns behind a
    request's end isn't looked at. A reader that changes the cache, raises, or returns another shape is a finding.
    A reader with a parameter ``head_size`` (by keyword, or the fourth) is told how many elements of a state are K;
    without one it can't know, and head sizes of K and V that differ from each other aren't tried.

    The other arguments, and errors, are those of :func:`check_writer`.
    """
    return _check(run_reader, "reader", reader, spec, layouts, cases, seed, backend, vary, device)


def _check(run: Callable, name: str, kernel, spec, layouts, cases, seed, backend, vary, device) -> KernelReport:
    given = (("key", "value", "kv_cache", "slot_mapping"), ()) if run is run_writer else \
        with_head_size(kernel, "kv_cache", "block_table", "seq_lens", head_size="head_size")
    check_kernel(name, kernel, *given)
    check_int("cases", cases, minimum=1)
    check_int("seed", seed, minimum=0)
    place = as_device(device)
    if place.type == "meta":
        raise LayoutError("device", "meta", "has no bytes to write or read", "Use 'cpu' or a CUDA device")
    if isinstance(vary, str) or not isinstance(vary, Collection) or not all(one in VARY for one in vary):
        raise LayoutError("vary", vary, f"must be a list of {', '.join(VARY)}")
    asked, spec, not_checked = None if backend is None else as_backend(backend), as_spec(spec), []
    if run is run_reader and not takes_head_size(kernel) and isinstance(spec, AttentionSpec) and spec.head_size_v:
        # Only half and half can be guessed; other sizes are those that the reader was written for.
        vary = frozenset(vary) - {"head_size_v"} - ({"head_size"} if spec.head_size != spec.head_size_v else set())
        not_checked.append("other splits of a state into K and V: the reader takes no head_size, so it can't know.")
    shapes = Shapes(spec, _layouts(layouts, asked), asked, vary, seed)
    tally = Tally(_features(run is run_writer, spec))
    not_checked += _changed_by(asked, spec)
    not_checked += [f"{layout}, which no view of this spec can express: {error.rule}."
                    for layout, error in shapes.refused.items()]
    for number in range(cases):
        case = shapes.case(number)
        outcome = run(kernel, case, place)
        if isinstance(outcome, str):
            not_checked.append(f"case {number} in {case.layout.name}: {outcome}.")
        else:
            tally.add(case, outcome)
    if "far_blocks" in vary:
        why_not = _why_not_uint32(vary, place)
        not_checked += _far(run, kernel, shapes, cases, place, tally, (31,) if why_not else (32, 31))
        not_checked += [f"offsets past 2^32, {why_not}."] if why_not else []
    else:
        not_checked.append("offsets past 2^31, which weren't asked for.")
    not_checked += [f"{layout} with the spec as given, which it can't hold ({error.rule}); it was tried with others."
                    for layout, error in shapes.replaced.items()]
    return tally.report(not_checked)


def _features(is_writer: bool, spec: AttentionSpec) -> list[str]:
    """The properties that the kernel can meet: a reader is handed no new tokens, and a latent has one head."""
    left_out = (() if is_writer else WRITER_FEATURES) + (() if spec.head_size_v else FEATURES[:3])
    return [name for name in FEATURES if name not in left_out]


def _changed_by(backend: Backend | None, spec: KVCacheSpec) -> list[str]:
    """What a backend's repacking takes from the page that layers report: the kernel is tried on what is left."""
    found = [] if backend is None else check_backend(backend, [spec])
    return [one.message for one in found if one.rule.startswith("changed-")]


def _why_not_uint32(vary: Collection[str], place: torch.device) -> str:
    if "far_uint32" not in vary:
        return "which weren't asked for"
    if place.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        # It would accuse kernels that are right on a GPU: an argument below 2^31 has 32 bits, whatever was declared.
        return "as Triton's interpreter, switched on here, takes a kernel's 64-bit arguments for 32 bits"
    return ""


def _far(run: Callable, kernel, shapes: Shapes, first: int, place: torch.device, tally: Tally,
         tries: Sequence[int]) -> list[str]:
    """Run one case a layout, with the first number of bits that memory is there for; return what wasn't run."""
    reasons, short = [], {bits: {} for bits in tries}
    for number, layout in enumerate(shapes.layouts, start=first):
        for bits in short:
            try:
                case: Case = shapes.far_case(number, layout, bits)
            except LayoutError as error:
                reasons.append(f"offsets past 2^31 in {layout.name}: the given spec can't be planned so "
                               f"({error.rule}).")
                break
            outcome = run(kernel, case, place)
            if not isinstance(outcome, str):
                tally.add(case, outcome)
                break
            short[bits][layout.name] = outcome
    for bits, layouts in short.items():
        # What passes 2^31 in no way doesn't pass 2^32 either.
        told = {name: why for name, why in layouts.items() if bits == 31 or name not in short[31]}
        if told:
            reasons.append(f"offsets past 2^{bits} in {', '.join(told)}: {next(iter(told.values()))}.")
    return reasons


def _layouts(layouts: object, backend: Backend | None) -> list[KVCacheLayout | PhysicalLayout]:
    if layouts is None:
        # Those that vLLM's resolver doesn't know are tried as well.
        declared = backend.declared_layouts() if isinstance(backend, UserBackend) else \
            backend and backend.supported_kv_cache_layouts()
        return list(declared or KVCacheLayout)
    if isinstance(layouts, (str, KVCacheLayout, PhysicalLayout)):
        layouts = [layouts]
    try:
        found = [as_layout(layout, "layouts") for layout in layouts]
    except TypeError:
        found = []
    if not found or len(set(found)) != len(found):
        raise LayoutError("layouts", layouts, "must be a list of different layouts",
                          "Give names such as ['LBNHC'], or None for those of the backend or all six")
    return found
