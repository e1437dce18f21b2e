"""How well starts are aligned: of rows, of K and of V; strides that a tensor map refuses; blocks of whole rows.

All addresses count from the allocation's first byte, which an allocator puts at a multiple of 512 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.clinic.wording import layers_text
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.finding import Finding
from kvlayout.region import Region

POWERS = (16, 32, 64, 128, 256, 512)
_VECTOR_BYTES = 16  # the widest load or store of one thread, and the unit of a tensor map's strides
_AXES = ("block", "head", "state", "byte")


@dataclass(frozen=True)
class Alignment:
    """The starts of one kind of content.

    Attributes:
        layers: the layers that it holds of
        what: "row" (each head slot and state's cell, where the interior keeps states apart) or a field's name,
            such as "K" or "V"
        size_bytes: bytes of one such piece
        aligned_to: the largest power of two, at most 512, that every start is a multiple of (bytes)
        modulus, residues: every start modulo ``modulus``, in bytes, each residue once
        first: the first coordinate that isn't a multiple of ``modulus``; None where all are
    """

    layers: tuple[str, ...]
    what: str
    size_bytes: int
    aligned_to: int
    modulus: int
    residues: tuple[int, ...]
    first: dict | None


@dataclass(frozen=True)
class RowFit:
    """How many bytes a block stride lacks to whole rows (``row_bytes``: from one token state to the next)."""

    layers: tuple[str, ...]
    block_stride: int
    row_bytes: int
    remainder_bytes: int
    padding_bytes: int
    num_heads: int


def alignments(address_map: AddressMap, modulus: int = 16) -> list[Alignment]:
    """Return one entry for the rows and for each field of each distinct region, in order. ``modulus`` in bytes."""
    check_type("address_map", address_map, AddressMap)
    if check_int("modulus", modulus, minimum=1) > 4096:
        raise LayoutError("modulus", modulus, "must be at most 4,096 bytes")
    kinds: dict[tuple, list[str]] = {}
    sample: dict[tuple, Region] = {}
    for region in address_map.regions:
        shape, strides = region.geometry.shape, region.geometry.strides
        if 0 in shape:
            continue
        period = math.lcm(512, modulus)
        # Only residues matter, so layers that lie alike are one entry.
        key = (shape[1:], strides[1:], residues([region.geometry.offset], [(shape[0], strides[0])], period),
               region.interior)
        kinds.setdefault(key, []).extend(region.tensor.layers)
        sample.setdefault(key, region)
    found = []
    for key, layers in kinds.items():
        region = sample[key]
        content = region.geometry.shape[4]
        # In a wider scope a row of the view is a container only: nothing begins there.
        if region.interior.scope == "state":
            found.append(_alignment(layers, "row", content, modulus, region, *_row_starts(region)))
        for field in region.interior.fields:
            if field.name != "padding":
                found.append(_alignment(layers, field.name, field.size_bytes, modulus, region,
                                        *_field_starts(region, field)))
    return found


def _row_starts(region: Region) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Starts of the rows of block 0 and state 0, one a head slot, and (count, stride) of the states."""
    _, _, heads, states, _ = region.geometry.shape
    _, _, head_stride, state_stride, _ = region.geometry.strides
    return np.arange(heads, dtype=np.int64) * head_stride, [(states, state_stride)]


def _field_starts(region: Region, field) -> tuple[np.ndarray, list[tuple[int, int]]]:
    _, _, heads, states, _ = region.geometry.shape
    _, _, head_stride, state_stride, byte_stride = region.geometry.strides
    slots = [head for head in range(heads) if field.in_slot(head)]
    begins = {head: begin for head in slots for begin, one in region.interior.slot_fields(head) if one == field}
    if region.interior.scope == "state":
        starts = [head * head_stride + begins[head] * byte_stride for head in slots]
        return np.array(starts, dtype=np.int64), [(states, state_stride)]
    # Elements that are apart have no start a state: the field's own counts.
    chosen = np.arange(states if field.element_stride is None else 1)
    inner = [region.inner_offsets(np.full(len(chosen), head), chosen, np.full(len(chosen), begins[head]))
             for head in slots]
    return np.concatenate(inner) if inner else np.zeros(0, dtype=np.int64), []


def _alignment(layers, what, size_bytes, modulus, region, starts, axes) -> Alignment:
    layer_axis, block_axis = zip(region.geometry.shape[:2], region.geometry.strides[:2])
    starts = starts + region.geometry.offset
    axes = [*axes, block_axis, layer_axis]
    common = math.gcd(int(np.gcd.reduce(starts)) if len(starts) else 0, *(s for n, s in axes if n > 1))
    return Alignment(tuple(layers), what, size_bytes, power_of_two(common), modulus, residues(starts, axes, modulus),
                     _first_off(region, what, starts, axes, modulus))


def power_of_two(value: int, most: int = POWERS[-1]) -> int:
    """Return the largest power of two, at most ``most``, that divides ``value``."""
    return min(most, value & -value) if value else most


def residues(starts: np.ndarray, axes: Sequence[tuple[int, int]], modulus: int) -> tuple[int, ...]:
    """Return the residues of all addresses start + i * stride (0 <= i < count, for each (count, stride) axis)."""
    found = np.unique(np.asarray(starts, dtype=np.int64) % modulus)
    for count, stride in axes:
        steps = np.arange(min(count, modulus // math.gcd(stride, modulus))) * (stride % modulus)
        found = np.unique((found[:, None] + steps) % modulus)
    return tuple(found.tolist())


def _first_off(region, what, starts, axes, modulus) -> dict | None:
    off = np.flatnonzero(starts % modulus)
    first = {"layer": region.tensor.layers[0], "block": 0, "head": 0, "state": 0}
    if len(off):
        per_head = len(axes) == 3
        states = 1 if per_head else max(1, len(starts) // region.geometry.shape[2])
        first["head"], first["state"] = divmod(int(off[0]), states)
        field = next((one for one in region.interior.fields if one.name == what and one.slots), None)
        first["head"] += field.slots[0] if field else 0
        return first
    names = ["state", "block", "layer"][-len(axes):]
    for name, (count, stride) in zip(names, axes):
        if count > 1 and stride % modulus:
            first[name] = region.tensor.layers[1] if name == "layer" else 1
            return first
    return None


def row_fits(address_map: AddressMap) -> list[RowFit]:
    """Return, for each distinct view of several states a block, how far its block stride is from whole rows.

    Kernels that see the cache as flat rows, slot after slot, need a remainder of 0. Pages whose interior isn't kept
    state by state have no such rows and are left out.
    """
    check_type("address_map", address_map, AddressMap)
    kinds: dict[tuple, list[str]] = {}
    for region in address_map.regions:
        shape, strides = region.geometry.shape, region.geometry.strides
        if 0 in shape or shape[3] == 1 or shape[1] == 1 or region.interior.scope == "page":
            continue
        kinds.setdefault((strides[1], strides[3], shape[2]), []).extend(region.tensor.layers)
    return [RowFit(tuple(layers), stride, row, stride % row, -stride % row, heads)
            for (stride, row, heads), layers in kinds.items() if row > 0]


def lint_alignment(address_map: AddressMap) -> list[Finding]:
    """Return what alignment holds, where 16 bytes don't, singleton axes of odd strides, and blocks of broken rows."""
    found, kinds = [], {}
    for one in alignments(address_map, _VECTOR_BYTES):
        kinds.setdefault(one.layers, []).append(one)
    for layers, entries in kinds.items():
        found.append(alignment_note(layers, entries))
        # A scale or a tail of a few bytes is never loaded by vectors.
        off = [one for one in entries if one.aligned_to < _VECTOR_BYTES <= one.size_bytes]
        if off:
            found.append(misaligned(layers, off))
    found += _singletons(address_map)
    for fit in row_fits(address_map):
        if fit.remainder_bytes:
            found.append(Finding(
                "block-stride-rows", "warning" if fit.num_heads == 1 else "note",
                f"The block stride of {layers_text(fit.layers)}, {fit.block_stride:,} bytes, isn't whole rows of "
                f"{fit.row_bytes:,} bytes: {fit.remainder_bytes:,} are left over, so slot x row is wrong from block "
                "1 on.",
                {"block_stride": fit.block_stride, "row_bytes": fit.row_bytes,
                 "remainder_bytes": fit.remainder_bytes, "padding_bytes": fit.padding_bytes},
                {"layer": fit.layers[0], "block": 1},
                f"A kernel of flat rows needs {fit.padding_bytes:,} bytes of padding a block, or layers outermost"))
    return found


def alignment_note(layers: Sequence[str], entries: Sequence[Alignment]) -> Finding:
    """Return the note on what alignment holds for some layers."""
    held = ", ".join(f"{one.what} {one.aligned_to}" for one in entries)
    return Finding("alignment", "note", f"Starts in {layers_text(layers)} are multiples of these bytes (512 at "
                   f"most): {held}.", {one.what: one.aligned_to for one in entries}, {"layer": layers[0]})


def misaligned(layers: Sequence[str], off: Sequence[Alignment]) -> Finding:
    """Return the warning on starts that 16-byte loads and stores fault at."""
    text = "; ".join(f"{one.what} begins at {' or '.join(map(str, one.residues))} modulo {one.modulus}"
                     for one in off)
    numbers = {one.what: {"aligned_to": one.aligned_to, "residues": list(one.residues)} for one in off}
    return Finding("misaligned", "warning", f"16-byte loads and stores fault in {layers_text(layers)}: {text} "
                   "bytes.", numbers, off[0].first,
                   "Pad K and V to multiples of 16 bytes in each state, or access them by narrower words")


def singleton_finding(layers: Sequence[str], axis: str, stride: int) -> Finding:
    """Return the warning on an axis of one step whose byte stride a TMA descriptor refuses."""
    return Finding("singleton-stride", "warning",
                   f"The {axis} axis of {layers_text(layers)} has one entry and a stride of {stride:,} bytes, which "
                   f"is no multiple of {_VECTOR_BYTES}: a TMA descriptor refuses it, although nothing ever steps by "
                   "it.", {"axis": axis, "stride": stride, "remainder_bytes": stride % _VECTOR_BYTES},
                   {"layer": layers[0]}, f"Set the stride of an axis of one to a multiple of {_VECTOR_BYTES} bytes "
                   "in the descriptor")


def _singletons(address_map: AddressMap) -> list[Finding]:
    kinds: dict[tuple, list[str]] = {}
    for region in address_map.regions:
        for axis, count, stride in zip(_AXES, region.geometry.shape[1:4], region.geometry.strides[1:4]):
            if count == 1 and stride % _VECTOR_BYTES:
                kinds.setdefault((axis, stride), []).extend(region.tensor.layers)
    return [singleton_finding(layers, axis, stride) for (axis, stride), layers in kinds.items()]
