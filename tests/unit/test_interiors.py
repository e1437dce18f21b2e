"""The fields inside the pages of each backend, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvlayout.facts.backends import backends, get_backend
from kvlayout.facts.machine import Machine
from kvlayout.interior import default_interior
from kvlayout.spec import (
    CircularBufferSpec,
    FullAttentionSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
)
from kvlayout.versions import VLLM_VERSIONS

BARE = Machine()
ATTENTION = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=128, dtype="bfloat16")
LATENT = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=576, dtype="uint8")
INDEXER = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=132, dtype="uint8")


def quantised(spec, mode, dtype="uint8", **changes):
    return replace(spec, kv_quant_mode=mode, dtype=dtype, **changes)


def customised(name, spec, machine=BARE, version="0.33.0", layout=None):
    """(spec, interior) as the backend repacks the page and declares it."""
    backend = get_backend(name, version).on(machine)
    spec = backend.customize_spec(spec)
    return spec, backend.interior(spec, layout)


def shape(interior):
    """(name, offset, elements, bits) of each field."""
    return [(f.name, f.offset, f.num_elements, f.element_bits) for f in interior.fields]


def at(interior, head, state, byte):
    return int(interior.positions(head, np.array([state]), np.array([byte]))[0])


@pytest.mark.parametrize("name, spec, expected", [
    ("TRITON_ATTN", quantised(ATTENTION, "INT8_PER_TOKEN_HEAD", "int8"),
     [("K", 0, 128, 8), ("K scale", 128, 1, 32), ("V", 132, 128, 8), ("V scale", 260, 1, 32)]),
    ("TRITON_ATTN", quantised(ATTENTION, "INT4_PER_TOKEN_HEAD"),
     [("K", 0, 128, 4), ("K scale", 64, 1, 32), ("V", 68, 128, 4), ("V scale", 132, 1, 32)]),
    ("TRITON_MLA", quantised(LATENT, "FP8_PER_TOKEN_HEAD"), [("latent", 0, 576, 8), ("latent scale", 576, 2, 32)]),
    ("FLASHMLA_SPARSE", replace(LATENT, cache_dtype_str="fp8_ds_mla", state_content_bytes=656),
     [("latent", 0, 512, 8), ("latent scale", 512, 4, 32), ("rope", 528, 64, 16)]),
    ("FLASHMLA_SPARSE", replace(LATENT, cache_dtype_str="nvfp4_ds_mla", state_content_bytes=352),
     [("latent", 0, 512, 4), ("rope", 256, 64, 8), ("latent scale", 320, 32, 8)]),
    ("FLASHMLA_SPARSE_DSV41", replace(LATENT, cache_dtype_str="fp8_ds_mla", state_content_bytes=528),
     [("latent", 0, 512, 8), ("latent scale", 512, 16, 8)]),
    ("FLASHMLA_SPARSE_DSV41", replace(LATENT, cache_dtype_str="nvfp4_ds_mla", state_content_bytes=288),
     [("latent", 0, 512, 4), ("latent scale", 256, 32, 8)]),
    ("TURBOQUANT", quantised(ATTENTION, "TURBOQUANT_K8V4"),
     [("K", 0, 128, 8), ("V", 128, 128, 4), ("V scale", 192, 1, 16), ("V zero", 194, 1, 16)]),
    ("TURBOQUANT", quantised(ATTENTION, "TURBOQUANT_3BIT_NC", head_size=96),
     [("K", 0, 96, 3), ("K norm", 36, 1, 16), ("V", 38, 96, 3), ("V scale", 74, 1, 16), ("V zero", 76, 1, 16)]),
    ("ULTRAQUANT", quantised(ATTENTION, "ULTRAQUANT_4BIT"),
     [("K", 0, 128, 4), ("K scale", 64, 4, 8), ("V", 68, 128, 4), ("V scale", 132, 4, 8)]),
    ("B12X", ATTENTION, [("K", 0, 256, 16), ("V", 0, 256, 16)]),
    ("ROCM_SEGMENTED_ATTN", ATTENTION, [("K", 0, 256, 16), ("V", 0, 256, 16)]),
])
def test_fields_of_a_state(name, spec, expected):
    spec, interior = customised(name, spec)
    assert interior.scope == "state" and shape(interior) == expected
    assert interior.source


def test_octave_fields_follow_the_rotary_dimension():
    spec = quantised(ATTENTION, "OCTAVE_K3V4", head_size=256)
    _, interior = customised("ROCM_OCTAVE", spec, Machine("rocm", rotary_dim=64))
    assert shape(interior) == [("K rope", 0, 64, 4), ("K nope", 32, 192, 3), ("V", 104, 256, 4),
                               ("K scale", 232, 4, 16), ("V scale", 240, 1, 16), ("padding", 242, 6, 8)]
    compact = replace(spec, kv_quant_mode=KVQuantMode.OCTAVE_K3V3_COMPACT)
    _, interior = customised("ROCM_OCTAVE", compact, Machine("rocm", rotary_dim=64))
    assert shape(interior) == [("K", 0, 256, 3), ("V", 96, 256, 3), ("K scale", 192, 1, 16), ("V scale", 194, 1, 16)]


def test_cpu_transposes_k_in_the_first_half_of_each_cell():
    """As seen on a real engine: block 128, head 32, bf16; a token's K is 32 elements, 128 elements apart."""
    spec = replace(ATTENTION, block_size=128, head_size=32, head_size_v=32)
    _, interior = customised("CPU_ATTN", spec, version="0.32.0")
    assert interior.scope == "cell"
    assert [at(interior, 0, 5, 2 * element) for element in (0, 1, 31)] == [10, 10 + 256, 10 + 31 * 256]
    assert at(interior, 1, 5, 64) == 128 * 64 + 5 * 64
    assert interior.field_of(0, 63) == ("K", 31) and interior.field_of(0, 64) == ("V", 0)
    states, bytes_ = interior.cell_coordinates(0, 128, np.array([10, 266, 8192 + 5 * 64 + 1]))
    assert states.tolist() == [5, 5, 5] and bytes_.tolist() == [0, 2, 65]


