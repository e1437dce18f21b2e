"""The kinds of cache tensor that are known, and in which physical orders each of them lies in memory.

Axes are letters: L layer, B block, H head slot, N token state, C content, 2 for K and V, X for the outer part of a
content that is split in two. All strides are elements.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Order:
    """A layout's axes from outermost to innermost; those in ``loose`` may step further than what lies inside.

    ``layers_between``: the axis whose step holds the other layers ("" where none does).
    """

    layout: str
    axes: str
    loose: str
    layers_between: str = ""


@dataclass(frozen=True)
class Template:
    """A kind of cache tensor: its logical axes, and the physical orders that it comes in."""

    axes: str
    note: str
    orders: tuple[Order, ...]
    is_packed: bool = False
    is_latent: bool = False
    has_head_size: bool = True
    may_be_half: bool = False


def fit(order: Order, extent: dict[str, int], step: dict[str, int], content: int) -> float | None:
    """Return how many times further than dense the layers' axis (or else the block's) steps; None if it doesn't fit.

    ``content``: elements of the view along C, where its rows may be wider. Axes of one element step anywhere; 2 where
    the axis that would hold other layers is one of those.
    """
    if content > 1 and step["C"] != 1:
        return None
    watched = order.layers_between or "B"
    if watched == "H" and extent["H"] == 1:
        watched = "B"  # the one head slot's step is the block's
    dense, ratio = extent["C"], 2.0 if order.layers_between else 1.0
    for axis in reversed(order.axes[:-1]):
        if extent[axis] == 1:
            continue
        if step[axis] < dense or (step[axis] > dense and axis not in order.loose):
            return None
        if axis == watched:
            ratio = step[axis] / dense
        dense = step[axis] * extent[axis]
    return ratio


def _old(*orders: tuple[str, str, str]) -> tuple[Order, ...]:
    return tuple(Order(*order) for order in orders)


def _two_sided(planes: str, blocks: str, *, planes_first: bool, inner: str = "NH") -> tuple[Order, ...]:
    """Orders of a cache with an axis of 2: planes of all K and all V, or both in each block."""
    found = []
    for outer in ((planes, blocks) if planes_first else (blocks,)):
        for layout, axes in (("NHD", "NH"), ("HND", "HN")) if inner == "NH" else (("NHD", inner), ("HND", inner)):
            found.append((layout, f"{outer}{axes}C", outer))
    return _old(*found)


_LATENT = tuple(Order(layout, "BNC", "B", "B" if layout.startswith("B") else "") for layout in (
    "LBNHC", "LBHNC", "LHBNC", "BLNHC", "BLHNC", "BHLNC"))

TEMPLATES = (
    Template("BHNC", "today's page, K then V in each state", (
        Order("LBHNC", "BHNC", "B"), Order("LBNHC", "BNHC", "B"), Order("LHBNC", "HBNC", "B"),
        Order("BLHNC", "BHNC", "B", "B"), Order("BLNHC", "BNHC", "B", "B"), Order("BHLNC", "BHNC", "BH", "H"),
    ), is_packed=True, may_be_half=True),
    Template("BNC", "MLA's latent, or one head slot whose axis was dropped", _LATENT, is_latent=True),
    Template("BNHC", "K or V alone", _old(("NHD", "BNHC", "B"), ("HND", "BHNC", "B")), may_be_half=True),
    Template("2BNHC", "planes of K and of V first", _two_sided("2B", "B2", planes_first=True)),
    Template("B2NHC", "K and V in each block", _two_sided("2B", "B2", planes_first=False)),
    Template("2BHNC", "planes of K and of V first, heads before tokens", _two_sided("2B", "B2", planes_first=True)),
    Template("B2HNC", "K and V in each block, heads before tokens", _two_sided("2B", "B2", planes_first=False)),
    Template("2BNC", "planes of K and of V first, heads folded into C or one",
             _two_sided("2B", "B2", planes_first=True, inner="N"), has_head_size=False),
    Template("B2NC", "K and V in each block, heads folded into C or one",
             _two_sided("2B", "B2", planes_first=False, inner="N"), has_head_size=False),
    Template("2BC", "planes of K and of V first, a block's tokens and heads folded into C",
             _two_sided("2B", "B2", planes_first=True, inner=""), has_head_size=False),
    Template("BHXNC", "K alone, its head size split in two for vector loads", _old(("HND", "BHXNC", "B"))),
    Template("LBHNC", "all layers of today's pages, K then V in each state", (
        Order("LBHNC", "LBHNC", "LB"), Order("LBNHC", "LBNHC", "LB"), Order("LHBNC", "LHBNC", "L"),
        Order("BLHNC", "BLHNC", "BL"), Order("BLNHC", "BLNHC", "BL"), Order("BHLNC", "BHLNC", "B"),
    ), is_packed=True),
    Template("LBNC", "all layers of MLA's latents", (
        *(Order(layout, "LBNC", "LB") for layout in ("LBNHC", "LBHNC", "LHBNC")),
        *(Order(layout, "BLNC", "BL") for layout in ("BLNHC", "BLHNC", "BHLNC")),
    ), is_latent=True),
    Template("L2BNHC", "all layers, planes of K and of V first", _old(
        ("NHD", "L2BNHC", "L2B"), ("HND", "L2BHNC", "L2B"))),
    Template("LB2NHC", "all layers, K and V in each block", _old(
        ("NHD", "LB2NHC", "LB2"), ("HND", "LB2HNC", "LB2"))),
)
