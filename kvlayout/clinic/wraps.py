"""Which coordinates a 32-bit product would have turned into an address, and which an unchecked block id leads to.

A kernel that computes ``block * block_stride`` in int32 or uint32, in bytes or in elements of the cache's type, and
adds the rest in 64 bits, lands a multiple of 2^32 units below the byte that it means. So each candidate is found
from the address itself: move it up by k x 2^32 units, ask who owns that byte, and see whether its block's product
wraps k times. Block -1 is the one that lands above.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

from kvlayout.address import AddressMap
from kvlayout.clinic.block_bytes import kernel_ratio
from kvlayout.clinic.wording import block_words
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.geometry import view_dtype
from kvlayout.region import Region
from kvlayout.strided import StridedSet

_MOST_OWNERS = 64  # of one address, in a config that gives several coordinates the same byte
_MOST_PERIODS = 4096  # multiples of 2^32 that are looked into: 16 TiB


@dataclass(frozen=True)
class Wrap:
    """A coordinate whose address a product of 32 bits turns into the one asked for.

    Attributes:
        integer: "int32" or "uint32"
        unit: "bytes" or "elements" of ``item_bytes`` bytes
        layer, block, head, state, byte: what was meant; blocks as the map counts them
        product, wrapped: ``block * block_stride`` in that unit, and what the integer makes of it
        offset: byte offset of what was meant
    """

    integer: str
    unit: str
    item_bytes: int
    layer: str
    block: int
    head: int
    state: int
    byte: int
    product: int
    wrapped: int
    offset: int
    kernel_blocks: int = 1  # that one manager block is

    @property
    def sentence(self) -> str:
        """What happened, with its numbers."""
        stride = self.product // self.block if self.block else 0
        place = f"head {self.head}, state {self.state}, byte {self.byte}"
        block = block_words(self.block, self.kernel_blocks)
        return (f"{block[0].upper()}{block[1:]} of {self.layer} ({place}) lies at {self.offset:,}; {self.block:,} x "
                f"{stride:,} = {self.product:,} {self.unit} wraps to {self.wrapped:,} in {self.integer}.")


@dataclass(frozen=True)
class Beyond:
    """Where an address outside the allocation lies if a layer's blocks went on, before block 0 or past the last."""

    layer: str
    block: int
    head: int
    state: int
    kernel_blocks: int = 1  # that one manager block is

    @property
    def sentence(self) -> str:
        """The coordinate, as text."""
        block = block_words(self.block, self.kernel_blocks)
        if self.block < 0:
            return (f"It is where {block} of {self.layer} would lie (head {self.head}, state "
                    f"{self.state}): a negative slot or block id that wasn't ignored.")
        return (f"It is where {block} of {self.layer} would lie (head {self.head}, state {self.state}): "
                "a block id beyond the pool.")


def wraps_to(address_map: AddressMap, offset: int) -> list[Wrap]:
    """Return every coordinate that a 32-bit product would have turned into byte ``offset``, nearest first."""
    found = []
    for region in address_map.regions:
        ratio = kernel_ratio(address_map, region.group)
        item = dtype_size_bytes(view_dtype(region.spec))
        for unit, size in (("bytes", 1), ("elements", item)):
            if size == 1 and unit == "elements" or region.geometry.strides[1] % size:
                continue
            found += [replace(one, kernel_blocks=ratio) for one in _wraps_in(region, offset, unit, size)]
    return sorted(found, key=lambda wrap: (wrap.offset, wrap.layer, wrap.integer, wrap.unit))


def _wraps_in(region: Region, offset: int, unit: str, size: int) -> list[Wrap]:
    period, stride = size << 32, region.geometry.strides[1]
    found = _negative_block(region, offset, unit, size)
    # From the first multiple that leads into the region to the last.
    first = max(1, -((offset - region.addresses.offset) // period))
    last = min((region.addresses.end - 1 - offset) // period, first + _MOST_PERIODS)
    for times in range(first, last + 1):
        true = offset + times * period
        for local in islice(region.addresses.all_indices(true), _MOST_OWNERS):
            product = local[1] * stride // size
            for integer, wrapped in (("int32", (product + (1 << 31)) % (1 << 32) - (1 << 31)),
                                     ("uint32", product % (1 << 32))):
                if product - wrapped == times << 32:
                    head, state, byte = region.logical(true, local)
                    layer, block = region.tensor.layers[local[0]], local[1]
                    found.append(Wrap(integer, unit, size, layer, block, head, state, byte, product, wrapped, true))
    return found


def _negative_block(region: Region, offset: int, unit: str, size: int) -> list[Wrap]:
    """Block -1, of an ignored slot or a padded table, made positive by uint32."""
    strides, (layers, _, *cell) = region.geometry.strides, region.geometry.shape
    true, found = offset - (size << 32), []
    if region.addresses.is_empty:
        return []
    for local in range(layers):
        page = region.geometry.offset + local * strides[0] - strides[1]
        for index in islice(StridedSet(page, (1, 1, *cell), strides).all_indices(true), _MOST_OWNERS):
            # A page-wide interior reads its position from the page's start, here that of block -1.
            head, state, byte = region.logical(true, (local, -1, *index[2:]))
            product = -strides[1] // size
            found.append(Wrap("uint32", unit, size, region.tensor.layers[local], -1, head, state, byte, product,
                              product % (1 << 32), true))
    return found


def beyond(address_map: AddressMap, offset: int) -> list[Beyond]:
    """Return, for an offset outside the allocation, the block of each layer that would lie there, nearest first."""
    found = []
    for region in address_map.regions:
        strides, shape = region.geometry.strides, region.geometry.shape
        if region.addresses.is_empty or not strides[1]:
            continue
        ratio = kernel_ratio(address_map, region.group)
        for local, name in enumerate(region.tensor.layers):
            base = region.geometry.offset + local * strides[0]
            # Blocks are counted from so far below that the address has an index.
            behind = max(0, -((offset - base) // strides[1]))
            ahead = max(shape[1], (offset - base) // strides[1] + 1)
            going_on = StridedSet(base - behind * strides[1], (behind + ahead, *shape[2:]), strides[1:])
            for block, head, state, _ in islice(going_on.all_indices(offset), _MOST_OWNERS):
                if not 0 <= block - behind < shape[1]:
                    found.append(Beyond(name, block - behind, head, state, ratio))
    last = address_map.config.num_blocks
    return sorted(found, key=lambda one: (abs(one.block if one.block < 0 else one.block - last), one.layer))
