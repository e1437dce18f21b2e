"""What leaves the allocation or another's bytes: views, spans of a block, and tensors of one group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.clinic.wording import layers_text, plural
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.finding import Finding
from kvlayout.geometry import layer_views, view_dtype
from kvlayout.region import Region
from kvlayout.strided import StridedSet, first_shared

_MOST_PIECES = 1 << 16


@dataclass(frozen=True)
class Victim:
    """Blocks ``first_block`` to ``last_block`` of ``layers``, of which a wrong span touches bytes."""

    layers: tuple[str, ...]
    group: int
    first_block: int
    last_block: int


@dataclass(frozen=True)
class BlockSpan:
    """The bytes of one block of one layer, and where a span of one block stride would end instead.

    Attributes:
        layer, block: whose; kernel blocks where those split
        start, end: the first byte of its content, and the byte behind its last
        is_contiguous: all bytes between the two are its own
        wrong_end: start + the block stride
        past_end_bytes: bytes that the wrong span lies past the allocation's end; 0 where it doesn't
        victims: whose bytes lie between ``end`` and ``wrong_end``, those of other groups' overlays too
    """

    layer: str
    block: int
    start: int
    end: int
    is_contiguous: bool
    wrong_end: int
    past_end_bytes: int
    victims: tuple[Victim, ...]


def page_set(region: Region, layer: int = 0, block: int = 0) -> StridedSet:
    """Return the addresses of one page: ``layer`` counts inside the region."""
    strides = region.geometry.strides
    return StridedSet(region.geometry.offset + layer * strides[0] + block * strides[1], region.geometry.shape[2:],
                      strides[2:])


def block_set(region: Region, num_blocks: int) -> StridedSet:
    """Return the addresses of manager block 0, all layers of the region."""
    shape = list(region.geometry.shape)
    shape[1] //= max(1, num_blocks)
    return StridedSet(region.geometry.offset, shape, region.geometry.strides)


def block_span(address_map: AddressMap, layer: str | int, block: int) -> BlockSpan:
    """Return where one block of one layer begins and must end. LayoutError for one that isn't there."""
    check_type("address_map", address_map, AddressMap)
    region = address_map.region(layer)
    index = address_map.layer_index(layer)
    block = check_int("block", block, minimum=0)
    if block >= region.geometry.shape[1]:
        raise LayoutError("block", block, f"must be below the {plural(region.geometry.shape[1], 'block')} of this "
                          "layer")
    page = page_set(region, region.layers.tolist().index(index), block)
    wrong = page.offset + region.geometry.strides[1]
    victims = _victims(address_map, page.end, min(wrong, address_map.size_bytes))
    return BlockSpan(address_map.layers[index], block, page.offset, page.end, page.is_dense, wrong,
                     max(0, wrong - address_map.size_bytes), victims)


