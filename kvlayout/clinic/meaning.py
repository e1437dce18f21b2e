"""What an address means: whose byte it is, or whose padding, what lies around it, and which mistake leads there."""

from __future__ import annotations

from dataclasses import dataclass

from kvlayout.address import AddressMap, Owner, Padding
from kvlayout.as_typed import whole_number
from kvlayout.clinic.block_bytes import kernel_ratio
from kvlayout.clinic.boundaries import Boundary, Neighbours, boundaries, neighbours
from kvlayout.clinic.wording import block_words, plural
from kvlayout.clinic.wraps import Beyond, Wrap, beyond, wraps_to
from kvlayout.errors import LayoutError, check_int, check_type

_MOST = 2**63
_SHOWN = 3
_POINTER = 1 << 40  # no cache is so large, and addresses of a process begin above


@dataclass(frozen=True)
class Meaning:
    """What a byte address means; all numbers are bytes.

    Attributes:
        address, base: as asked; ``offset`` is their difference, below 0 for an address before the base
        size_bytes: of the allocation
        where: "inside", "before the base" or "past the end"
        owners: one for each group that owns the byte
        padding_of: for each group that doesn't, whose padding it is; ``layer`` and ``block`` say behind which page
        nearest: the layer's, block's and head slot's boundary on both sides, for each owner
        neighbours: for each group, the nearest bytes that it owns below and above
        wrapped: the coordinates that a 32-bit product would have turned into this address
        beyond: for an address outside, the blocks before 0 or past the last that would lie there
        kernel_blocks: for each group, how many kernel blocks one manager block is; blocks are counted in these
    """

    address: int
    base: int
    offset: int
    size_bytes: int
    where: str
    owners: tuple[Owner, ...]
    padding_of: tuple[Padding, ...]
    nearest: tuple[Boundary, ...]
    neighbours: tuple[Neighbours, ...]
    wrapped: tuple[Wrap, ...]
    beyond: tuple[Beyond, ...]
    kernel_blocks: tuple[int, ...] = ()

    def sentences(self) -> list[str]:
        """Return everything as plain text, the most important first."""
        return [self._where(), *map(self._owned, self.owners), *map(self._padding, self.padding_of), *self._nearest(),
                *self._neighbours(), *self._mistakes()]

    def _where(self) -> str:
        asked = f" ({self.address:#x} from base {self.base:#x})" if self.base else ""
        if self.where == "before the base":
            return (f"Byte {self.offset:,}{asked} lies {plural(-self.offset, 'byte')} before the base of the "
                    "allocation.")
        if self.where == "past the end" and not self.base and self.offset >= _POINTER:
            return (f"0x{self.address:x} looks like a pointer; give the base, the address that the allocation begins "
                    f"at (data_ptr() of its buffer). As an offset it is "
                    f"{plural(self.offset - self.size_bytes, 'byte')} past the end.")
        if self.where == "past the end":
            return (f"Byte {self.offset:,}{asked} lies {plural(self.offset - self.size_bytes, 'byte')} past the end: "
                    f"the allocation has {plural(self.size_bytes, 'byte')}.")
        return f"Byte {self.offset:,}{asked} lies inside the allocation of {plural(self.size_bytes, 'byte')}."

    def block_words(self, group: int, block: int) -> str:
        """Return a block of a group in words: with its manager block where that is split into kernel blocks."""
        return block_words(block, self.kernel_blocks[group] if self.kernel_blocks else 1)

    def _name(self, owner: Owner) -> str:
        block = self.block_words(owner.group, owner.block)
        return f"{owner.layer}, {block}, head {owner.head}, state {owner.state}"

    def _owned(self, owner: Owner) -> str:
        return (f"Group {owner.group}: {self._name(owner)}, byte {owner.byte} of the state: {owner.field}, element "
                f"{owner.element}.")

    def _padding(self, padding: Padding) -> str:
        size = f"bytes {padding.start:,} to {padding.end:,}"
        if padding.layer is None:
            return f"Group {padding.group}: nothing of it lies here ({size})."
        behind = {"page": "padding inside the page of", "pool": "no bytes of this group, behind",
                  "block": "padding behind the last page of the packed block, after"}[padding.kind]
        block = self.block_words(padding.group, padding.block)
        return f"Group {padding.group}: {behind} {padding.layer}, {block} ({size})."

    def _nearest(self) -> list[str]:
        text = []
        for one in self.nearest:
            sides = [f"{plural(distance, 'byte')} {word}{f', {side} it ' + self._name(owner) if owner else ''}"
                     for distance, word, side, owner in ((one.below, "after its start", "before", one.before),
                                                         (one.above, "before its end", "behind", one.after))]
            text.append(f"Nearest {one.axis} boundary, group {one.group}: {'; '.join(sides)}.")
        return text

    def _neighbours(self) -> list[str]:
        owned, text = {owner.group for owner in self.owners}, []
        for one in self.neighbours:
            if one.group in owned:
                continue
            sides = [f"{plural(abs(self.offset - at), 'byte')} {word} {self._name(owner)}"
                     for at, word, owner in ((one.below_offset, "above", one.below),
                                             (one.above_offset, "below", one.above)) if owner]
            if sides:
                text.append(f"Nearest bytes of group {one.group}: {'; '.join(sides)}.")
        return text

    def _mistakes(self) -> list[str]:
        text = [one.sentence for one in self.beyond[:_SHOWN]]
        if self.wrapped:
            text.append("Overflow leads here from: " + " ".join(one.sentence for one in self.wrapped[:_SHOWN]))
        for what, found in (("places beyond the pool", self.beyond), ("overflows", self.wrapped)):
            if len(found) > _SHOWN:
                text.append(f"{len(found) - _SHOWN:,} more {what}.")
        return text


def explain_address(address: int | str, address_map: AddressMap, base: int | str = 0) -> Meaning:
    """Return the meaning of a byte address.

    ``address`` and ``base`` are ints or text, decimal or 0x hex; ``base`` is the address of the allocation's first
    byte, 0 where ``address`` is already an offset. An address outside the allocation is an answer, not an error.
    """
    check_type("address_map", address_map, AddressMap)
    address, base = parse_address(address), parse_address(base, "base")
    offset, size, groups = address - base, address_map.size_bytes, range(len(address_map.config.kv_cache_groups))
    where = "before the base" if offset < 0 else "past the end" if offset >= size else "inside"
    owners = tuple(address_map.owners(offset)) if where == "inside" else ()
    padding = tuple(address_map.padding_of(offset)) if where == "inside" else ()
    nearest = tuple(one for owner in owners for one in boundaries(address_map, owner, offset))
    around = tuple(neighbours(address_map, offset, group) for group in groups)
    outside = tuple(beyond(address_map, offset)) if where != "inside" else ()
    return Meaning(address, base, offset, size, where, owners, padding, nearest, around,
                   tuple(wraps_to(address_map, offset)), outside,
                   tuple(kernel_ratio(address_map, group) for group in groups))


def parse_address(text: int | str, argument: str = "address") -> int:
    """Return an address given as an int or as text: decimal (1,024 and 1_024 too) or 0x hex, below 2^64."""
    if not isinstance(text, str):
        number = check_int(argument, text, minimum=-_MOST)
    else:
        number = whole_number(text, hexadecimal=True)
        if number is None:
            raise LayoutError(argument, text, "is not an address",
                              "Write a byte offset or address, such as 68,681,728 or 0x4180000")
    if not -_MOST <= number < 2 * _MOST:
        raise LayoutError(argument, text, "must be an address that 64 bits hold")
    return number
