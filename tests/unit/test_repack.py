"""What each rule makes of a spec, in exact numbers, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout.errors import LayoutError
from kvlayout.facts.backends import backends, get_backend
from kvlayout.facts.formats import octave_format, turboquant_format, ultraquant_format
from kvlayout.facts.machine import Machine
from kvlayout.facts.repack import RULES, nvfp4_bytes
from kvlayout.spec import FullAttentionSpec, KVQuantMode, MambaSpec, MLAAttentionSpec, MultipleOf
from kvlayout.versions import VLLM_VERSIONS

ATTENTION = FullAttentionSpec(block_size=64, num_kv_heads=8, head_size=128, dtype="bfloat16")
LATENT = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=576, dtype="uint8")


def quantised(spec, mode, dtype="uint8", **changes):
    return replace(spec, kv_quant_mode=mode, dtype=dtype, **changes)


BARE = Machine()


def page(name, spec, machine=BARE, version="0.33.0"):
    """(head slots, content bytes, alignment) of the customised spec."""
    after = get_backend(name, version).on(machine).customize_spec(spec)
    return after.num_heads, after.state_content_size_bytes, after.block_stride_alignment


@pytest.mark.parametrize("name, spec, expected", [
    ("FLASH_ATTN", ATTENTION, (8, 512, None)),
    ("TRITON_ATTN", quantised(ATTENTION, "INT8_PER_TOKEN_HEAD", "int8"), (8, 264, None)),
    ("TRITON_ATTN", quantised(ATTENTION, "INT4_PER_TOKEN_HEAD"), (8, 136, None)),
    ("TRITON_ATTN", quantised(ATTENTION, "FP8_PER_TOKEN_HEAD", head_size_v=64), (8, 200, None)),
    ("TRITON_ATTN", quantised(ATTENTION, "FP8_PER_TENSOR"), (8, 256, None)),
    ("TRITON_MLA", quantised(LATENT, "FP8_PER_TOKEN_HEAD"), (1, 584, None)),
    ("CUTLASS_MLA", quantised(LATENT, "INT4_PER_TOKEN_HEAD"), (1, 296, None)),
    ("FLASHINFER", quantised(ATTENTION, "NVFP4"), (16, 72, None)),
    ("MiniMaxM3SparseMSANvfp4Backend", quantised(ATTENTION, "NVFP4", head_size_v=64), (16, 72, None)),
    ("ROCM_ATTN", ATTENTION, (2, 2048, None)),
    ("ROCM_SEGMENTED_ATTN", ATTENTION, (2, 2048, None)),
    ("B12X", quantised(ATTENTION, "FP8_PER_TENSOR"), (2, 1024, None)),
    ("ROCM_AITER_UNIFIED_ATTN", ATTENTION, (8, 512, None)),
    ("ROCM_AITER_FA", ATTENTION, (8, 512, None)),
    ("FLASH_ATTN_MLA_SPARSE", LATENT, (1, 576, 576)),
    ("XPU_MLA_SPARSE", replace(LATENT, dtype="bfloat16"), (1, 1152, 1152)),
    ("ROCM_AITER_MLA_SPARSE", replace(LATENT, state_content_bytes=656), (1, 656, 656)),
    ("FLASHINFER_MLA_SPARSE", LATENT, (1, 576, 32 * 576)),
    ("FLASHINFER_MLA_SPARSE_SM120", LATENT, (1, 576, 64 * 576)),
    ("FLASH_ATTN_MLA_SPARSE_FA4", LATENT, (1, 576, 64 * 576)),
    ("FLASHMLA_SPARSE", LATENT, (1, 576, 576)),
    ("FLASHMLA_SPARSE", quantised(LATENT, "FP8_PER_TENSOR"), (1, 576, MultipleOf(64))),
    ("STEP5_DSA", ATTENTION, (8, 512, MultipleOf(8))),
    ("TURBOQUANT", quantised(ATTENTION, "TURBOQUANT_K8V4"), (8, 196, None)),
    ("TURBOQUANT", quantised(ATTENTION, "TURBOQUANT_3BIT_NC"), (8, 102, None)),
    ("ULTRAQUANT", quantised(ATTENTION, "ULTRAQUANT_4BIT", head_size=256), (8, 272, None)),
])
def test_pages(name, spec, expected):
    assert page(name, spec) == expected


def test_machine_decides_where_the_backend_asks_it():
    assert page("ROCM_AITER_FA", ATTENTION, Machine("rocm", shuffle_kv_cache=True)) == (2, 2048, None)
    fp8 = quantised(LATENT, "FP8_PER_TENSOR")
    assert page("FLASHMLA_SPARSE", fp8, Machine("cuda", cuda_major=10)) == (1, 576, 576)
    assert page("FLASHMLA_SPARSE", fp8, Machine("cuda", cuda_major=9)) == (1, 576, MultipleOf(64))
    octave = quantised(ATTENTION, "OCTAVE_K3V4", head_size=256)
    assert page("ROCM_OCTAVE", octave, Machine("rocm", rotary_dim=64)) == (8, 248, None)
    assert page("ROCM_OCTAVE", octave, Machine("rocm", rotary_dim=256)) == (8, 272, None)
    compact = replace(octave, kv_quant_mode="OCTAVE_K3V3_COMPACT")
    assert page("ROCM_OCTAVE", compact, Machine("rocm", rotary_dim=64)) == (8, 196, None)


def test_older_releases_repack_less():
    assert page("FLASH_ATTN_MLA_SPARSE", LATENT, version="0.31.0") == (1, 576, None)
    assert page("FLASHMLA_SPARSE", quantised(LATENT, "FP8_PER_TENSOR"), version="0.31.0") == (1, 576, None)
    assert page("ROCM_ATTN", ATTENTION, version="0.29.0") == (2, 2048, None)


@pytest.mark.parametrize("name, spec, machine, argument", [
    ("ROCM_ATTN", replace(ATTENTION, head_size_v=64), BARE, "head_size_v"),
    ("B12X", replace(ATTENTION, head_size_v=0), BARE, "head_size_v"),
    ("FLASHINFER", quantised(ATTENTION, "NVFP4", head_size_v=64), BARE, "head_size_v"),
    ("ROCM_AITER_FA", replace(ATTENTION, block_size=24), BARE, "block_size"),
    ("ROCM_AITER_UNIFIED_ATTN", replace(ATTENTION, block_size=8), BARE, "block_size"),
    ("ROCM_AITER_FA", replace(ATTENTION, head_size_v=64), Machine("rocm", shuffle_kv_cache=True), "head_size_v"),
    ("ULTRAQUANT", quantised(ATTENTION, "ULTRAQUANT_4BIT", head_size=80), BARE, "head_size"),
    ("ROCM_OCTAVE", quantised(ATTENTION, "OCTAVE_K3V4"), BARE, "rotary_dim"),
    ("ROCM_OCTAVE", quantised(ATTENTION, "OCTAVE_K3V4"), Machine("rocm", rotary_dim=32), "rotary_dim"),
    ("ROCM_OCTAVE", quantised(ATTENTION, "OCTAVE_K3V4"), Machine("rocm", rotary_dim=192), "rotary_dim"),
    ("ROCM_OCTAVE", quantised(ATTENTION, "OCTAVE_K3V4", head_size=80), Machine("rocm", rotary_dim=64), "head_size"),
    ("ROCM_OCTAVE", quantised(ATTENTION, "OCTAVE_K3V3_COMPACT", head_size=192), Machine("rocm", rotary_dim=64),
     "head_size"),
    ("TRITON_ATTN", MambaSpec(block_size=64, shapes=((4, 4),), dtypes=("float32",)), BARE, "spec"),
])
def test_pages_that_a_backend_cannot_hold_are_refused(name, spec, machine, argument):
    with pytest.raises(LayoutError) as caught:
        get_backend(name).on(machine).customize_spec(spec)
    assert caught.value.argument == argument and caught.value.rule


def test_one_token_blocks_pass_the_gather_check():
    one = replace(ATTENTION, block_size=1)
    assert get_backend("ROCM_AITER_FA").customize_spec(one) == one


def test_state_specs_pass_through_state_backends():
    state = MambaSpec(block_size=64, shapes=((4, 4),), dtypes=("float32",))
    assert get_backend("MAMBA2").customize_spec(state) is state


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_a_content_that_the_model_set_stays(version):
    """Except for alignments, which are always the backend's."""
    for mode in KVQuantMode:
        spec = replace(ATTENTION, kv_quant_mode=mode, dtype="uint8", state_content_bytes=656, num_head_slots=3)
        for backend in backends(version).values():
            after = backend.customize_spec(spec)
            assert (after.state_content_bytes, after.num_head_slots) == (656, 3), backend.name


def test_every_recorded_rule_is_known_and_every_rule_is_used():
    used = {backend.repacked_by.rpartition(".")[2] for version in VLLM_VERSIONS
            for backend in backends(version).values() if backend.repacked_by}
    assert used == set(RULES)


@given(st.integers(1, 600), st.sampled_from([mode for mode in KVQuantMode if mode.name.startswith("TURBO")]))
def test_turboquant_slots_are_even_and_hold_their_parts(head_size, mode):
    slot = turboquant_format(mode, head_size)
    used = sum(-(-number * bits // 8) for _, number, bits in slot.parts)
    assert slot.size_bytes % 2 == 0 and 0 <= slot.size_bytes - used <= 1


@given(st.integers(1, 40).map(lambda n: n * 32))
def test_formats_grow_linearly(head_size):
    assert ultraquant_format(head_size).size_bytes == head_size + head_size // 16
    assert nvfp4_bytes(head_size) * 16 == head_size * 9
    if head_size % 64 == 0:
        wide = octave_format(KVQuantMode.OCTAVE_K3V3, head_size, head_size).size_bytes
        narrow = octave_format(KVQuantMode.OCTAVE_K3V3, head_size, 0).size_bytes
        assert wide - narrow == head_size // 8
