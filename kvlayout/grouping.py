"""Groups: which layers share a block table. The layout has a say in it.

In this order: one merged group, one group of a uniform type, packed groups (block-outermost layouts, ``packing.py``),
or groups of equally many layers whose pages are made equally large.
Sources: vLLM 0.33.0 ``vllm/v1/core/kv_cache_planning.py``; 0.32.0 and older ``vllm/v1/core/kv_cache_utils.py``
(get_kv_cache_groups and what it calls, _project_kv_cache_groups_to_worker). Not reproduced: HiSparse, whose groups
lie in host memory too, and the grouping of one model family in 0.30 and 0.31, which is refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace

from kvlayout.config import KVCacheGroupSpec
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout, PhysicalLayout, as_layout
from kvlayout.merging import can_merge, is_uniform_type, merge_specs, uniform_type_specs
from kvlayout.packing import pack_groups
from kvlayout.spec import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from kvlayout.spec_io import as_spec
from kvlayout.versions import NEWEST, at_least


class PageSizeError(LayoutError):
    """Pages that can't be made equally large, because an MLA page can be neither divided nor padded."""


def get_kv_cache_groups(
    kv_cache_spec: Mapping[str, KVCacheSpec],
    layout: KVCacheLayout | PhysicalLayout,
    *,
    disable_hybrid_kv_cache_manager: bool = False,
    vllm_version: str = NEWEST,
) -> list[KVCacheGroupSpec]:
    """Return the groups of a model's layers, given as {layer name: spec} in model order; the input stays as it is.

    Every layer is in exactly one group; no layers, no groups. ``disable_hybrid_kv_cache_manager``: layers of local
    attention are allocated like full attention. Spec fields that ``vllm_version`` doesn't know yet must keep their
    defaults. Raises LayoutError where vLLM fails, and for a page of no bytes beside other pages.
    """
    layout = as_layout(layout)
    at_least(vllm_version, NEWEST)  # refuses an unknown release, whichever rule applies below
    specs = _check_specs(kv_cache_spec)
    if disable_hybrid_kv_cache_manager:
        specs = _allocate_in_full(specs, vllm_version)
    if not specs:
        return []
    if can_merge(list(specs.values()), vllm_version=vllm_version):
        return [_merged_group(specs, list(specs), vllm_version)]
    if uniform := uniform_type_specs(specs):
        return [KVCacheGroupSpec(list(specs), uniform)]
    _refuse_special_grouping(specs, vllm_version)
    hidden = {name: spec for name, spec in specs.items() if isinstance(spec, HiddenStateCacheSpec)}
    others = {name: spec for name, spec in specs.items() if name not in hidden}
    page_sizes = {spec.page_size_bytes for spec in others.values()}
    if not others or 0 in page_sizes:
        raise LayoutError("kv_cache_spec", list(kv_cache_spec), "holds layers that no block can be planned for",
                          "A block must hold at least one state, and hidden states need other layers beside them")
    if layout.is_block_outermost and len(page_sizes) > 1:
        groups = pack_groups(others, vllm_version=vllm_version)
        return groups + [KVCacheGroupSpec([name], spec) for name, spec in hidden.items()]
    try:
        others = unify_kv_cache_spec_page_size(others)
    except PageSizeError:
        return _full_allocation_groups(specs, vllm_version)
    groups = _equal_page_groups(others, vllm_version)
    return _with_hidden_states(groups, hidden, vllm_version) if hidden else groups


def project_kv_cache_groups(
    groups: Sequence[KVCacheGroupSpec], layer_names: Collection[str]
) -> list[KVCacheGroupSpec]:
    """Return the groups cut down to the layers of one pipeline rank.

    A group without a layer there stays, so that group indices agree on all ranks. As in vLLM it keeps its whole
    spec, so a UniformTypeKVCacheSpecs then names layers that are elsewhere.
    """
    wanted = set(layer_names)
    projected = []
    for group in groups:
        names = [name for name in group.layer_names if name in wanted]
        spec = group.kv_cache_spec
        if names and isinstance(spec, UniformTypeKVCacheSpecs):
            spec = UniformTypeKVCacheSpecs(spec.block_size, {name: spec.kv_cache_specs[name] for name in names})
        projected.append(group if len(names) == len(group.layer_names) else KVCacheGroupSpec(names, spec))
    return projected


