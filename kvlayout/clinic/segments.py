"""From two sides to segments: which source bytes belong at which target bytes, in runs that are as long as can be.

All by cells of (layer, block, head slot, state): where a page's order differs on the two sides, one page's pieces are
found once and then moved along blocks and layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.clinic.sides import Side
from kvlayout.errors import LayoutError
from kvlayout.region import Region
from kvlayout.spec import MambaSpec

_MOST = 1 << 24  # pieces before they are merged


@dataclass(frozen=True, eq=False)
class Segments:
    """Copies, one a row: index of the source, byte offsets in its and in the target's allocation, bytes (int64)."""

    source: np.ndarray
    source_offset: np.ndarray
    target_offset: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.length)


def plan_segments(sources: Sequence[Side], target: Side, read: Sequence[AddressMap], written: AddressMap,
                  source_blocks: Sequence[dict[int, np.ndarray]], target_blocks: dict[int, np.ndarray],
                  replicas: str) -> Segments:
    """Return the merged copies, by source and target offset.

    ``read``, ``written``: the maps by which offsets are reckoned, one a source and the target's; the sides' own, or
    others of the same coordinates. ``replicas``: "first" or "all" of the sources that hold the same head send it.
    """
    rows = [np.zeros((4, 0), dtype=np.int64)]
    count = 0
    for (index, pairs, _, _), layers in _jobs(sources, target, read, written, replicas).items():
        src, tgt = read[index].region(layers[0]), written.region(layers[0])
        check_alike(src, tgt, pairs, layers[0])
        chunks = _chunks(source_blocks[index][src.group], src, target_blocks[tgt.group], tgt)
        bases = [np.array([page_base(region, name) for name in layers]) for region in (src, tgt)]
        for (src_state, tgt_state), (src_block, tgt_block), states in chunks:
            pieces = _pieces(src, tgt, pairs, src_state, tgt_state, states)
            count += len(layers) * len(src_block) * len(pieces[2])
            if count > _MOST:
                raise LayoutError("target_blocks", count, f"make more than {_MOST:,} pieces", "Choose fewer blocks")
            offsets = [base[:, None, None] + (block * region.geometry.strides[1])[:, None] + piece for
                       base, block, region, piece in zip(bases, (src_block, tgt_block), (src, tgt), pieces)]
            lengths = np.broadcast_to(pieces[2], offsets[0].shape)
            rows.append(np.stack([np.full(lengths.size, index), *(a.ravel() for a in (*offsets, lengths))]))
    source, source_offset, target_offset, length = np.concatenate(rows, axis=1)
    order = np.lexsort((target_offset, source))
    return Segments(*_merge(source[order], source_offset[order], target_offset[order], length[order]))


def page_base(region: Region, layer: str) -> int:
    """Return the byte offset of block 0 of ``layer``."""
    return region.geometry.offset + region.tensor.layers.index(layer) * region.geometry.strides[0]


def _jobs(sources, target, read, written, replicas) -> dict[tuple, list[str]]:
    """{(source, slot pairs, source region, target region): layers}: what each source sends, alike layers together."""
    jobs: dict[tuple, list[str]] = {}
    holds = [frozenset(side.layers) for side in sources]
    for layer in target.layers:
        todo = {key: slot for slot, key in enumerate(target.slot_keys(layer))}
        left, seen = set(todo), False
        for index, side in enumerate(sources):
            if layer not in holds[index]:
                continue
            seen = True
            here = {key: slot for slot, key in enumerate(side.slot_keys(layer))}
            pairs = tuple((here[key], slot) for key, slot in todo.items() if key in here)
            if pairs:
                regions = id(read[index].region(layer)), id(written.region(layer))
                jobs.setdefault((index, pairs, *regions), []).append(layer)
            left -= here.keys()
            if replicas == "first":
                todo = {key: slot for key, slot in todo.items() if key in left}
        # A head that no source has is missing bytes; content of another cut can't be told apart at all.
        if seen and any(key[0] in ("state", "slot") for key in left):
            raise LayoutError("sources", layer, "is kept in slots that aren't one head each (a recurrent state, or K "
                              "and V in slots of their own), so it can't be cut anew for another tp_size or tp_rank",
                              "Give a source of the target's own tp_size and tp_rank, or leave the layer out")
    return jobs


