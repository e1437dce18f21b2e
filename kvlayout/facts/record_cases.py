"""What is recorded about models: presets as ranks, dtypes and cache modes change them; one config a model type."""

from __future__ import annotations

from kvlayout.facts.models import presets

_ONE = {"tp_size": 1, "pp_size": 1, "pp_rank": 0}
# Presets that vLLM itself serves; vLLM-Omni serves the other.
_SERVED = [name for name, preset in presets().items() if preset.kind != "diffusion"]
_DTYPES = ("bfloat16", "fp8", "fp8_e5m2", "fp8_ds_mla", "nvfp4_ds_mla", "int8_per_token_head", "fp8_per_token_head",
           "int4_per_token_head", "nvfp4", "turboquant_4bit_nc", "octave_k3v4", "ultraquant_4bit")
_HYBRIDS = [name for name in _SERVED if presets()[name].is_hybrid]

# Built on a CPU or without its vision tower's config these fail from so many ranks on, for reasons outside the cache.
_TOO_MANY_RANKS = {"openai/gpt-oss-20b": 4, "openai/gpt-oss-120b": 4, "google/gemma-3-27b-it": 8}

CASES: list[dict] = [
    *[{"model": name, **_ONE} for name in _SERVED],
    *[{"model": name, "tp_size": tp, "pp_size": 1, "pp_rank": 0} for tp in (2, 4, 8, 16) for name in _SERVED
      if presets()[name].architecture.num_attention_heads % tp == 0 and tp < _TOO_MANY_RANKS.get(name, 99)],
    *[{"model": name, "tp_size": 2, "pp_size": 3, "pp_rank": stage} for stage in range(3)
      for name in ("Qwen/Qwen3-0.6B", "deepseek-ai/DeepSeek-V3.2-Exp", "nvidia/Nemotron-H-8B-Base-8K",
                   "Qwen/Qwen3-Next-80B-A3B-Instruct")],
    *[{"model": name, **_ONE, "kv_cache_dtype": dtype} for dtype in _DTYPES
      for name in ("Qwen/Qwen3-0.6B", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3")
      if name == "deepseek-ai/DeepSeek-V3" or not dtype.endswith("_ds_mla")],
    *[{"model": name, **_ONE, "block_size": 64, "kv_cache_dtype": "fp8"}
      for name in ("deepseek-ai/DeepSeek-V3.2-Exp", "openai/whisper-large-v3", *_HYBRIDS)],
    *[{"model": name, "tp_size": tp, "pp_size": 1, "pp_rank": 0, "aligned": True, "block_size": block, **mode}
      for tp in (1, 4) for name in _HYBRIDS for block in (16, 64)
      for mode in ({}, {"mamba_cache_mode": "none", "max_model_len": 4096})],
]


def family_configs() -> list[dict]:
    """Return one small config for each model type that is read, with what vLLM needs to build the model."""
    return [{"model_type": name, "architectures": [architecture], "torch_dtype": "bfloat16", **fields}
            for name, architecture, fields in _FAMILIES]


_SIZE = {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
         "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 512}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
_LATENT = {**_SIZE, "num_key_value_heads": 8, "q_lora_rank": 128, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
           "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 4, "n_shared_experts": 1,
           "num_experts_per_tok": 2, "moe_intermediate_size": 128, "first_k_dense_replace": 1, "n_group": 1,
           "topk_group": 1}
_SPARSE = {**_LATENT, "index_topk": 64, "index_head_dim": 128, "index_n_heads": 4}
_LINEAR = {**_SIZE, **_EXPERTS, "head_dim": 64, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32,
           "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_value_head_dim": 64,
           "shared_expert_intermediate_size": 128}
_MAMBA = {"hidden_size": 512, "num_hidden_layers": 3, "vocab_size": 256, "state_size": 16, "conv_kernel": 4,
          "expand": 2}
_GATED = {"use_sliding_window": True, "sliding_window": 128}

_FAMILIES = [
    ("llama", "LlamaForCausalLM", _SIZE),
    ("llama", "LlamaForCausalLM", {**_SIZE, "num_key_value_heads": None, "head_dim": 128}),
    ("mistral", "MistralForCausalLM", _SIZE),
    ("mistral", "MistralForCausalLM", {**_SIZE, "sliding_window": None}),
    ("ministral3", "Ministral3ForCausalLM", _SIZE),
    ("mixtral", "MixtralForCausalLM", {**_SIZE, **_EXPERTS}),
    ("qwen2", "Qwen2ForCausalLM", _SIZE),
    ("qwen2", "Qwen2ForCausalLM", {**_SIZE, **_GATED, "max_window_layers": 0}),
    ("qwen2", "Qwen2ForCausalLM", {**_SIZE, **_GATED}),
    ("qwen2_moe", "Qwen2MoeForCausalLM", {**_SIZE, **_EXPERTS, "shared_expert_intermediate_size": 128}),
    ("qwen3", "Qwen3ForCausalLM", _SIZE),
    ("qwen3_moe", "Qwen3MoeForCausalLM", {**_SIZE, **_EXPERTS}),
    ("qwen3_moe", "Qwen3MoeForCausalLM", {**_SIZE, **_EXPERTS, **_GATED}),
    ("phi3", "Phi3ForCausalLM", {**_SIZE, "sliding_window": 100}),
    ("gemma", "GemmaForCausalLM", _SIZE),
    ("gemma2", "Gemma2ForCausalLM", _SIZE),
    ("gemma3_text", "Gemma3ForCausalLM", {**_SIZE, "sliding_window_pattern": 4, "sliding_window": 96}),
    ("granite", "GraniteForCausalLM", _SIZE),
    ("granitemoe", "GraniteMoeForCausalLM", {**_SIZE, **_EXPERTS}),
    ("glm4", "Glm4ForCausalLM", _SIZE),
    ("glm4_moe", "Glm4MoeForCausalLM", {**_LATENT, "head_dim": 64}),
    ("gpt_oss", "GptOssForCausalLM", {**_SIZE, "num_local_experts": 4}),
    ("cohere", "CohereForCausalLM", _SIZE),
    ("cohere2", "Cohere2ForCausalLM", {**_SIZE, "sliding_window": 128}),
    ("exaone4", "Exaone4ForCausalLM", {**_SIZE, "sliding_window": 128}),
    ("olmoe", "OlmoeForCausalLM", {**_SIZE, **_EXPERTS}),
    ("stablelm", "StableLmForCausalLM", _SIZE),
    ("ernie4_5", "Ernie4_5ForCausalLM", _SIZE),
    ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", {**_SIZE, "moe_num_experts": 4, "moe_k": 2,
                                                 "moe_intermediate_size": 128}),
    ("minimax_m2", "MiniMaxM2ForCausalLM", {**_SIZE, **_EXPERTS, "rotary_dim": 32, "scoring_func": "sigmoid"}),
    ("opt", "OPTForCausalLM", {"hidden_size": 512, "ffn_dim": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
                               "vocab_size": 256, "max_position_embeddings": 512, "word_embed_proj_dim": 512}),
    ("falcon", "FalconForCausalLM", {**_SIZE, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", "FalconForCausalLM", {**_SIZE, "multi_query": False}),
    ("llama4_text", "Llama4ForCausalLM", {**_SIZE, "num_local_experts": 4, "attention_chunk_size": 64,
                                          "intermediate_size_mlp": 512}),
    ("deepseek_v2", "DeepseekV2ForCausalLM", {**_LATENT, "topk_method": "greedy"}),
    ("kimi_k2", "DeepseekV3ForCausalLM", _LATENT),
    ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", _LATENT),
    ("deepseek_v32", "DeepseekV32ForCausalLM", {**_SPARSE, "index_topk_pattern": "FSFSSF"}),
    ("glm_moe_dsa", "GlmMoeDsaForCausalLM", {**_SPARSE, "index_topk_freq": 3, "index_skip_topk_offset": 3}),
    ("qwen3_next", "Qwen3NextForCausalLM", {**_LINEAR, "full_attention_interval": 3}),
    ("qwen3_5_text", "Qwen3_5ForCausalLM", {**_LINEAR, "mamba_ssm_dtype": "float32"}),
    ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", _LINEAR),
    ("nemotron_h", "NemotronHForCausalLM", {
        **_SIZE, "hybrid_override_pattern": "M*-M*M", "mamba_num_heads": 16, "mamba_head_dim": 64,
        "ssm_state_size": 32, "n_groups": 2, "conv_kernel": 4, "expand": 2, "head_dim": 64,
        "mamba_ssm_cache_dtype": "bfloat16"}),
    ("jamba", "JambaForCausalLM", {**_SIZE, **_EXPERTS, "attn_layer_period": 3, "attn_layer_offset": 1,
                                   "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4}),
    ("granitemoehybrid", "GraniteMoeHybridForCausalLM", {
        **_SIZE, **_EXPERTS, "layer_types": ["mamba", "attention", "mamba", "mamba", "attention", "mamba"],
        "mamba_expand": 2, "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 32,
        "mamba_d_conv": 4, "shared_intermediate_size": 128}),
    ("mamba", "MambaForCausalLM", _MAMBA),
    ("falcon_mamba", "FalconMambaForCausalLM", {**_MAMBA, "expand": 4, "intermediate_size": 1024}),
    ("mamba2", "Mamba2ForCausalLM", {**_MAMBA, "num_heads": 16, "head_dim": 64, "n_groups": 2}),
    ("gemma3", "Gemma3ForConditionalGeneration", {
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 7,
                        "sliding_window": 1024}}),
    ("llama4", "Llama4ForConditionalGeneration", {
        "text_config": {**_SIZE, "model_type": "llama4_text", "num_local_experts": 4, "intermediate_size_mlp": 512,
                        "no_rope_layers": [1, 0, 1, 1, 0, 1]}}),
    ("mistral3", "Mistral3ForConditionalGeneration", {"text_config": {**_SIZE, "model_type": "mistral",
                                                                      "sliding_window": None}}),
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", _SIZE),
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", {"text_config": _SIZE}),
    ("qwen3_vl", "Qwen3VLForConditionalGeneration", {"text_config": _SIZE}),
    ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", {
        "text_config": {**_SIZE, **_EXPERTS, "norm_topk_prob": True}}),
    ("qwen3_5", "Qwen3_5ForConditionalGeneration", {"text_config": {**_LINEAR, "model_type": "qwen3_5_text"}}),
    ("whisper", "WhisperForConditionalGeneration", {
        "is_encoder_decoder": True, "d_model": 256, "encoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_layers": 3, "decoder_attention_heads": 4, "max_source_positions": 100, "max_target_positions": 64,
        "num_mel_bins": 80, "vocab_size": 256, "pad_token_id": 0, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256}),
]
