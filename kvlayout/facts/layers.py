"""What a model's layers cache, before any rank, block size or backend is chosen, and the spec that vLLM makes of it.

One small class a kind of layer. Source: vLLM 0.29.0 to 0.33.0, the ``get_kv_cache_spec`` of each layer in
``vllm/model_executor/layers/attention``, ``.../mamba`` and ``vllm/model_executor/models/deepseek_v2.py``;
vLLM-Omni 0.30.0, ``vllm_omni/diffusion/attention/layer.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvlayout.errors import LayoutError
from kvlayout.facts.kv_dtypes import CacheDtype, resolve_kv_cache_dtype
from kvlayout.facts.parallel import kv_heads_per_rank
from kvlayout.kernel_blocks import supported_kernel_block_sizes
from kvlayout.spec import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    KVQuantMode,
    MLAAttentionSpec,
    MultipleOf,
    SlidingWindowSpec,
)
from kvlayout.versions import NEWEST, at_least


@dataclass(frozen=True)
class Serving:
    """How a model is served, as far as its specs depend on it.

    Attributes:
        tp_size: tensor-parallel ranks
        block_size: tokens of one block
        dtype: the model's element type, by torch name
        cache_dtype: what the attention layers store
        max_model_len: tokens; None where the model doesn't say
        mamba_cache_mode: "none": a state layer's block spans max_model_len; "align": one block of block_size tokens
        backend: the attention layers' backend (``facts.backends.Backend`` or alike); None: one that takes any block
        vllm_version: the release
        native_layers: numbers of the decoder layers that keep the model's element type whatever cache_dtype says
    """

    tp_size: int
    block_size: int
    dtype: str
    cache_dtype: CacheDtype
    max_model_len: int | None = None
    mamba_cache_mode: str = "align"
    backend: object = None
    vllm_version: str = NEWEST
    native_layers: frozenset[int] = frozenset()

    def cache_dtype_of(self, layer: int) -> CacheDtype:
        """Return what the decoder layer of that number stores."""
        return resolve_kv_cache_dtype("auto", self.dtype) if layer in self.native_layers else self.cache_dtype


@dataclass(frozen=True)
class AttentionLayer:
    """Keys and values of a layer.

    Attributes:
        name: vLLM's layer name
        index: number of the decoder layer that it belongs to
        num_kv_heads: of the whole model
        head_size: elements of one key (and value)
        sliding_window, attention_chunk_size: tokens, or None
        is_cross: caches the encoder's keys and values
        non_causal: attends to later tokens too
        fixed_dtype: element type that the layer keeps whatever the model's; None follows the model
    """

    name: str
    index: int
    num_kv_heads: int
    head_size: int
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    is_cross: bool = False
    non_causal: bool = False
    fixed_dtype: str | None = None

    @property
    def kind(self) -> str:
        """"attention", "sliding", "chunked" or "cross"."""
        if self.is_cross:
            return "cross"
        if self.attention_chunk_size is not None:
            return "chunked"
        return "attention" if self.sliding_window is None else "sliding"

    def spec(self, serving: Serving) -> KVCacheSpec:
        """Return one rank's spec, before the backend repacks it."""
        cache = serving.cache_dtype_of(self.index)
        if cache.name.endswith("_ds_mla"):
            raise LayoutError("kv_cache_dtype", cache.name, f"keeps latents, which {self.name} doesn't",
                              "Use it with an MLA model only")
        common = dict(
            block_size=serving.block_size, num_kv_heads=kv_heads_per_rank(self.num_kv_heads, serving.tp_size),
            head_size=self.head_size, dtype=cache.storage, kv_quant_mode=cache.quant_mode)
        if self.fixed_dtype is not None:
            common |= dict(dtype=self.fixed_dtype, kv_quant_mode=KVQuantMode.NONE)
        if self.is_cross:
            return CrossAttentionSpec(**common)
        if self.attention_chunk_size is not None:
            return ChunkedLocalAttentionSpec(**common, attention_chunk_size=self.attention_chunk_size)
        if self.sliding_window is not None:
            spec = SlidingWindowSpec(**common, sliding_window=self.sliding_window)
            return replace(spec, block_size=sliding_block_size(spec, serving.backend, serving.vllm_version))
        return FullAttentionSpec(**common, non_causal=self.non_causal)


# Bytes of one token's latent, position part and scales, where the format isn't "head_size elements".
_DS_MLA_STATE_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}


