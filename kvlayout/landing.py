"""Where did my tokens land? The bytes that changed, against those that the slot mapping says.

The layout alone decides which (layer, block, head slot) cell a token's state lies in. Which bytes inside the cell
is the backend's: its declared interior. So both are checked: every predicted cell has changed and no other, and
inside it only bytes of predicted states have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.arrays import integers
from kvlayout.errors import LayoutError, check_type
from kvlayout.finding import Finding
from kvlayout.landing_findings import findings_of
from kvlayout.region import Region
from kvlayout.slot_mapping import Prediction
from kvlayout.snapshot import Changes

_NOTHING = np.zeros(0, dtype=np.int64)
_COLUMNS = ("group", "layer", "block", "head", "predicted", "changed", "predicted_bytes", "changed_bytes",
            "stray_bytes", "stray_state", "untouched_states", "untouched_elements", "is_exact", "is_declared")


@dataclass(frozen=True, eq=False)
class Landing:
    """Predicted against changed, one row a (layer, block, head slot) cell that is either.

    Attributes:
        layers: names; ``layer`` counts in them
        group, layer, block, head: int64 arrays, the cells
        predicted, changed: bool arrays; changed, or written anew with equal bytes (``rewritten`` of :func:`land`)
        predicted_bytes, changed_bytes: of each cell (not those that another group with the same block was to write)
        stray_bytes: changed bytes of a predicted cell that are of no predicted state; ``stray_state`` the first such
        untouched_states, untouched_elements: predicted states without any changed byte, and elements
        is_exact: False where only digests were kept of a part of the cell
        is_declared: whether the backend's order inside the cell is known
        outside_bytes: changed bytes that no layer owns
        findings: what contradicts, worst first; empty where all fits
    """

    layers: tuple[str, ...]
    group: np.ndarray
    layer: np.ndarray
    block: np.ndarray
    head: np.ndarray
    predicted: np.ndarray
    changed: np.ndarray
    predicted_bytes: np.ndarray
    changed_bytes: np.ndarray
    stray_bytes: np.ndarray
    stray_state: np.ndarray
    untouched_states: np.ndarray
    untouched_elements: np.ndarray
    is_exact: np.ndarray
    is_declared: np.ndarray
    outside_bytes: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether the bytes that changed are those that were predicted."""
        return not any(finding.is_error for finding in self.findings)

    @property
    def missing(self) -> np.ndarray:
        """Rows of cells that were predicted, but hold no changed byte."""
        return np.flatnonzero(self.predicted & ~self.changed)

    @property
    def unexpected(self) -> np.ndarray:
        """Rows of cells that changed unpredicted."""
        return np.flatnonzero(self.changed & ~self.predicted)

    @property
    def blocks(self) -> np.ndarray:
        """The blocks of all rows, sorted."""
        return np.unique(self.block)

    def matrix(self, what: str = "changed_bytes", blocks: np.ndarray | None = None) -> np.ndarray:
        """Return ``what`` (a column's name) summed over head slots, as int64 [layers, blocks].

        ``blocks``: the columns, in any order; None means :attr:`blocks`. Raises LayoutError for an unknown column.
        """
        if what not in _COLUMNS:
            raise LayoutError("what", what, "is not a column of a landing", f"Use one of {', '.join(_COLUMNS)}")
        # Counted in sorted columns, then put into the order that was asked for.
        columns, place = np.unique(self.blocks if blocks is None else integers("blocks", blocks, ndim=1),
                                   return_inverse=True)
        found = np.zeros((len(self.layers), len(columns)), dtype=np.int64)
        here = np.isin(self.block, columns)
        np.add.at(found, (self.layer[here], np.searchsorted(columns, self.block[here])),
                  getattr(self, what)[here].astype(np.int64))
        return found[:, place]

    @property
    def summary(self) -> str:
        """One sentence with the numbers."""
        cells = int(self.predicted.sum())
        stray = int(self.stray_bytes.sum())
        hit = int(self.changed_bytes[self.predicted].sum()) - stray
        return (f"{cells:,} cells (layer, block, head slot) predicted, {int(self.changed.sum()):,} changed: "
                f"{len(self.missing):,} missing, {len(self.unexpected):,} unexpected; inside them "
                f"{hit:,} of {int(self.predicted_bytes.sum()):,} predicted bytes changed, and {stray:,} others")


