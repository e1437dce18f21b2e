"""Interiors: the named fields (K, V, scales, latent, state ...) inside a page, as the kernels keep them.

A layout fixes where each (head slot, state) cell of C bytes lies. What the bytes inside mean is the backend's:
usually K then V of that state (scope "state"); sometimes an order over all states of one head slot (scope
"cell", for example K transposed); sometimes one over the whole page (scope "page", for example all scales at
the page's tail). A logical coordinate is always (head slot, state, byte), where ``byte`` counts through the
fields of that state in declared order; an interior says where that byte lies in its scope, and back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError, check_int
from kvlayout.spec import AttentionSpec, KVCacheSpec, MambaSpec

SCOPES = ("state", "cell", "page")


@dataclass(frozen=True)
class Field:
    """One kind of content.

    Attributes:
        name: "K", "V", "K scale", "latent", "state 0", "padding", "packed" ...
        offset: bytes from the start of the scope to element 0 of state 0 (and of the first slot that has it)
        num_elements: elements that one state has in one head slot
        element_bits: bits of one element; below 8 where several share a byte
        slots: (first, behind last) head slots that hold this field; None for all
        state_stride, head_stride: bytes from state to state and from slot to slot; only for wider scopes
        element_stride: bytes from element to element; None means side by side
    """

    name: str
    offset: int
    num_elements: int
    element_bits: int = 8
    slots: tuple[int, int] | None = None
    state_stride: int = 0
    head_stride: int = 0
    element_stride: int | None = None

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name.strip():
            raise LayoutError("Field.name", self.name, "must be a word", "Name it K, V, K scale, padding ...")
        for name, minimum in (("offset", 0), ("num_elements", 1), ("element_bits", 1)):
            check_int(f"Field.{name}", getattr(self, name), minimum=minimum)
        if self.num_elements * self.element_bits % 8:
            raise LayoutError("Field.num_elements", self.num_elements,
                              f"of {self.element_bits} bits must fill whole bytes")
        if self.element_stride is not None and self.element_bits % 8:
            raise LayoutError("Field.element_stride", self.element_stride, "needs elements of whole bytes")

    @property
    def is_value(self) -> bool:
        """Whether it belongs to V: "V", "V scale" ...; all other fields but padding are the key's."""
        return self.name.split()[0] == "V"

    @property
    def size_bytes(self) -> int:
        """Bytes of this field in one state and head slot."""
        return self.num_elements * self.element_bits // 8

    @property
    def unit(self) -> tuple[int, int]:
        """(bytes that lie side by side, bytes from one such piece to the next)."""
        if self.element_stride is None:
            return self.size_bytes, self.size_bytes
        return self.element_bits // 8, self.element_stride

    def in_slot(self, head: int) -> bool:
        """Whether head slot ``head`` holds this field."""
        return self.slots is None or self.slots[0] <= head < self.slots[1]


