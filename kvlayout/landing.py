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
from kvlayout.landing_pages import Page, Wanted, touched_granules, touched_pages
from kvlayout.slot_mapping import Prediction
from kvlayout.snapshot import Changes

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
    wanted = Wanted(address_map, predictions, rewritten)
    pages, outside = touched_pages(address_map, changes, wanted)
    if not changes.is_exact:
        wanted.touched = touched_granules(address_map, changes, pages, wanted)
    rows: list[tuple] = []
    for done, (region, local, blocks) in enumerate(pages):
        page = Page(address_map, region)
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
