"""Every order of the axes scored for one page shape: runs of usual selections, lines touched, what stays expressible.

All is closed form on shapes and byte strides, so that a pool of 140 GiB costs no more than a tiny one. The strides
are those that vLLM's own placement gives the layers alone: where layers of other pages share their blocks, a layout
that puts B outside of L has a larger block stride, and may touch a few sectors and lines more or less at its edges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvlayout.address import AddressMap
from kvlayout.bench.footprint import LINE_BYTES, SECTOR_BYTES, DecodeShape, touched_by_read, touched_by_write
from kvlayout.config import KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError, check_int, check_type
from kvlayout.geometry import Geometry, tensor_geometry, view_dtype
from kvlayout.layout import KVCacheLayout, PhysicalLayout, all_layouts
from kvlayout.placement import get_kv_cache_config_from_groups, validate_kv_cache_layout
from kvlayout.spec import KVCacheSpec
from kvlayout.strided import StridedSet
from kvlayout.strides import compute_layout_strides, one_layer_spec


@dataclass(frozen=True)
class Measure:
    """What a number of a :class:`Score` means: its ``unit``, and whether "less" or "more" is ``better``."""

    unit: str
    better: str
    meaning: str


_SELECTIONS = {
    "block": "one block of all layers",
    "layer": "all blocks of one layer",
    "head shard": "the head slots of one of the shards, in one block of all layers",
    "token": "one state of all head slots, in one block of one layer",
}
MEASURES: dict[str, Measure] = {
    **{f"{name} {what}": Measure(unit, better, f"{sentence} of {selection}")
       for name, selection in _SELECTIONS.items()
       for what, unit, better, sentence in (("runs", "runs", "less", "Contiguous runs"),
                                            ("run bytes", "bytes", "more", "Bytes of each contiguous run"))},
    **{f"{name} {what}s": Measure(f"{what}s", "less", f"{size}-byte {what}s that {did}; what two heads or "
                                  "blocks touch counts twice")
       for name, did in (("read", "a decode step reads from one layer, head by head and block by block"),
                         ("write", "a decode step writes its token to in one layer, head by head"))
       for what, size in (("sector", SECTOR_BYTES), ("line", LINE_BYTES))},
    "kernel blocks": Measure("yes/no", "more", "A block can be split into kernel blocks, as vLLM 0.32 and newer do"),
    "padding": Measure("yes/no", "more", "Pages can be padded"),
    "mixed pages": Measure("yes/no", "more", "Layers of one group can have pages of different sizes"),
    "mixed groups": Measure("yes/no", "more", "Groups can have pages of different sizes"),
    "typed view": Measure("yes/no", "more", "Strides can express a view in the spec's dtype"),
    "contiguous page": Measure("yes/no", "more", "A page is contiguous as [H, N, C]"),
    "contiguous layer": Measure("yes/no", "more", "A layer is contiguous as [B, H, N, C]"),
}

# One letter for each thing that stays expressible, as tables show them.
KEEPS = {"K": "kernel blocks", "P": "padding", "M": "mixed pages", "G": "mixed groups", "V": "typed view",
         "C": "contiguous page", "L": "contiguous layer"}


@dataclass(frozen=True)
class Score:
    """How one layout does; bytes and counts are exact.

    Attributes:
        layout: one of the 120 orders
        measures: {name of MEASURES: number}; yes is 1 and no is 0
        in_vllm: whether it is one of vLLM's six
        refused: why the layout can't hold these pages; it then has none of the measures that need them. Else empty
        no_shard: why there are no measures of a head shard; else empty
    """

    layout: KVCacheLayout | PhysicalLayout
    measures: dict[str, int] = field(hash=False)
    in_vllm: bool
    refused: str = ""
    no_shard: str = ""


_MOST_LAYERS = 1024  # their names are listed for each layout


def score_layouts(spec: KVCacheSpec, num_blocks: int, num_layers: int, *, shards: int = 2,
                  decode: DecodeShape | None = None) -> list[Score]:
    """Return the scores of all 120 layouts for ``num_layers`` layers of ``spec``: vLLM's six first.

    ``shards``: ranks that the heads are dealt out to, for the head shard; one head where several ranks share it, and
    no such measure where it can't be dealt out evenly, or where head slots aren't heads (``num_head_slots``, as of
    backends that give K and V slots of their own). ``decode``: None is the default :class:`DecodeShape`. Runs and
    lines are those of a page's [H, N, C] view; an interior that keeps its fields elsewhere in the page isn't asked.
    Raises LayoutError for a spec of several layers, for less than one block or layer, for more than 1,024 layers, and
    for caches of 2^63 bytes or more.
    """
    spec = one_layer_spec(spec)
    for name, value in (("num_blocks", num_blocks), ("num_layers", num_layers), ("shards", shards)):
        check_int(name, value, minimum=1)
    decode = DecodeShape() if decode is None else decode
    check_type("decode", decode, DecodeShape)
    if num_layers > _MOST_LAYERS:
        raise LayoutError("num_layers", num_layers, f"must be at most {_MOST_LAYERS:,}")
    # Each of the five extents and strides stays within 63 bits then.
    if (total := spec.page_size_bytes * num_blocks * num_layers) >= 2**63:
        raise LayoutError("num_blocks", num_blocks, f"make a cache of {total:,} bytes, beyond 63 bits",
                          "Score fewer blocks")
    shard = _head_shard(spec, shards)
    group = KVCacheGroupSpec([f"layers.{index}" for index in range(num_layers)], spec)
    kernel = _kernel_block_size(spec)
    return [_score(layout, group, num_blocks, shard, decode, kernel) for layout in all_layouts()]


def ranked(scores: Sequence[Score], measure: str, *, best_first: bool = True) -> list[Score]:
    """Return the scores by a measure of MEASURES, equal ones as they were; those that don't have it are last.

    LayoutError for an unknown measure.
    """
    if measure not in MEASURES:
        raise LayoutError("measure", measure, "is not a measure", f"Use one of {', '.join(MEASURES)}")
    sign = (1 if MEASURES[measure].better == "less" else -1) * (1 if best_first else -1)
    return sorted(scores, key=lambda one: (measure not in one.measures, sign * one.measures.get(measure, 0)))


def layers_alike(address_map: AddressMap, layer: str | int) -> tuple[KVCacheSpec, int]:
    """Return a layer's spec, and how many layers of its group have an equal one, whatever tensors they are in."""
    region = address_map.region(layer)
    specs = address_map.config.kv_cache_groups[region.group].layer_specs
    return region.spec, sum(one == region.spec for one in specs.values())


