"""KV cache specs: what one page of one layer holds, and how large it is.

A page is the bytes of one block of one layer: H head slots x N token states x C content bytes.
Field names, argument order and defaults are those of vLLM 0.33.0 (``vllm/v1/kv_cache_interface.py``), except
that element types are kept by name ("bfloat16") so that this module needs no torch. Unlike vLLM, a spec that
describes no possible page is refused when it is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from kvlayout.dtypes import dtype_name, dtype_size_bytes
from kvlayout.errors import LayoutError, check_int
from kvlayout.page_spec import KVCacheSpec, MultipleOf, set_fields
from kvlayout.quant_mode import KVQuantMode, as_quant_mode

__all__ = ["AttentionSpec", "ChunkedLocalAttentionSpec", "CircularBufferSpec", "CrossAttentionSpec",
           "EncoderOnlyAttentionSpec", "FullAttentionSpec", "HiddenStateCacheSpec", "KVCacheSpec", "KVQuantMode",
           "MLAAttentionSpec", "MambaSpec", "MultipleOf", "RSWASpec", "SinkFullAttentionSpec", "SlidingWindowMLASpec",
           "SlidingWindowSpec", "UniformTypeKVCacheSpecs", "layer_specs"]


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    """Keys and values: H = head slots, N = states, C = K then V of one head and state.

    ``num_head_slots`` and ``state_content_bytes`` override H and C where a backend packs the page its own way.
    ``tokens_per_state``: above 1 several tokens share a state; a Fraction below 1 gives a token several states.
    """

    dcp_sharded: bool = True
    max_tp_shards: int | None = None
    num_kv_heads: int
    head_size: int
    dtype: str
    head_size_v: int | None = None
    kv_quant_mode: KVQuantMode = KVQuantMode.NONE
    page_size_padded: int | None = None
    num_head_slots: int | None = None
    state_content_bytes: int | None = None
    tokens_per_state: int | Fraction = 1

    def __post_init__(self):
        super().__post_init__()
        check_int("num_kv_heads", self.num_kv_heads, minimum=1)
        check_int("head_size", self.head_size, minimum=1)
        if self.head_size_v is None:
            set_fields(self, head_size_v=self.head_size)
        check_int("head_size_v", self.head_size_v, minimum=0)
        for name in ("num_head_slots", "state_content_bytes", "max_tp_shards"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1)
        set_fields(self, dtype=dtype_name(self.dtype), kv_quant_mode=as_quant_mode(self.kv_quant_mode),
             tokens_per_state=_tokens_per_state(self.tokens_per_state))
        self._check_padding()

    @property
    def num_heads(self) -> int:
        """H: head slots of one page."""
        return self.num_kv_heads if self.num_head_slots is None else self.num_head_slots

    @property
    def state_content_size_bytes(self) -> int:
        """C: bytes of one (head slot, state) cell."""
        if self.state_content_bytes is not None:
            return self.state_content_bytes
        return (self.head_size + self.head_size_v) * dtype_size_bytes(self.dtype)


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """Attention to all earlier tokens; a window here limits the arithmetic, not the allocation."""

    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    non_causal: bool = False


@dataclass(frozen=True, kw_only=True)
class RSWASpec(FullAttentionSpec):
    """Full prefix plus a window over the generated tokens."""

    rswa_window: int


@dataclass(frozen=True)
class SinkFullAttentionSpec(FullAttentionSpec):
    """Full attention with ``sink_len`` leading tokens that are always kept."""

    sink_len: int | None = None


class _AlignedPage:
    """``alignment`` rounds the page up and, where that changes it, replaces ``page_size_padded``."""

    def _apply_alignment(self):
        if self.alignment is None:
            return
        alignment = check_int("alignment", self.alignment, minimum=1)
        rounded = -(-self.unpadded_page_size_bytes // alignment) * alignment
        if rounded != self.unpadded_page_size_bytes:
            set_fields(self, page_size_padded=rounded)

    def _check_padding(self):
        self._apply_alignment()
        super()._check_padding()


@dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec(_AlignedPage, FullAttentionSpec):
    """Multi-head latent attention: one latent vector a state, no separate V."""

    cache_dtype_str: str | None = None
    topk_buffer_width: int | None = None
    alignment: int | None = None
    model_version: str | None = None
    cache_role: str = "sparse"
    is_index_group_leader: bool = False
    non_causal_multi_token_decode: bool = False
    head_size_v: int = 0


@dataclass(frozen=True, kw_only=True)
class HiddenStateCacheSpec(MLAAttentionSpec):
    """Hidden states kept in the cache for extraction; always a group of its own."""


@dataclass(frozen=True, kw_only=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """Attention inside chunks of ``attention_chunk_size`` tokens."""

    attention_chunk_size: int


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """Attention to the last ``sliding_window`` tokens; older blocks are freed."""

    sliding_window: int
    extra_retained_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class SlidingWindowMLASpec(_AlignedPage, SlidingWindowSpec):
    """A sliding window over MLA latents."""

    cache_dtype_str: str | None = None
    alignment: int | None = None
    model_version: str | None = None
    bounded_replay: bool = False
    head_size_v: int = 0


@dataclass(frozen=True, kw_only=True)
class CircularBufferSpec(AttentionSpec):
    """One ring of ``block_size`` tokens a request, addressed by itself, without a slot mapping."""

    uses_slot_mapping = False


@dataclass(frozen=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """Attention inside an encoder; nothing is cached."""


@dataclass(frozen=True)
class CrossAttentionSpec(AttentionSpec):
    """Keys and values of the encoder, kept for the decoder's cross attention."""