def _victims(address_map: AddressMap, begin: int, end: int) -> tuple[Victim, ...]:
    """Whose pages have bytes in [begin, end): layers that lose the same blocks are one entry."""
    found: dict[tuple, list[str]] = {}
    for region in address_map.regions if begin < end else ():
        _, blocks, *_ = region.geometry.shape
        step = region.geometry.strides[1]
        for local, name in enumerate(region.tensor.layers):
            page = page_set(region, local)
            if page.is_empty or step <= 0:
                continue
            first = max(0, -(-(begin - page.end + 1) // step))
            last = min(blocks - 1, (end - 1 - page.offset) // step)
            # A page with holes may reach around the span without touching it.
            while first <= last and not _touches(page, first * step, begin, end):
                first += 1
            while first <= last and not _touches(page, last * step, begin, end):
                last -= 1
            if first <= last:
                found.setdefault((region.group, first, last), []).append(name)
    return tuple(Victim(tuple(layers), *key) for key, layers in found.items())


def _touches(page: StridedSet, moved: int, begin: int, end: int) -> bool:
    nearest = page.ceil(begin - moved)
    return nearest is not None and nearest + moved < end


def lint_bounds(address_map: AddressMap) -> list[Finding]:
    """Return what leaves the allocation, what can't be viewed, and spans that aren't one block stride long."""
    found = []
    for region in address_map.regions:
        if 0 in region.geometry.shape:
            continue
        outside = _outside(region, address_map.size_bytes)
        if outside:
            found.append(outside)
        else:
            try:
                layer_views(region.geometry, region.tensor.layers, view_dtype(region.spec), address_map.size_bytes)
            except LayoutError as error:
                found.append(Finding("view-dtype", "error", f"{layers_text(region.tensor.layers)} can't be viewed as "
                                     f"{view_dtype(region.spec)}: {error}.".replace("..", "."),
                                     {"argument": error.argument, "tensor": region.tensor_index},
                                     {"layer": region.tensor.layers[0]}, error.cure))
    return found + _allocated(address_map) + _spans(address_map)


def _outside(region: Region, size_bytes: int) -> Finding | None:
    end = region.addresses.end
    if end <= size_bytes:
        return None
    strides, layers = region.geometry.strides, region.tensor.layers
    # Block by block, the layer that reaches furthest leaves first.
    reach = [page_set(region, local).end for local in range(len(layers))]
    local = max(range(len(layers)), key=reach.__getitem__)
    block = max(0, -(-(size_bytes - reach[local] + 1) // strides[1])) if strides[1] else 0
    numbers = {"end": end, "size_bytes": size_bytes, "past_end_bytes": end - size_bytes,
               "tensor": region.tensor_index, "block_stride": strides[1], "layer_stride": strides[0]}
    return Finding("view-outside", "error", f"The views of {layers_text(layers)} end at byte {end:,}, "
                   f"{end - size_bytes:,} past the allocation of {size_bytes:,} bytes; the first page to leave it is "
                   f"that of {layers[local]}, block {block:,}.", numbers, {"layer": layers[local], "block": block},
                   "Allocate more, or lower num_blocks, the strides or the offset")


def _allocated(address_map: AddressMap) -> list[Finding]:
    config = address_map.config
    blocks, size = config.num_blocks, config.size_bytes
    if not config.kv_cache_tensors:
        return []
    if not blocks or not size:
        return [Finding("no-blocks", "warning", f"The pool has {plural(blocks, 'block')} in {size:,} bytes: nothing "
                        "can be cached.", {"num_blocks": blocks, "size_bytes": size}, None,
                        "Give the cache more memory")]
    sums = [sum(group.page_sizes_bytes) for group in config.kv_cache_groups]
    largest = max(sums)
    each, rest = divmod(size, blocks)
    numbers = {"bytes_per_block": each, "remainder_bytes": rest, "largest_group_bytes": largest,
               "group_bytes": sums, "num_blocks": blocks}
    if each < largest:
        return [Finding("block-bytes", "error", f"{each:,} bytes are allocated for a block, but the pages of group "
                        f"{sums.index(largest)} need {largest:,}: {plural(blocks, 'block')} don't fit into {size:,} "
                        "bytes.", numbers, None, "Allocate num_blocks x the largest group's pages")]
    if each > largest or rest:
        return [Finding("block-bytes", "note", f"{each:,} bytes are allocated for a block ({rest:,} are left over in "
                        f"all), and the largest group's pages take {largest:,} of them.", numbers, None,
                        "Alignment explains some; else lower the size" if each > largest else "")]
    return []


def _spans(address_map: AddressMap) -> list[Finding]:
    """One note a block stride that isn't a page's length, for the page where the mistake shows most: the last."""
    found, seen = [], set()
    for region in sorted(address_map.regions, key=lambda region: -region.addresses.end):
        shape, strides = region.geometry.shape, region.geometry.strides
        if 0 in shape:
            continue
        page = page_set(region)
        length = page.end - page.offset
        if length == strides[1] or strides[1] in seen:
            continue
        seen.add(strides[1])
        span = block_span(address_map, region.tensor.layers[-1], shape[1] - 1)
        text = f"its end lies {span.past_end_bytes:,} past the allocation" if span.past_end_bytes else \
            "it takes padding along" if span.wrong_end > span.end else "part of the page is missed"
        before = block_span(address_map, region.tensor.layers[-1], shape[1] - 2) if shape[1] > 1 else span
        # An overlay's page of the same bytes isn't lent out at the same time.
        victims = [one for one in before.victims if one.group == region.group]
        for victim in victims[:1]:
            text += (f", and that of block {before.block:,} wipes bytes of block {victim.first_block:,} of "
                     f"{layers_text(victim.layers)}")
        found.append(Finding(
            "block-span", "note",
            f"A page of {layers_text(region.tensor.layers)} spans {length:,} bytes"
            f"{'' if page.is_dense else ', with holes'}, not one block stride of {strides[1]:,}: block "
            f"{span.block:,} of {span.layer} begins at {span.start:,} and must end at {span.end:,}; cleared over a "
            f"block stride up to {span.wrong_end:,}, {text}.",
            {"start": span.start, "end": span.end, "wrong_end": span.wrong_end, "block_stride": strides[1],
             "span_bytes": length, "past_end_bytes": span.past_end_bytes,
             "victims": [[list(one.layers), one.first_block] for one in victims[:4]]},
            {"layer": span.layer, "block": span.block}, "Copy or clear a page by its own length, layer by layer"))
    return found


@dataclass(frozen=True)
class SharedBytes:
    """Two tensors (indices) that share ``offset``; legal where their groups differ. None: not known."""

    first: int
    second: int
    offset: int | None
    is_legal: bool


def tensor_overlaps(address_map: AddressMap) -> list[SharedBytes]:
    """Return pairs of tensors, as ``address_map.overlaps()``; each pair of shapes and distance is compared once."""
    known: dict[tuple, int | None | LayoutError] = {}
    found, num_blocks = [], address_map.config.num_blocks
    apart = {group for group in {region.group for region in address_map.regions}
             if _are_apart([region for region in address_map.regions if region.group == group], num_blocks)}
    for i, a in enumerate(address_map.regions):
        for b in address_map.regions[i + 1:]:
            one, two = a.addresses, b.addresses
            if a.group == b.group and a.group in apart:
                continue
            if one.is_empty or two.is_empty or one.end <= two.offset or two.end <= one.offset:
                continue
            key = (one.extents, one.strides, two.extents, two.strides, two.offset - one.offset)
            if key not in known:
                try:
                    shared = first_shared(one, two)
                    known[key] = None if shared is None else shared - one.offset
                except LayoutError as error:
                    known[key] = error
            if isinstance(known[key], LayoutError):
                found.append(SharedBytes(a.tensor_index, b.tensor_index, None, a.group != b.group))
            elif known[key] is not None:
                found.append(SharedBytes(a.tensor_index, b.tensor_index, one.offset + known[key], a.group != b.group))
    return found


def _are_apart(regions: list[Region], num_blocks: int) -> bool:
    """Whether one look at block 0 proves that a group's tensors share nothing: all repeat by one stride."""
    sets = [one for one in (block_set(region, num_blocks) for region in regions) if not one.is_empty]
    stride = regions[0].tensor.block_stride
    if len(sets) < 2 or any(region.tensor.block_stride != stride for region in regions):
        return False
    if max(one.end for one in sets) - min(one.offset for one in sets) > stride:
        return False
    if sum(one.num_runs for one in sets) > _MOST_PIECES:
        return False
    runs = [one.runs([None] * 5) for one in sets]
    starts = np.concatenate([begin for begin, _ in runs])
    ends = np.concatenate([begin + length for begin, length in runs])
    order = np.argsort(starts)
    return bool(np.all(starts[order][1:] >= ends[order][:-1]))
