"""KV cache specs: what one page of one layer holds, and how large it is.

A page is the bytes of one block of one layer: H head slots x N token states x C content bytes.
Field names, argument order and defaults are those of vLLM 0.33.0 (``vllm/v1/kv_cache_interface.py``), except
that element types are kept by name ("bfloat16") so that this module needs no torch. Unlike vLLM, a spec that
describes no possible page is refused when it is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import IntEnum
from fractions import Fraction

from kvlayout.dtypes import dtype_name, dtype_size_bytes
from kvlayout.errors import LayoutError, check_int


class KVQuantMode(IntEnum):
    """How the values of a cache are quantised. It changes no size by itself: the backend repacks the page."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4
    NVFP4 = 5
    TURBOQUANT_K8V4 = 6
    TURBOQUANT_4BIT_NC = 7
    TURBOQUANT_K3V4_NC = 8
    TURBOQUANT_3BIT_NC = 9
    NVFP4_DS_MLA = 10
    ULTRAQUANT_4BIT = 11
    OCTAVE_K3V4 = 12
    OCTAVE_K3V3 = 13
    OCTAVE_K3V3_COMPACT = 14

    @property
    def is_per_token_head(self) -> bool:
        """Each (token, head) carries fp32 scales of its own."""
        return self.name.endswith("PER_TOKEN_HEAD")

    @property
    def is_nvfp4(self) -> bool:
        """Packed fp4 data and fp8 block scales."""
        return self is KVQuantMode.NVFP4

    @property
    def is_turboquant(self) -> bool:
        """One of the TurboQuant formats."""
        return self.name.startswith("TURBOQUANT")

    @property
    def is_octave(self) -> bool:
        """One of the Octave formats."""
        return self.name.startswith("OCTAVE")

    @property
    def is_ultraquant(self) -> bool:
        """The UltraQuant 4-bit format."""
        return self is KVQuantMode.ULTRAQUANT_4BIT


@dataclass(frozen=True)
class MultipleOf:
    """A size that may be any multiple of ``base`` tokens (vLLM's class of the same name)."""

    base: int

    def __post_init__(self):
        check_int("MultipleOf.base", self.base, minimum=1)


def _set(spec, **values):
    for name, value in values.items():
        object.__setattr__(spec, name, value)


@dataclass(frozen=True)
class KVCacheSpec:
    """What every layer's cache has: a block of ``block_size`` tokens. Use one of the subclasses."""

    block_size: int
    dcp_sharded: bool = field(default=False, kw_only=True)
    block_stride_alignment: int | MultipleOf | None = field(default=None, kw_only=True)
    is_draft: bool = field(default=False, kw_only=True, compare=False)

    def __post_init__(self):
        _set(self, block_size=check_int("block_size", self.block_size, minimum=1))
        alignment = self.block_stride_alignment
        if alignment is not None and not isinstance(alignment, MultipleOf):
            check_int("block_stride_alignment", alignment, minimum=1)

    # Whether vLLM makes a [B, H, N, C] view of each layer, and whether a slot mapping addresses its tokens.
    has_layer_views = True
    uses_slot_mapping = True

    @property
    def num_states(self) -> int:
        """N: token states of one block."""
        return self.get_num_kernel_states(self.block_size)

    def get_num_kernel_states(self, kernel_block_size: int) -> int:
        """Return N for a block of ``kernel_block_size`` tokens; 0 where that is shorter than one state."""
        return int(kernel_block_size // self.tokens_per_state) if self.tokens_per_state > 0 else 1

    @property
    def unpadded_page_size_bytes(self) -> int:
        """H x N x C: the bytes of one page that hold content."""
        return self.num_heads * self.num_states * self.state_content_size_bytes

    @property
    def page_size_bytes(self) -> int:
        """Bytes from one page's start to its end, padding included."""
        padded = self.page_size_padded
        return self.unpadded_page_size_bytes if padded is None else padded

    def _check_padding(self):
        if self.page_size_padded is None:
            return
        check_int("page_size_padded", self.page_size_padded, minimum=1)
        if self.page_size_padded < self.unpadded_page_size_bytes:
            raise LayoutError("page_size_padded", self.page_size_padded,
                              f"is below the page's own {self.unpadded_page_size_bytes:,} bytes",
                              "Give at least those bytes, or None for no padding")

    def get_block_stride_alignment(self) -> int:
        """Bytes that the distance between two blocks must be a multiple of (vLLM 0.31 and newer)."""
        alignment = self.block_stride_alignment
        if not isinstance(alignment, MultipleOf):
            return alignment or 1
        kernel_block_size = math.gcd(alignment.base, self.block_size)
        if kernel_block_size == self.block_size:
            return 1
        page_size = self.copy_with_new_block_size(kernel_block_size).page_size_bytes
        if page_size == 0:
            raise LayoutError("block_stride_alignment", alignment,
                              f"makes kernel blocks of {kernel_block_size} tokens, which hold no state",
                              f"Use a multiple of {self.tokens_per_state} tokens")
        return page_size

    def copy_with_new_block_size(self, block_size: int):
        """Return the same spec for blocks of ``block_size`` tokens."""
        return replace(self, block_size=block_size)


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
            _set(self, head_size_v=self.head_size)
        check_int("head_size_v", self.head_size_v, minimum=0)
        for name in ("num_head_slots", "state_content_bytes", "max_tp_shards"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=1)
        _set(self, dtype=dtype_name(self.dtype), kv_quant_mode=_quant_mode(self.kv_quant_mode),
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
            _set(self, page_size_padded=rounded)

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
        _set(self, shapes=shapes, dtypes=dtypes)
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
        _set(self, dcp_sharded=self.first_spec.dcp_sharded)

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


def _quant_mode(mode: object) -> KVQuantMode:
    name = mode if isinstance(mode, str) else getattr(mode, "name", None)
    if name in KVQuantMode.__members__:
        return KVQuantMode[name]
    raise LayoutError("kv_quant_mode", mode, "is not a quantisation mode",
                      f"Use a KVQuantMode: {', '.join(KVQuantMode.__members__)}")


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
