"""Groups overlaid on the same bytes: what each would make of one block, and what equal page sizes cost.

A block id belongs to one group at a time; here each group is shown as if the block were its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.arrays import distinct
from kvlayout.clinic.bounds import block_set
from kvlayout.clinic.contained import containment
from kvlayout.clinic.landed import depth_at
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.strided import merge_runs

_MOST_PIECES = 1 << 20

Runs = tuple[np.ndarray, np.ndarray]  # offsets and lengths in bytes, in order, apart from each other


@dataclass(frozen=True, eq=False)
class Strip:
    """One group in one block; runs are (offsets, lengths) in bytes, int64 arrays in address order.

    Attributes:
        group, layer_names, kinds: which group, its layers, the classes of their specs
        useful: runs that hold content if the block is this group's
        padding: the block's other bytes, unless blocks of other ids own them
        page_padding: the part of ``padding`` inside this group's own pages
        shared: the part of ``useful`` that is useful to another group too
        shared_with: these groups
        crossing: bytes among the block's others that hold content of blocks of other ids: none in a sound config
    """

    group: int
    layer_names: tuple[str, ...]
    kinds: tuple[str, ...]
    useful: Runs
    padding: Runs
    page_padding: Runs
    shared: Runs
    shared_with: tuple[int, ...]
    crossing: Runs

    @property
    def useful_bytes(self) -> int:
        """Bytes of the block that hold content."""
        return int(self.useful[1].sum())

    @property
    def padding_bytes(self) -> int:
        """Bytes of the block that hold none."""
        return int(self.padding[1].sum())

    @property
    def shared_bytes(self) -> int:
        """Bytes that hold another group's content when the block is that group's."""
        return int(self.shared[1].sum())

    @property
    def page_padding_bytes(self) -> int:
        """Bytes of padding inside this group's own pages."""
        return int(self.page_padding[1].sum())

    @property
    def unused_bytes(self) -> int:
        """Bytes of the block outside this group's pages: gaps, and room for layers that it doesn't have."""
        return self.padding_bytes - self.page_padding_bytes

    @property
    def padding_share(self) -> float:
        """Share (0 to 1) of the block that holds no content."""
        return self.padding_bytes / max(1, self.padding_bytes + self.useful_bytes)


@dataclass(frozen=True)
class PageLoss:
    """What a group's pages lose by being as large as the largest group's.

    Attributes:
        group, kinds: which group, the classes of its layers' specs
        block_size: tokens of one block, as grouping left it: an attention block may have been made longer, so that
            its page is as large as a Mamba page
        content_bytes, page_bytes: of the pages of one block of all layers, without and with their padding
    """

    group: int
    kinds: tuple[str, ...]
    block_size: int
    content_bytes: int
    page_bytes: int

    @property
    def share(self) -> float:
        """Share (0 to 1) of the pages' bytes that is padding."""
        return 1 - self.content_bytes / self.page_bytes if self.page_bytes else 0.0


@dataclass(frozen=True)
class PageLosses:
    """:class:`PageLoss` of each group, and the share in all, each group counted with one block."""

    groups: tuple[PageLoss, ...]

    @property
    def share(self) -> float:
        """Share (0 to 1) of all groups' page bytes that is padding."""
        pages = sum(one.page_bytes for one in self.groups)
        return 1 - sum(one.content_bytes for one in self.groups) / pages if pages else 0.0


def group_overlay(address_map: AddressMap, block: int) -> list[Strip]:
    """Return one strip for each group that may own ``block``, a block id of the block manager.

    Where the map splits a group into kernel blocks, all those of the block count. Raises LayoutError where there is
    no such block.
    """
    check_type("address_map", address_map, AddressMap)
    config = address_map.config
    if check_int("block", block, minimum=0) >= config.num_blocks:
        raise LayoutError("block", block, f"must be below the {config.num_blocks:,} blocks of this config")
    groups = [index for index, group in enumerate(config.kv_cache_groups) if group.layer_names]
    useful = {group: _content(address_map, group, block) for group in groups}
    pages = {group: _pages(address_map, group, block, useful[group]) for group in groups}
    own = _union([*pages.values(), _packed(address_map, block)])
    foreign = _foreign(address_map, block, own)
    strips = []
    for group in groups:
        others = {other: _pick(useful[group], useful[other], both=True) for other in groups if other != group}
        spec_kinds = (type(spec).__name__ for spec in config.kv_cache_groups[group].layer_specs.values())
        rest = _pick(own, useful[group], both=False)
        in_pages = _pick(pages[group], useful[group], both=False)
        strips.append(Strip(
            group, config.kv_cache_groups[group].layer_names, tuple(dict.fromkeys(spec_kinds)), useful[group],
            _pick(rest, foreign, both=False), _pick(in_pages, foreign, both=False),
            _union(list(others.values())), tuple(other for other, runs in others.items() if len(runs[0])),
            _pick(rest, foreign, both=True)))
    return strips


