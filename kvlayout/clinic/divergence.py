"""What a comparison of a formula with the address map gives, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kvlayout.address import Owner, Padding
from kvlayout.clinic.formula_hits import Hit
from kvlayout.clinic.wording import block_words, plural


class Coordinate(NamedTuple):
    """A layer's name, and indices as the address map counts: kernel blocks where those split, element not byte."""

    layer: str
    block: int
    head: int
    token: int
    element: int


class Leaving(NamedTuple):
    """The first ``block`` of a layer (name) at which bytes outside the allocation are touched.

    ``for_good``: whether that holds for all blocks from there on that were checked.
    """

    layer: str
    block: int
    for_good: bool


@dataclass(frozen=True, eq=False)
class Divergence:
    """How a formula differs from the address map; offsets are bytes from the allocation's start.

    Attributes:
        first, expected, found: the first coordinate that diverges (None: none), where it lies and where the formula
            puts it
        found_end: the byte behind the last one touched there
        hit_offset, hits: the first wrong byte touched there (``found``, or behind it where that is right), and whose
            it is: owners, and paddings of groups that don't own it; none outside
        share: share (0 to 1) of the coordinates that diverge; estimated where ``sampled``, each checked one counted
            by the number that it stands for
        outside: how many different bytes the checked coordinates touch before the allocation or past its end
        victims: whose bytes the checked coordinates that diverge touch, largest first, at most 16 of ``num_victims``
        checked: number of coordinates
        sampled, sample: whether some were left out, and what part of each axis was checked, in words
        layers, blocks: what was checked: names, and ascending block ids
        map: float [layers, blocks], share of each page that diverges, as ``share``; NaN where none was checked
        cells: float [head, token], share of the elements that diverge in the first divergent page, or if there is
            none in the first that was checked; indices that are held at 0 have one entry. None where nothing was
        leaves: where the allocation is left, in the layers that do so at the lowest and at the highest block; between
            two checked blocks, of which only the second leaves it, by halves
        touches_nothing: whether the length is 0 at all coordinates that were checked
        kernel_blocks_per_block: {layer: blocks of the map in one of the manager}
    """

    first: Coordinate | None
    expected: int | None
    found: int | None
    found_end: int | None
    hit_offset: int | None
    hits: tuple[Owner | Padding, ...]
    share: float
    outside: int
    victims: tuple[Hit, ...]
    num_victims: int
    checked: int
    sample: tuple[str, ...]
    layers: tuple[str, ...]
    blocks: np.ndarray
    map: np.ndarray
    cells: np.ndarray | None
    leaves: tuple[Leaving, ...] = ()
    touches_nothing: bool = False
    kernel_blocks_per_block: Mapping[str, int] = field(default_factory=dict)

    @property
    def sampled(self) -> bool:
        """Whether coordinates were left out."""
        return bool(self.sample)

    @property
    def is_right(self) -> bool:
        """Whether something was checked and nothing diverges; a length of 0 shows nothing."""
        return self.checked > 0 and self.first is None and not self.touches_nothing

    def block_words(self, layer: str, block: int) -> str:
        """Return "block 5", or "kernel block 5 (manager block 2, part 2 of 2)" where the manager's are split."""
        return block_words(block, self.kernel_blocks_per_block.get(layer, 1))

    def sentences(self) -> list[str]:
        """Return the result as plain text, the most important first."""
        sampled = f" ({', '.join(self.sample)})" if self.sample else ""
        checked = f"{plural(self.checked, 'coordinate')} that {'was' if self.checked == 1 else 'were'} checked"
        if not self.checked:
            return ["There is nothing to check: these layers have no byte."]
        if self.first is None and self.touches_nothing:
            return [f"The length is 0 at {'all ' if self.checked > 1 else 'the '}{checked}{sampled}: nothing is "
                    f"touched, so this shows nothing.", "Give the bytes that are touched, such as page_bytes."]
        if self.first is None:
            text = [f"Right at {'all ' if self.checked > 1 else ''}{checked}{sampled}."]
        else:
            text = [self.share_text(), self._first_text(), *map(self._hit_text, self.hits)]
        if self.outside:
            text.append(f"{plural(self.outside, 'byte')} that it touches {'lies' if self.outside == 1 else 'lie'} "
                        f"outside the allocation{', at the coordinates of the sample alone' if self.sample else ''}.")
        for one in self.leaves:
            text.append(f"In {one.layer} it leaves the allocation at {self.block_words(one.layer, one.block)}"
                        f"{', and from there on at all that were checked' if one.for_good else ''}.")
        return text

    def share_text(self) -> str:
        """Return the share that diverges as a sentence; it says whether that is estimated."""
        if self.checked == 1:
            return "The 1 coordinate that was checked diverges."
        if not self.sample:
            return f"{_percent(self.share)} of the {self.checked:,} coordinates that were checked diverge."
        share = _percent(self.share)
        return (f"{share} of all coordinates diverge, estimated from the {self.checked:,} that were checked "
                f"({', '.join(self.sample)}).")

    def _first_text(self) -> str:
        name, block, head, token, element = self.first
        where = f"{name}, {self.block_words(name, block)}, head {head}, token {token}, element {element:,}"
        if self.found == self.expected:
            return f"First at {where}: it begins at {self.found:,}, as it must, but byte {self.hit_offset:,}, " \
                   f"of those up to {self.found_end:,} that it touches, isn't its own."
        return f"First at {where}: it lies at {self.expected:,}, the formula gives {self.found:,}."

    def _hit_text(self, hit: Owner | Padding) -> str:
        if hit.layer is None:
            return f"In group {hit.group} nothing lies there."
        block = self.block_words(hit.layer, hit.block)
        if isinstance(hit, Owner):
            return (f"That byte is {hit.layer}, {block}, head {hit.head}, token {hit.state}, byte {hit.byte} "
                    f"of the state ({hit.field}), in group {hit.group}.")
        what = {"page": "padding of", "block": "padding of the packed block, behind", "pool": "nobody's byte, behind"}
        return f"In group {hit.group} that byte is {what[hit.kind]} {hit.layer}, {block}."


def _percent(share: float) -> str:
    """Never 0% or 100% of what is only nearly so."""
    text = f"{share:.1%}"
    return {"0.0%": "Under 0.1%", "100.0%": "Over 99.9%"}.get(text, text) if 0 < share < 1 else f"{share:.0%}"
