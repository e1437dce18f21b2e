"""The user's own offset formula against the truth: where it first goes wrong, how often, and whose bytes it hits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.arrays import integers
from kvlayout.clinic.divergence import Coordinate, Divergence, Leaving
from kvlayout.clinic.formula_call import Formula
from kvlayout.clinic.formula_hits import Hits
from kvlayout.clinic.formula_names import AXES, item_bytes, kernel_blocks_per_block, layer_values, truth
from kvlayout.clinic.formula_own import Spans, allowed_bytes
from kvlayout.clinic.formula_sample import BUDGET, Sample, choose
from kvlayout.errors import LayoutError, check_type
from kvlayout.strided import merge_runs

_AT_ONCE = 1 << 20
_MOST_CELLS = 1 << 21
_SPANS = BUDGET // 6  # comparisons where each goes along a span


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
    sample = choose(address_map, named, layers, blocks, cost, BUDGET if span is None else _SPANS)
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
    amount = wrong_amount = 0.0
    outside = np.zeros(shares.shape, dtype=bool)
    first = cells = None
    for row, layer in enumerate(sample.layers):
        index = address_map.region(layer).tensor_index
        block_weights, *inner = sample.weights[index]
        for part, axes in _parts(sample.axes[index]):
            page = check.page(layer, axes)
            checked += page.wrong.size
            wrong += int(page.wrong.sum())
            here = np.searchsorted(columns, axes[0])
            shares[row, here] = page.shares(inner)
            outside[row, here] = page.leaves(address_map.size_bytes)
            weights = block_weights[part] * math.prod(float(one.sum()) for one in inner) * sample.layer_weights[row]
            amount += float(weights.sum())
            wrong_amount += float(weights @ shares[row, here])
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
    share = wrong / checked if checked else 0.0
    if sample.says and 0 < wrong < checked:  # however rarely, something diverges and something doesn't
        share = float(np.clip(wrong_amount / amount, np.nextafter(0, 1), np.nextafter(1, 0)))
    ratios = {address_map.layers[layer]: kernel_blocks_per_block(address_map, address_map.region(layer))
              for layer in range(len(address_map.layers))}
    return Divergence(*(first or _First(None, None, None, None, None)), hits, share,
                      int(check.outside[1].sum()), victims, num_victims, checked, sample.says,
                      tuple(address_map.layers[layer] for layer in sample.layers), columns, shares, cells,
                      _leaving(check, sample, columns, outside), checked > 0 and not check.touches, ratios)


def _leaving(check: _Check, sample: Sample, columns: np.ndarray, outside: np.ndarray) -> tuple[Leaving, ...]:
    """Where the allocation is left, in the layers that leave it at the lowest and at the highest block."""
    rows = np.flatnonzero(outside.any(axis=1))
    if not len(rows) or not check.names_block:
        return ()
    firsts = outside.argmax(axis=1)
    found = []
    for row in dict.fromkeys((rows[np.argmin(firsts[rows])], rows[np.argmax(firsts[rows])])):
        layer, at = sample.layers[row], firsts[row]
        axes = sample.axes[check.address_map.region(layer).tensor_index]
        own = columns[:at + 1][np.isin(columns[:at + 1], axes[0])]
        low, high = int(own[-2]) if len(own) > 1 else -1, int(own[-1])
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if check.leaves(layer, middle, axes) else (middle, high)
        later = np.isin(columns, axes[0]) & (columns >= high)
        found.append(Leaving(check.address_map.layers[layer], high, bool(outside[row, later].all())))
    return tuple(sorted(found, key=lambda one: one.block))


def _parts(axes: tuple[np.ndarray, ...]) -> Iterator[tuple[slice, tuple[np.ndarray, ...]]]:
    """The mesh in parts of some blocks each."""
    inner = math.prod(len(one) for one in axes[1:])
    if not inner:
        return
    step = max(1, _AT_ONCE // inner)
    for start in range(0, len(axes[0]), step):
        part = slice(start, start + step)
        yield part, (axes[0][part], *axes[1:])


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

    def shares(self, weights: list[np.ndarray]) -> np.ndarray:
        """Share of each block that diverges, by what each head, token and element stands for."""
        heads, tokens, elements = weights
        return self.wrong @ elements @ tokens @ heads / (heads.sum() * tokens.sum() * elements.sum())

    def leaves(self, size_bytes: int) -> np.ndarray:
        """Which blocks touch bytes before the allocation or past its end."""
        out = (self.end > self.found) & ((self.found < 0) | (self.end > size_bytes))
        return out.reshape(len(out), -1).any(axis=1)


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
        self.touches, self.names_block = False, "block" in named

    def leaves(self, layer: int, block: int, axes: tuple[np.ndarray, ...]) -> bool:
        """Whether one block touches bytes that lie outside."""
        page = self._compared(layer, (np.array([block]), *axes[1:]))
        return bool(page.leaves(self.address_map.size_bytes)[0])

    def page(self, layer: int, axes: tuple[np.ndarray, ...]) -> _Page:
        """Compare, and take account of what is touched."""
        page = self._compared(layer, axes)
        touched = page.end > page.found
        self.touches = self.touches or bool(touched.any())
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
        whole = [range(n if name in self._named else 1) for name, n in zip(("head", "token", "element"), extents)]
        if math.prod(len(one) for one in whole) * self._work.cost > _MOST_CELLS:
            return self._compared(layer, (np.array([block]), *axes[1:]))
        return self._compared(layer, (np.array([block]), *(np.arange(len(one)) for one in whole)))

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