@dataclass(frozen=True)
class Interior:
    """The fields of a page, in the order in which a state's bytes are counted, and the scope they lie in."""

    fields: tuple[Field, ...]
    scope: str = "state"
    source: str = ""

    def __post_init__(self):
        object.__setattr__(self, "fields", tuple(self.fields))
        if self.scope not in SCOPES:
            raise LayoutError("scope", self.scope, f"must be one of {', '.join(SCOPES)}")

    def slot_fields(self, head: int) -> list[tuple[int, Field]]:
        """Return (byte where it begins inside a state, field) of head slot ``head``, in order."""
        found, begin = [], 0
        for field in self.fields:
            if field.in_slot(head):
                found.append((begin, field))
                begin += field.size_bytes
        return found

    def field_of(self, head: int, byte: int) -> tuple[str, int]:
        """Return (field name, element index) of one byte of a state in head slot ``head``."""
        for begin, field in self.slot_fields(head):
            if begin <= byte < begin + field.size_bytes:
                return field.name, (byte - begin) * 8 // field.element_bits
        raise LayoutError("byte", byte, f"is outside the fields of head slot {head}")

    def check(self, spec: KVCacheSpec) -> Interior:
        """Return self if the fields fill the pages of ``spec`` exactly once; LayoutError otherwise."""
        heads, states, content = spec.num_heads, spec.num_states, spec.state_content_size_bytes
        kinds = {tuple(self.slot_fields(head)): head for head in range(heads)}
        for placed, head in kinds.items():
            total = sum(field.size_bytes for _, field in placed)
            if total != content:
                raise LayoutError("fields", [field.name for _, field in placed],
                                  f"hold {total:,} bytes a state in head slot {head}, but C is {content:,} bytes",
                                  "Name what is left over 'padding'")
        if self.scope == "state":
            for placed in kinds:
                for begin, field in placed:
                    if field.offset != begin or field.element_stride is not None:
                        raise LayoutError("fields", field.name, f"must begin at byte {begin} of C, after the field "
                                          "before it", "List the fields in address order, or use scope 'cell'")
            return self
        size = states * content * (heads if self.scope == "page" else 1)
        for group in [range(heads)] if self.scope == "page" else [[head] for head in kinds.values()]:
            seen = np.zeros(size, dtype=bool)
            for head in group:
                positions = self.positions(head, np.arange(states)[:, None], np.arange(content)).ravel()
                if len(positions) and (positions.min() < 0 or positions.max() >= size):
                    raise LayoutError("fields", self.scope, f"reach byte {positions.max():,} of {size:,}")
                seen[positions] = True
            if not seen.all():
                raise LayoutError("fields", self.scope, f"must fill all {size:,} bytes exactly once; "
                                  f"byte {int(np.argmin(seen)):,} is left out and another taken twice")
        return self

    def positions(self, head: int, state: np.ndarray, byte: np.ndarray) -> np.ndarray:
        """Return where bytes of states in head slot ``head`` lie, in bytes from the start of the scope."""
        state, byte = np.broadcast_arrays(np.asarray(state, dtype=np.int64), np.asarray(byte, dtype=np.int64))
        found = np.full(state.shape, -1, dtype=np.int64)
        for begin, field in self.slot_fields(head):
            here = (byte >= begin) & (byte < begin + field.size_bytes)
            piece, rest = np.divmod(byte[here] - begin, field.unit[0])
            first = field.slots[0] if field.slots else 0
            found[here] = (field.offset + (head - first) * field.head_stride + state[here] * field.state_stride
                           + piece * field.unit[1] + rest)
        return found

    def coordinates(self, heads: int, states: int, positions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return (head slot, state, byte) of positions in a page (scope "page"), the inverse of :meth:`positions`."""
        inverse = self._inverse(tuple(range(heads)), states)
        return tuple(part[positions] for part in inverse)

    def cell_coordinates(self, head: int, states: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (state, byte) of positions in the cell of head slot ``head`` (scope "cell")."""
        inverse = self._inverse((head,), states)
        return inverse[1][positions], inverse[2][positions]

    @cached_property
    def _inverses(self) -> dict:
        return {}

    def _inverse(self, heads: tuple[int, ...], states: int):
        # A table over one page at most, made once: the declared strides may be any permutation.
        key = (heads, states)
        if key not in self._inverses:
            content = sum(field.size_bytes for _, field in self.slot_fields(heads[0]))
            table = np.zeros((3, len(heads) * states * content), dtype=np.int64)
            state, byte = np.meshgrid(np.arange(states), np.arange(content), indexing="ij")
            for head in heads:
                positions = self.positions(head, state, byte)
                table[0][positions], table[1][positions], table[2][positions] = head, state, byte
            self._inverses[key] = table
        return self._inverses[key]


def state_interior(parts: list[tuple], content_bytes: int, source: str = "") -> Interior:
    """Return an interior of side-by-side fields inside C from (name, num_elements, element_bits) parts.

    Bytes of C that the parts leave over become "padding". Raises LayoutError if the parts don't fit.
    """
    fields, begin = [], 0
    for name, num_elements, element_bits in parts:
        if num_elements:
            fields.append(Field(name, begin, num_elements, element_bits))
            begin += fields[-1].size_bytes
    if begin > content_bytes:
        raise LayoutError("parts", parts, f"hold {begin:,} bytes, more than C, {content_bytes:,} bytes")
    if begin < content_bytes:
        fields.append(Field("padding", begin, content_bytes - begin))
    return Interior(tuple(fields), source=source)


def default_interior(spec: KVCacheSpec) -> Interior:
    """Return what a page holds if no backend says otherwise: K then V, one latent, or each state tensor.

    A page that was repacked (``state_content_bytes`` or ``num_head_slots``) is one field "packed".
    """
    content = spec.state_content_size_bytes
    if isinstance(spec, MambaSpec):
        return state_interior([(f"state {i}", math.prod(shape), 8 * dtype_size_bytes(dtype))
                               for i, (shape, dtype) in enumerate(zip(spec.shapes, spec.dtypes))], content)
    if not isinstance(spec, AttentionSpec) or spec.state_content_bytes is not None or spec.num_head_slots is not None:
        return state_interior([("packed", content, 8)], content)
    bits = 8 * dtype_size_bytes(spec.dtype)
    if spec.head_size_v == 0:
        return state_interior([("latent", spec.head_size, bits)], content)
    return state_interior([("K", spec.head_size, bits), ("V", spec.head_size_v, bits)], content)