@dataclass(frozen=True)
class LatentLayer:
    """Multi-head latent attention: ``head_size`` = latent + position part, elements; the same on every TP rank.

    topk: tokens that a sparse layer selects, None for a dense one; has_indexer: it is the layer that selects them.
    """

    name: str
    index: int
    head_size: int
    topk: int | None = None
    has_indexer: bool = False
    kind = "mla"

    def spec(self, serving: Serving) -> MLAAttentionSpec:
        """Return one rank's spec, before the backend repacks it."""
        cache = self._cache_dtype(serving)
        later = {}
        if at_least(serving.vllm_version, "0.30.0"):
            later["is_index_group_leader"] = self.has_indexer
        if at_least(serving.vllm_version, "0.31.0"):
            later["max_tp_shards"] = 1
        if at_least(serving.vllm_version, "0.33.0"):
            later["topk_buffer_width"] = self.topk
        return MLAAttentionSpec(
            block_size=serving.block_size, num_kv_heads=1, head_size=self.head_size, dtype=cache.storage,
            cache_dtype_str=cache.name, kv_quant_mode=cache.quant_mode,
            state_content_bytes=_DS_MLA_STATE_BYTES.get(cache.name), **later)

    def _cache_dtype(self, serving: Serving) -> CacheDtype:
        """Sparse backends keep quantised latents in a format of their own."""
        cache, backend = serving.cache_dtype_of(self.index), getattr(serving.backend, "name", None)
        if cache.name.startswith("nvfp4") and not cache.name.endswith("_ds_mla"):
            raise LayoutError("kv_cache_dtype", cache.name, "isn't a format for latents (MLA)",
                              "Use fp8, auto, or nvfp4_ds_mla with a sparse backend")
        packs = backend == "FLASHMLA_SPARSE" and cache.is_quantized and cache.name != "nvfp4_ds_mla"
        if packs or backend == "FLASHINFER_MLA_SPARSE_SM120" and cache.name in ("auto", "fp8", "fp8_e4m3"):
            return replace(cache, name="fp8_ds_mla", storage="uint8", quant_mode=KVQuantMode.FP8_PER_TENSOR)
        return cache


@dataclass(frozen=True)
class IndexerLayer:
    """The sparse indexer's keys: ``head_dim`` fp8 bytes and one fp32 scale for each 128 of them, a token."""

    name: str
    index: int
    head_dim: int
    kind = "indexer"

    def spec(self, serving: Serving) -> MLAAttentionSpec:
        """Return the spec; the cache's own dtype, whatever the attention layers store."""
        later = {}
        if at_least(serving.vllm_version, "0.30.0"):
            later["cache_role"] = "indexer"
        if at_least(serving.vllm_version, "0.31.0"):
            later["max_tp_shards"] = 1
        return MLAAttentionSpec(block_size=serving.block_size, num_kv_heads=1, dtype="uint8",
                                head_size=self.head_dim + self.head_dim // 128 * 4, **later)


def sliding_block_size(spec: SlidingWindowSpec, backend: object, vllm_version: str = NEWEST) -> int:
    """Return the tokens of a sliding-window layer's block: ``spec.block_size`` if the backend's kernels take it.

    Else the largest that they take below it, or their smallest. In 0.29 always their smallest size. Grouping then
    scales the block up to the other layers' page. Source: vLLM, ``_largest_kernel_block_within``.
    """
    if backend is None:
        return spec.block_size
    block_size = spec.block_size
    if not at_least(vllm_version, "0.30.0"):
        sizes = supported_kernel_block_sizes(backend)
        exact = [size for size in sizes if not isinstance(size, MultipleOf)]
        return min(exact or [size.base for size in sizes], default=block_size)
    one_token = backend.customize_spec(spec.copy_with_new_block_size(1))
    sizes = supported_kernel_block_sizes(backend, one_token)
    taken = [max(size.base, block_size // size.base * size.base) if isinstance(size, MultipleOf) else size
             for size in sizes]
    return max((size for size in taken if size <= block_size), default=min(taken, default=block_size))


def attention_specs(specs: dict[str, KVCacheSpec]) -> dict[str, AttentionSpec]:
    """Return the layers whose blocks hold tokens, without recurrent states."""
    return {name: spec for name, spec in specs.items() if isinstance(spec, AttentionSpec)}
