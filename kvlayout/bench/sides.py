"""Which elements of a token a kernel is handed as key and as value, and where in a state each of them belongs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError
from kvlayout.interior import Interior
from kvlayout.spec import AttentionSpec

_MOST_TOKEN_BYTES = 1 << 20  # each element is looked at
_CURE = "Give backend=, an object with supported_kv_cache_layouts() and interior(spec), that names K and V"


@dataclass(frozen=True, eq=False)
class Side:
    """Key or value of one token: [heads, width] elements.

    ``slot`` and ``byte``: flat arrays of heads x width, the head slot and the byte inside the state where each
    element begins, bytes counted as the interior's fields do.
    """

    name: str
    heads: int
    width: int
    slot: np.ndarray
    byte: np.ndarray


def token_sides(spec: AttentionSpec, interior: Interior) -> tuple[Side, Side]:
    """Return the key and the value side of a token.

    The value is what the fields named V, V scale ... hold; the key is all the rest but padding: a kernel is handed
    bytes as they are to be stored, scales behind their values. Raises LayoutError where a field is "packed",
    or a side doesn't divide among ``num_kv_heads``, and for a token of more bytes than a kernel can be tried with.
    """
    token_bytes = spec.num_heads * spec.state_content_size_bytes
    if token_bytes > _MOST_TOKEN_BYTES:
        raise LayoutError("spec", spec, f"has tokens of {token_bytes:,} bytes, more than a kernel is tried with",
                          f"Use num_kv_heads and head_size of at most {_MOST_TOKEN_BYTES:,} bytes a token")
    item = dtype_size_bytes(spec.dtype)
    places: dict[str, list[tuple[int, int]]] = {"K": [], "V": []}
    for slot in range(spec.num_heads):
        for begin, field in interior.slot_fields(slot):
            if field.name == "padding":
                continue
            if field.name == "packed":
                raise LayoutError("spec", spec, "has a page that is packed in an order that nobody declared", _CURE)
            if begin % item or field.size_bytes % item:
                raise LayoutError("interior", field.name, f"must begin and end at whole {spec.dtype} elements")
            side = "V" if field.is_value else "K"
            places[side] += [(slot, byte) for byte in range(begin, begin + field.size_bytes, item)]
    sides = []
    for name, found in places.items():
        if len(found) % spec.num_kv_heads:
            raise LayoutError("interior", len(found), f"elements of {name} don't divide among {spec.num_kv_heads} "
                              "heads", _CURE)
        both = np.array(found, dtype=np.int64).reshape(-1, 2)
        sides.append(Side(name, spec.num_kv_heads, len(found) // spec.num_kv_heads, both[:, 0], both[:, 1]))
    return tuple(sides)
