"""Two sides of a transfer: source ranks to a target rank, each with its own layout, TP size, stage and blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvlayout.address import AddressMap, Owner
from kvlayout.clinic.landed import Landed, judge
from kvlayout.clinic.relayout import relaid
from kvlayout.clinic.segments import Segments, plan_segments
from kvlayout.clinic.sides import Side
from kvlayout.errors import LayoutError, check_type
from kvlayout.layout import KVCacheLayout, PhysicalLayout
from kvlayout.strided import merge_runs

__all__ = ["Exchange", "Misplaced", "Segments", "Side", "exchange", "mistaken"]


@dataclass(frozen=True)
class Misplaced:
    """A byte of the target that holds somebody else's content.

    Attributes:
        offset: of the byte, in the target's allocation
        right: whose byte it is there
        source, source_offset: what was written to it: a byte of that source's allocation
        found: whose byte that is at the source; None for padding and outside the allocation
    """

    offset: int
    right: Owner | None
    source: int
    source_offset: int
    found: Owner | None


@dataclass(frozen=True, eq=False)
class Exchange:
    """The copies, and what they do to the target's bytes.

    Attributes:
        segments: arrays .source (index), .source_offset, .target_offset, .length (bytes), merged as far as they go
        target_bytes: bytes of the target's blocks, in its layers and head slots
        coverage: share (0 to 1) of these that are written exactly once, and by their right owner
        missing, twice, wrong: bytes of these that nobody writes, that are written more than once, and that are
            written once but with another coordinate's content
        stray, outside: bytes that are written elsewhere; ``outside`` of them past the end of the target's allocation
        first_missing, first_twice, first_stray: whose byte is the first of that kind; None where there is none, and
            for a stray one that nobody owns
        first_wrong: the first wrong byte with both owners
    """

    segments: Segments
    target_bytes: int
    coverage: float
    missing: int
    twice: int
    wrong: int
    stray: int
    outside: int
    first_missing: Owner | None
    first_twice: Owner | None
    first_stray: Owner | None
    first_wrong: Misplaced | None

    @property
    def is_right(self) -> bool:
        """Every byte of the target is written once, by its right owner, and no other byte is touched."""
        return self.missing == self.twice == self.wrong == self.stray == 0

    @property
    def wrong_share(self) -> float:
        """Share (0 to 1) of the target's bytes that hold another coordinate's content."""
        return self.wrong / self.target_bytes if self.target_bytes else 0.0


def exchange(sources: Sequence[Side], target: Side, *, source_blocks, target_blocks,
             replicas: Literal["first", "all"] = "first") -> Exchange:
    """Return what it takes to bring a request from ``sources`` to ``target``.

    ``source_blocks``, ``target_blocks``: the request's block ids in token order, for all groups, or {group: ids}. Of
    the sources one such for all of them, or a list of one each. Tokens are matched by position in the request, so
    the block sizes may differ; head slots by the model's head. ``replicas``: where several sources hold one head,
    the "first" listed sends it, or "all" do. Raises LayoutError where the two sides' bytes mean different things,
    or the request isn't in the pools.
    """
    wanted = _Request(sources, target, source_blocks, target_blocks, replicas)
    copies = wanted.copies()
    return wanted.result(copies, copies)


def mistaken(sources: Sequence[Side], target: Side, *, source_blocks, target_blocks,
             assumed_layout: KVCacheLayout | PhysicalLayout | str | AddressMap, side: str = "target",
             replicas: Literal["first", "all"] = "first") -> Exchange:
    """Return what lands where, if one side is taken to be in ``assumed_layout``.

    ``side``: "target" (its blocks are written as if in that layout) or "source" (all sources' are read so). An
    AddressMap in place of a layout is another mistake of the same kind, such as a peer's block count: it must have
    that side's layers and page shapes. The rest is as in :func:`exchange`, whose result ``.wrong``, ``.first_wrong``
    and ``.stray`` then tell.
    """
    if side not in ("target", "source"):
        raise LayoutError("side", side, 'must be "target" or "source"')
    wanted = _Request(sources, target, source_blocks, target_blocks, replicas)
    if side == "target":
        done = wanted.copies(written=_assumed(target, assumed_layout))
    else:
        done = wanted.copies(read=[_assumed(one, assumed_layout) for one in wanted.sources])
    return wanted.result(done, wanted.copies())


def _assumed(side: Side, assumed: object) -> AddressMap:
    if not isinstance(assumed, AddressMap):
        return relaid(side.address_map, assumed)
    for name in side.layers:
        ours, theirs = side.address_map.region(name), assumed.region(name)
        if ours.geometry.shape[2:] != theirs.geometry.shape[2:] or ours.group != theirs.group:
            raise LayoutError("assumed_layout", assumed, f"must see layer {name} in pages of (H, N, C bytes) "
                              f"{ours.geometry.shape[2:]} and in group {ours.group}")
    return assumed


class _Request:
    """The checked arguments of both functions."""

    def __init__(self, sources, target, source_blocks, target_blocks, replicas):
        if isinstance(sources, Side):
            sources = [sources]
        if not isinstance(sources, Sequence) or not all(isinstance(one, Side) for one in sources):
            raise LayoutError("sources", sources, "must be a list of Side objects")
        check_type("target", target, Side)
        if replicas not in ("first", "all"):
            raise LayoutError("replicas", replicas, 'must be "first" or "all"')
        self.sources, self.target, self.replicas = tuple(sources), target, replicas
        each = source_blocks if _one_each(source_blocks) else [source_blocks] * len(self.sources)
        if len(each) != len(self.sources):
            raise LayoutError("source_blocks", source_blocks, f"must be one list, or one for each of the "
                              f"{len(self.sources)} sources")
        self.source_blocks = [side.map_blocks("source_blocks", blocks) for side, blocks in zip(self.sources, each)]
        self.target_blocks = target.map_blocks("target_blocks", target_blocks)
        if not any(len(ids) for ids in self.target_blocks.values()):
            raise LayoutError("target_blocks", target_blocks, "must be at least one block, of at least one layer")

    def copies(self, read=None, written=None) -> Segments:
        """The copies as by these maps; None for the sides' own."""
        return plan_segments(self.sources, self.target, read or [side.address_map for side in self.sources],
                             written or self.target.address_map, self.source_blocks, self.target_blocks,
                             self.replicas)

    def result(self, done: Segments, meant: Segments) -> Exchange:
        address_map = self.target.address_map
        landed = judge(done, meant, *self._wanted(), address_map.size_bytes)
        return Exchange(done, landed.wanted, landed.right / landed.wanted if landed.wanted else 1.0, landed.missing,
                        landed.twice, landed.wrong, landed.stray, landed.outside,
                        *(self._target_owner(offset) for offset in
                          (landed.first_missing, landed.first_twice, landed.first_stray)), self._misplaced(landed))

    def _wanted(self) -> tuple[np.ndarray, np.ndarray]:
        """Runs of the target's bytes that are to be written."""
        address_map, runs = self.target.address_map, []
        for group, blocks in self.target_blocks.items():
            if len(blocks):
                layers = [name for name in self.target.layers if address_map.region(name).group == group]
                runs.append(address_map.run_arrays(layers, blocks))
        return merge_runs(*(np.concatenate(part) for part in zip(*runs)))

    def _target_owner(self, offset: int) -> Owner | None:
        """Whose byte it is at the target: of the groups that may own it, the one that was asked for comes first."""
        if offset < 0:
            return None
        owners = self.target.address_map.owners(offset)
        return next((one for one in owners if one.layer in self.target.layers
                     and one.block in self.target_blocks[one.group]), owners[0] if owners else None)

    def _misplaced(self, landed: Landed) -> Misplaced | None:
        if landed.wrong_from is None:
            return None
        source, offset = landed.wrong_from
        side = self.sources[source]
        owners = side.address_map.owners(offset)
        found = next((one for one in owners if one.layer in side.layers
                      and one.block in self.source_blocks[source][one.group]), owners[0] if owners else None)
        return Misplaced(landed.first_wrong, self._target_owner(landed.first_wrong), source, offset, found)


def _one_each(blocks: object) -> bool:
    """Whether there is an entry for each source, not one list of ids for all."""
    return isinstance(blocks, (list, tuple)) and bool(blocks) and all(
        isinstance(one, (list, tuple, range, np.ndarray, Mapping)) for one in blocks)