@dataclass(frozen=True)
class MambaSpec(KVCacheSpec):
    """Recurrent state: one state a block, C = all state tensors one after another; views stay int8."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    page_size_padded: int | None = None
    mamba_type: str = "mamba2"
    mamba_cache_mode: str = "none"
    num_speculative_blocks: int = 0
    num_prefill_checkpoint_blocks: int = 0
    prefill_checkpoint_alignment: int | None = None
    num_heads: int = 1
    tokens_per_state: int = -1
    tp_replicated: bool = False

    def __post_init__(self):
        super().__post_init__()
        shapes = tuple(tuple(check_int("shapes", n, minimum=1) for n in shape) for shape in self.shapes)
        dtypes = tuple(dtype_name(dtype, "dtypes") for dtype in self.dtypes)
        if not shapes or len(shapes) != len(dtypes):
            raise LayoutError("dtypes", self.dtypes, f"must have one entry for each of the {len(shapes)} shapes",
                              "Give at least one state tensor, with a shape and a dtype")
        set_fields(self, shapes=shapes, dtypes=dtypes)
        self._check_padding()

    @property
    def state_sizes_bytes(self) -> tuple[int, ...]:
        """Bytes of each state tensor, in order."""
        return tuple(math.prod(s) * dtype_size_bytes(d) for s, d in zip(self.shapes, self.dtypes))

    @property
    def state_content_size_bytes(self) -> int:
        """C: bytes of all state tensors."""
        return sum(self.state_sizes_bytes)


@dataclass(frozen=True)
class UniformTypeKVCacheSpecs(KVCacheSpec):
    """One group of layers that need the same tokens but differ in page size; one spec a layer."""

    kv_cache_specs: dict[str, KVCacheSpec]

    def __post_init__(self):
        super().__post_init__()
        if not self.kv_cache_specs:
            raise LayoutError("kv_cache_specs", self.kv_cache_specs, "must hold at least one layer's spec")
        set_fields(self, dcp_sharded=self.first_spec.dcp_sharded)

    @property
    def first_spec(self) -> KVCacheSpec:
        """The spec of the group's first layer."""
        return next(iter(self.kv_cache_specs.values()))

    @property
    def page_size_bytes(self) -> int:
        """Sum of the layers' page sizes in bytes."""
        return sum(spec.page_size_bytes for spec in self.kv_cache_specs.values())

    @property
    def uses_slot_mapping(self) -> bool:
        """As the group's layers do."""
        return self.first_spec.uses_slot_mapping


def _tokens_per_state(value: object) -> int | Fraction:
    try:
        tokens = Fraction(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        tokens = Fraction(-1)
    if tokens <= 0:
        raise LayoutError("tokens_per_state", value, "must be a positive number of tokens",
                          "Give a whole number, or a Fraction below 1 such as '1/2'")
    return tokens.numerator if tokens.denominator == 1 else tokens


def layer_specs(spec: KVCacheSpec, layer_names: list[str]) -> dict[str, KVCacheSpec]:
    """Return the spec of each layer of a group whose spec is ``spec``."""
    if isinstance(spec, UniformTypeKVCacheSpecs):
        missing = [name for name in layer_names if name not in spec.kv_cache_specs]
        if missing:
            raise LayoutError("layer_names", missing, "have no spec in the group's kv_cache_specs")
        return {name: spec.kv_cache_specs[name] for name in layer_names}
    return dict.fromkeys(layer_names, spec)
