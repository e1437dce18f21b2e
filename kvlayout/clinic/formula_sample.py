"""Which coordinates a formula is checked at: all of them where that is cheap, else a stated choice.

The choice keeps what goes wrong apart: the first and last blocks, those around 2^31 and 2^32 bytes and elements, the
first and last element of each field; and beyond these an even sample of each axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.arrays import integers
from kvlayout.clinic.formula_names import item_bytes
from kvlayout.errors import LayoutError
from kvlayout.region import Region

BUDGET = 1 << 20  # coordinates that are checked unasked
MOST = 1 << 24  # that are checked when layers or blocks are named
_LIMITS = (2**31, 2**32)
_FEW_ELEMENTS = 16  # where not all can be checked
_FEW_CELLS = ((32, 1), (8, 2), (3, 3))  # heads and tokens each, where more than so many budgets would be spent
_FEWEST_BLOCKS = 12
_MOST_LAYERS = 128


@dataclass(frozen=True)
class Sample:
    """``layers``: indices in the address map; ``axes``: {tensor index: (block, head, token, element) indices}.

    ``says``: in words, what part of each axis that is; empty where nothing is left out. ``layer_weights`` and
    ``weights`` (as ``axes``): how many indices each of them stands for, itself among them.
    """

    layers: tuple[int, ...]
    axes: dict[int, tuple[np.ndarray, ...]]
    says: tuple[str, ...]
    layer_weights: np.ndarray
    weights: dict[int, tuple[np.ndarray, ...]]


def choose(address_map: AddressMap, named: frozenset[str], layers: object, blocks: object, cost: int,
           unasked: int = BUDGET) -> Sample:
    """Return the coordinates to check.

    ``named``: axes that aren't held at 0; ``layers`` and ``blocks``: what to check, or None; ``cost``: how much more
    than a comparison each coordinate costs; ``unasked``: how many comparisons are made where neither is given.
    Raises LayoutError for what isn't there and for too many.
    """
    wanted = _layers(address_map, layers, "layer" in named)
    regions = {address_map.region(layer).tensor_index: address_map.region(layer) for layer in wanted}
    fixed = None if blocks is None else _blocks(blocks, max((r.geometry.shape[1] for r in regions.values()),
                                                            default=0))
    axes = {index: _whole(region, named, fixed) for index, region in regions.items()}
    budget = unasked if layers is None and blocks is None else MOST
    if _total(address_map, wanted, axes) * cost <= budget:
        return _sample(wanted, axes, [], wanted, axes)
    if layers is None or blocks is None:
        sample = _fewer(address_map, wanted, regions, axes, unasked // cost, layers is None, blocks is None)
        if _total(address_map, list(sample.layers), sample.axes) * cost <= MOST:
            return sample
    raise LayoutError("layers" if blocks is None else "blocks", f"{len(wanted):,} layers, up to "
                      f"{max(len(one[0]) for one in axes.values()):,} blocks each",
                      f"give more than {MOST // cost:,} coordinates to check", "Name fewer of them")


def _fewer(address_map: AddressMap, layers: list[int], regions: dict[int, Region], axes: dict, budget: int,
           fewer_layers: bool, fewer_blocks: bool) -> Sample:
    says, all_layers, whole_axes = [], layers, axes

    def cut(name: str, place: int, pick) -> None:
        nonlocal axes
        before = axes
        axes = {index: (*one[:place], pick(regions[index], one[place]), *one[place + 1:])
                for index, one in axes.items()}
        most = max(before, key=lambda index: len(before[index][place]))
        whole, kept = len(before[most][place]), len(axes[most][place])
        says.extend([f"{kept:,} of {whole:,} {name}s"] if kept < whole else [])

    least = _FEWEST_BLOCKS if fewer_blocks else None
    if _total(address_map, layers, axes) > budget:
        cut("element", 3, _elements)
    for most, budgets in _FEW_CELLS:
        if _total(address_map, layers, axes, least) > budget * budgets:
            for place, name in ((1, "head"), (2, "token")):
                cut(name, place, lambda region, indices, most=most: _even(indices, most))
    if _total(address_map, layers, axes, least) > budget and fewer_layers and len(layers) > _MOST_LAYERS:
        says.append(f"{_MOST_LAYERS:,} of {len(layers):,} layers")
        layers = _even(np.array(layers), _MOST_LAYERS).tolist()
    if _total(address_map, layers, axes) > budget and fewer_blocks:
        most = max(_FEWEST_BLOCKS, budget // max(1, _total(address_map, layers, axes, 1)))
        special = np.unique([block for region in regions.values() for block in _crossings(region)] or [0])
        cut("block", 0, lambda region, blocks: _some_blocks(blocks, special, most))
    return _sample(layers, axes, says, all_layers, whole_axes)


def _sample(layers: list[int], axes: dict, says: list[str], all_layers: list[int], whole_axes: dict) -> Sample:
    # Only now is what remains listed: an axis may be as long as the pool.
    listed = {index: tuple(map(_listed, one)) for index, one in axes.items()}
    weights = {index: tuple(_stands_for(kept, whole) for kept, whole in zip(one, whole_axes[index]))
               for index, one in listed.items()}
    places = np.searchsorted(all_layers, layers)
    return Sample(tuple(layers), listed, tuple(says), _stands_for(places, range(len(all_layers))), weights)


def _listed(indices: range | np.ndarray) -> np.ndarray:
    return np.arange(len(indices)) if isinstance(indices, range) else indices


def _stands_for(kept: np.ndarray, whole: range | np.ndarray) -> np.ndarray:
    """How many of ``whole`` each of ``kept`` stands for: those left out count half for either neighbour.

    Where something changes, both sides of the change are kept, so nothing is left out across it.
    """
    found = np.ones(len(kept))
    if len(kept) < len(whole):  # then it is range(n): chosen indices are all kept
        gaps = (np.diff(kept) - 1) / 2
        found[:-1] += gaps
        found[1:] += gaps
        found[0] += kept[0]
        found[-1] += len(whole) - 1 - kept[-1]
    return found


def _layers(address_map: AddressMap, layers: object, named: bool) -> list[int]:
    if layers is None:
        return list(range(len(address_map.layers) if named else min(1, len(address_map.layers))))
    listed = [layers] if isinstance(layers, (str, int, np.integer)) else layers
    if not isinstance(listed, (Sequence, np.ndarray, range, set)) or not len(listed):
        raise LayoutError("layers", layers, "must be names or indices of layers", "Give for example [0, 3]")
    return sorted({address_map.layer_index(one) for one in listed})


def _blocks(blocks: object, count: int) -> np.ndarray:
    found = np.unique(np.atleast_1d(integers("blocks", list(blocks) if isinstance(blocks, (set, range)) else blocks)))
    if not found.size:
        raise LayoutError("blocks", blocks, "must be block ids", "Give for example [0, 99]")
    if found[0] < 0 or found[-1] >= count:
        wrong = int(found[0] if found[0] < 0 else found[-1])
        raise LayoutError("blocks", wrong, f"must be at least 0 and below the {count:,} blocks of these layers")
    return found


def _whole(region: Region, named: frozenset[str], blocks: np.ndarray | None) -> tuple[range | np.ndarray, ...]:
    _, *extents, content = region.geometry.shape
    extents.append(content // item_bytes(region))
    axes = [range(n if name in named else min(1, n))
            for name, n in zip(("block", "head", "token", "element"), extents)]
    if blocks is not None:
        axes[0] = blocks[blocks < extents[0]]
    return tuple(axes)


def _total(address_map: AddressMap, layers: list[int], axes: dict, blocks: int | None = None) -> int:
    total = 0
    for layer in layers:
        counts = [len(one) for one in axes[address_map.region(layer).tensor_index]]
        if blocks is not None:
            counts[0] = min(counts[0], blocks)
        total += math.prod(counts)
    return total


def _even(indices: range | np.ndarray, most: int) -> range | np.ndarray:
    if len(indices) <= most:
        return indices
    places = np.unique(np.linspace(0, len(indices) - 1, most).astype(np.int64))
    return places if isinstance(indices, range) else indices[places]


def _elements(region: Region, elements: range) -> range | np.ndarray:
    if len(elements) <= _FEW_ELEMENTS:
        return elements
    item = item_bytes(region)
    edges = {at // item for begin, field in region.interior.slot_fields(0)
             for at in (begin, begin + field.size_bytes - 1)}
    kept = np.array(sorted(edges)[:_FEW_ELEMENTS], dtype=np.int64)
    return np.union1d(kept, _even(elements, max(2, _FEW_ELEMENTS - len(kept))))


def _crossings(region: Region) -> list[int]:
    """The blocks around each limit, as counted from the layer's first byte and from the allocation's."""
    layers, count, *_ = region.geometry.shape
    layer_stride, stride, *_ = region.geometry.strides
    starts = {0, *(region.geometry.offset + local * layer_stride for local in range(layers))}
    found = set()
    for limit in (unit * limit for unit in (1, item_bytes(region)) for limit in _LIMITS):
        for start in starts if stride > 0 else ():
            first = -((start - limit) // stride)
            found |= {block for block in (first - 1, first) if 0 <= block < count}
    return sorted(found)


def _some_blocks(blocks: range, special: np.ndarray, most: int) -> range | np.ndarray:
    if len(blocks) <= most:
        return blocks
    kept = np.unique(np.concatenate([(0, 1, len(blocks) - 2, len(blocks) - 1), special[special < len(blocks)]]))
    return np.union1d(kept, _even(blocks, max(3, most - len(kept))))