def _score(layout, group: KVCacheGroupSpec, num_blocks: int, shard: int | str, decode: DecodeShape,
           kernel: int | None) -> Score:
    spec, in_vllm = group.kv_cache_spec, layout.name in KVCacheLayout.__members__
    measures = {"padding": _pads(spec, num_blocks, len(group.layer_names), layout), **_mixes(spec, layout)}
    try:
        config = get_kv_cache_config_from_groups([group], 0, layout, num_gpu_blocks_override=num_blocks)
        (tensor,) = config.kv_cache_tensors
        geometry = tensor_geometry(spec, num_blocks, layout, tensor)
    except LayoutError as error:
        return Score(layout, _in_order(measures), in_vllm, f"{error.argument}: {error.rule}")
    measures |= _runs(geometry, shard) | _lines(spec, geometry, decode) | _views(spec, geometry)
    measures["kernel blocks"] = _splits(spec, num_blocks, layout, tensor, kernel)
    return Score(layout, _in_order(measures), in_vllm, no_shard=shard if isinstance(shard, str) else "")


def _head_shard(spec: KVCacheSpec, shards: int) -> int | str:
    """The head slots of one shard, or, in words, why that is no number of slots."""
    slots = spec.num_heads
    if shards > 1 and getattr(spec, "num_head_slots", None) is not None:
        return f"the {slots} head slots aren't its {spec.num_kv_heads} heads, so the first of them are no shard"
    if max(slots, shards) % min(slots, shards):
        return f"{slots} heads can't be dealt out evenly to {shards:,} shards"
    return max(1, slots // shards)


def shard_words(spec: KVCacheSpec, shards: int) -> str:
    """Return what the head shard of :func:`score_layouts` is, in words."""
    found = _head_shard(spec, shards)
    if isinstance(found, str):
        return f"No head shard is counted: {found}."
    shared = f", which {shards // spec.num_heads:,} ranks share" if shards > spec.num_heads else ""
    return f"A head shard is {found} of the {spec.num_heads} head slots{shared}."


def _in_order(measures: dict[str, int]) -> dict[str, int]:
    return {name: int(measures[name]) for name in MEASURES if name in measures}


def _runs(geometry: Geometry, shard: int | str) -> dict[str, int]:
    layers, blocks, heads, states, content = geometry.shape
    selections = {"block": (layers, 1, heads, states, content), "layer": (1, blocks, heads, states, content),
                  "token": (1, 1, heads, min(1, states), content)}
    if isinstance(shard, int):
        selections["head shard"] = (layers, 1, shard, states, content)
    found = {}
    for name, counts in selections.items():
        # Indices that follow each other are themselves a strided set, and its runs are the selection's.
        chosen = StridedSet(0, counts, geometry.strides)
        found |= {f"{name} runs": chosen.num_runs, f"{name} run bytes": chosen.run_length}
    return found


def _lines(spec: KVCacheSpec, geometry: Geometry, decode: DecodeShape) -> dict[str, int]:
    return {f"{name} {what}s": count(spec, geometry.shape, geometry.strides, decode, size)
            for name, count in (("read", touched_by_read), ("write", touched_by_write))
            for what, size in (("sector", SECTOR_BYTES), ("line", LINE_BYTES))}


def _views(spec: KVCacheSpec, geometry: Geometry) -> dict[str, bool]:
    return {"typed view": view_dtype(spec, geometry) == view_dtype(spec),
            "contiguous page": _is_contiguous(geometry.shape[2:], geometry.strides[2:]),
            "contiguous layer": _is_contiguous(geometry.shape[1:], geometry.strides[1:])}


def _is_contiguous(shape: tuple, strides: tuple) -> bool:
    """Whether it lies as its axes are listed, without gaps, as torch means it."""
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True


def _kernel_block_size(spec: KVCacheSpec) -> int | None:
    """The largest part of a block, in tokens, that holds whole states; None where there is none."""
    size = spec.block_size
    low = [parts for parts in range(1, math.isqrt(size) + 1) if size % parts == 0]
    for parts in sorted({*low, *(size // one for one in low)} - {1}):
        if spec.get_num_kernel_states(size // parts) * parts == spec.num_states:
            return size // parts
    return None


def _splits(spec: KVCacheSpec, num_blocks: int, layout, tensor: KVCacheTensor, kernel: int | None) -> bool:
    """Whether vLLM splits a block into kernel blocks of so many tokens, and the layout can."""
    if kernel is None or tensor.block_stride > tensor.layer_stride:
        return False
    try:
        geometry = tensor_geometry(spec, num_blocks, layout, tensor, kernel)
    except LayoutError:
        return False
    return StridedSet(0, geometry.shape, geometry.strides).is_nested


def _pads(spec: KVCacheSpec, num_blocks: int, num_layers: int, layout) -> bool:
    if spec.page_size_padded is None:
        spec = replace(spec, page_size_padded=spec.page_size_bytes + SECTOR_BYTES)
    try:
        compute_layout_strides(spec, num_blocks, num_layers, layout)
    except LayoutError:
        return False
    return True


def _mixes(spec: KVCacheSpec, layout) -> dict[str, bool]:
    """Whether pages of this and of another size fit beside each other in one group, and in groups that overlay."""
    unaligned = {"alignment": None} if hasattr(spec, "alignment") else {}
    other = replace(spec, page_size_padded=spec.page_size_bytes + SECTOR_BYTES, **unaligned)
    groups = [KVCacheGroupSpec(["a"], spec), KVCacheGroupSpec(["b"], other)]
    return {"mixed pages": layout.is_block_compact, "mixed groups": _holds(layout, groups)}


def _holds(layout, groups: list[KVCacheGroupSpec]) -> bool:
    try:
        validate_kv_cache_layout(layout, groups)
    except LayoutError:
        return False
    return True
