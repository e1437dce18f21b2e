"""What a sequence touches: runs, 32-byte sectors, 128-byte lines and 2 MiB pages, counted by interval arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.arrays import integers
from kvlayout.clinic.block_bytes import block_runs, kernel_ids, kernel_ratio
from kvlayout.clinic.wording import plural
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.slot_mapping import NULL_BLOCK
from kvlayout.spec import AttentionSpec
from kvlayout.strided import merge_runs

SECTOR_BYTES, LINE_BYTES, PAGE_BYTES = 32, 128, 2 << 20


@dataclass(frozen=True)
class Touched:
    """What is touched, each byte, sector, line and page counted once.

    Attributes:
        num_runs: contiguous stretches of bytes; ``bytes`` in all; ``shortest_run`` and ``longest_run`` in bytes
        sectors, lines, pages: of 32 bytes, 128 bytes and 2 MiB, of an allocation that begins on a page's first byte
        blocks: manager blocks that are touched, without the null block
        null_blocks: entries of the block table that are the null block, which holds no token
    """

    num_runs: int
    bytes: int
    sectors: int
    lines: int
    pages: int
    blocks: int
    null_blocks: int
    shortest_run: int
    longest_run: int

    @property
    def sector_share(self) -> float:
        """Bytes wanted over bytes of the sectors that are fetched for them: 1 where none is wasted; 0 for nothing."""
        return self.bytes / (self.sectors * SECTOR_BYTES) if self.sectors else 0.0

    def sentences(self) -> list[str]:
        """Return the counts as plain text."""
        return [self._counts(), *self._null_blocks()]

    def _counts(self) -> str:
        if not self.bytes:
            return "Nothing is touched."
        size = f"{self.shortest_run:,}" if self.shortest_run == self.longest_run else (
            f"{self.shortest_run:,} to {self.longest_run:,}")
        unit = "byte" if self.longest_run == 1 else "bytes"
        return (f"{plural(self.bytes, 'byte')} of {plural(self.blocks, 'block')} in {plural(self.num_runs, 'run')} "
                f"of {size} {unit}: {plural(self.sectors, 'sector')} of 32 bytes ({self.sector_share:.0%} of their "
                f"bytes are wanted), {plural(self.lines, 'line')} of 128 bytes, {plural(self.pages, 'page')} of 2 "
                "MiB.")

    def _null_blocks(self) -> list[str]:
        if not self.null_blocks:
            return []
        return [f"{self.null_blocks:,} of the block table's entries {'is' if self.null_blocks == 1 else 'are'} block "
                "0, the null block: what holds no token isn't counted."]


def touched(address_map: AddressMap, block_table, num_tokens: int | None = None, layers=None, *,
            group: int | None = None) -> Touched:
    """Return what reading a sequence touches.

    ``block_table``: ids of manager blocks, in order; ``num_tokens`` of them are held, None for all that fit; the
    last block is then touched only as far as its tokens go. ``layers``: names or indices, all of one group; None
    takes every layer of ``group`` (by default the first). A group that keeps one state a block touches whole states.
    Raises LayoutError for a block beyond the pool, a table too short for the tokens, and layers of several groups.
    """
    check_type("address_map", address_map, AddressMap)
    names, group = _chosen(address_map, layers, group)
    table = integers("block_table", block_table, ndim=1)
    size = address_map.config.kv_cache_groups[group].kv_cache_spec.block_size if address_map.layers else 1
    if len(table) and (table.min() < 0 or table.max() >= address_map.config.num_blocks):
        wrong = int(table.min() if table.min() < 0 else table.max())
        raise LayoutError("block_table", wrong, f"must be block ids of at least 0 and below "
                          f"{address_map.config.num_blocks:,}", "Leave out the padding behind the last block")
    tail = 0
    if num_tokens is not None:
        num_tokens = check_int("num_tokens", num_tokens, minimum=0)
        if num_tokens > len(table) * size:
            raise LayoutError("num_tokens", num_tokens, f"don't fit into a block table of {len(table):,} blocks of "
                              f"{size:,} tokens")
        whole, tail = divmod(num_tokens, size)
        table = table[:whole + (tail > 0)]
    parts = [_runs(address_map, group, names, table[:len(table) - (tail > 0)])]
    if tail and table[-1] != NULL_BLOCK:
        parts += _tail_runs(address_map, group, names, int(table[-1]), tail)
    starts, lengths = merge_runs(*(np.concatenate(column) for column in zip(*parts)))
    return Touched(len(starts), int(lengths.sum()),
                   *(_units(starts, lengths, unit) for unit in (SECTOR_BYTES, LINE_BYTES, PAGE_BYTES)),
                   len(np.unique(table[table != NULL_BLOCK])), int((table == NULL_BLOCK).sum()),
                   int(lengths.min()) if len(lengths) else 0, int(lengths.max(initial=0)))


def _chosen(address_map: AddressMap, layers, group: int | None) -> tuple[list[str], int]:
    groups = address_map.config.kv_cache_groups
    if group is not None and check_int("group", group, minimum=0) >= len(groups):
        raise LayoutError("group", group, f"must be below the {len(groups)} groups")
    if layers is None:
        group = 0 if group is None else group
        return (list(groups[group].layer_names) if groups else []), group
    listed = [layers] if isinstance(layers, (str, int, np.integer)) else layers
    try:
        names = [address_map.layers[address_map.layer_index(one)] for one in listed]
    except TypeError:
        raise LayoutError("layers", layers, "must be a list of layer names or indices") from None
    found = sorted({address_map.config.group_of(name) for name in names})
    if len(found) > 1 or (group is not None and found and found != [group]):
        raise LayoutError("layers", listed, f"are layers of groups {found}, but a block table is one group's",
                          "Ask for each group's layers with its own block table")
    return names, found[0] if found else group or 0


def _runs(address_map, group, names, blocks) -> tuple[np.ndarray, np.ndarray]:
    blocks = np.unique(blocks[blocks != NULL_BLOCK])
    if not len(blocks) or not names:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return block_runs(address_map, group, blocks, names)


def _tail_runs(address_map, group, names, block, tokens) -> list[tuple[np.ndarray, np.ndarray]]:
    """Runs of the first ``tokens`` tokens of a block, layer kind by layer kind: they may count states apart."""
    ids = kernel_ids(address_map, group, [block])
    each = address_map.config.kv_cache_groups[group].kv_cache_spec.block_size // kernel_ratio(address_map, group)
    by_kind: dict[tuple, list[str]] = {}
    for name in names:
        region = address_map.region(name)
        by_kind.setdefault((region.spec, address_map.shape(name)[2]), []).append(name)
    found = []
    for (spec, num_states), alike in by_kind.items():
        if not isinstance(spec, AttentionSpec):
            found.append(address_map.run_arrays(alike, ids))
            continue
        whole, rest = divmod(tokens, each)
        if whole:
            found.append(address_map.run_arrays(alike, ids[:whole]))
        states = min(num_states, int(-(-rest // spec.tokens_per_state)))
        if states:
            found.append(address_map.run_arrays(alike, ids[whole:whole + 1], state=np.arange(states)))
    return found


def _units(starts: np.ndarray, lengths: np.ndarray, unit: int) -> int:
    """Units that the runs touch; sorted disjoint runs share one with the run before where that ends in it."""
    if not len(starts):
        return 0
    first, last = starts // unit, (starts + lengths - 1) // unit
    return int((last - first + 1).sum() - np.count_nonzero(first[1:] == last[:-1]))
