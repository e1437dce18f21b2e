"""What lies where inside a page, by backend: the fields as its kernels read and write them.

:func:`interior_of` gives None where the default holds: K then V of one state, one latent, each state tensor. Where
the order inside isn't known from vLLM's source, or no Field can say it, a repacked page is one field "packed". Sizes
are bytes. Source: vLLM 0.29.0 to 0.33.0, the function that each rule names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from kvlayout.dtypes import dtype_size_bytes
from kvlayout.errors import LayoutError
from kvlayout.facts.formats import SlotFormat, octave_format, turboquant_format, ultraquant_format
from kvlayout.facts.machine import Machine
from kvlayout.interior import Field, Interior, state_interior
from kvlayout.layout import H, KVCacheLayout, N, as_layout
from kvlayout.spec import AttentionSpec, KVCacheSpec, KVQuantMode, MLAAttentionSpec, SlidingWindowMLASpec
from kvlayout.versions import at_least


class _Backend(Protocol):
    machine: Machine
    vllm_version: str
    repacked_by: str | None
    short_class: str

    def is_a(self, *class_names: str) -> bool: ...


def interior_of(backend: _Backend, spec: KVCacheSpec, layout: KVCacheLayout | None = None) -> Interior | None:
    """Return the interior of ``spec``'s pages under ``backend``, checked against the spec; None for the default."""
    if not isinstance(spec, AttentionSpec):
        return None
    found = _ds_mla(spec)
    for class_names, declare in _BY_CLASS:
        if found is None and backend.is_a(*class_names):
            found = declare(backend, spec, layout)
    return None if found is None else _checked(found, spec)


@lru_cache(maxsize=256)  # a model asks for the same few pages again for each layer
def _checked(interior: Interior, spec: AttentionSpec) -> Interior:
    return interior.check(spec)


# (cache dtype, bytes of a state) -> parts. The latent of V4.1 includes the 64 rotary elements; the scales of
# nvfp4_ds_mla are stored transposed, so their element numbers are those of memory, not of the latent's blocks.
_DS_MLA_STATES = {
    ("fp8_ds_mla", 656): [("latent", 512, 8), ("latent scale", 4, 32), ("rope", 64, 16)],
    ("nvfp4_ds_mla", 352): [("latent", 512, 4), ("rope", 64, 8), ("latent scale", 32, 8)],
    ("fp8_ds_mla", 528): [("latent", 512, 8), ("latent scale", 16, 8)],
    ("nvfp4_ds_mla", 528): [("latent", 512, 8), ("latent scale", 16, 8)],
    ("nvfp4_ds_mla", 288): [("latent", 512, 4), ("latent scale", 32, 8)],
}


def _ds_mla(spec: AttentionSpec) -> Interior | None:
    """DeepSeek's packed latents, the same for every backend that takes them.

    Source: ``vllm/v1/attention/backends/mla/flashmla_sparse.py`` (656, 584, 528, 352);
    ``models/deepseek_v41/common/ops/cache_utils.py`` (528, 288).
    """
    if not isinstance(spec, (MLAAttentionSpec, SlidingWindowMLASpec)) or spec.num_heads != 1:
        return None
    kind = (spec.cache_dtype_str, spec.state_content_bytes)
    if kind in _DS_MLA_STATES:
        return state_interior(_DS_MLA_STATES[kind], spec.state_content_bytes, "flashmla_sparse.py, cache_utils.py")
    if kind == ("fp8_ds_mla", 584):
        return _rows_then_tail([("latent", 448, 8), ("rope", 64, 16)], [("latent scale", 7, 8), ("padding", 1, 8)],
                               spec.num_states, "deepseek_v4 cache_utils.py, quantize_and_insert_k_kernel")
    return None


