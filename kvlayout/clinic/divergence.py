"""What a comparison of a formula with the address map gives, and the same in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvlayout.address import Owner, Padding
from kvlayout.clinic.formula_hits import Hit
from kvlayout.clinic.wording import plural


class Coordinate(NamedTuple):
    """A layer's name, and indices as the address map counts: kernel blocks where those split, element not byte."""

    layer: str
    block: int
    head: int
    token: int
    element: int


@dataclass(frozen=True, eq=False)
class Divergence:
    """How a formula differs from the address map; offsets are bytes from the allocation's start.

    Attributes:
        first, expected, found: the first coordinate that diverges (None: none), where it lies and where the formula
            puts it
        found_end: the byte behind the last one touched there
        hit_offset, hits: the first wrong byte touched there (``found``, or behind it where that is right), and whose
            it is: owners, and paddings of groups that don't own it; none outside
        share: share (0 to 1) of the checked coordinates that diverge
        outside: how many different bytes are touched that lie before the allocation or past its end
        victims: whose bytes the divergent coordinates touch, largest first, at most 16 of ``num_victims``
        checked: number of coordinates
        sampled, sample: whether some were left out, and what part of each axis was checked, in words
        layers, blocks: what was checked: names, and ascending block ids
        map: float [layers, blocks], share of each page's checked coordinates that diverge; NaN where none was checked
        cells: float [head, token], share of the elements that diverge in the first divergent page, or if there is
            none in the first that was checked; indices that are held at 0 have one entry. None where nothing was
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

    @property
    def sampled(self) -> bool:
        """Whether coordinates were left out."""
        return bool(self.sample)

    @property
    def is_right(self) -> bool:
        """Whether something was checked and nothing diverges."""
        return self.checked > 0 and self.first is None

    def sentences(self) -> list[str]:
        """Return the result as plain text, the most important first."""
        sampled = f" ({', '.join(self.sample)})" if self.sample else ""
        checked = f"{plural(self.checked, 'coordinate')} that {'was' if self.checked == 1 else 'were'} checked"
        if not self.checked:
            return ["There is nothing to check: these layers have no byte."]
        if self.first is None:
            text = [f"Right at {'all ' if self.checked > 1 else ''}{checked}{sampled}."]
        else:
            share = f"{_percent(self.share)} of the " if self.checked > 1 else "The "
            text = [f"{share}{checked}{sampled} diverge{'' if self.checked > 1 else 's'}.", self._first_text(),
                    *map(_hit_text, self.hits)]
        if self.outside:
            text.append(f"{self.outside:,} bytes that it touches lie outside the allocation.")
        return text

    def _first_text(self) -> str:
        name, block, head, token, element = self.first
        where = f"{name}, block {block:,}, head {head}, token {token}, element {element:,}"
        if self.found == self.expected:
            return f"First at {where}: it begins at {self.found:,}, as it must, but byte {self.hit_offset:,}, " \
                   f"of those up to {self.found_end:,} that it touches, isn't its own."
        return f"First at {where}: it lies at {self.expected:,}, the formula gives {self.found:,}."


def _percent(share: float) -> str:
    """Never 0% or 100% of what is only nearly so."""
    text = f"{share:.1%}"
    return {"0.0%": "Under 0.1%", "100.0%": "Over 99.9%"}.get(text, text) if 0 < share < 1 else f"{share:.0%}"


def _hit_text(hit: Owner | Padding) -> str:
    if isinstance(hit, Owner):
        return (f"That byte is {hit.layer}, block {hit.block:,}, head {hit.head}, token {hit.state}, byte {hit.byte} "
                f"of the state ({hit.field}), in group {hit.group}.")
    if hit.layer is None:
        return f"In group {hit.group} nothing lies there."
    what = {"page": "padding of", "block": "padding of the packed block, behind", "pool": "nobody's byte, behind"}
    return f"In group {hit.group} that byte is {what[hit.kind]} {hit.layer}, block {hit.block:,}."
