"""The user's own offset formula against the truth: where it first goes wrong, how often, and whose bytes it hits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.arrays import integers
from kvlayout.clinic.divergence import Coordinate, Divergence
from kvlayout.clinic.formula_call import Formula
from kvlayout.clinic.formula_hits import Hits
from kvlayout.clinic.formula_names import AXES, item_bytes, layer_values, truth
from kvlayout.clinic.formula_own import Spans, allowed_bytes
from kvlayout.clinic.formula_sample import Sample, choose
from kvlayout.errors import LayoutError, check_type
from kvlayout.strided import merge_runs

_AT_ONCE = 1 << 20
_MOST_CELLS = 1 << 21


def compare_formula(formula: str | Callable, address_map: AddressMap, *, length: str | Callable | None = None,
                    layers: object = None, blocks: object = None) -> Divergence:
    """Return where ``formula`` differs from ``address_map``.

    ``formula``: the byte offset, from the allocation's start, of (layer, block, head, token, element); text over the
    names in NAMES, or a callable that declares those it takes and gets int64 arrays that broadcast to [block, head,
    token, element] and ints (with ``**kwargs`` all of them). A coordinate diverges where the offset isn't its own.

    ``length``: bytes that are touched from there on, as ``formula``; without it one element. With it, indices that
    neither names are held at 0, and a coordinate also diverges where it touches a byte that is neither its own (one
    that agrees in the named indices) nor padding of its own page.

    ``layers`` (names or indices), ``blocks`` (ids): check exactly those. Otherwise, where there are too many, a
    sample that ``Divergence.sample`` states. Raises LayoutError for a formula that can't be read or worked out, that
    gives anything but whole numbers of at most 62 bits, and for more coordinates than can be checked.
    """
    check_type("address_map", address_map, AddressMap)
    work = Formula("formula", formula)
    span = None if length is None else Formula("length", length)
    named = frozenset(AXES) if span is None else work.axes | span.axes
    # Of each span, every layer's bytes are counted.
    cost = work.cost if span is None else (work.cost + span.cost) * max(1, len(address_map.layers)) // 2
    sample = choose(address_map, named, layers, blocks, cost)
    check = _Check(address_map, work, span, named)
    return _collect(check, sample)


def formula_at(formula: str | Callable, address_map: AddressMap, layer: str | int, block: int, head: int = 0,
               token: int = 0, element: int = 0) -> tuple[int, int]:
    """Return (the byte offset where a coordinate lies, what ``formula`` gives); LayoutError as compare_formula."""
    check_type("address_map", address_map, AddressMap)
    work, region = Formula("formula", formula), address_map.region(layer)
    expected = address_map.offset(layer, block, head, token, element * item_bytes(region))
    axes = tuple(integers(name, [index]) for name, index in zip(AXES[1:], (block, head, token, element)))
    found = work(layer_values(address_map, address_map.layer_index(layer), axes, work.used), (1,) * 4)
    return expected, int(found.item())


def _collect(check: _Check, sample: Sample) -> Divergence:
    address_map = check.address_map
    columns = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(axes[0] for axes in sample.axes.values())]))
    shares = np.full((len(sample.layers), len(columns)), np.nan)
    checked = wrong = 0
    first = cells = None
    for row, layer in enumerate(sample.layers):
        for axes in _parts(sample.axes[address_map.region(layer).tensor_index]):
            page = check.page(layer, axes)
            checked += page.wrong.size
            wrong += int(page.wrong.sum())
            shares[row, np.searchsorted(columns, axes[0])] = page.wrong.reshape(len(axes[0]), -1).mean(axis=1)
            if first is None and page.wrong.any():
                # All coordinates of that page, where they aren't too many: a sample may have left out the first.
                block = axes[0][np.argmax(page.wrong.reshape(len(axes[0]), -1).any(axis=1))]
                whole = check.whole(layer, int(block), axes)
                first, cells = check.first(layer, whole), whole.cells
            elif cells is None:
                cells = check.whole(layer, int(axes[0][0]), axes).cells
    victims, num_victims = check.hits.found()
    hits = ()
    if first and 0 <= first.hit_offset < address_map.size_bytes:
        hits = (*address_map.owners(first.hit_offset), *address_map.padding_of(first.hit_offset))
    return Divergence(*(first or _First(None, None, None, None, None)), hits, wrong / checked if checked else 0.0,
                      int(check.outside[1].sum()), victims, num_victims, checked, sample.says,
                      tuple(address_map.layers[layer] for layer in sample.layers), columns, shares, cells)


def _parts(axes: tuple[np.ndarray, ...]) -> Iterator[tuple[np.ndarray, ...]]:
    """The mesh in parts of some blocks each."""
    inner = math.prod(len(one) for one in axes[1:])
    if not inner:
        return
    step = max(1, _AT_ONCE // inner)
    for start in range(0, len(axes[0]), step):
        yield (axes[0][start:start + step], *axes[1:])


@dataclass(frozen=True, eq=False)
class _Page:
    """Some blocks of one layer: arrays [block, head, token, element]."""

    axes: tuple[np.ndarray, ...]
    expected: np.ndarray
    found: np.ndarray
    end: np.ndarray
    wrong: np.ndarray

    @property
    def cells(self) -> np.ndarray:
        """Share of the elements that diverge in each cell of the first block."""
        return self.wrong[0].mean(axis=2)


class _First(NamedTuple):
    """The first coordinate that is wrong, as Divergence has it."""

    coordinate: Coordinate | None
    expected: int | None
    found: int | None
    found_end: int | None
    hit_offset: int | None


class _Check:
    """Compares some blocks of a layer at a time, and adds up what is touched."""

    def __init__(self, address_map: AddressMap, work: Formula, span: Formula | None, named: frozenset[str]):
        self.address_map, self._work, self._span, self._named = address_map, work, span, named
        self.hits = Hits(address_map, span is not None)
        self.outside = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    def page(self, layer: int, axes: tuple[np.ndarray, ...]) -> _Page:
        """Compare, and take account of what is touched."""
        page = self._compared(layer, axes)
        touched = page.end > page.found
        for out, begin, end in ((touched & (page.found < 0), page.found, np.minimum(page.end, 0)),
                                (touched & (page.end > self.address_map.size_bytes),
                                 np.maximum(page.found, self.address_map.size_bytes), page.end)):
            if out.any():
                starts, lengths = self.outside
                self.outside = merge_runs(np.concatenate([starts, begin[out]]),
                                          np.concatenate([lengths, (end - begin)[out]]))
        if page.wrong.any():
            self.hits.add(self._spans(layer, axes, page.found, page.end, np.flatnonzero(page.wrong)))
        return page

    def first(self, layer: int, page: _Page) -> _First:
        """Spell out the first wrong coordinate of a page that has one."""
        flat = int(np.argmax(page.wrong))
        at = np.unravel_index(flat, page.wrong.shape)
        expected, found, end = (int(values[at]) for values in (page.expected, page.found, page.end))
        hit = found
        if found == expected:  # the start is right: look for the first byte that isn't its own
            one = self._spans(layer, page.axes, page.found, page.end, np.array([flat]))
            low, high = found, end
            while high - low > 1:
                middle = (low + high) // 2
                part = replace(one, end=np.array([middle]))
                is_own = allowed_bytes(self.address_map, part)[0] == middle - found
                low, high = (middle, high) if is_own else (low, middle)
            hit = low
        indices = (int(axis[index]) for axis, index in zip(page.axes, at))
        return _First(Coordinate(self.address_map.layers[layer], *indices), expected, found, end, hit)

    def whole(self, layer: int, block: int, axes: tuple[np.ndarray, ...]) -> _Page:
        """Compare all of one page, where it hasn't too many coordinates; else those of ``axes``."""
        region = self.address_map.region(layer)
        _, _, heads, states, content = region.geometry.shape
        extents = (heads, states, content // item_bytes(region))
        whole = [np.arange(n) if name in self._named else np.zeros(1, dtype=np.int64)
                 for name, n in zip(("head", "token", "element"), extents)]
        if math.prod(len(one) for one in whole) * self._work.cost > _MOST_CELLS:
            whole = list(axes[1:])
        return self._compared(layer, (np.array([block]), *whole))

    def _compared(self, layer: int, axes: tuple[np.ndarray, ...]) -> _Page:
        region = self.address_map.region(layer)
        shape = tuple(len(one) for one in axes)
        used = self._work.used | (self._span.used if self._span else frozenset())
        values = layer_values(self.address_map, layer, axes, used)
        found = self._work(values, shape)
        expected = np.broadcast_to(truth(region, layer, axes), shape)
        wrong = np.not_equal(found, expected, order="C")
        if self._span is None:
            return _Page(axes, expected, found, found + item_bytes(region), wrong)
        length = self._span(values, shape)
        if length.size and length.min() < 0:
            raise LayoutError("length", int(length.min()), "must be at least 0 bytes", "Give a size, not an end")
        end = found + length
        todo = np.flatnonzero(~wrong)
        own = allowed_bytes(self.address_map, self._spans(layer, axes, found, end, todo))
        wrong.ravel()[todo] = own < length.ravel()[todo]
        return _Page(axes, expected, found, end, wrong)

    def _spans(self, layer: int, axes, found: np.ndarray, end: np.ndarray, where: np.ndarray) -> Spans:
        region = self.address_map.region(layer)
        at = np.unravel_index(where, found.shape)
        indices = {name: axis[index] for name, axis, index in zip(AXES[1:], axes, at)}
        indices["layer"] = np.full(len(where), region.layers.tolist().index(layer))
        return Spans(region, self._named, indices, found.ravel()[where], end.ravel()[where])
