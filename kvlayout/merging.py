"""Which layers' specs may share one group: merged into one spec, or side by side as one uniform type.

Merged: the layers agree so far that one spec describes them all. Uniform type: they need the same tokens to be
kept (so one block table serves them) but their pages may differ. Both rules look at the first spec most: its class
decides how, so the order of the layers can matter.
Source: vLLM 0.29.0 to 0.33.0, ``vllm/v1/kv_cache_interface.py`` (merge, is_uniform_with_collection,
UniformTypeKVCacheSpecs) and ``vllm/v1/core/single_type_kv_cache_manager.py`` (which class counts as which type).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from kvlayout.errors import LayoutError
from kvlayout.spec import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from kvlayout.versions import NEWEST, at_least


class UnmergeableError(LayoutError):
    """Specs that one spec can't describe; grouping then keeps their layers apart."""


_ATTENTION_FIELDS = tuple(field.name for field in fields(AttentionSpec) if field.compare)
_MLA_FIELDS = ("cache_dtype_str", "topk_buffer_width", "tokens_per_state", "model_version", "cache_role",
               "is_index_group_leader", "block_stride_alignment")
_WINDOW_MLA_FIELDS = ("dcp_sharded", "max_tp_shards", "cache_dtype_str", "tokens_per_state", "model_version",
                      "sliding_window", "extra_retained_tokens", "bounded_replay", "block_stride_alignment")

# Type of cache -> what its layers must agree on besides block size and DCP sharding. Subclasses that aren't named
# here count as the nearest base that is: MLA, R-SWA, sinks and hidden states are full attention.
_UNIFORM_TYPES: dict[type[KVCacheSpec], tuple[str, ...]] = {
    FullAttentionSpec: (),
    SlidingWindowSpec: ("sliding_window",),
    SlidingWindowMLASpec: ("sliding_window", "bounded_replay"),
    ChunkedLocalAttentionSpec: ("attention_chunk_size",),
    CrossAttentionSpec: (),
    CircularBufferSpec: (),
    MambaSpec: ("num_speculative_blocks", "num_prefill_checkpoint_blocks", "prefill_checkpoint_alignment",
                "page_size_bytes", "tp_replicated"),
}


def merge_specs(specs: Sequence[KVCacheSpec], *, vllm_version: str = NEWEST) -> KVCacheSpec:
    """Return the one spec that describes layers of all these specs, of the class of the first.

    Full attention with and without one window merges; most other specs must be equal. Raises UnmergeableError
    where they differ too much, and a plain LayoutError for full attention with several different windows or chunk
    sizes, which vLLM refuses altogether.
    """
    if not specs:
        raise LayoutError("specs", specs, "must hold at least one spec")
    first = specs[0]
    if isinstance(first, MLAAttentionSpec):
        return _merge_mla(specs, vllm_version)
    if isinstance(first, FullAttentionSpec):
        return _merge_full_attention(specs)
    if isinstance(first, SlidingWindowMLASpec):
        return _merge_sliding_window_mla(specs)
    if any(spec != first for spec in specs):
        raise UnmergeableError("specs", _kinds(specs), f"must all equal the first {type(first).__name__} to merge")
    return first


def _merge_full_attention(specs: Sequence[FullAttentionSpec]) -> FullAttentionSpec:
    first = specs[0]
    if isinstance(first, RSWASpec):
        _require_class(specs, RSWASpec)
        _require_equal(specs, ("rswa_window",))
    _require_class(specs, FullAttentionSpec)
    if any(isinstance(spec, MLAAttentionSpec) for spec in specs):
        raise UnmergeableError("specs", _kinds(specs), "mix MLA with attention that keeps keys and values")
    sliding_window = _only_value(specs, "sliding_window")
    attention_chunk_size = _only_value(specs, "attention_chunk_size")
    _require_equal(specs, _ATTENTION_FIELDS)
    if isinstance(first, SinkFullAttentionSpec) and first.tokens_per_state != 1:
        # vLLM forgets tokens_per_state here and then finds that it differs.
        raise UnmergeableError("tokens_per_state", first.tokens_per_state, "must be 1 for layers with sinks to merge")
    if sliding_window is not None and attention_chunk_size is not None:
        raise UnmergeableError("specs", _kinds(specs), "mix sliding windows with attention chunks")
    return replace(first, sliding_window=sliding_window, attention_chunk_size=attention_chunk_size,
                   non_causal=any(spec.non_causal for spec in specs), is_draft=False)