def unify_kv_cache_spec_page_size(kv_cache_spec: Mapping[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """Return the specs with all pages as large (in bytes) as the largest.

    A smaller page that divides the largest gets a larger block instead; other pages are padded, and so are all of
    Mamba's. Raises PageSizeError for an MLA page that doesn't divide the largest, and a plain LayoutError where
    padding that a page has already stands in the way.
    """
    largest = max((spec.page_size_bytes for spec in kv_cache_spec.values()), default=0)
    return {name: _with_page_size(name, spec, largest) for name, spec in kv_cache_spec.items()}


def _with_page_size(name: str, spec: KVCacheSpec, page_size: int) -> KVCacheSpec:
    own = spec.page_size_bytes
    if own == page_size:
        return spec
    divides = own > 0 and page_size % own == 0
    if divides and not isinstance(spec, MambaSpec):
        unified = replace(spec, block_size=spec.block_size * (page_size // own))
    elif isinstance(spec, MLAAttentionSpec):
        raise PageSizeError(name, own, f"bytes of an MLA page don't divide the largest page of {page_size:,} bytes, "
                            "and MLA pages can't be padded to it", "Use a block-outermost layout such as BLHNC")
    else:
        unified = replace(spec, page_size_padded=page_size)
    if unified.page_size_bytes != page_size:
        raise LayoutError(name, own, f"bytes of a padded page can't be brought to {page_size:,} bytes",
                          "Give this layer no page padding or alignment of its own")
    return unified


def _check_specs(kv_cache_spec: object) -> dict[str, KVCacheSpec]:
    """A copy of the input as specs of ours, each for one layer."""
    if not isinstance(kv_cache_spec, Mapping):
        raise LayoutError("kv_cache_spec", kv_cache_spec, "must map layer names to specs")
    specs = {name: as_spec(spec, f"kv_cache_spec[{name!r}]") for name, spec in kv_cache_spec.items()}
    for name, spec in specs.items():
        if isinstance(spec, (UniformTypeKVCacheSpecs, EncoderOnlyAttentionSpec)):
            raise LayoutError(f"kv_cache_spec[{name!r}]", type(spec).__name__, "isn't the cache of one layer",
                              "Pass each layer's own spec, and leave out layers that keep no cache")
    return specs


def _allocate_in_full(specs: dict[str, KVCacheSpec], vllm_version: str) -> dict[str, KVCacheSpec]:
    """Turn local attention into full attention, apart for layers that DCP replicates and for all others."""
    replicated = {name: spec for name, spec in specs.items()
                  if isinstance(spec, AttentionSpec) and not spec.dcp_sharded}
    others = {name: spec for name, spec in specs.items() if name not in replicated}
    return specs | _promote(others, vllm_version) | _promote(replicated, vllm_version)


def _promote(specs: dict[str, KVCacheSpec], vllm_version: str) -> dict[str, KVCacheSpec]:
    """Allocate sliding windows and chunks beside full attention in full; LayoutError if types still differ."""
    if not specs or _is_one_type(specs, vllm_version):
        return specs
    full = [spec for spec in specs.values() if isinstance(spec, FullAttentionSpec)]
    block_sizes = {spec.block_size for spec in full}
    common = block_sizes.pop() if len(block_sizes) == 1 else None
    if full:
        specs = {name: _as_full_attention(name, spec, common or spec.block_size, vllm_version)
                 if isinstance(spec, (SlidingWindowSpec, ChunkedLocalAttentionSpec)) else spec
                 for name, spec in specs.items()}
    if not _is_one_type(specs, vllm_version):
        raise LayoutError("kv_cache_spec", sorted({type(spec).__name__ for spec in specs.values()}),
                          "can't be allocated as one type of cache",
                          "Leave the hybrid KV cache manager enabled for this model")
    return specs


def _is_one_type(specs: dict[str, KVCacheSpec], vllm_version: str) -> bool:
    layers = list(specs.values())
    return can_merge(layers, vllm_version=vllm_version) or is_uniform_type(layers)


def _as_full_attention(name: str, spec: AttentionSpec, block_size: int, vllm_version: str) -> FullAttentionSpec:
    kind: type[FullAttentionSpec] = FullAttentionSpec
    if isinstance(spec, SlidingWindowMLASpec):
        if at_least(vllm_version, "0.31.0"):
            raise LayoutError(name, "SlidingWindowMLASpec", f"can't be allocated in full: vLLM {vllm_version} fails "
                              "to turn it into an MLAAttentionSpec, which has no bounded_replay",
                              "Leave the hybrid KV cache manager enabled, or choose vLLM 0.30.0")
        kind = MLAAttentionSpec
    padded = spec.page_size_padded
    if padded is not None:
        padded = max(padded, spec.unpadded_page_size_bytes * block_size // spec.block_size)
    shared = {field.name for field in fields(spec)} & {field.name for field in fields(kind)}
    values = {name: getattr(spec, name) for name in shared}
    return kind(**values | {"block_size": block_size, "page_size_padded": padded})


def _full_allocation_groups(specs: dict[str, KVCacheSpec], vllm_version: str) -> list[KVCacheGroupSpec]:
    """One group of everything allocated in full: the way out for MLA beside plain sliding windows only."""
    layers = list(specs.values())
    unfit = (HiddenStateCacheSpec, SlidingWindowMLASpec, ChunkedLocalAttentionSpec)
    uniform = None
    if any(isinstance(spec, SlidingWindowSpec) for spec in layers) and not any(isinstance(s, unfit) for s in layers):
        uniform = uniform_type_specs(_promote(specs, vllm_version))
    if uniform is None:
        raise PageSizeError("kv_cache_spec", sorted({spec.page_size_bytes for spec in layers}),
                            "(page sizes in bytes) can't be made equal, because an MLA page can't be padded",
                            "Use a block-outermost layout such as BLHNC")
    return [KVCacheGroupSpec(list(specs), uniform)]


def _refuse_special_grouping(specs: dict[str, KVCacheSpec], vllm_version: str) -> None:
    """0.30 and 0.31 group Mamba beside MLA with a compressing indexer (GLM-5) in a way of their own."""
    attention = [spec for spec in specs.values() if not isinstance(spec, MambaSpec)]
    if (at_least(vllm_version, "0.30.0") and not at_least(vllm_version, "0.32.0") and len(attention) < len(specs)
            and all(type(spec) is MLAAttentionSpec for spec in attention)
            and any(spec.tokens_per_state > 1 for spec in attention)):
        raise LayoutError("vllm_version", vllm_version, "groups Mamba beside MLA and its compressing indexer in a "
                          "way that isn't reproduced here", "Choose 0.29.0, or 0.32.0 and newer")


def _merged_group(specs: Mapping[str, KVCacheSpec], names: list[str], vllm_version: str) -> KVCacheGroupSpec:
    return KVCacheGroupSpec(names, merge_specs([specs[name] for name in names], vllm_version=vllm_version))


def _equal_page_groups(specs: dict[str, KVCacheSpec], vllm_version: str) -> list[KVCacheGroupSpec]:
    """Split layers of mergeable specs into groups of equally many layers; the last of a kind may be short."""
    names_by_spec: dict[KVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        names_by_spec.setdefault(spec, []).append(name)
    buckets: list[tuple[list[KVCacheSpec], list[str]]] = []
    for spec, names in names_by_spec.items():
        for merged, merged_names in buckets:
            if _merges_with(merged, spec, vllm_version):
                merged.append(spec)
                merged_names += names
                break
        else:
            buckets.append(([spec], list(names)))
    counts = [len(names) for _, names in buckets]
    # Somewhat uneven kinds (a draft's extra layer) are better padded up than split again.
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for _, names in buckets:
        num_groups = -(-len(names) // size)
        # Round robin, so that every pipeline stage has its share of every group.
        groups += [_merged_group(specs, names[start::num_groups], vllm_version) for start in range(num_groups)]
    return groups


def _merges_with(specs: list[KVCacheSpec], spec: KVCacheSpec, vllm_version: str) -> bool:
    try:
        return can_merge([*specs, spec], vllm_version=vllm_version)
    except LayoutError:  # several windows: no reason to fail here, where the layers can be kept apart
        return False


def _with_hidden_states(
    groups: list[KVCacheGroupSpec], hidden: dict[str, HiddenStateCacheSpec], vllm_version: str
) -> list[KVCacheGroupSpec]:
    """Add a group for each hidden-state layer, padded to the common page; its block takes what fits into that.

    From 0.30 the other groups' blocks grow where one token of hidden states needs more than the common page.
    """
    page_sizes = {group.kv_cache_spec.page_size_bytes for group in groups}
    if len(page_sizes) != 1:
        raise LayoutError("kv_cache_spec", sorted(page_sizes), "must be one page size (bytes) beside hidden states")
    page_size = page_sizes.pop()
    token_bytes = {name: spec.num_kv_heads * spec.head_size * dtype_size_bytes(spec.dtype)
                   for name, spec in hidden.items()}
    scale = -(-max(token_bytes.values()) // page_size)
    if scale > 1 and at_least(vllm_version, "0.30.0"):
        page_size *= scale
        groups = [KVCacheGroupSpec(group.layer_names, _scaled(group.kv_cache_spec, scale)) for group in groups]
    block_size = math.gcd(*(group.kv_cache_spec.block_size for group in groups))
    for name, spec in hidden.items():
        most = max(page_size // token_bytes[name], 1)
        fitting = max(size for size in range(1, min(block_size, most) + 1) if block_size % size == 0)
        groups = groups + [KVCacheGroupSpec([name], replace(spec, block_size=fitting, page_size_padded=page_size))]
    return groups


def _scaled(spec: KVCacheSpec, scale: int) -> KVCacheSpec:
    padded = spec.page_size_padded
    return replace(spec, block_size=spec.block_size * scale,
                   page_size_padded=None if padded is None else padded * scale)