def check_alike(src: Region, tgt: Region, pairs: Sequence[tuple[int, int]], layer: str) -> None:
    """Raise LayoutError unless a state's bytes mean the same on both sides."""
    where = f"layer {layer}"
    if isinstance(src.spec, MambaSpec) != isinstance(tgt.spec, MambaSpec):
        raise LayoutError("sources", where, "is a recurrent state on one side and attention on the other")
    if src.geometry.shape[4] != tgt.geometry.shape[4]:
        raise LayoutError("sources", where, f"has states of {src.geometry.shape[4]:,} bytes (C), the target's have "
                          f"{tgt.geometry.shape[4]:,}", "Give sides of one dtype and one backend's packing")
    if isinstance(src.spec, MambaSpec):
        if src.spec.block_size != tgt.spec.block_size:
            raise LayoutError("sources", where, f"keeps one state a block of {src.spec.block_size} tokens, the "
                              f"target one a block of {tgt.spec.block_size}", "Give sides of one block size")
    elif src.spec.tokens_per_state != tgt.spec.tokens_per_state:
        raise LayoutError("sources", where, f"has {src.spec.tokens_per_state} tokens a state, the target "
                          f"{tgt.spec.tokens_per_state}")
    for src_slot, tgt_slot in pairs:
        ours, theirs = ([(begin, f.name, f.num_elements, f.element_bits) for begin, f in
                         region.interior.slot_fields(slot)] for region, slot in ((src, src_slot), (tgt, tgt_slot)))
        if ours != theirs:
            raise LayoutError("sources", where, f"holds {', '.join(f[1] for f in ours)} in a state, the target "
                              f"{', '.join(f[1] for f in theirs)}, so their bytes mean different things",
                              "Give sides of one dtype and one backend's packing")


def _chunks(src_blocks, src, tgt_blocks, tgt):
    """Yield ((source state, target state), (source blocks, target blocks), states) of alike stretches of a request.

    Tokens are matched by their position in the request; a stretch lies inside one block on either side.
    """
    in_src, in_tgt = src.geometry.shape[3], tgt.geometry.shape[3]
    step = math.gcd(in_src, in_tgt)
    if not step:
        return
    position = np.arange(min(len(src_blocks) * in_src, len(tgt_blocks) * in_tgt) // step) * step
    first = np.stack([position % in_src, position % in_tgt])
    for pair in np.unique(first, axis=1).T.tolist():
        here = position[(first[0] == pair[0]) & (first[1] == pair[1])]
        yield tuple(pair), (src_blocks[here // in_src], tgt_blocks[here // in_tgt]), step


def _pieces(src: Region, tgt: Region, pairs, src_state: int, tgt_state: int, states: int):
    """(source offsets, target offsets, bytes) inside a page, merged, of ``states`` states from the given ones on."""
    content = src.geometry.shape[4]
    plain = all(region.interior.scope == "state" and (region.geometry.strides[4] == 1 or content == 1)
                for region in (src, tgt))
    slots, state, byte = (a.ravel() for a in np.meshgrid(
        np.arange(len(pairs)), np.arange(states), np.arange(min(content, 1) if plain else content), indexing="ij"))
    of_src, of_tgt = (np.array([pair[side] for pair in pairs], dtype=np.int64)[slots] for side in (0, 1))
    source = src.inner_offsets(of_src, src_state + state, byte)
    dest = tgt.inner_offsets(of_tgt, tgt_state + state, byte)
    order = np.argsort(dest, kind="stable")
    lengths = np.full(len(order), content if plain else 1, dtype=np.int64)
    return _merge(None, source[order], dest[order], lengths)[1:]


def _merge(source, source_offset, target_offset, length):
    """Join rows that go on where the one before ends, on both sides; rows are in order of target offset."""
    if not len(length):
        return source, source_offset, target_offset, length
    new = np.ones(len(length), dtype=bool)
    new[1:] = (source_offset[1:] != source_offset[:-1] + length[:-1]) \
        | (target_offset[1:] != target_offset[:-1] + length[:-1])
    if source is not None:
        new[1:] |= source[1:] != source[:-1]
    heads = np.flatnonzero(new)
    return (None if source is None else source[heads], source_offset[heads], target_offset[heads],
            np.add.reduceat(length, heads))
