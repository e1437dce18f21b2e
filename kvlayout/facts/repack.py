"""How a backend repacks a page: what its ``customize_spec`` changes on a layer's spec, as rules of our own.

A rule is named after the class of vLLM that defines ``customize_spec``; backends that inherit it share it. All sizes
are bytes. A rule leaves a spec alone whose ``state_content_bytes`` is already set, where vLLM's does.
Source: vLLM 0.29.0 to 0.33.0, ``customize_spec`` of each class (module paths are in ``facts/data``); a class that
gained one later is recorded without it for the older releases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError
from kvlayout.facts.formats import octave_format, turboquant_format, ultraquant_format
from kvlayout.facts.machine import Machine
from kvlayout.spec import AttentionSpec, KVQuantMode, MultipleOf

SCALE_BYTES = 4  # one fp32 scale


class _Backend(Protocol):
    machine: Machine

    def get_supported_kernel_block_sizes(self, spec: AttentionSpec) -> list[int | MultipleOf]: ...


@dataclass(frozen=True)
class Rule:
    """``apply(spec, backend)`` returns the repacked spec; ``summary`` says in a sentence what it does."""

    apply: Callable[[AttentionSpec, _Backend], AttentionSpec]
    summary: str


def _per_token_head(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    """C = data of K and V, and two fp32 scales; int4 packs two values into a byte. For MLA V is empty."""
    if spec.state_content_bytes is not None or not spec.kv_quant_mode.is_per_token_head:
        return spec
    sides = (spec.head_size, spec.head_size_v)
    if spec.kv_quant_mode == KVQuantMode.INT4_PER_TOKEN_HEAD:
        sides = tuple(size // 2 for size in sides)
    return replace(spec, state_content_bytes=sum(sides) * dtype_size_bytes(spec.dtype) + 2 * SCALE_BYTES)


def _mla_per_token_head(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    """As above, for one latent: ``head_size_v`` isn't looked at."""
    if spec.state_content_bytes is not None or not spec.kv_quant_mode.is_per_token_head:
        return spec
    size = spec.head_size // 2 if spec.kv_quant_mode == KVQuantMode.INT4_PER_TOKEN_HEAD else spec.head_size
    return replace(spec, state_content_bytes=size * dtype_size_bytes(spec.dtype) + 2 * SCALE_BYTES)


def nvfp4_bytes(head_size: int) -> int:
    """Bytes of one head in NVFP4: two values a byte, then one fp8 scale for each 16 of them."""
    return head_size // 2 + head_size // 16