def _merge_mla(specs: Sequence[MLAAttentionSpec], vllm_version: str) -> MLAAttentionSpec:
    _require_class(specs, MLAAttentionSpec)
    _require_equal(specs, _MLA_FIELDS + _ATTENTION_FIELDS)
    if specs[0].head_size_v:
        raise UnmergeableError("head_size_v", specs[0].head_size_v, "must be 0 for MLA layers to merge")
    if not at_least(vllm_version, "0.30.0"):
        _require_equal(specs, ("non_causal_multi_token_decode",))
    # The alignment has done its work: it is in page_size_padded.
    return replace(specs[0], sliding_window=None, attention_chunk_size=None, non_causal=False, alignment=None,
                   non_causal_multi_token_decode=any(spec.non_causal_multi_token_decode for spec in specs),
                   is_draft=False)


def _merge_sliding_window_mla(specs: Sequence[SlidingWindowMLASpec]) -> SlidingWindowMLASpec:
    # vLLM compares neither heads nor page here: the first spec stands for all, without its quantisation.
    _require_class(specs, SlidingWindowMLASpec)
    _require_equal(specs, _WINDOW_MLA_FIELDS)
    return replace(specs[0], kv_quant_mode="NONE", head_size_v=0, alignment=None, is_draft=False)


def can_merge(specs: Sequence[KVCacheSpec], *, vllm_version: str = NEWEST) -> bool:
    """Whether one spec can describe them all; LayoutError for several windows beside full attention."""
    try:
        merge_specs(specs, vllm_version=vllm_version)
    except UnmergeableError:
        return False
    return True


def is_uniform_type(specs: Sequence[KVCacheSpec]) -> bool:
    """Whether these layers can share a block table although their pages may differ.

    They need one block size, one DCP sharding and the first one's type. Raises LayoutError where the first is of a
    type that keeps no cache (encoder-only attention).
    """
    first = specs[0]
    if any((spec.block_size, spec.dcp_sharded) != (first.block_size, first.dcp_sharded) for spec in specs):
        return False
    kind = next((base for base in type(first).__mro__ if base in _UNIFORM_TYPES), None)
    if kind is None:
        raise LayoutError("kv_cache_spec", type(first).__name__, "is of no type of cache that vLLM manages",
                          "Leave its layers out; they keep nothing")
    return all(isinstance(spec, kind)
               and all(getattr(spec, name) == getattr(first, name) for name in _UNIFORM_TYPES[kind])
               for spec in specs)


def uniform_type_specs(specs: Mapping[str, KVCacheSpec]) -> UniformTypeKVCacheSpecs | None:
    """Return the one group spec that holds these layers' own specs, or None where they aren't of one type."""
    layers = list(specs.values())
    return UniformTypeKVCacheSpecs(layers[0].block_size, dict(specs)) if is_uniform_type(layers) else None


def _only_value(specs: Sequence[KVCacheSpec], name: str) -> int | None:
    values = sorted({getattr(spec, name) for spec in specs} - {None})
    if len(values) > 1:
        raise LayoutError(name, values, "must be one value for all full-attention layers that have it",
                          "vLLM refuses such a model; give the layers specs of a sliding window class instead")
    return values[0] if values else None


def _require_class(specs: Sequence[KVCacheSpec], kind: type[KVCacheSpec]) -> None:
    if not all(isinstance(spec, kind) for spec in specs):
        raise UnmergeableError("specs", _kinds(specs), f"must all be {kind.__name__} to merge")


def _require_equal(specs: Sequence[KVCacheSpec], names: tuple[str, ...]) -> None:
    for name in names:
        if any(getattr(spec, name) != getattr(specs[0], name) for spec in specs):
            raise UnmergeableError(name, [getattr(spec, name) for spec in specs], "must be equal for layers to merge")


def _kinds(specs: Sequence[KVCacheSpec]) -> list[str]:
    return [type(spec).__name__ for spec in specs]