def _rows_then_tail(rows: list[tuple], tail: list[tuple], num_states: int, source: str) -> Interior:
    """A page of all states' ``rows``, then all states' ``tail`` (one head slot)."""
    fields, start = [], 0
    for parts in (rows, tail):
        stride = sum(number * bits // 8 for _, number, bits in parts)
        begin = start
        for name, number, bits in parts:
            fields.append(Field(name, begin, number, bits, state_stride=stride))
            begin += fields[-1].size_bytes
        start += num_states * stride
    return Interior(tuple(fields), "page", source)


def _indexer(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """The sparse indexer's keys: all states' values, then all states' scales at the tail of the page's content.

    128 fp8 values and one fp32 scale (on Blackwell, from 0.33, four equal 8-bit exponents in its place), or 128 fp4
    values and four 8-bit exponents. ROCm tiles the values; the CPU's own kernels aren't in the package.
    Source: ``indexer_k_quant_and_cache``; for fp4 ``deepseek_v4/common/ops/fused_compress_quant_cache.py``.
    """
    is_plain = spec.num_heads == 1 and spec.head_size_v == 0 and dtype_size_bytes(spec.dtype) == 1
    tiled = backend.machine.platform == "rocm" or backend.is_a(
        "DeepseekV4RocmMxfp4IndexerBackend", "DeepseekV41RocmMxfp4IndexerBackend", "DeepseekV4CPUIndexerBackend")
    content = spec.state_content_size_bytes
    if not is_plain or tiled or content not in (132, 68):
        return state_interior([("packed", content, 8)], content, "not known from vLLM's Python source")
    exponents = content == 68 or (backend.machine.cuda_major == 10 and at_least(backend.vllm_version, "0.33.0"))
    scale = ("K scale", 4, 8) if exponents else ("K scale", 1, 32)
    return _rows_then_tail([("K", 128, 8 if content == 132 else 4)], [scale], spec.num_states,
                           "indexer_k_quant_and_cache")


def _kpool_tail(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """Raw keys in head slot 0, gate scores in slot 1. Source: ``Glm5NextTailCache``."""
    if spec.num_heads != 2 or spec.head_size_v != 0 or spec.state_content_bytes is not None:
        return None
    bits = 8 * dtype_size_bytes(spec.dtype)
    fields = (Field("K", 0, spec.head_size, bits, (0, 1)), Field("gate score", 0, spec.head_size, bits, (1, 2)))
    return Interior(fields, source="Glm5NextTailCache")


def _triton(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """K data, K scale, V data, V scale in each half of C, for K and V of one size.

    Source: ``TritonAttentionImpl._ensure_scale_caches``.
    """
    if not spec.kv_quant_mode.is_per_token_head or spec.head_size != spec.head_size_v:
        return None
    bits = 4 if spec.kv_quant_mode == KVQuantMode.INT4_PER_TOKEN_HEAD else 8
    if bits * spec.head_size % 32 or dtype_size_bytes(spec.dtype) != 1:
        return None  # the scale must lie on a multiple of 4 bytes, and its place is counted in elements of a byte
    size = 2 * (spec.head_size * bits // 8 + 4)
    parts = [(f"{side}{part}", number, width) for side in "KV"
             for part, number, width in (("", spec.head_size, bits), (" scale", 1, 32))]
    return _slot(spec, SlotFormat(tuple(parts), size), "TritonAttentionImpl._ensure_scale_caches")


def _mla(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """Per-token-head: the latent, then two fp32 scales. Source: ``MLACommonBackend.customize_spec``."""
    if not spec.kv_quant_mode.is_per_token_head or dtype_size_bytes(spec.dtype) != 1:
        return None
    bits = 4 if spec.kv_quant_mode == KVQuantMode.INT4_PER_TOKEN_HEAD else 8
    parts = (("latent", spec.head_size, bits), ("latent scale", 2, 32))
    return _slot(spec, SlotFormat(parts, spec.head_size * bits // 8 + 8), "MLACommonBackend.customize_spec")


def _turboquant(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """Source: ``triton_turboquant_store.py``. On AMD's CDNA 4 data and scales may lie apart: not declared."""
    if not spec.kv_quant_mode.name.startswith("TURBOQUANT") or backend.machine.cdna_version == 4:
        return None
    return _packed(spec, turboquant_format, "triton_turboquant_store.py", spec.kv_quant_mode, spec.head_size)


def _ultraquant(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """Source: ``vllm/v1/attention/ops/ultraquant/format.py``."""
    if spec.kv_quant_mode != KVQuantMode.ULTRAQUANT_4BIT:
        return None
    return _packed(spec, ultraquant_format, "ultraquant/format.py", spec.head_size)


def _octave(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """Source: ``OctaveFormat`` in ``vllm/v1/attention/ops/rocm_octave.py``; needs the machine's rotary_dim."""
    if not spec.kv_quant_mode.name.startswith("OCTAVE") or backend.machine.rotary_dim is None:
        return None
    return _packed(spec, octave_format, "OctaveFormat", spec.kv_quant_mode, spec.head_size,
                   backend.machine.rotary_dim)


def _packed(spec: AttentionSpec, make: Callable[..., SlotFormat], source: str, *arguments) -> Interior | None:
    """The interior of a slot in the format ``make(*arguments)``; None where the page isn't such a slot."""
    try:
        return _slot(spec, make(*arguments), source)
    except LayoutError:
        return None  # no such format has these head sizes: somebody else packed the page


def _slot(spec: AttentionSpec, packed: SlotFormat, source: str) -> Interior | None:
    """The interior of a packed slot, if the spec's content is that slot and each part fills whole bytes."""
    if spec.state_content_bytes != packed.size_bytes or spec.num_head_slots is not None:
        return None
    if any(number * bits % 8 for _, number, bits in packed.parts):
        return None
    return state_interior(list(packed.parts), packed.size_bytes, source)


def _has_two_slots(spec: AttentionSpec) -> bool:
    content = spec.num_kv_heads * spec.head_size * dtype_size_bytes(spec.dtype)
    return spec.num_head_slots == 2 and spec.state_content_bytes == content


def _two_slots(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """K of all heads in slot 0, V in slot 1, state by state; element = head x head_size + element of the head.

    Source: ``B12xPagedAttentionImpl._kv_cache_views``, ``_split_kv_cache`` of ``rocm_segmented_attn.py``.
    """
    if not _has_two_slots(spec):
        return None
    elements, bits = spec.num_kv_heads * spec.head_size, 8 * dtype_size_bytes(spec.dtype)
    fields = (Field("K", 0, elements, bits, (0, 1)), Field("V", 0, elements, bits, (1, 2)))
    return Interior(fields, source="_split_kv_cache")


def _rocm(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """Slot 0 holds K as [heads, head_size / x, N, x] with x elements in 16 bytes, slot 1 V as [heads, head_size, N].

    K is counted in vectors of 16 bytes here. Where AITER's fused writer runs, it interleaves V instead.
    Source: ``PagedAttention.split_kv_cache`` in ``vllm/v1/attention/ops/paged_attn.py``.
    """
    item, states = dtype_size_bytes(spec.dtype), spec.num_states
    if not _has_two_slots(spec) or spec.head_size * item % 16:
        return None
    elements = spec.num_kv_heads * spec.head_size
    return Interior((
        Field("K", 0, elements * item // 16, 128, (0, 1), state_stride=16, element_stride=16 * states),
        Field("V", 0, elements, 8 * item, (1, 2), state_stride=item, element_stride=item * states),
    ), "cell", "PagedAttention.split_kv_cache")


def _cpu(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """Each (block, head) cell: K as [head_size, N] in its first half, V as [N, head_size] in the second.

    AMX and other instruction sets tile both, which no Field can say: one field "packed".
    Source: ``CPUAttentionBackendImpl.forward`` and, for the order, ``csrc/cpu/cpu_attn_vec.hpp`` (reshape_and_cache).
    """
    content, states = spec.state_content_size_bytes, spec.num_states
    if spec.state_content_bytes is not None or spec.num_head_slots is not None or spec.head_size != spec.head_size_v:
        return None
    if backend.machine.cpu_isa not in ("vec", "vec16"):
        return state_interior([("packed", content, 8)], content, f"csrc/cpu, {backend.machine.cpu_isa}")
    item = dtype_size_bytes(spec.dtype)
    half = states * spec.head_size * item
    return Interior((
        Field("K", 0, spec.head_size, 8 * item, state_stride=item, element_stride=states * item),
        Field("V", half, spec.head_size, 8 * item, state_stride=spec.head_size * item),
    ), "cell", "CPUAttentionBackendImpl.forward")


def _has_nvfp4_slots(spec: AttentionSpec) -> bool:
    return (spec.kv_quant_mode == KVQuantMode.NVFP4 and spec.head_size % 16 == 0 and dtype_size_bytes(spec.dtype) == 1
            and spec.num_head_slots == 2 * spec.num_kv_heads and spec.state_content_bytes == spec.head_size * 9 // 16)


def _flashinfer(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """NVFP4 page: all K data, all K scales, all V data, all V scales, each in the page's order of heads and states.

    Source: ``nvfp4_split_data_scale``, and from 0.32 ``_nvfp4_kv_views`` in ``flashinfer.py``; before that only pages
    with H outside N come out whole.
    """
    if not _has_nvfp4_slots(spec):
        return None
    order = as_layout(layout) if layout is not None else KVCacheLayout.LBHNC
    heads_first = order.stride_order.index(H) < order.stride_order.index(N)
    if not order.is_block_compact or not (heads_first or at_least(backend.vllm_version, "0.32.0")):
        return None  # these views need the page in one run
    heads, states, begin, fields = spec.num_kv_heads, spec.num_states, 0, []
    for side, slots in (("K", (0, heads)), ("V", (heads, 2 * heads))):
        for name, number, bits in ((side, spec.head_size, 4), (f"{side} scale", spec.head_size // 16, 8)):
            row = number * bits // 8
            strides = (row, states * row) if heads_first else (heads * row, row)
            fields.append(Field(name, begin, number, bits, slots, *strides))
            begin += heads * states * row
    return Interior(tuple(fields), "page", "_nvfp4_kv_views")


def _minimax_nvfp4(backend: _Backend, spec: AttentionSpec, layout: KVCacheLayout | None) -> Interior | None:
    """Slot 2 x head holds K, the next one V; in each, all states' data, then all states' scales.

    Source: ``nvfp4_kv_cache_views`` in ``models/minimax_m3/nvidia/msa_cutlass_sparse_decode.py``.
    """
    if not _has_nvfp4_slots(spec):
        return None
    data, scales, fields = spec.head_size // 2, spec.head_size // 16, []
    for slot in range(spec.num_head_slots):
        side, slots = "KV"[slot % 2], (slot, slot + 1)
        fields.append(Field(side, 0, spec.head_size, 4, slots, state_stride=data))
        fields.append(Field(f"{side} scale", spec.num_states * data, scales, 8, slots, state_stride=scales))
    return Interior(tuple(fields), "cell", "nvfp4_kv_cache_views")


# The first match declares; a subclass with pages of its own stands before its base.
_BY_CLASS = (
    (("KpoolTailBackend",), _kpool_tail),
    (("DeepseekV32IndexerBackend",), _indexer),
    (("TritonAttentionBackend",), _triton),
    (("MLACommonBackend",), _mla),
    (("FlashInferBackend",), _flashinfer),
    (("MiniMaxM3SparseMSANvfp4Backend",), _minimax_nvfp4),
    (("B12xPagedAttentionBackend", "RocmSegmentedAttentionBackend"), _two_slots),
    (("RocmAttentionBackend",), _rocm),
    (("CPUAttentionBackend",), _cpu),
    (("UltraQuantAttentionBackend",), _ultraquant),
    (("TurboQuantAttentionBackend",), _turboquant),
    (("RocmOctaveAttentionBackend", "Qwen4ExpQSAFlashAttentionBackend"), _octave),
)
