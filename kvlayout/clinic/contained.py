"""Does every byte of block b, of every layer and group, belong to block id b alone?

Groups overlay each other on the same bytes, which is safe because a block id is lent to one group at a time, and only
as long as two different ids never share a byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.clinic.bounds import SharedBytes, block_set, tensor_overlaps
from kvlayout.clinic.interleaved import meets_itself
from kvlayout.errors import check_type
from kvlayout.finding import Finding
from kvlayout.region import Region
from kvlayout.strided import StridedSet

_MOST_PIECES = 1 << 18  # of one region
_MOST_STEPS = 1 << 20  # pairs of pieces that may meet, and blocks where strides differ, in one answer


@dataclass(frozen=True)
class Crossing:
    """One byte that two different pages own: (layer, manager block) twice, and the groups."""

    offset: int
    layer: str
    block: int
    group: int
    other_layer: str
    other_block: int
    other_group: int


@dataclass(frozen=True)
class Containment:
    """The answer.

    Attributes:
        is_contained: True, False, or None where it couldn't be decided
        kind: "interval" where block b owns the bytes from b x ``block_bytes`` on alone, "pages" where its bytes are
            scattered
        block_bytes: bytes of a block's interval; None for "pages"
        crossings: one place for each pair of regions whose blocks of different ids meet
    """

    is_contained: bool | None
    kind: str
    block_bytes: int | None
    crossings: tuple[Crossing, ...]


@dataclass(frozen=True)
class _Pieces:
    """Contiguous pieces of manager block 0 of a region: piece i starts at ``starts[i]``, all ``length`` bytes."""

    starts: np.ndarray
    length: int
    stride: int


def containment(address_map: AddressMap) -> Containment:
    """Return whether blocks of different ids share no byte, in all groups; analytic, no cache is walked."""
    check_type("address_map", address_map, AddressMap)
    num_blocks = address_map.config.num_blocks
    regions = [region for region in address_map.regions if 0 not in region.geometry.shape]
    interval = _interval(address_map, regions)
    kind = "pages" if interval is None else "interval"
    if interval is not None and all(region.addresses.is_nested for region in regions):
        return Containment(True, kind, interval, ())
    pieces = [_pieces(region, num_blocks) for region in regions]
    known: dict[tuple, tuple | None | str] = {}
    crossings, is_known, budget = [], True, [_MOST_STEPS]
    for i, a in enumerate(regions):
        for j in range(i, len(regions)):
            b = regions[j]
            if a.addresses.end <= b.addresses.offset or b.addresses.end <= a.addresses.offset:
                continue
            key = (_form(a), _form(b), b.geometry.offset - a.geometry.offset, i == j)
            if key not in known:
                known[key] = _meet(pieces[i], pieces[j], num_blocks, budget)
            met = known[key]
            if met == "unknown":
                is_known = False
            elif met is not None:
                crossings.append(_crossing(a, b, pieces[i], pieces[j], met, num_blocks))
    return Containment(False if crossings else True if is_known else None, kind, interval, tuple(crossings))


def _form(region: Region) -> tuple:
    return region.geometry.shape, region.geometry.strides, region.tensor.block_stride


def _interval(address_map: AddressMap, regions: list[Region]) -> int | None:
    """The block stride, where every region keeps manager block b inside [b, b + 1) block strides."""
    strides = {region.tensor.block_stride for region in regions}
    if len(strides) != 1:
        return None
    stride = strides.pop()
    num_blocks = address_map.config.num_blocks
    for region in regions:
        inner = block_set(region, num_blocks)
        if inner.offset < 0 or inner.end > stride:
            return None
    return stride


def _pieces(region: Region, num_blocks: int) -> _Pieces | None:
    inner = block_set(region, num_blocks)
    if inner.num_runs > _MOST_PIECES:
        return None
    starts, length = inner.runs([None] * 5)
    return _Pieces(starts, length, region.tensor.block_stride)


def _meet(a: _Pieces | None, b: _Pieces | None, num_blocks: int,
          budget: list[int]) -> tuple[int, int, int, int] | str | None:
    """(piece of a, block, piece of b, other block) of different blocks that share a byte; None if there are none.

    ``budget``: how many pairs of pieces, or of pieces and blocks, may still be looked at; "unknown" once it is spent.
    """
    if num_blocks < 2:
        return None
    if a is None or b is None:
        return "unknown"
    pairs = _near(a, b, num_blocks, budget)
    if pairs is None:
        return "unknown"
    first, second = pairs
    gap = a.starts[first] - b.starts[second]
    found = _meet_in_step(gap, a, b, num_blocks) if a.stride == b.stride else \
        _meet_out_of_step(gap, a, b, num_blocks, budget)
    if found is None or found == "unknown":
        return found
    pair, block, other = found
    return int(first[pair]), block, int(second[pair]), other


def _near(a: _Pieces, b: _Pieces, num_blocks: int, budget: list[int]) -> tuple[np.ndarray, np.ndarray] | None:
    """Pairs of pieces whose extents over all blocks meet; in step, only those that meet in some pair of blocks."""
    order = np.argsort(b.starts, kind="stable")
    starts, others, reach_a, reach_b = a.starts, b.starts[order], a.length, b.length
    if a.stride == b.stride and max(a.length, b.length) < a.stride:
        # Where all repeat by one stride, only the place inside a stride tells; the ring is laid out three times.
        starts = starts % a.stride
        places = others % a.stride
        places = np.concatenate([places - a.stride, places, places + a.stride])
        order = np.tile(order, 3)
        turn = np.argsort(places, kind="stable")
        others, order = places[turn], order[turn]
    else:
        reach_a += (num_blocks - 1) * a.stride
        reach_b += (num_blocks - 1) * b.stride
    low = np.searchsorted(others, starts - reach_b, side="right")
    counts = np.searchsorted(others, starts + reach_a, side="left") - low
    total = int(counts.sum())
    budget[0] -= total
    if budget[0] < 0:
        return None
    first = np.repeat(np.arange(len(starts)), counts)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return first, order[np.repeat(low, counts) + within]


def _meet_in_step(gap: np.ndarray, a: _Pieces, b: _Pieces, num_blocks: int) -> tuple[int, int, int] | None:
    # Block b + d of the second meets block b of the first for d from low to high.
    low = -((b.length - 1 - gap) // a.stride)
    high = (gap + a.length - 1) // a.stride
    low, high = np.maximum(low, 1 - num_blocks), np.minimum(high, num_blocks - 1)
    hit = (low <= high) & ~((low == 0) & (high == 0))
    if not hit.any():
        return None
    pair = int(np.argmax(hit))
    d = int(low[pair]) if low[pair] else int(high[pair])
    return pair, max(0, -d), max(0, -d) + d


def _meet_out_of_step(gap: np.ndarray, a: _Pieces, b: _Pieces, num_blocks: int,
                      budget: list[int]) -> tuple[int, int, int] | str | None:
    blocks = np.arange(num_blocks, dtype=np.int64) if len(gap) else None
    gaps, pairs = np.unique(gap, return_index=True)  # pairs of one distance meet alike
    for distance, pair in zip(gaps.tolist(), pairs.tolist()):
        budget[0] -= num_blocks
        if budget[0] < 0:
            return "unknown"
        begin = distance + blocks * a.stride  # of each block of the first, from the second piece's own start
        low = np.maximum(-((b.length - 1 - begin) // b.stride), 0)
        high = np.minimum((begin + a.length - 1) // b.stride, num_blocks - 1)
        hit = (low <= high) & ~((low == blocks) & (high == blocks))
        if hit.any():
            block = int(np.argmax(hit))
            return pair, block, int(low[block]) if low[block] != block else int(high[block])
    return None


def _crossing(a: Region, b: Region, pieces_a: _Pieces, pieces_b: _Pieces, met, num_blocks: int) -> Crossing:
    i, block, j, other = met
    offset = max(int(pieces_a.starts[i]) + block * pieces_a.stride,
                 int(pieces_b.starts[j]) + other * pieces_b.stride)
    return Crossing(offset, _layer_at(a, offset, block, num_blocks), block, a.group,
                    _layer_at(b, offset, other, num_blocks), other, b.group)


def _layer_at(region: Region, offset: int, block: int, num_blocks: int) -> str:
    """The layer whose manager block ``block`` holds the byte: broken strides may give it to other blocks' too."""
    factor = region.geometry.shape[1] // num_blocks
    return next(region.tensor.layers[local[0]] for local in region.addresses.all_indices(offset)
                if local[1] // factor == block)


def lint_sharing(address_map: AddressMap) -> list[Finding]:
    """Return illegal overlaps, blocks that meet, and what makes the overlays of groups legal."""
    found, legal, illegal, unknown = [], [], [], 0
    for shared in tensor_overlaps(address_map):
        if shared.offset is None:
            unknown += 1
        else:
            (legal if shared.is_legal else illegal).append(shared)
    if illegal:
        found.append(_illegal(address_map, illegal[0], len(illegal)))
    is_undecided = False
    for region in address_map.regions:
        met = meets_itself(region.addresses)
        is_undecided |= met is None
        if met:
            found.append(_self_overlap(region))
    answer = containment(address_map)
    groups = {index: region.group for index, region in
              ((region.tensor_index, region) for region in address_map.regions)}
    # Those inside one group are overlaps, which are said already.
    crossing = next((one for one in answer.crossings if one.group != one.other_group), None)
    if crossing:
        found.append(Finding(
            "containment", "error",
            f"Blocks of different ids share bytes: byte {crossing.offset:,} is in block {crossing.block:,} of "
            f"{crossing.layer} (group {crossing.group}) and in block {crossing.other_block:,} of "
            f"{crossing.other_layer} (group {crossing.other_group}), which may be lent out at the same time.",
            {"offset": crossing.offset, "other_layer": crossing.other_layer, "other_block": crossing.other_block},
            {"layer": crossing.layer, "block": crossing.block},
            "Give all groups one block stride and one region of bytes a block id"))
    if answer.is_contained is None or unknown or is_undecided:
        found.append(Finding("sharing-unproven", "note", "Whether different pages share bytes is not decided: too "
                             "many pieces to compare.", {"pairs": unknown}, None, "Lint fewer blocks"))
    if legal and answer.is_contained:
        overlaid = sorted({groups[index] for one in legal for index in (one.first, one.second)})
        where = f"block b owns {answer.block_bytes:,} bytes from b x {answer.block_bytes:,} on" \
            if answer.kind == "interval" else "each block id has its own pages in every group"
        found.append(Finding(
            "overlay", "note", f"Groups {', '.join(map(str, overlaid))} overlay each other on the same bytes, "
            f"legally: {where}, and pages of two groups meet only for equal block ids, whatever their slots or "
            "block sizes.",
            {"groups": overlaid, "pairs": len(legal), "block_bytes": answer.block_bytes}))
    return found


def _illegal(address_map: AddressMap, shared: SharedBytes, pairs: int) -> Finding:
    first, second = (address_map.config.kv_cache_tensors[index] for index in (shared.first, shared.second))
    owners = address_map.owners(shared.offset)
    mine = [owner for owner in owners if owner.tensor in (shared.first, shared.second)][:2]
    where = " and ".join(f"{owner.layer} block {owner.block:,}" for owner in mine)
    return Finding("illegal-overlap", "error", f"Tensors {shared.first} ({first.layers[0]}) and {shared.second} "
                   f"({second.layers[0]}) are of one group and share byte {shared.offset:,}: {where}; "
                   f"{pairs:,} such pairs in all.",
                   {"offset": shared.offset, "tensors": [shared.first, shared.second], "pairs": pairs},
                   {"layer": mine[0].layer, "block": mine[0].block} if mine else None,
                   "Move one tensor's offset, or widen the strides")


def _self_overlap(region: Region) -> Finding:
    shape, strides = region.geometry.shape, region.geometry.strides
    named = ", ".join(f"{axis} {stride:,}" for axis, count, stride in zip("LBHNC", shape, strides) if count > 1)
    page = StridedSet(0, shape[2:], strides[2:])
    return Finding("self-overlap", "error", f"The strides of {region.tensor.layers[0]}'s tensor give several "
                   f"coordinates one byte: {named} bytes, and a page spans {page.end:,}.",
                   {"strides": list(strides), "shape": list(shape), "tensor": region.tensor_index,
                    "page_bytes": page.end}, {"layer": region.tensor.layers[0]},
                   "Make each stride at least the span of all smaller ones")