def _nvfp4(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    """A slot of K and one of V for each head: H = 2 x num_kv_heads."""
    if spec.state_content_bytes is not None or spec.kv_quant_mode != KVQuantMode.NVFP4:
        return spec
    return replace(spec, num_head_slots=2 * spec.num_kv_heads,
                   state_content_bytes=nvfp4_bytes(spec.head_size) * dtype_size_bytes(spec.dtype))


def _nvfp4_symmetric(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    packed = _nvfp4(spec, backend)
    if packed is not spec and nvfp4_bytes(spec.head_size) != nvfp4_bytes(spec.head_size_v):
        raise _unequal_heads(spec)
    return packed


def _two_slots(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    """H = 2, K and V, each with the heads of one state side by side."""
    if spec.state_content_bytes is not None:
        return spec
    if spec.head_size != spec.head_size_v:
        raise _unequal_heads(spec)
    return replace(spec, num_head_slots=2,
                   state_content_bytes=spec.num_kv_heads * spec.head_size * dtype_size_bytes(spec.dtype))


def _unequal_heads(spec: AttentionSpec) -> LayoutError:
    return LayoutError("head_size_v", spec.head_size_v, f"must equal head_size {spec.head_size}: this backend keeps "
                       "K and V in slots of their own, and all slots are of one size", "Choose another backend")


def _blocks_of_16(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    # vLLM asks with one token a block to learn the bytes of a token; that is no real block.
    if spec.block_size != 1 and spec.block_size % 16:
        raise LayoutError("block_size", spec.block_size, "must be a multiple of 16 for this backend's gather kernel")
    return spec


def _shuffled(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    spec = _blocks_of_16(spec, backend)
    return _two_slots(spec, backend) if backend.machine.shuffle_kv_cache else spec


def _rows(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    """Blocks must be whole rows of C bytes apart."""
    return replace(spec, block_stride_alignment=spec.state_content_size_bytes)


def _row_pages(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    """Blocks must be whole pages of kernel-block rows apart."""
    (page,) = backend.get_supported_kernel_block_sizes(spec)
    return replace(spec, block_stride_alignment=page.base * spec.state_content_size_bytes)


def _flashmla_sparse(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    # Only Blackwell's kernel for quantised caches reads rows; the others read pages of 64 tokens.
    if spec.kv_quant_mode != KVQuantMode.NONE and backend.machine.cuda_major != 10:
        return replace(spec, block_stride_alignment=MultipleOf(64))
    return _rows(spec, backend)


def _step5(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    return replace(spec, block_stride_alignment=MultipleOf(8))


def _turboquant(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    if spec.state_content_bytes is not None or not spec.kv_quant_mode.name.startswith("TURBOQUANT"):
        return spec
    return replace(spec, state_content_bytes=turboquant_format(spec.kv_quant_mode, spec.head_size).size_bytes)


def _ultraquant(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    if spec.state_content_bytes is not None or spec.kv_quant_mode != KVQuantMode.ULTRAQUANT_4BIT:
        return spec
    return replace(spec, state_content_bytes=ultraquant_format(spec.head_size).size_bytes)


def _octave(spec: AttentionSpec, backend: _Backend) -> AttentionSpec:
    if spec.state_content_bytes is not None or not spec.kv_quant_mode.name.startswith("OCTAVE"):
        return spec
    packed = octave_format(spec.kv_quant_mode, spec.head_size, backend.machine.rotary_dim)
    return replace(spec, state_content_bytes=packed.size_bytes)


_TWO_SLOTS = Rule(_two_slots, "K and V in two head slots, each with all heads of a token state side by side")
_ROWS = Rule(_rows, "Blocks lie a whole number of token states apart")
_OCTAVE = Rule(_octave, "Octave caches: K and V of a head packed in one slot, sized by the rotary dimension too")
_NVFP4 = "NVFP4 caches: a slot of K and one of V for each head, fp4 data and fp8 scales"

RULES = {
    "TritonAttentionBackend": Rule(
        _per_token_head, "Per-token-head caches: two fp32 scales a head and token beside the data"),
    "MLACommonBackend": Rule(_mla_per_token_head, "Per-token-head caches: two fp32 scales a token beside the latent"),
    "FlashInferBackend": Rule(_nvfp4_symmetric, _NVFP4),
    "MiniMaxM3SparseMSANvfp4Backend": Rule(_nvfp4, _NVFP4),
    "RocmAttentionBackend": _TWO_SLOTS,
    "B12xPagedAttentionBackend": _TWO_SLOTS,
    "AiterFlashAttentionBackend": Rule(
        _shuffled, "Blocks are multiples of 16 tokens; with the shuffled cache K and V lie in two head slots"),
    "RocmAiterUnifiedAttentionBackend": Rule(_blocks_of_16, "Blocks are multiples of 16 tokens"),
    "FlashMLASparseBackend": Rule(
        _flashmla_sparse, "Blocks lie whole 64-token pages (quantised, off Blackwell) or whole token states apart"),
    "FlashAttnMLASparseBackend": _ROWS,
    "FlashInferMLASparseSM90Backend": _ROWS,
    "ROCMAiterMLASparseBackend": _ROWS,
    "XPUMLASparseBackend": _ROWS,
    "_FlashInferMLASparseBackendBase": Rule(_row_pages, "Blocks lie a whole number of kernel pages apart"),
    "Step5DSAAttentionBackend": Rule(_step5, "Blocks lie a whole number of 8-token pages apart"),
    "TurboQuantAttentionBackend": Rule(_turboquant, "TurboQuant caches: K and V of a head packed in one slot"),
    "UltraQuantAttentionBackend": Rule(_ultraquant, "UltraQuant caches: fp4 codes and scales of K and V in one slot"),
    "RocmOctaveAttentionBackend": _OCTAVE,
    "Qwen4ExpQSAFlashAttentionBackend": _OCTAVE,
}
