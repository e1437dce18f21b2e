"""What a TMA descriptor says of a cache: its page, its block stride, and where 32-bit offsets end.

A descriptor names its axes inner first: extents in elements, strides in bytes. The block is the axis that steps
furthest; those inside it make the page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvlayout.clinic.readings import Reading, find_readings, numbers_in
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError, check_int

_MOST = 2**63 - 1
_CURE = "Give them as the descriptor does, inner first"
_ITEM_SIZES = (1, 2, 4, 8)  # bytes
_STRIDE_RULE = 16  # bytes: cuTensorMapEncodeTiled takes only multiples, but of the innermost axis
LIMITS = {"2^31 bytes": (31, False), "2^31 elements": (31, True), "2^32 bytes": (32, False),
          "2^32 elements": (32, True)}


@dataclass(frozen=True)
class DescriptorReading:
    """A descriptor's meaning.

    Attributes:
        dims: elements, inner first; ``byte_strides`` one for each; ``itemsize`` bytes
        block_axis: index of the block's axis in ``dims``; None where there is only one block
        num_blocks, block_stride: blocks, and bytes from one to the next
        page_bytes: of what the descriptor covers in one block
        pages_per_block: whole pages that a block stride holds; None where it isn't whole pages
        num_layers: layers that this is, if each has a page for K and one for V; None where those don't come out
        extent_bytes: num_blocks x block_stride
        first_blocks: {"2^31 bytes": the first block that begins there or beyond, None where all are below, ...}
        readings: of the same tensor as torch would show it, axes of one element left out
        notes: what to beware of
    """

    dims: tuple[int, ...]
    byte_strides: tuple[int, ...]
    itemsize: int
    block_axis: int | None
    num_blocks: int
    block_stride: int
    page_bytes: int
    pages_per_block: int | None
    num_layers: int | None
    extent_bytes: int
    first_blocks: dict[str, int | None]
    readings: tuple[Reading, ...]
    notes: tuple[str, ...]

    def sentences(self) -> list[str]:
        """Return the reading as plain text."""
        text = [f"{self.num_blocks:,} blocks of a page of {self.page_bytes:,} bytes, {self.block_stride:,} bytes "
                f"apart."]
        if self.pages_per_block is not None and self.pages_per_block > 1:
            layers = "" if self.num_layers is None else (
                f": {self.num_layers:,} layers, if K and V lie apart, or {self.pages_per_block:,}, if they don't")
            text.append(f"A block stride is {self.pages_per_block:,} pages{layers}.")
        text.append(f"The view spans {self.extent_bytes:,} bytes ({self.extent_bytes / 2**30:,.1f} GiB).")
        text += [f"It passes {limit} from block {block:,} on." for limit, block in self.first_blocks.items()
                 if block is not None]
        return [*text, *(reading.sentence for reading in self.readings), *self.notes]


def read_descriptor(dims, byte_strides, itemsize: int | str | None = None) -> DescriptorReading:
    """Return what a TMA descriptor says.

    ``dims``: elements, inner first. ``byte_strides``: one for each, or one fewer, without the innermost, as
    cuTensorMapEncodeTiled takes them. ``itemsize``: bytes of one element, or its type's name; None takes what the
    innermost axis steps, and raises LayoutError where the strides leave that out or it can't be an element.
    """
    dims = numbers_in("dims", dims, 1, 1, _CURE)
    strides = numbers_in("byte_strides", byte_strides, 0, 0, _CURE)
    if len(strides) not in (len(dims), len(dims) - 1):
        raise LayoutError("byte_strides", strides, f"must be one for each of the {len(dims)} dims, or one fewer")
    if itemsize is None:
        if len(strides) != len(dims) or strides[0] not in _ITEM_SIZES:
            raise LayoutError("itemsize", None, "isn't told by the strides: the innermost axis steps "
                              + (f"{strides[0]:,} bytes" if len(strides) == len(dims) else "what they leave out"),
                              "Give the bytes of one element: --itemsize, or Item size")
        itemsize = strides[0]
    itemsize = dtype_size_bytes(itemsize) if isinstance(itemsize, str) else check_int("itemsize", itemsize, minimum=1)
    if len(strides) == len(dims) - 1:
        strides = (itemsize, *strides)
    walked = [axis for axis, count in enumerate(dims) if count > 1 and axis > 0]
    block_axis = max(walked, key=lambda axis: strides[axis], default=None)
    page = itemsize * math.prod(count for axis, count in enumerate(dims) if axis != block_axis)
    blocks, step = (1, page) if block_axis is None else (dims[block_axis], strides[block_axis])
    extent = blocks * step
    if max(extent, page) > _MOST:
        raise LayoutError("dims", dims, "span more than 63 bits of bytes")
    pages = step // page if step and step % page == 0 else None
    return DescriptorReading(
        dims, strides, itemsize, block_axis, blocks, step, page, pages,
        pages // 2 if pages and pages > 1 and pages % 2 == 0 else None, extent,
        {limit: _first_block(step, blocks, 2**bits * (itemsize if elements else 1))
         for limit, (bits, elements) in LIMITS.items()},
        _readings(dims, strides, itemsize), tuple(_notes(dims, strides, itemsize, step, page)))


def _first_block(step: int, blocks: int, limit: int) -> int | None:
    first = -(-limit // step) if step else blocks
    return first if first < blocks else None


def _readings(dims, strides, itemsize) -> tuple[Reading, ...]:
    """Torch's words: outermost first, in elements; the axis that moves furthest is the block's."""
    kept = [axis for axis, count in enumerate(dims) if count > 1 or axis == 0]
    if len(kept) < 3 or any(strides[axis] % itemsize for axis in kept):
        return ()
    kept.reverse()
    return tuple(find_readings([dims[axis] for axis in kept], [strides[axis] // itemsize for axis in kept], itemsize))


def _notes(dims, strides, itemsize, step, page) -> list[str]:
    notes = []
    if strides[0] != itemsize:
        notes.append(f"The innermost axis steps {strides[0]:,} bytes, not one element of {itemsize}.")
    for axis, (count, stride) in enumerate(zip(dims, strides)):
        if axis and count > 1 and stride == 0:
            notes.append(f"Axis {axis} has {count:,} elements and stride 0: all of them are the same bytes.")
        elif axis and stride % _STRIDE_RULE:
            notes.append(f"Axis {axis} steps {stride:,} bytes, which TMA refuses: strides must be multiples of "
                         f"{_STRIDE_RULE} bytes, also of an axis of one element.")
    if 0 < step < page:
        notes.append(f"Blocks of {page:,} bytes lie {step:,} bytes apart: they share bytes.")
    return notes