def test_cpu_with_amx_is_one_packed_field():
    spec, interior = customised("CPU_ATTN", ATTENTION, Machine(cpu_isa="amx"))
    assert shape(interior) == [("packed", 0, 512, 8)]
    assert customised("CPU_ATTN", replace(ATTENTION, head_size_v=64))[1] is None


def test_rocm_packs_k_in_vectors_and_transposes_v():
    """Slot 0 [heads 2, 128/8 vectors, 16 states, 16 bytes], slot 1 [heads 2, 128 elements, 16 states]."""
    spec, interior = customised("ROCM_ATTN", ATTENTION)
    assert interior.scope == "cell" and spec.num_heads == 2
    element = 2 * (128 + 9)  # byte of head 1, element 9: its second vector, second element
    assert at(interior, 0, 3, element) == (16 + 1) * 16 * 16 + 3 * 16 + 2
    assert at(interior, 1, 3, element) == (128 + 9) * 16 * 2 + 3 * 2
    assert interior.field_of(0, element) == ("K", 17) and interior.field_of(1, element) == ("V", 137)


def test_flashinfer_nvfp4_pages_hold_data_before_scales_for_each_side():
    """2 heads, 16 states: K data 2 x 16 x 64, K scales 2 x 16 x 8, then the same of V."""
    spec, interior = customised("FLASHINFER", quantised(ATTENTION, "NVFP4"))
    assert interior.scope == "page" and spec.unpadded_page_size_bytes == 4608
    assert shape(interior) == [("K", 0, 128, 4), ("K scale", 2048, 8, 8),
                               ("V", 2304, 128, 4), ("V scale", 4352, 8, 8)]
    assert at(interior, 1, 3, 5) == 16 * 64 + 3 * 64 + 5
    assert at(interior, 1, 3, 64 + 2) == 2048 + 16 * 8 + 3 * 8 + 2
    assert at(interior, 2, 0, 0) == 2304 and at(interior, 3, 15, 71) == 4607
    assert interior.field_of(0, 5) == ("K", 10) and interior.field_of(3, 65) == ("V scale", 1)