def land(
    address_map: AddressMap,
    changes: Changes,
    predictions: Sequence[Prediction],
    *,
    rewritten: np.ndarray | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Landing:
    """Return how ``changes`` and ``predictions`` (any number a group, at most the steps of a run) agree.

    ``address_map``: with the backend's kernel blocks and interiors, of the cache that was watched.
    ``rewritten``: rows (layer, block, head, state) of predicted states that held something and are as before, which
    count as written: the same token at the same place gives the same bytes (see ``kvlayout.rewritten``).
    ``progress(done_pages, total_pages)`` may raise to end the work.
    Raises LayoutError where the changes are of a smaller allocation, or a prediction's cells or ``rewritten`` lie
    outside the map.
    """
    _check(address_map, changes, predictions, rewritten)
    wanted = _Wanted(address_map, predictions, rewritten)
    pages, outside = _pages(address_map, changes, wanted)
    if not changes.is_exact:
        wanted.touched = _touched_granules(address_map, changes, pages, wanted)
    rows: list[tuple] = []
    for done, (region, local, blocks) in enumerate(pages):
        page = _Page(address_map, region)
        for block in blocks:
            rows += page.rows(local, int(block), changes, wanted)
        if progress is not None:
            progress(done + 1, len(pages))
    columns = {name: np.array([row[i] for row in rows], dtype=bool if name in (
        "predicted", "changed", "is_exact", "is_declared") else np.int64) for i, name in enumerate(_COLUMNS)}
    found = Landing(address_map.layers, **columns, outside_bytes=outside, findings=())
    nulls = sum(prediction.null_slots for prediction in predictions)
    findings = findings_of(found, address_map, changes, nulls)
    return Landing(address_map.layers, **columns, outside_bytes=outside, findings=findings)


def _check(address_map, changes, predictions, rewritten) -> None:
    check_type("address_map", address_map, AddressMap)
    check_type("changes", changes, Changes)
    if changes.size_bytes < address_map.end_of_use:
        raise LayoutError("changes", f"{changes.size_bytes:,} bytes", "are of another cache: the address map uses "
                          f"{address_map.end_of_use:,} bytes", "Take both snapshots of the cache that the map is of")
    if not isinstance(predictions, Sequence) or not all(isinstance(one, Prediction) for one in predictions):
        raise LayoutError("predictions", predictions, "must be a sequence of Predictions", "Put it into a list")
    for one in predictions:
        for layer in one.layers.tolist() if len(one.block) else ():
            if 0 not in address_map.shape(layer):
                address_map.offset(layer, one.block, 0, one.state)
    if rewritten is not None:
        rows = integers("rewritten", rewritten)
        if rows.ndim != 2 or rows.shape[1] != 4:
            raise LayoutError("rewritten", rows.shape, "must be rows (layer, block, head, state)",
                              "Give what rewritten_states returned")
        address_map.offset(*rows.T)


class _Wanted:
    """The predicted states by group and block, and where each group's blocks are claimed."""

    def __init__(self, address_map: AddressMap, predictions: Sequence[Prediction], rewritten: np.ndarray | None):
        self.address_map = address_map
        self.rewritten: dict[tuple[int, int, int], list[int]] = {}
        for layer, block, head, state in () if rewritten is None else np.asarray(rewritten).tolist():
            self.rewritten.setdefault((layer, block, head), []).append(state)
        self.states: dict[tuple[int, int], np.ndarray] = {}
        self.groups: dict[int, set[int]] = {}
        self.touched = _NOTHING  # granules that hold a predicted byte, among those known by digest only
        for one in predictions:
            for block in one.blocks.tolist():
                states = one.state[one.block == block]
                key = (one.group, block)
                self.states[key] = np.union1d(self.states[key], states) if key in self.states else np.unique(states)
                self.groups.setdefault(block, set()).add(one.group)

    def explained(self, offsets: np.ndarray, group: int, block: int) -> np.ndarray:
        """Whether another group that had this block, earlier or later, was to write these bytes."""
        found = np.zeros(len(offsets), dtype=bool)
        for other in sorted(self.groups.get(block, set()) - {group}):
            located = self.address_map.locate(offsets, other)
            here = located.layer >= 0
            states = self.states[other, block]
            found |= here & (located.block == block) & np.isin(located.state, states)
        return found


def _pages(address_map: AddressMap, changes: Changes, wanted: _Wanted):
    """Return [(region, local layer, sorted blocks)] that are predicted or changed, and bytes that nobody owns.

    A changed block that one or more groups were to write is theirs; any other is shown in the first group that owns
    the byte.
    """
    touched: dict[tuple[int, int], set[int]] = {}
    for group, block in wanted.states:
        for region in address_map.regions:
            if region.group == group:
                for place in range(len(region.layers)):
                    touched.setdefault((region.tensor_index, place), set()).add(block)
    outside = 0
    local = {int(layer): place for region in address_map.regions for place, layer in enumerate(region.layers)}
    for offsets in changes.offsets():
        rest = offsets
        unclaimed = np.ones(len(rest), dtype=bool)
        for claim in (True, False):
            for group in range(len(address_map.config.kv_cache_groups)):
                todo = rest[unclaimed]
                if not len(todo):
                    break
                located = address_map.locate(todo, group)
                mine = located.layer >= 0
                if claim:
                    blocks = [block for g, block in wanted.states if g == group]
                    mine &= np.isin(located.block, np.array(blocks, dtype=np.int64))
                keys = np.unique(np.stack([located.tensor[mine], located.layer[mine], located.block[mine]]), axis=1)
                for tensor, layer, block in keys.T.tolist():
                    touched.setdefault((tensor, local[layer]), set()).add(block)
                unclaimed[np.flatnonzero(unclaimed)[mine]] = False
        outside += int(unclaimed.sum())
    regions = {region.tensor_index: region for region in address_map.regions}
    return [(regions[tensor], place, sorted(blocks)) for (tensor, place), blocks in sorted(touched.items())], outside


def _touched_granules(address_map, changes, pages, wanted) -> np.ndarray:
    inexact, found = changes.granules[~changes.exact], _NOTHING
    for region, local, blocks in pages:
        page = _Page(address_map, region)
        for block in blocks:
            states = wanted.states.get((region.group, block))
            if states is not None:
                here = (page.inner[:, states] + page.start(local, block)) // changes.granule_bytes
                found = np.union1d(found, np.intersect1d(here, inexact))
    return found


class _Page:
    """One region's page: where each byte of each state lies from the page's first byte, [H, N, C]."""

    def __init__(self, address_map: AddressMap, region: Region):
        self.region = region
        _, _, heads, states, content = region.geometry.shape
        layer = int(region.layers[0])
        self.inner = np.asarray(address_map.offset(
            layer, 0, np.arange(heads)[:, None, None], np.arange(states)[:, None], np.arange(content)))
        self.inner = self.inner - region.geometry.offset
        self.fields = [region.interior.slot_fields(head) for head in range(heads)]
        interior = region.interior
        self.is_declared = interior.scope != "state" or all(field.name != "packed" for field in interior.fields)

    def start(self, local: int, block: int) -> int:
        geometry = self.region.geometry
        return geometry.offset + local * geometry.strides[0] + block * geometry.strides[1]

    def rows(self, local: int, block: int, changes: Changes, wanted: _Wanted) -> list[tuple]:
        """Return a Landing row for each head slot of the page of one layer and block."""
        group = self.region.group
        offsets = self.inner + self.start(local, block)
        differs = changes.at(offsets)
        exact = np.ones(differs.shape, dtype=bool) if changes.is_exact else changes.is_exact_at(offsets)
        states = wanted.states.get((group, block), _NOTHING)
        stray = differs.copy()
        stray[:, states] = False
        # A digest says that some byte of a piece changed: a predicted one, where the piece holds any.
        stray &= exact | ~np.isin(offsets // changes.granule_bytes, wanted.touched)
        if stray.any():
            stray[stray] = ~wanted.explained(offsets[stray], group, block)
        rows = []
        for head in range(len(differs)):
            inside, strays = differs[head][states], stray[head]
            is_predicted = bool(len(states))
            same = wanted.rewritten.get((int(self.region.layers[local]), block, head), ())
            written = inside.any(axis=1) | np.isin(states, same)
            changed = bool(differs[head].any() or written.any()) if is_predicted else bool(strays.any())
            if not is_predicted and not changed:
                continue
            is_exact = bool(exact[head].all())
            looks_inside = is_predicted and changed and is_exact and self.is_declared
            stray_states = np.flatnonzero(strays.any(axis=1)) if looks_inside else _NOTHING
            count = int(inside.sum() + strays.sum())
            rows.append((
                group, int(self.region.layers[local]), block, head, is_predicted, changed, inside.size, count,
                int(strays.sum()) if looks_inside else 0, int(stray_states[0]) if len(stray_states) else -1,
                int((~written).sum()) if looks_inside else 0,
                self._untouched(inside, head) if looks_inside else 0, is_exact, self.is_declared))
        return rows

    def _untouched(self, inside: np.ndarray, head: int) -> int:
        """Elements of predicted states of which no byte changed; padding isn't meant to be written."""
        count = 0
        for begin, field in self.fields[head]:
            if field.name == "padding":
                continue
            width = max(1, field.element_bits // 8)
            part = inside[:, begin:begin + field.size_bytes].reshape(len(inside), -1, width)
            count += int((~part.any(axis=2)).sum())
        return count
