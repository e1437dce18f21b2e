"""Where tokens of a request go and what they touch: context parallelism, usable tokens, a block table's bytes."""

from __future__ import annotations

from html import escape

from kvlayout.address import AddressMap
from kvlayout.clinic import Touched, context_parallel_slot, decode_slot, touched, usable_tokens
from kvlayout.clinic.block_bytes import block_runs, kernel_ratio, kernel_size_of
from kvlayout.clinic.slot_reports import is_replicated
from kvlayout.errors import LayoutError
from kvlayout.spec import AttentionSpec
from kvlayout_widgets.figures.theme import exact_bytes
from kvlayout_widgets.figures.wording import group_words, layer_words
from kvlayout_widgets.html import code, paragraph, span, table
from kvlayout_widgets.state import State

MOST_RUNS = 1 << 22


def usable_html(address_map: AddressMap) -> str:
    """Return how many tokens the pool can hold, for each block size of groups that have slots."""
    count = address_map.config.num_blocks
    sizes = dict.fromkeys(group.kv_cache_spec.block_size for group in address_map.config.kv_cache_groups
                          if all(isinstance(one, AttentionSpec) for one in group.layer_specs.values()))
    if not sizes or not count:
        return paragraph("The pool has no blocks, so no usable tokens.", "note") if sizes else ""
    said = "; ".join(f"({count:,} − 1) × {size:,} = {usable_tokens(count, size):,}" for size in sizes)
    return paragraph(f"Usable tokens, if one group had the whole pool: {said}. Block 0 is the null block and holds "
                     "none.", "note")


def parallel_html(address_map: AddressMap, position: int, block_id: int, ranks: int, interleave: int,
                  block_size: int | None, kernel_size: int | None) -> str:
    """Return rank and slot of a position, spelt out; sizes (tokens) that are None are this cache's."""
    groups = address_map.config.kv_cache_groups
    replicated = [index for index, group in enumerate(groups) if any(map(is_replicated, group.layer_specs.values()))]
    sharded = next((index for index, group in enumerate(groups) if group.layer_names and index not in replicated),
                   None)
    ours = block_size is None
    if ours:
        if sharded is None:
            return paragraph("No group of this cache is split among ranks, so no position is transformed. Type a "
                             "block size to calculate with it.", "warn") + _replicated(address_map, replicated)
        block_size = groups[sharded].kv_cache_spec.block_size
        kernel_size = kernel_size_of(address_map.kernel_block_sizes, sharded) if kernel_size is None else kernel_size
    rank, slot = context_parallel_slot(position, block_id, block_size, ranks, interleave)
    span_tokens, chunk = block_size * ranks, interleave * ranks
    inside = position % span_tokens
    lines = [f"entry of the block table = {position:,} // ({block_size:,} x {ranks:,}) = {position // span_tokens:,}",
             f"rank  = ({position:,} mod {span_tokens:,}) // {interleave:,} mod {ranks:,} "
             f"= {inside:,} // {interleave:,} mod {ranks:,} = {rank:,}",
             f"row   = {inside:,} // {chunk:,} x {interleave:,} + {position:,} mod {interleave:,} "
             f"= {slot - block_id * block_size:,}",
             f"slot  = {block_id:,} x {block_size:,} + {slot - block_id * block_size:,} = {slot:,}"]
    if kernel_size is not None:
        _, _, kernel_block, kernel_row = decode_slot(slot, block_size, kernel_size)
        lines.append(f"kernel block {kernel_block:,}, row {kernel_row:,}: {slot:,} = {kernel_block:,} x "
                     f"{kernel_size:,} + {kernel_row:,}")
    return (paragraph(f"Rank {rank:,}, slot {slot:,} of that rank's cache.", "good") + code("\n".join(lines))
            + _kernel_in_place(position, block_id, ranks, interleave, block_size, kernel_size, (rank, slot))
            + _beyond(address_map, block_id, ours) + _replicated(address_map, replicated))


def _kernel_in_place(position, block_id, ranks, interleave, block_size, kernel_size, right) -> str:
    """What the kernel's block size in place of the block table's gives, where that is another place."""
    if kernel_size in (None, block_size):
        return ""
    wrong = context_parallel_slot(position, block_id, kernel_size, ranks,
                                  interleave if kernel_size % interleave == 0 else kernel_size)
    if wrong == right:
        return ""
    return paragraph(f"The kernel block's {kernel_size:,} in place of {block_size:,} would give rank {wrong[0]:,}, "
                     f"slot {wrong[1]:,} (kernel block {wrong[1] // kernel_size:,}): wrong.", "note")


def _beyond(address_map: AddressMap, block_id: int, ours: bool) -> str:
    count = address_map.config.num_blocks
    return "" if not ours or block_id < count else paragraph(
        f"✗ Block {block_id:,} lies beyond this cache's pool of {count:,} blocks.", "bad")


def _replicated(address_map: AddressMap, replicated: list[int]) -> str:
    if not replicated:
        return paragraph("Groups of sliding windows and recurrent states are replicated on every rank and aren't "
                         "transformed; this cache has none.", "note")
    named = "; ".join(group_words(address_map, index) for index in replicated)
    return paragraph(f"Replicated on every rank, so not transformed (slot = block id × block size + position mod "
                     f"block size, by their own table): {named}.", "warn")


def touched_html(state: State, block_ids: list[int], num_tokens: int | None, group: int) -> str:
    """Return what a sequence touches in all layers of a group and in one; LayoutError as :func:`touched`."""
    address_map, at = state.plan.address_map, state.coordinate
    names = address_map.config.kv_cache_groups[group].layer_names
    if not names:
        raise LayoutError("group", group, "has no layer on this rank", "Choose another group")
    one = at.layer if at is not None and at.layer in names else names[0]
    scopes = [(f"all {len(names):,} layers", list(names))] if len(names) > 1 else []
    scopes.append((layer_words(address_map, one), [one]))
    rows, notes = [], []
    for title, layers in scopes:
        if _is_too_long(address_map, block_ids, group, layers):
            rows.append((escape(title), span(f"more than {MOST_RUNS:,} runs: not counted", "soft"), *[""] * 6))
            continue
        found = touched(address_map, block_ids, num_tokens, layers, group=group)
        rows.append((escape(title), *_counts(found)))
        notes = found.sentences()[1:] or notes
    return table(("", "blocks", "bytes", "runs", "bytes a run", "32-byte sectors", "128-byte lines", "2 MiB pages"),
                 rows, "What reading the sequence touches, each once") + "".join(
        paragraph(one, "warn") for one in notes) + paragraph(
        "Pages are counted as if the allocation began on one.", "note")


def _is_too_long(address_map: AddressMap, block_ids: list[int], group: int, layers: list[str]) -> bool:
    """Whether so many runs would have to be listed that the explorer stood still."""
    if not address_map.config.num_blocks:
        return False
    runs = len(block_runs(address_map, group, [0], layers)[0])
    return len(block_ids) * kernel_ratio(address_map, group) * runs > MOST_RUNS


def _counts(found: Touched) -> tuple[str, ...]:
    size = f"{found.shortest_run:,}" if found.shortest_run == found.longest_run else (
        f"{found.shortest_run:,} to {found.longest_run:,}")
    share = f" ({found.sector_share:.0%} of them wanted)" if found.bytes else ""
    return (f"{found.blocks:,}", escape(exact_bytes(found.bytes)), f"{found.num_runs:,}", size,
            f"{found.sectors:,}{share}", f"{found.lines:,}", f"{found.pages:,}")
