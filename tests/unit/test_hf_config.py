"""Any config.json: read as vLLM reads it, or refused with the field's name; never guessed."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlayout import LayoutError
from kvlayout.facts.hf_config import read_config
from kvlayout.facts.hf_families import FAMILIES
from kvlayout.facts.models import get_preset, model_from_config, presets
from kvlayout.facts.record_cases import family_configs

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 2, "torch_dtype": "bfloat16"}


def config(of: str | None = None, /, **changes) -> dict:
    """The small Llama, or the first small config of another type, with fields changed; ``...`` takes one out."""
    found = LLAMA if of is None else next(one for one in family_configs() if one["model_type"] == of)
    return {key: value for key, value in {**copy.deepcopy(found), **changes}.items() if value is not ...}


def specs(of: str | None = None, /, **changes) -> list:
    return list(model_from_config(config(of, **changes)).kv_cache_specs().values())


def windows(of: str | None = None, /, **changes) -> list:
    return [getattr(spec, "sliding_window", None) for spec in specs(of, **changes)]


def refused(argument: str, of: str | None = None, /, **changes) -> str:
    with pytest.raises(LayoutError) as caught:
        specs(of, **changes)
    assert caught.value.argument == argument, str(caught.value)
    return str(caught.value)


NAN, INF = float("nan"), float("inf")
BAD = [
    # field, its bad value, and the field that the error names if another
    ("model_type", ..., None), ("model_type", None, None), ("model_type", 7, None), ("model_type", "llama9", None),
    ("model_type", "", None), ("model_type", "qwen3_vl_text", None), ("architectures", [], None),
    ("architectures", ["LlamaForCausalLMEagle3"], None), ("architectures", "LlamaForCausalLM", None),
    ("num_hidden_layers", ..., None), ("num_hidden_layers", None, None), ("num_hidden_layers", 0, None),
    ("num_hidden_layers", -4, None), ("num_hidden_layers", "4", None), ("num_hidden_layers", 4.0, None),
    ("num_hidden_layers", NAN, None), ("num_hidden_layers", INF, None), ("num_hidden_layers", True, None),
    ("num_hidden_layers", 10**9, None), ("num_attention_heads", ..., None), ("num_attention_heads", 0, None),
    ("num_attention_heads", 7, "num_key_value_heads"), ("num_attention_heads", [8], None),
    ("num_key_value_heads", 0, None), ("num_key_value_heads", 3, None), ("num_key_value_heads", 16, None),
    ("num_key_value_heads", "2", None), ("num_key_value_heads", NAN, None), ("hidden_size", ..., None),
    ("head_dim", 10**30, None),
    ("hidden_size", 0, None), ("hidden_size", 257, None), ("hidden_size", -256, None), ("hidden_size", {}, None),
    ("head_dim", 0, None), ("head_dim", "32", None), ("head_dim", 32.5, None), ("sliding_window", -1, None),
    ("sliding_window", "4096", None), ("sliding_window", NAN, None), ("layer_types", ["full_attention"], None),
    ("layer_types", ["full_attention"] * 3 + ["linear_attention"], None), ("layer_types", "full_attention", None),
    ("layer_types", ["sliding_attention"] * 4, "sliding_window"), ("layer_types", [None] * 4, None),
    ("torch_dtype", "int8", None), ("torch_dtype", 16, None), ("dtype", "fp8", None), ("torch_dtype", ..., "dtype"),
    ("quantization_config", "fp8", None), ("max_position_embeddings", 0, None), ("chunk_size", "big", None),
]


@pytest.mark.parametrize("field, value, named", BAD, ids=[f"{field}={value!r}"[:60] for field, value, _ in BAD])
def test_an_odd_field_is_named(field, value, named):
    refused(named or field, **{field: value})


@pytest.mark.parametrize("model_type, field, value, named", [
    ("deepseek_v32", "kv_lora_rank", ..., None), ("deepseek_v32", "kv_lora_rank", 0, None),
    ("deepseek_v32", "qk_rope_head_dim", None, None), ("deepseek_v32", "index_topk", ..., None),
    ("deepseek_v32", "index_head_dim", ..., None), ("deepseek_v32", "index_topk_pattern", "FSF", None),
    ("deepseek_v32", "index_topk_pattern", "FSFSSX", None),
    ("deepseek_v32", "index_topk_pattern", [{}] * 6, None), ("glm_moe_dsa", "index_topk_freq", 0, None),
    ("qwen3_next", "linear_num_value_heads", ..., None), ("qwen3_next", "full_attention_interval", 0, None),
    ("qwen3_next", "layer_types", ["sliding_attention"] * 6, None), ("qwen3_next", "linear_conv_kernel_dim", 1, None),
    ("qwen3_5_text", "mamba_ssm_dtype", "int8", None), ("nemotron_h", "hybrid_override_pattern", "M*-", None),
    ("nemotron_h", "hybrid_override_pattern", "M*-M*X", None), ("nemotron_h", "hybrid_override_pattern", ..., None),
    ("nemotron_h", "hybrid_override_pattern", "------", None), ("nemotron_h", "n_groups", 0, None),
    ("jamba", "attn_layer_offset", 3, None), ("granitemoehybrid", "layer_types", ..., None),
    ("granitemoehybrid", "mamba_d_head", 32, None), ("granitemoehybrid", "mamba_n_heads", 15, None),
    ("mamba2", "num_heads", 8, None), ("mamba", "state_size", ..., None), ("whisper", "d_model", 250, None),
    ("whisper", "decoder_layers", ..., None), ("gpt_oss", "layer_types", ["full_attention"] * 6, None),
    ("gemma2", "sliding_window", None, None), ("gemma3_text", "sliding_window_pattern", 0, None),
    ("llama4_text", "no_rope_layers", [1, 0], None), ("llama4_text", "no_rope_layers", [2] * 6, None),
    ("qwen2", "use_sliding_window", "yes", None), ("qwen2_moe", "use_sliding_window", True, None),
    ("gemma3", "text_config", ..., None), ("gemma3", "text_config", [], None),
    ("gemma3", "text_config", {"model_type": "llama"}, "text_config.model_type"),
    ("mistral3", "text_config", {"hidden_size": 8}, "text_config.model_type"),
    ("gemma3", "text_config", {"num_hidden_layers": 2, "sliding_window": "x"}, "text_config.sliding_window"),
    ("falcon", "num_kv_heads", 3, None), ("falcon", "multi_query", 1, None),
])
def test_an_odd_field_of_another_model_type_is_named(model_type, field, value, named):
    changes = {field: value}
    if (model_type, field) == ("falcon", "multi_query"):
        changes["new_decoder_architecture"] = False
    refused(named or field, model_type, **changes)


def test_an_unknown_model_type_lists_the_known_ones_and_the_way_out():
    message = refused("model_type", model_type="llama9")
    assert all(name in message for name in ("llama9", "qwen3", "nemotron_h", "model_from_specs"))


def test_every_model_type_is_tried_by_the_recorder():
    tried = {c["model_type"] for c in family_configs()} | {m.config["model_type"] for m in presets().values()}
    inner = {name for family in FAMILIES.values() for name in family.inner_types}
    assert set(FAMILIES) <= tried | inner


def test_a_config_is_a_dict_a_text_a_file_or_a_folder(tmp_path):
    expected = model_from_config(LLAMA).kv_cache_specs()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    for given_as in (json.dumps(LLAMA), str(path), path, tmp_path):
        assert model_from_config(given_as, "mine").kv_cache_specs() == expected
    model = model_from_config(path, "mine")
    assert (model.name, model.source, model.kind) == ("mine", str(path), "dense")
    assert model_from_config({**LLAMA, "_name_or_path": "me/mine"}).name == "me/mine"
    assert model_from_config(LLAMA).name == "llama"


@pytest.mark.parametrize("text", ["", "{", '{"a": 1} x', "[1]", "null", "{]}"])
def test_a_file_that_is_no_config_is_refused(text, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(LayoutError):
        model_from_config(path)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for odd in (tmp_path / "none.json", tmp_path / "binary.json", "no\0such", 5, None, b"{}", [LLAMA]):
        with pytest.raises(LayoutError) as caught:
            model_from_config(odd)
        assert caught.value.argument == "config"


def test_heads_and_sizes_that_a_config_leaves_out():
    assert {(s.num_kv_heads, s.head_size) for s in specs()} == {(2, 32)}
    assert {s.num_kv_heads for s in specs(num_key_value_heads=None)} == {8}
    assert {s.head_size for s in specs(head_dim=128)} == {128}
    assert {s.head_size for s in specs(head_dim=128, hidden_size=...)} == {128}
    # What the Hugging Face class fills in, as published configs of Gemma 3 rely on.
    gemma = specs("gemma3")
    assert {(s.num_kv_heads, s.head_size) for s in gemma} == {(4, 256)} and len(gemma) == 7
    assert {s.head_size for s in specs("qwen3")} == {128}
    assert {s.head_size for s in specs("qwen3", head_dim=None)} == {64}


def test_windows_of_all_layers_or_of_those_called_sliding():
    assert windows(sliding_window=64) == [64] * 4
    assert windows(sliding_window=0) == windows(sliding_window=None) == windows() == [None] * 4
    types = ["sliding_attention", "full_attention"] * 2
    assert windows(sliding_window=64, layer_types=types) == [64, None, 64, None]
    assert windows("mistral") == [4096] * 6 and windows("mistral", sliding_window=None) == [None] * 6
    assert windows("gemma2") == [4096, None] * 3
    assert windows("cohere2") == [129, 129, 129, None, 129, 129]
    assert windows("gemma3_text", sliding_window_pattern=3) == [96, 96, None] * 2
    assert windows("gemma3_text", layer_types=["full_attention"] * 6) == [None] * 6
    assert windows("gpt_oss") == [128, None] * 3


def test_qwens_windows_need_their_switch():
    sliding = dict(sliding_window=64, use_sliding_window=True)
    assert windows("qwen2", sliding_window=64) == [None] * 6
    assert windows("qwen2", **sliding, max_window_layers=0) == [64] * 6
    assert windows("qwen2", **sliding) == [None] * 6  # the class default: 28 layers without a window come first
    assert windows("qwen3_moe", **sliding) == [64] * 6
    assert "some layers" in refused("max_window_layers", "qwen2", **sliding, max_window_layers=3)


def test_layers_of_other_kinds():
    def kinds(model_type, **changes):
        return [*model_from_config(config(model_type, **changes)).layer_kinds.values()]
    assert kinds("llama4_text") == ["chunked", "chunked", "chunked", "attention", "chunked", "chunked"]
    assert kinds("llama4_text", attention_chunk_size=None) == ["attention"] * 6
    assert kinds("deepseek_v32") == ["indexer", "mla", "mla", "indexer", "mla", "mla", "mla", "indexer", "mla"]
    assert kinds("glm_moe_dsa").count("indexer") == 4
    assert kinds("kimi_k2") == ["mla"] * 6
    assert kinds("jamba") == ["mamba1", "attention", "mamba1"] * 2
    assert kinds("nemotron_h") == ["mamba2", "attention", "mamba2", "attention", "mamba2"]
    assert kinds("falcon_mamba") == ["mamba1"] * 3
    assert kinds("whisper") == ["attention", "cross"] * 3
    assert model_from_config(config("mamba")).kind == "mamba"
    assert model_from_config(config("kimi_k2")).kind == "mla"


def test_models_without_attention_keep_states_for_the_whole_length():
    assert {s.block_size for s in specs("mamba")} == {2048}
    assert {s.mamba_cache_mode for s in specs("mamba2")} == {"none"}
    model = model_from_config(config("mamba"))
    assert {s.block_size for s in model.kv_cache_specs(max_model_len=500).values()} == {500}
    bare = model_from_config(config("jamba", max_position_embeddings=...))
    with pytest.raises(LayoutError, match="max_model_len"):
        bare.kv_cache_specs(mamba_cache_mode="none")


def test_states_that_do_not_split_are_refused():
    model = model_from_config(config("nemotron_h"))
    assert next(iter(model.kv_cache_specs(tp_size=2).values())).shapes[1] == (8, 64, 32)
    with pytest.raises(LayoutError, match="Mamba groups"):
        model.kv_cache_specs(tp_size=4)
    single = model_from_config(config("granitemoehybrid"))
    assert next(iter(single.kv_cache_specs(tp_size=4).values())).shapes == ((3, 1280 // 4), (4, 64, 32))


@pytest.mark.parametrize("written, read", [
    ("bfloat16", "bfloat16"), ("torch.float16", "float16"), ("float32", "bfloat16"), ("half", "float16")])
def test_the_element_type_is_vllms(written, read):
    assert specs(torch_dtype=written)[0].dtype == read
    assert specs(torch_dtype=..., dtype=written)[0].dtype == read


def test_a_config_without_an_element_type_needs_one():
    model = model_from_config(config(torch_dtype=...))
    assert next(iter(model.kv_cache_specs(dtype="float16").values())).dtype == "float16"
    assert specs("gemma2", torch_dtype="float16")[0].dtype == "bfloat16"  # vLLM refuses float16 for this one
    nested = config("gemma3", torch_dtype=...)
    nested["text_config"]["dtype"] = "float16"
    assert next(iter(model_from_config(nested).kv_cache_specs().values())).dtype == "bfloat16"


@pytest.mark.parametrize("quantised, dtype", [
    ({"quant_method": "fp8"}, "bfloat16"),
    ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
    ({"quant_method": "modelopt_fp4", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, "fp8"),
    ({"quant_method": "modelopt_fp4", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4"),
    ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT8"}, "bfloat16"),
    ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}, "fp8"),
    ({"quant_method": "compressed_tensors", "kv_cache_scheme": None}, "bfloat16")])
def test_a_quantised_checkpoint_says_what_auto_means(quantised, dtype):
    model = model_from_config(config(quantization_config=quantised))
    chosen = next(iter(model.kv_cache_specs(kv_cache_dtype=dtype).values()))
    read = next(iter(model.kv_cache_specs().values()))
    assert (read.dtype, read.kv_quant_mode) == (chosen.dtype, chosen.kv_quant_mode)
    assert next(iter(model.kv_cache_specs(kv_cache_dtype="bfloat16").values())).dtype == "bfloat16"


def test_a_config_is_not_changed_by_reading_it():
    for given_config in (LLAMA, config("gemma3")):
        before = copy.deepcopy(given_config)
        model_from_config(given_config).kv_cache_specs()
        assert given_config == before


JUNK = st.one_of(st.none(), st.booleans(), st.integers(-3, 70), st.floats(), st.text(max_size=4),
                 st.lists(st.integers(0, 2), max_size=7),
                 st.dictionaries(st.text(max_size=2), st.integers(), max_size=2))


@given(st.sampled_from(family_configs()), st.data())
def test_whatever_a_config_holds_it_is_read_or_refused(found, data):
    """No other exception than LayoutError, and what is read has at least one layer of at least one byte."""
    changed = copy.deepcopy(found)
    target = changed["text_config"] if "text_config" in changed and data.draw(st.booleans()) else changed
    for field in data.draw(st.lists(st.sampled_from(sorted(target)), min_size=1, max_size=3, unique=True)):
        target[field] = data.draw(JUNK)
    try:
        model = model_from_config(changed)
        made = model.kv_cache_specs(max_model_len=64)
    except LayoutError as error:
        assert error.argument
        return
    assert made and all(spec.page_size_bytes > 0 for spec in made.values())
    assert list(made) == list(model.layer_kinds)


def test_presets_are_read_like_any_config():
    for model in presets().values():
        assert read_config(json.loads(json.dumps(model.config))) == model.architecture
    assert get_preset("llama-tiny").kv_cache_specs(block_size=128)["model.layers.0.self_attn.attn"].page_size_bytes \
        == 32_768
