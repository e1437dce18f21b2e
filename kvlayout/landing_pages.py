"""The pages that a run touched or was to touch, and what became of each of their (layer, block, head slot) cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.region import Region
from kvlayout.slot_mapping import Prediction
from kvlayout.snapshot import Changes

_NOTHING = np.zeros(0, dtype=np.int64)


class Wanted:
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


def touched_pages(address_map: AddressMap, changes: Changes, wanted: Wanted):
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


def touched_granules(address_map, changes, pages, wanted) -> np.ndarray:
    """Return the pieces known by digest alone that hold a predicted byte of these pages, as sorted numbers."""
    inexact, found = changes.granules[~changes.exact], _NOTHING
    for region, local, blocks in pages:
        page = Page(address_map, region)
        for block in blocks:
            states = wanted.states.get((region.group, block))
            if states is not None:
                here = (page.inner[:, states] + page.start(local, block)) // changes.granule_bytes
                found = np.union1d(found, np.intersect1d(here, inexact))
    return found


class Page:
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

    def rows(self, local: int, block: int, changes: Changes, wanted: Wanted) -> list[tuple]:
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