def test_flashinfer_nvfp4_follows_the_order_of_heads_and_states():
    nvfp4 = quantised(ATTENTION, "NVFP4")
    _, interior = customised("FLASHINFER", nvfp4, layout="LBNHC")
    assert at(interior, 1, 3, 5) == (3 * 2 + 1) * 64 + 5
    assert at(interior, 1, 3, 64) == 2048 + (3 * 2 + 1) * 8
    assert customised("FLASHINFER", nvfp4, layout="BLHNC")[1] == customised("FLASHINFER", nvfp4)[1]
    for layout, version in (("LHBNC", "0.33.0"), ("BHLNC", "0.33.0"), ("LBNHC", "0.31.0")):
        assert customised("FLASHINFER", nvfp4, version=version, layout=layout)[1] is None
    assert customised("TRITON_FLASHINFER", ATTENTION)[1] is None


def test_minimax_nvfp4_slots_alternate():
    spec, interior = customised("MiniMaxM3SparseMSANvfp4Backend", quantised(ATTENTION, "NVFP4"))
    assert interior.scope == "cell"
    assert [interior.field_of(slot, 70)[0] for slot in range(4)] == ["K scale", "V scale", "K scale", "V scale"]
    assert at(interior, 3, 5, 0) == 5 * 64 and at(interior, 3, 5, 64) == 16 * 64 + 5 * 8


def test_deepseek_v4_pages_end_with_their_scales():
    """Rows of 576 bytes (448 fp8, 64 bf16), then 8 bytes a state; the page may be padded behind."""
    spec = MLAAttentionSpec(block_size=256, num_kv_heads=1, head_size=512, dtype="uint8", tokens_per_state=4,
                            cache_dtype_str="fp8_ds_mla", state_content_bytes=584, alignment=576)
    window = SlidingWindowMLASpec(block_size=64, num_kv_heads=1, head_size=512, dtype="uint8", sliding_window=128,
                                  cache_dtype_str="fp8_ds_mla", state_content_bytes=584, alignment=576)
    for name, one in (("FLASHMLA_SPARSE_DSV4", spec), ("DEEPSEEK_SPARSE_SWA", window)):
        one, interior = customised(name, one)
        assert interior.scope == "page" and one.num_states == 64
        assert at(interior, 0, 3, 0) == 3 * 576 and at(interior, 0, 3, 448) == 3 * 576 + 448
        assert at(interior, 0, 3, 576) == 64 * 576 + 3 * 8 and at(interior, 0, 63, 583) == 64 * 584 - 1
        assert [interior.field_of(0, byte)[0] for byte in (447, 448, 576, 583)] == [
            "latent", "rope", "latent scale", "padding"]


@pytest.mark.parametrize("name, spec", [
    ("DEEPSEEK_V32_INDEXER", INDEXER),
    ("DEEPSEEK_V4_INDEXER", replace(INDEXER, block_size=256, tokens_per_state=4)),
    ("Glm5NextIndexerBackend", replace(INDEXER, block_size=256, tokens_per_state=4)),
])
def test_indexer_scales_lie_at_the_tail_of_the_page(name, spec):
    """64 states: values 0 to 8,191, scales 8,192 to 8,447."""
    spec, interior = customised(name, spec)
    assert interior.scope == "page" and spec.unpadded_page_size_bytes == 8448
    assert at(interior, 0, 0, 127) == 127 and at(interior, 0, 63, 127) == 8191
    assert at(interior, 0, 0, 128) == 8192 and at(interior, 0, 63, 131) == 8447
    assert interior.field_of(0, 128) == ("K scale", 0) and interior.field_of(0, 131) == ("K scale", 0)


