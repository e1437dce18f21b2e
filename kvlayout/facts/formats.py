"""Formats that pack K and V of one (token, head) into one slot of bytes: TurboQuant, UltraQuant, Octave.

A format is a list of parts in address order, (name, number of elements, bits of one); what is left of the slot is
padding. The same list gives the slot's size (:mod:`kvlayout.facts.repack`) and its named fields
(:mod:`kvlayout.facts.interiors`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvlayout.errors import LayoutError
from kvlayout.spec import KVQuantMode

Part = tuple[str, int, int]

# Bits of a K code and of a V code. 8 bits of K are fp8 and need no norm.
_TURBOQUANT_BITS = {
    KVQuantMode.TURBOQUANT_K8V4: (8, 4),
    KVQuantMode.TURBOQUANT_4BIT_NC: (4, 4),
    KVQuantMode.TURBOQUANT_K3V4_NC: (3, 4),
    KVQuantMode.TURBOQUANT_3BIT_NC: (3, 3),
}
_ULTRAQUANT_GROUP = 32  # elements that share a scale
_OCTAVE_BLOCK = 64  # elements that are rotated together


@dataclass(frozen=True)
class SlotFormat:
    """``parts`` from the slot's first byte on; ``size_bytes`` of the whole slot, padding included."""

    parts: tuple[Part, ...]
    size_bytes: int


def _format(parts: list[Part], align: int) -> SlotFormat:
    used = sum(_size_bytes(part) for part in parts)
    return SlotFormat(tuple(part for part in parts if part[1]), -(-used // align) * align)


def _size_bytes(part: Part) -> int:
    return -(-part[1] * part[2] // 8)


def turboquant_format(mode: KVQuantMode, head_size: int) -> SlotFormat:
    """Return K codes and their fp16 norm, then V codes with fp16 scale and zero; the slot is an even number of bytes.

    ``head_size_v`` plays no part: V is packed as wide as K.
    Source: vLLM 0.29.0 to 0.33.0, ``TurboQuantConfig``; the order is that of ``triton_turboquant_store.py``.
    """
    key_bits, value_bits = _TURBOQUANT_BITS[mode]
    norm = [] if key_bits == 8 else [("K norm", 1, 16)]
    return _format([("K", head_size, key_bits), *norm, ("V", head_size, value_bits), ("V scale", 1, 16),
                    ("V zero", 1, 16)], align=2)


def ultraquant_format(head_size: int) -> SlotFormat:
    """Return 4-bit K codes, their 8-bit scales, then the same of V; one scale for 32 elements.

    Source: vLLM 0.32.0 and 0.33.0, ``vllm/v1/attention/ops/ultraquant/format.py``.
    """
    if head_size % _ULTRAQUANT_GROUP:
        raise LayoutError("head_size", head_size, f"must be a multiple of {_ULTRAQUANT_GROUP} for UltraQuant")
    scales = head_size // _ULTRAQUANT_GROUP
    parts = [("K", head_size, 4), ("K scale", scales, 8), ("V", head_size, 4), ("V scale", scales, 8)]
    return _format(parts, align=1)


def octave_format(mode: KVQuantMode, head_size: int, rotary_dim: int | None) -> SlotFormat:
    """Return K codes (4 bits where RoPE turns, 3 elsewhere), V codes, then the fp16 scales of K's blocks and of V.

    ``rotary_dim``: elements of a head that RoPE turns, from the model's config; needed for every Octave format.
    Source: vLLM 0.33.0, ``OctaveFormat`` in ``vllm/v1/attention/ops/rocm_octave.py``.
    """
    if rotary_dim is None:
        raise LayoutError("rotary_dim", rotary_dim, "must be known to size an Octave cache",
                          "Give Machine(rotary_dim=...), head_size x partial_rotary_factor of the model's config")
    compact = mode == KVQuantMode.OCTAVE_K3V3_COMPACT
    if compact and head_size & (head_size - 1):
        raise LayoutError("head_size", head_size, "must be a power of two for the compact Octave format")
    for name, value in (("head_size", head_size), ("rotary_dim", rotary_dim)):
        if value % _OCTAVE_BLOCK:
            raise LayoutError(name, value, f"must be a multiple of {_OCTAVE_BLOCK} for Octave")
    if rotary_dim > head_size:
        raise LayoutError("rotary_dim", rotary_dim, f"must not exceed head_size {head_size}")
    wide = 0 if compact else rotary_dim
    scales = 1 if compact else head_size // _OCTAVE_BLOCK
    value_bits = 4 if mode == KVQuantMode.OCTAVE_K3V4 else 3
    keys = [("K rope", wide, 4), ("K nope" if wide else "K", head_size - wide, 3)]
    return _format([*keys, ("V", head_size, value_bits), ("K scale", scales, 16), ("V scale", 1, 16)],
                   align=4 if compact else 8)
