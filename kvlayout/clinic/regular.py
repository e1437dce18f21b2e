"""Runs of evenly spaced blocks and head slots from the strides alone, however many there are."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.errors import LayoutError
from kvlayout.region import Region
from kvlayout.strided import StridedSet


class Steps(NamedTuple):
    """``count`` indices from ``first`` on, ``step`` apart."""

    first: int
    step: int
    count: int

    @property
    def last(self) -> int:
        return self.first + (self.count - 1) * self.step

    def check(self, name: str, extent: int) -> None:
        """Raise a LayoutError naming the argument where an index isn't below ``extent``."""
        if self.first < 0 or self.last >= extent:
            raise LayoutError(name, self.first if self.first < 0 else self.last,
                              f"must be at least 0 and below {extent:,}")


def steps_of(values: range | np.ndarray) -> Steps | None:
    """Return a range, or distinct indices in ascending order, as steps; None for none, or uneven ones."""
    if isinstance(values, range):
        first, last = (values[0], values[-1]) if values else (0, -1)
        step = abs(values.step)
        return Steps(min(first, last), step, abs(last - first) // step + 1) if values else None
    if not len(values):
        return None
    step = int(values[1] - values[0]) if len(values) > 1 else 1
    is_even = len(values) < 3 or bool((np.diff(values) == step).all())
    return Steps(int(values[0]), step, len(values)) if is_even else None


def regular_runs(address_map: AddressMap, layers: list[int] | None, blocks: Steps | None,
                 heads: Steps | None) -> dict[int, int] | None:
    """Return {bytes of a run: runs} of those blocks and head slots of some layers; None for all of an axis.

    None where it takes more than strides to tell, since runs of several tensors or axes touch or interleave.
    Raises LayoutError for what isn't there.
    """
    parts = []
    for region in address_map.regions:
        local = np.arange(len(region.layers)) if layers is None else np.flatnonzero(np.isin(region.layers, layers))
        if len(local):
            parts.append((region, steps_of(local)))
    for region, _ in parts:
        for name, chosen, extent in (("blocks", blocks, region.geometry.shape[1]),
                                     ("heads", heads, region.geometry.shape[2])):
            if chosen is not None:
                chosen.check(name, extent)
    parts = [part for part in parts if part[0].geometry.shape[1]]
    if not parts:
        return {}
    found = _by_strides(parts, blocks, heads)
    return _by_block(address_map, layers, [region for region, _ in parts], blocks, heads) if found is None else found


def _by_strides(parts: list[tuple[Region, Steps | None]], blocks: Steps | None, heads: Steps | None):
    """Each tensor's runs are alike and apart, and the tensors lie one behind the other."""
    found, sets = Counter(), []
    for region, local in parts:
        if local is None or (heads is not None and region.interior.scope == "page"):
            return None
        offset, shape, strides = region.geometry.offset, list(region.geometry.shape), list(region.geometry.strides)
        for axis, chosen in enumerate((local, blocks, heads)):
            if chosen is not None:
                offset += chosen.first * strides[axis]
                shape[axis], strides[axis] = chosen.count, strides[axis] * chosen.step
        sets.append(StridedSet(offset, shape, strides))
        found[sets[-1].run_length] += sets[-1].num_runs
    sets.sort(key=lambda one: one.offset)
    apart = all(one.end < after.offset for one, after in zip(sets, sets[1:]))
    return dict(found) if apart and all(one.runs_are_apart for one in sets) else None


def _by_block(address_map: AddressMap, layers, regions: list[Region], blocks: Steps | None, heads: Steps | None):
    """All tensors step from block to block alike, and a block's bytes end before the next one's begin."""
    if len({(one.geometry.strides[1], one.geometry.shape[1]) for one in regions}) > 1:
        return None
    blocks = blocks or Steps(0, 1, regions[0].geometry.shape[1])
    period, more = regions[0].geometry.strides[1] * blocks.step, blocks.count - 1
    chosen = None if heads is None else heads.first + heads.step * np.arange(heads.count)
    starts, lengths = address_map.run_arrays(layers, blocks.first, chosen)
    span = int(starts[-1] + lengths[-1] - starts[0])
    if span > period and more:
        return None
    found = Counter(dict(zip(*(part.tolist() for part in np.unique(lengths, return_counts=True)))))
    if span < period or not more:
        return {length: count * blocks.count for length, count in found.items()}
    if len(lengths) == 1:
        return {span * blocks.count: 1}
    # The last run of each block but the last goes on as the first of the next one.
    found = Counter({length: count * blocks.count for length, count in found.items()})
    found.subtract({int(lengths[0]): more})
    found.subtract({int(lengths[-1]): more})
    found[int(lengths[0] + lengths[-1])] += more
    return {length: count for length, count in found.items() if count}
