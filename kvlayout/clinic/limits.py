"""Where offsets inside one layer's view leave 31 or 32 bits, in bytes and in elements.

A kernel that multiplies a block id by the block stride does so inside one layer's view, with the view's own block
stride: the packed block's where layers lie side by side, not the page's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlayout.address import AddressMap
from kvlayout.clinic.wording import layers_text
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.finding import Finding
from kvlayout.geometry import view_dtype

LIMITS = (2**31, 2**32)
_MOST_WRAPS = 1 << 16


@dataclass(frozen=True)
class OffsetLimit:
    """The first block of some layers' views that begins at or past a limit.

    Attributes:
        layers: the layers whose views have this geometry
        unit: "bytes" or "elements", of ``limit`` and ``last_offset``
        unit_bytes: bytes of one unit
        limit: 2**31 or 2**32
        block_stride: bytes from block to block of one layer's view
        first_block: the first block id whose start, counted from the view's own, is >= ``limit``, whether or not the
            pool has that many; kernel blocks where those split
        num_blocks: blocks of the view
        last_offset: the largest offset in the view, through whichever axis it is reached
    """

    layers: tuple[str, ...]
    unit: str
    unit_bytes: int
    limit: int
    block_stride: int
    first_block: int
    num_blocks: int
    last_offset: int

    @property
    def is_reached(self) -> bool:
        """The pool has a block that begins at or past the limit."""
        return self.first_block < self.num_blocks

    @property
    def is_passed(self) -> bool:
        """Some byte of the view lies at or past the limit, be it inside the last block or in another head's plane."""
        return self.last_offset >= self.limit


def limit_rows(layers: Sequence[str], item_bytes: int, block_stride: int, num_blocks: int,
               last_byte: int) -> list[OffsetLimit]:
    """Return the rows of one view: strides and its last byte's offset in bytes, elements of ``item_bytes``."""
    rows = []
    for unit, size in (("bytes", 1), ("elements", item_bytes)):
        for limit in LIMITS:
            rows.append(OffsetLimit(tuple(layers), unit, size, limit, block_stride, -(-limit * size // block_stride),
                                    num_blocks, last_byte // size))
    return rows


def offset_limits(address_map: AddressMap) -> list[OffsetLimit]:
    """Return, for each distinct view, unit and limit, the first block beyond; nothing for views without any byte."""
    check_type("address_map", address_map, AddressMap)
    views: dict[tuple, list[str]] = {}
    for region in address_map.regions:
        shape, strides = region.geometry.shape[1:], region.geometry.strides[1:]
        if 0 in shape or strides[0] <= 0:
            continue
        last = sum((n - 1) * s for n, s in zip(shape, strides))
        key = (dtype_size_bytes(view_dtype(region.spec)), strides[0], shape[0], last)
        views.setdefault(key, []).extend(region.tensor.layers)
    return [row for key, layers in views.items() for row in limit_rows(layers, *key)]


def lint_limits(rows: Sequence[OffsetLimit]) -> list[Finding]:
    """Return a warning for each limit that a view reaches; bytes and elements are one where an element is a byte."""
    found = []
    one_byte = {row.layers for row in rows if row.unit == "elements" and row.unit_bytes == 1}
    for row in rows:
        if not row.is_passed or (row.unit == "elements" and row.unit_bytes == 1):
            continue
        unit = "bytes (= elements)" if row.layers in one_byte else row.unit
        bits = "int32" if row.limit == 2**31 else "uint32"
        numbers = {"unit": row.unit, "limit": row.limit, "block_stride": row.block_stride,
                   "first_block": row.first_block, "num_blocks": row.num_blocks, "last_offset": row.last_offset}
        if row.is_reached:
            start = row.first_block * row.block_stride // row.unit_bytes
            text = (f"Block {row.first_block:,} of {layers_text(row.layers)} begins {start:,} {unit} into its "
                    f"view ({row.block_stride:,} bytes a block), so from there on {bits} offsets in {unit} wrap; "
                    f"the pool has {row.num_blocks:,} blocks.")
            where = {"layer": row.layers[0], "block": row.first_block}
        else:
            text = (f"No block of {layers_text(row.layers)} begins past 2^{row.limit.bit_length() - 1} {unit}, "
                    f"but its view ends at offset {row.last_offset:,}: {bits} offsets in {unit} wrap at its end.")
            where = {"layer": row.layers[0], "block": row.num_blocks - 1}
        found.append(Finding(f"{bits}-offset", "warning", text, numbers, where,
                             "Multiply block id and block stride in 64 bits"))
    return found


def wrapped(offset: int, bits: int = 32) -> int:
    """Return what a signed product of ``bits`` bits makes of ``offset`` (bytes or elements alike)."""
    offset, bits = _whole("offset", offset), check_int("bits", bits, minimum=2)
    if bits > 4096:
        raise LayoutError("bits", bits, "must be at most 4,096")
    low = offset & (1 << bits) - 1
    return low - (1 << bits) if low >> (bits - 1) else low


def unwrapped(value: int, block_stride: int, num_blocks: int, bits: int = 32) -> list[tuple[int, int]]:
    """Return each (block, rest) whose offset ``block * block_stride + rest`` wraps to ``value`` in ``bits`` bits.

    ``value``, ``block_stride`` and ``rest`` are of one unit; ``value`` may be negative (int32) or not (uint32). The
    true offset is left out where it is ``value`` itself, for then nothing wrapped.
    """
    value = _whole("value", value)
    block_stride = check_int("block_stride", block_stride, minimum=1)
    end = block_stride * check_int("num_blocks", num_blocks, minimum=0)
    step = 1 << min(check_int("bits", bits, minimum=2), 4096)
    first = max(value + step, value % step)
    if end - first > step * _MOST_WRAPS:
        raise LayoutError("num_blocks", num_blocks, f"gives more than {_MOST_WRAPS:,} ways to wrap",
                          "Give the pool's own block count and stride")
    return [divmod(offset, block_stride) for offset in range(first, end, step)]


def _whole(name: str, value: object) -> int:
    """As check_int, but of either sign."""
    return check_int(name, value, minimum=-(1 << 4096))
