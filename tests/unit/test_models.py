"""Presets and their figures, ranks and stages, KV dtypes, cache modes, models given by specs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout import LayoutError
from kvlayout.facts.backends import get_backend
from kvlayout.facts.hybrid import align_hybrid_block_size, mamba_padding_percent
from kvlayout.facts.kv_dtypes import kv_cache_dtypes, resolve_kv_cache_dtype
from kvlayout.facts.layers import sliding_block_size
from kvlayout.facts.models import Model, get_preset, model_from_config, model_from_specs, presets
from kvlayout.facts.parallel import get_pp_indices, kv_heads_per_rank
from kvlayout.spec import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    MultipleOf,
    SlidingWindowSpec,
)
from kvlayout.versions import VLLM_VERSIONS

QWEN, SPARSE, NEXT = "Qwen/Qwen3-0.6B", "deepseek-ai/DeepSeek-V3.2-Exp", "Qwen/Qwen3-Next-80B-A3B-Instruct"
NEMOTRON, GPT_OSS, WHISPER = "nvidia/Nemotron-H-8B-Base-8K", "openai/gpt-oss-20b", "openai/whisper-large-v3"

# name: (kind, cached layers, {kind of layer: (layers, heads, head size or None, page bytes of 16 tokens)})
FIGURES = {
    QWEN: ("dense", 28, {"attention": (28, 8, 128, 65_536)}),
    "meta-llama/Llama-3.1-8B": ("dense", 32, {"attention": (32, 8, 128, 65_536)}),
    "meta-llama/Llama-3.3-70B-Instruct": ("dense", 80, {"attention": (80, 8, 128, 65_536)}),
    "Qwen/Qwen3-32B": ("dense", 64, {"attention": (64, 8, 128, 65_536)}),
    "Qwen/Qwen3-235B-A22B": ("dense", 94, {"attention": (94, 4, 128, 32_768)}),
    "mistralai/Mistral-7B-v0.1": ("sliding", 32, {"sliding": (32, 8, 128, 65_536)}),
    "tiiuae/falcon-7b": ("dense", 32, {"attention": (32, 1, 64, 4_096)}),
    "deepseek-ai/DeepSeek-V3": ("mla", 61, {"mla": (61, 1, 576, 18_432)}),
    SPARSE: ("sparse mla", 122, {"mla": (61, 1, 576, 18_432), "indexer": (61, 1, 132, 2_112)}),
    "google/gemma-3-27b-it": ("sliding hybrid", 62, {"sliding": (52, 16, 128, 131_072),
                                                     "attention": (10, 16, 128, 131_072)}),
    GPT_OSS: ("sliding hybrid", 24, {"sliding": (12, 8, 64, 32_768), "attention": (12, 8, 64, 32_768)}),
    "openai/gpt-oss-120b": ("sliding hybrid", 36, {"sliding": (18, 8, 64, 32_768), "attention": (18, 8, 64, 32_768)}),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": ("chunked hybrid", 48, {"chunked": (36, 8, 128, 65_536),
                                                                         "attention": (12, 8, 128, 65_536)}),
    NEXT: ("mamba hybrid", 48, {"gdn": (36, 1, None, 1_097_728), "attention": (12, 2, 256, 32_768)}),
    "Qwen/Qwen3.5-35B-A3B": ("mamba hybrid", 40, {"gdn": (30, 1, None, 2_146_304),
                                                   "attention": (10, 2, 256, 32_768)}),
    NEMOTRON: ("mamba hybrid", 28, {"mamba2": (24, 1, None, 4_255_744), "attention": (4, 8, 128, 65_536)}),
    WHISPER: ("encoder-decoder", 64, {"attention": (32, 20, 64, 81_920), "cross": (32, 20, 64, 81_920)}),
    "tencent/HunyuanImage-3.0": ("diffusion", 32, {"attention": (32, 8, 128, 65_536)}),
    "llama-tiny": ("dense", 4, {"attention": (4, 2, 32, 4_096)}),
    "gemma3-hybrid-tiny": ("sliding hybrid", 6, {"sliding": (4, 2, 32, 4_096), "attention": (2, 2, 32, 4_096)}),
}


def specs(name: str, **choices) -> dict:
    return get_preset(name).kv_cache_specs(**choices)


def refused(argument: str, call, *args, **choices) -> LayoutError:
    with pytest.raises(LayoutError) as caught:
        call(*args, **choices)
    assert caught.value.argument == argument, str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", FIGURES)
def test_figures(name):
    kind, layers, by_kind = FIGURES[name]
    model = get_preset(name)
    made = model.kv_cache_specs()
    assert model.kind == kind and len(made) == layers
    assert list(made) == list(model.layer_kinds)
    found = {}
    for layer, spec in made.items():
        found.setdefault(model.layer_kinds[layer], []).append(spec)
    assert {k: (len(v), v[0].num_heads, getattr(v[0], "head_size", None), v[0].page_size_bytes)
            for k, v in found.items()} == by_kind
    assert all(len(set(v)) == 1 for v in found.values())


def test_every_preset_has_figures_here_and_names_its_source():
    assert set(presets()) == set(FIGURES)
    for name, model in presets().items():
        assert model.title and ("config.json" in model.source or "kvlayout" in model.source), name
        if "/" in name:
            assert model.source.startswith(f"{name} config.json")
        assert model_from_config(model.config).kv_cache_specs() == model.kv_cache_specs()
        hash(model)


def test_the_kinds_that_a_reader_expects_are_covered():
    kinds = {kind for model in presets().values() for kind in model.layer_kinds.values()}
    assert kinds == {"attention", "sliding", "chunked", "cross", "mla", "indexer", "mamba2", "gdn"}
    assert len(presets()) >= 14


def test_names_of_layers_are_vllms():
    assert next(iter(specs(QWEN))) == "model.layers.0.self_attn.attn"
    assert list(specs(SPARSE))[:2] == ["model.layers.0.self_attn.indexer.k_cache", "model.layers.0.self_attn.attn"]
    assert list(specs(NEMOTRON))[:5] == [
        "model.layers.0.mixer", "model.layers.2.mixer", "model.layers.4.mixer", "model.layers.6.mixer",
        "model.layers.7.mixer.attn"]
    assert list(specs(NEXT))[2:4] == ["model.layers.2.linear_attn", "model.layers.3.self_attn.attn"]
    assert list(specs(WHISPER))[:2] == [
        ".decoder.layers.0.layers.self_attn.attn", ".decoder.layers.0.layers.encoder_attn.attn"]
    assert next(iter(specs("tiiuae/falcon-7b"))) == "transformer.h.0.self_attention.attn"
    assert next(iter(specs("google/gemma-3-27b-it"))) == "language_model.model.layers.0.self_attn.attn"
    assert next(iter(specs(GPT_OSS))) == "model.layers.0.attn.attn"


def test_classes_and_fields_of_the_special_layers():
    sliding, full = list(specs("google/gemma-3-27b-it").values())[4:6]
    assert type(sliding) is SlidingWindowSpec and sliding.sliding_window == 1024
    assert type(full) is FullAttentionSpec and full.sliding_window is None
    chunked, full = list(specs("meta-llama/Llama-4-Scout-17B-16E-Instruct").values())[2:4]
    assert type(chunked) is ChunkedLocalAttentionSpec and chunked.attention_chunk_size == 8192
    assert type(full) is FullAttentionSpec
    assert [type(s) for s in list(specs(WHISPER).values())[:2]] == [FullAttentionSpec, CrossAttentionSpec]
    assert next(iter(specs(WHISPER).values())).dtype == "float16"
    indexer, latent = list(specs(SPARSE).values())[:2]
    assert type(indexer) is type(latent) is MLAAttentionSpec
    assert (indexer.dtype, indexer.cache_role, indexer.head_size) == ("uint8", "indexer", 132)
    assert (latent.topk_buffer_width, latent.is_index_group_leader, latent.head_size_v) == (2048, True, 0)
    windows = {s.sliding_window for s in specs("mistralai/Mistral-7B-v0.1").values()}
    assert windows == {4096}
    diffusion = next(iter(specs("tencent/HunyuanImage-3.0", dtype="float16", kv_cache_dtype="fp8").values()))
    assert diffusion.non_causal and diffusion.dtype == "bfloat16" and diffusion.kv_quant_mode is KVQuantMode.NONE


def test_states_of_the_hybrids():
    state = next(iter(specs(NEXT).values()))
    assert type(state) is MambaSpec and state.mamba_type == "gdn_attn"
    assert state.shapes == ((3, 8192), (32, 128, 128)) and state.dtypes == ("bfloat16", "bfloat16")
    assert next(iter(specs(NEXT, tp_size=4).values())).shapes == ((3, 2048), (8, 128, 128))
    assert next(iter(specs("Qwen/Qwen3.5-35B-A3B").values())).dtypes == ("bfloat16", "float32")
    state = next(iter(specs(NEMOTRON).values()))
    assert state.shapes == ((3, 10_240), (128, 64, 128)) and state.dtypes == ("bfloat16", "float32")
    assert state.state_sizes_bytes == (61_440, 4_194_304)
    assert next(iter(specs(NEMOTRON, tp_size=8).values())).shapes == ((3, 1280), (16, 64, 128))


@pytest.mark.parametrize("tp, block, padding", [(1, 544, "1.49"), (2, 544, "1.49"), (4, 272, "1.49")])
def test_qwen3_next_gets_the_block_that_vllm_logs(tp, block, padding):
    """A public log of Qwen3-Next-80B on two GPUs: 544 tokens, padded by 1.49%."""
    made = get_preset(NEXT).aligned_kv_cache_specs(backend="FLASH_ATTN", tp_size=tp)
    assert {spec.block_size for spec in made.values()} == {block}
    assert len({spec.page_size_bytes for spec in made.values()}) == 1
    assert f"{mamba_padding_percent(made):.2f}" == padding


def test_qwen35_gets_the_block_that_vllm_logs():
    """Public logs of Qwen3.5-35B: 1056 tokens, padded by 0.76%."""
    made = get_preset("Qwen3.5-35B-A3B").aligned_kv_cache_specs(backend="FLASH_ATTN")
    assert {spec.block_size for spec in made.values()} == {1056}
    assert f"{mamba_padding_percent(made):.2f}" == "0.76"


def test_a_state_block_spans_what_the_cache_mode_says():
    raw = specs(NEXT, mamba_cache_mode="none", max_model_len=5000)
    assert {type(s): s.block_size for s in raw.values()} == {MambaSpec: 5000, FullAttentionSpec: 16}
    made = get_preset(NEXT).aligned_kv_cache_specs(mamba_cache_mode="none")
    assert {s.block_size for s in made.values()} == {544, 262_144}
    old = get_preset(NEXT).aligned_kv_cache_specs(mamba_cache_mode="all", vllm_version="0.31.0")
    assert {s.block_size for s in old.values()} == {2048}
    assert {s.page_size_bytes for s in old.values()} == {2048 * 2048}
    refused("mamba_cache_mode", specs, NEXT, mamba_cache_mode="all")
    refused("mamba_cache_mode", specs, NEXT, mamba_cache_mode="sometimes")


def test_alignment_of_hybrids_follows_the_backend_and_the_release():
    raw = specs(NEXT)
    assert {s.block_size for s in align_hybrid_block_size(raw, checkpoint_alignment=64).values()} == {576}
    old = align_hybrid_block_size(raw, checkpoint_alignment=64, vllm_version="0.32.0")
    assert {s.block_size for s in old.values()} == {544}
    assert align_hybrid_block_size(specs(QWEN)) == specs(QWEN)
    large = specs(NEXT, block_size=1024)
    assert {s.block_size for s in align_hybrid_block_size(large).values()} == {1024}

    class Odd:
        def customize_spec(self, spec):
            return spec

        def get_supported_kernel_block_sizes(self):
            return [48, MultipleOf(80)]

    assert {s.block_size for s in align_hybrid_block_size(raw, backend=Odd()).values()} == {576}
    refused("checkpoint_alignment", align_hybrid_block_size, raw, checkpoint_alignment=0)


@given(st.integers(1, 500), st.sampled_from([16, 32, 64]))
def test_an_aligned_state_fits_and_wastes_less_than_one_alignment(heads, block):
    attention = FullAttentionSpec(block_size=block, num_kv_heads=2, head_size=64, dtype="bfloat16")
    state = MambaSpec(block_size=block, shapes=((heads, 64, 16),), dtypes=("float32",), mamba_cache_mode="align")
    made = align_hybrid_block_size({"a": attention, "s": state})
    token = attention.page_size_bytes // block
    assert made["a"].block_size % block == 0
    assert made["a"].page_size_bytes == made["s"].page_size_bytes
    assert 0 <= made["s"].page_size_bytes - state.page_size_bytes < block * token
    assert made["s"].block_size == made["a"].block_size


def test_heads_are_split_then_replicated():
    def heads(tp):
        return {spec.num_kv_heads for spec in specs(QWEN, tp_size=tp).values()}
    assert [heads(tp) for tp in (1, 2, 4, 8, 16)] == [{8}, {4}, {2}, {1}, {1}]
    assert {spec.head_size for spec in specs("deepseek-ai/DeepSeek-V3", tp_size=16).values()} == {576}
    for tp in (3, 32):
        assert "doesn't divide the 16 attention heads" in str(refused("tp_size", specs, QWEN, tp_size=tp))
    assert "KV heads" in str(refused("tp_size", specs, "meta-llama/Llama-4-Scout-17B-16E-Instruct", tp_size=5))
    refused("tp_size", specs, QWEN, tp_size=0)
    refused("tp_size", specs, QWEN, tp_size=True)


@given(st.integers(1, 64), st.integers(1, 64))
def test_kv_heads_of_a_rank(total, tp):
    if max(total, tp) % min(total, tp):
        refused("tp_size", kv_heads_per_rank, total, tp)
    else:
        assert kv_heads_per_rank(total, tp) * tp == math.lcm(total, tp)


@pytest.mark.parametrize("layers, stages, sizes", [
    (28, 1, [28]), (28, 2, [14, 14]), (28, 3, [9, 10, 9]), (61, 4, [15, 15, 16, 15]), (62, 4, [15, 16, 16, 15]),
    (30, 8, [3, 4, 4, 4, 4, 4, 4, 3]), (31, 8, [4, 4, 4, 4, 4, 4, 4, 3]), (2, 2, [1, 1])])
def test_left_over_layers_go_before_the_last_stage(layers, stages, sizes):
    bounds = [get_pp_indices(layers, rank, stages) for rank in range(stages)]
    assert [end - first for first, end in bounds] == sizes
    assert [first for first, _ in bounds] == [sum(sizes[:rank]) for rank in range(stages)]


def test_stages_share_the_layers_out():
    model = get_preset(SPARSE)
    stages = [list(model.kv_cache_specs(pp_size=4, pp_rank=rank)) for rank in range(4)]
    assert stages == model.stage_layers(4)
    assert [len(stage) for stage in stages] == [30, 30, 32, 30]
    assert sum(stages, []) == list(model.kv_cache_specs(pp_size=4)) == list(model.layer_kinds)
    # The cached layers of a hybrid are split by the decoder layers, feed-forward ones included.
    assert [len(stage) for stage in get_preset(NEMOTRON).stage_layers(2)] == [14, 14]
    refused("pp_rank", specs, QWEN, pp_size=2, pp_rank=2)
    refused("pp_rank", specs, QWEN, pp_size=2, pp_rank=-1)
    refused("pp_size", specs, QWEN, pp_size=29)
    for whole in (WHISPER, "tencent/HunyuanImage-3.0"):
        refused("pp_size", specs, whole, pp_size=2)


@pytest.mark.parametrize("dtype, storage, mode", [
    ("auto", "bfloat16", "NONE"), ("float16", "float16", "NONE"), ("bfloat16", "bfloat16", "NONE"),
    ("fp8", "uint8", "FP8_PER_TENSOR"), ("fp8_e4m3", "uint8", "FP8_PER_TENSOR"),
    ("fp8_e5m2", "uint8", "FP8_PER_TENSOR"), ("fp8_inc", "float8_e4m3fn", "FP8_PER_TENSOR"),
    ("int8_per_token_head", "int8", "INT8_PER_TOKEN_HEAD"), ("fp8_per_token_head", "uint8", "FP8_PER_TOKEN_HEAD"),
    ("int4_per_token_head", "uint8", "INT4_PER_TOKEN_HEAD"), ("nvfp4", "uint8", "NVFP4"),
    ("octave_k3v4", "uint8", "OCTAVE_K3V4")])
def test_kv_cache_dtypes(dtype, storage, mode):
    spec = next(iter(specs(QWEN, kv_cache_dtype=dtype).values()))
    assert (spec.dtype, spec.kv_quant_mode.name) == (storage, mode)


def test_kv_cache_dtypes_of_a_release():
    assert "octave_k3v4" in kv_cache_dtypes() and "octave_k3v4" not in kv_cache_dtypes("0.32.0")
    error = refused("kv_cache_dtype", specs, QWEN, kv_cache_dtype="octave_k3v4", vllm_version="0.30.0")
    assert "0.30.0" in str(error) and "int4_per_token_head" in str(error)
    for wrong in ("FP8", "", None, 8, "int8"):
        refused("kv_cache_dtype", specs, QWEN, kv_cache_dtype=wrong)
    refused("vllm_version", specs, QWEN, vllm_version="0.28.0")
    assert resolve_kv_cache_dtype("nvfp4_ds_mla", "bfloat16").quant_mode is KVQuantMode.NVFP4_DS_MLA


def test_packed_formats_spare_the_first_and_last_layers():
    made = list(specs(QWEN, kv_cache_dtype="turboquant_4bit_nc").values())
    assert [i for i, spec in enumerate(made) if spec.dtype == "bfloat16"] == [0, 1, 26, 27]
    assert made[5].kv_quant_mode is KVQuantMode.TURBOQUANT_4BIT_NC
    hybrid = specs(NEXT, kv_cache_dtype="turboquant_4bit_nc")
    assert {s.dtype for s in hybrid.values() if isinstance(s, FullAttentionSpec)} == {"uint8"}


def test_formats_of_latents():
    name = "deepseek-ai/DeepSeek-V3"
    packed = next(iter(specs(name, kv_cache_dtype="fp8_ds_mla").values()))
    assert (packed.state_content_size_bytes, packed.cache_dtype_str) == (656, "fp8_ds_mla")
    assert next(iter(specs(name, kv_cache_dtype="nvfp4_ds_mla").values())).state_content_size_bytes == 352
    assert next(iter(specs(name, kv_cache_dtype="fp8").values())).page_size_bytes == 16 * 576
    latent = specs(SPARSE, kv_cache_dtype="fp8", backend="FLASHMLA_SPARSE")["model.layers.0.self_attn.attn"]
    assert (latent.cache_dtype_str, latent.page_size_bytes) == ("fp8_ds_mla", 16 * 656)
    blackwell = specs(SPARSE, backend="FLASHINFER_MLA_SPARSE_SM120")["model.layers.0.self_attn.attn"]
    assert blackwell.cache_dtype_str == "fp8_ds_mla"
    assert specs(SPARSE, kv_cache_dtype="bfloat16") == specs(SPARSE)
    refused("kv_cache_dtype", specs, name, kv_cache_dtype="nvfp4")
    refused("kv_cache_dtype", specs, QWEN, kv_cache_dtype="fp8_ds_mla")


def test_older_releases_leave_out_what_they_did_not_have():
    for version in VLLM_VERSIONS:
        assert [s.page_size_bytes for s in specs(SPARSE, vllm_version=version).values()] == [2_112, 18_432] * 61
    oldest = list(specs(SPARSE, vllm_version="0.29.0").values())
    assert oldest[1].max_tp_shards is None and oldest[0].cache_role == "sparse"
    assert next(iter(specs(NEMOTRON, vllm_version="0.31.0").values())).num_prefill_checkpoint_blocks == 0
    assert next(iter(specs(NEMOTRON).values())).num_prefill_checkpoint_blocks == 1


def test_a_sliding_block_is_what_the_backend_takes():
    spec = SlidingWindowSpec(block_size=48, num_kv_heads=1, head_size=64, dtype="bfloat16", sliding_window=128)

    class Takes:
        def __init__(self, *sizes):
            self.sizes = sizes

        def customize_spec(self, spec):
            return spec

        def get_supported_kernel_block_sizes(self, spec=None):
            return list(self.sizes)

    assert sliding_block_size(spec, None) == 48
    assert sliding_block_size(spec, Takes(MultipleOf(16))) == 48
    assert sliding_block_size(spec, Takes(16, 32, 64)) == 32
    assert sliding_block_size(spec, Takes(64, MultipleOf(64))) == 64
    assert sliding_block_size(spec, Takes(16, 32, 64), "0.29.0") == 16
    assert {s.block_size for s in specs(GPT_OSS, block_size=64, backend="FLASH_ATTN").values()} == {64}


def test_layers_get_backends_that_can_serve_them():
    sparse, dense = get_preset(SPARSE), get_preset(QWEN)
    assert {k: sparse.backend_name(k) for k in ("mla", "indexer")} == {
        "mla": "FLASHMLA_SPARSE", "indexer": "DEEPSEEK_V32_INDEXER"}
    assert get_preset(NEXT).backend_name("gdn", "FLASHINFER") == "GDN_ATTN"
    assert dense.backend_name("attention", "TRITON_ATTN") == "TRITON_ATTN"
    for model, kind, wrong in ((dense, "attention", "FLASHMLA"), (sparse, "mla", "FLASH_ATTN"),
                               (sparse, "mla", "FLASHMLA"), (dense, "attention", "NO_SUCH")):
        refused("backend", model.backend_name, kind, wrong)
    for model in presets().values():
        assert all(get_backend(model.backend_name(kind)) for kind in set(model.layer_kinds.values()))


def test_presets_are_found_by_their_last_name_and_others_are_refused_with_the_nearest():
    assert get_preset("qwen3-0.6b") is get_preset(QWEN)
    error = refused("model", get_preset, "Qwen/Qwen3-1.6B")
    assert "Qwen/Qwen3-0.6B" in str(error)
    refused("model", get_preset, None)
    refused("model", get_preset, "")


def test_a_model_given_by_specs():
    attention = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
    state = MambaSpec(block_size=16, shapes=((4, 8),), dtypes=("float32",))
    model = model_from_specs("mine", {"a": attention, "s": state})
    assert isinstance(model, Model) and model.layer_kinds == {"a": "attention", "s": "mamba2"} and model.is_hybrid
    assert model.kv_cache_specs() == {"a": attention, "s": state}
    assert model.stage_layers(1) == [["a", "s"]]
    refused("tp_size", model.kv_cache_specs, tp_size=2)
    refused("pp_size", model.kv_cache_specs, pp_size=2)
    refused("kv_cache_dtype", model.kv_cache_specs, kv_cache_dtype="fp8")
    refused("specs", model_from_specs, "empty", {})
    refused("specs", model_from_specs, "list", [attention])
    refused("specs", model_from_specs, "number", {1: attention})
    refused("a", model_from_specs, "no spec", {"a": 5})


def test_other_bad_choices_are_refused():
    refused("block_size", specs, QWEN, block_size=0)
    refused("block_size", specs, QWEN, block_size=16.0)
    refused("dtype", specs, QWEN, dtype="float8")
    refused("max_model_len", specs, NEXT, max_model_len=0)
    refused("backend", specs, GPT_OSS, backend="NO_SUCH")