def page_losses(address_map: AddressMap) -> PageLosses:
    """Return what equal page sizes cost, group by group and in all."""
    check_type("address_map", address_map, AddressMap)
    found = []
    for index, group in enumerate(address_map.config.kv_cache_groups):
        specs = list(group.layer_specs.values())
        found.append(PageLoss(index, tuple(dict.fromkeys(type(spec).__name__ for spec in specs)),
                              group.kv_cache_spec.block_size, sum(spec.unpadded_page_size_bytes for spec in specs),
                              sum(spec.page_size_bytes for spec in specs)))
    return PageLosses(tuple(found))


def _content(address_map: AddressMap, group: int, block: int) -> Runs:
    """Runs of a group's content in one block of the manager's."""
    runs = []
    for region in address_map.regions:
        states = region.geometry.shape[3]
        if region.group == group and states:
            ratio = region.spec.num_states // states
            runs.append(address_map.run_arrays(list(region.tensor.layers), block * ratio + np.arange(ratio)))
    return _union(runs)


def _pages(address_map: AddressMap, group: int, block: int, content: Runs) -> Runs:
    """Runs of a group's pages, padding included; where a page is scattered, its content alone."""
    if not address_map.layout.is_block_compact:
        return content
    runs = [content]
    for region in address_map.regions:
        if region.group == group:
            tensor = region.tensor
            starts = tensor.offset + np.arange(len(tensor.layers)) * tensor.layer_stride + block * tensor.block_stride
            # Layer after layer, a page ends where the next block begins; it may be aligned to more than its size.
            size = tensor.block_stride if address_map.layout.is_layer_compact else region.spec.page_size_bytes
            runs.append((starts, np.full(len(starts), size)))
    return _union(runs)


def _foreign(address_map: AddressMap, block: int, own: Runs) -> Runs:
    """Runs of content, of any group, that blocks of other ids keep among the bytes ``own``."""
    if containment(address_map).is_contained:
        return _union([])
    num_blocks, found = address_map.config.num_blocks, []
    begin, end = own[0], own[0] + own[1]
    for region in address_map.regions:
        inner, stride = block_set(region, num_blocks), region.tensor.block_stride
        if inner.is_empty:
            continue
        starts, length = inner.runs([None] * 5)
        if len(starts) * len(begin) > _MOST_PIECES:
            raise LayoutError("block", block, "shares bytes with blocks of other ids, in too many pieces to list")
        low = np.maximum(-((starts[:, None] + length - 1 - begin) // stride), 0)
        high = np.minimum((end - 1 - starts[:, None]) // stride, num_blocks - 1)
        counts = np.maximum(high - low + 1, 0).ravel()
        if int(counts.sum()) > _MOST_PIECES:
            raise LayoutError("block", block, "shares bytes with blocks of other ids, in too many pieces to list")
        ids = np.repeat(low.ravel() - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        at = np.repeat(np.repeat(starts, len(begin)), counts) + ids * stride
        at = at[ids != block]
        found.append((at, np.full(len(at), length, dtype=np.int64)))
    return _union(found)


def _packed(address_map: AddressMap, block: int) -> Runs:
    """The whole of a packed block, where all tensors step by one block stride."""
    strides = {region.tensor.block_stride for region in address_map.regions}
    if not address_map.layout.is_block_outermost or len(strides) != 1:
        return _union([])
    stride = strides.pop()
    return np.array([block * stride]), np.array([stride])


def _union(runs: list[Runs]) -> Runs:
    empty = np.zeros(0, dtype=np.int64)
    starts, lengths = (np.concatenate([empty, *(one[part] for one in runs)]) for part in (0, 1))
    return merge_runs(starts[lengths > 0], lengths[lengths > 0])


def _pick(a: Runs, b: Runs, *, both: bool) -> Runs:
    """The bytes of ``a`` that are in ``b`` too (``both``), or that aren't."""
    cuts = distinct(np.concatenate([a[0], a[0] + a[1], b[0], b[0] + b[1]]))
    at, width = cuts[:-1], np.diff(cuts)
    here = (depth_at(at, a[0], a[0] + a[1]) > 0) & ((depth_at(at, b[0], b[0] + b[1]) > 0) == both)
    return merge_runs(at[here], width[here])