def test_indexers_vary_with_format_and_machine():
    _, fp4 = customised("DEEPSEEK_V4_INDEXER", replace(INDEXER, head_size=68))
    assert shape(fp4) == [("K", 0, 128, 4), ("K scale", 64 * 64, 4, 8)]
    blackwell = Machine("cuda", cuda_major=10)
    assert shape(customised("DEEPSEEK_V32_INDEXER", INDEXER, blackwell)[1])[1] == ("K scale", 8192, 4, 8)
    assert shape(customised("DEEPSEEK_V32_INDEXER", INDEXER, blackwell, "0.32.0")[1])[1] == ("K scale", 8192, 1, 32)
    for name, machine in (("DEEPSEEK_V32_INDEXER", Machine("rocm")), ("CPU_V4_INDEXER", BARE)):
        assert shape(customised(name, INDEXER, machine)[1]) == [("packed", 0, 132, 8)]


def test_kpool_tail_keeps_gate_scores_in_its_second_slot():
    ring = CircularBufferSpec(block_size=16, num_kv_heads=2, head_size=128, head_size_v=0, dtype="bfloat16")
    _, interior = customised("KPOOL_TAIL", ring)
    assert interior.field_of(0, 255) == ("K", 127) and interior.field_of(1, 0) == ("gate score", 0)


@pytest.mark.parametrize("name, spec, machine", [
    ("FLASH_ATTN", ATTENTION, BARE),
    ("FLASHINFER", ATTENTION, BARE),
    ("TRITON_ATTN", quantised(ATTENTION, "FP8_PER_TENSOR"), BARE),
    ("TRITON_MLA", replace(LATENT, dtype="bfloat16"), BARE),
    ("ROCM_AITER_UNIFIED_ATTN", ATTENTION, BARE),
    ("MAMBA2", MambaSpec(block_size=16, shapes=((4, 4),), dtypes=("float32",)), BARE),
    # What can't be said, or isn't known: the default then has one packed field.
    ("TRITON_ATTN_DIFFKV", quantised(ATTENTION, "INT8_PER_TOKEN_HEAD", "int8", head_size_v=64), BARE),
    ("ROCM_AITER_FA", ATTENTION, Machine("rocm", shuffle_kv_cache=True)),
    ("TURBOQUANT", quantised(ATTENTION, "TURBOQUANT_3BIT_NC", head_size=100), BARE),
    ("TURBOQUANT", quantised(ATTENTION, "TURBOQUANT_K8V4"), Machine("rocm", cdna_version=4)),
])
def test_default_interiors(name, spec, machine):
    spec, interior = customised(name, spec, machine)
    assert interior is None
    names = [field.name for field in default_interior(spec).fields]
    assert names in (["K", "V"], ["latent"], ["state 0"], ["packed"])
    assert (names == ["packed"]) == (getattr(spec, "state_content_bytes", None) is not None)


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_every_declared_interior_fills_its_page(version):
    """All backends, all quantisation modes: declared fields fit the customised page exactly, or none is declared."""
    declared = 0
    for backend in backends(version).values():
        backend = backend.on(Machine("rocm", rotary_dim=64, shuffle_kv_cache=True))
        for mode in KVQuantMode:
            for base in (ATTENTION, LATENT, replace(ATTENTION, head_size=80, head_size_v=80)):
                try:
                    spec = backend.customize_spec(quantised(base, mode, "bfloat16" if mode == 0 else "uint8"))
                except ValueError:
                    continue  # a page that this backend refuses; test_repack.py has them by name
                interior = backend.interior(spec)
                if interior is not None:
                    assert interior.check(spec) is interior
                    declared += 1
    assert declared > 50
