"""The model types that a config.json may name, and how each is read.

A family's ``defaults`` are what its Hugging Face class (transformers 5.20) fills in where a config leaves a field
out; published configs rely on them, and so does vLLM. Other fields must be there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvlayout.facts import hf_attention as attention
from kvlayout.facts import hf_states as states
from kvlayout.facts.hf_attention import dense
from kvlayout.facts.hf_latent import latent


@dataclass(frozen=True)
class Family:
    """How configs of one model type are read.

    Attributes:
        read: (fields, prefix of layer names) -> layers
        architectures: what the config's ``architectures`` may say
        defaults: fields that may be left out, and their value then
        text_config: the language model's fields are nested in "text_config": "always", "maybe" or "never"
        inner_types: model types that text_config may have; its family then reads it
        kind: the model's kind where its layers don't show it
        splits_layers: it can be served in pipeline stages
    """

    read: Callable | None
    architectures: tuple[str, ...]
    defaults: dict = field(default_factory=dict)
    text_config: str = "never"
    inner_types: tuple[str, ...] = ()
    kind: str | None = None
    splits_layers: bool = True


def _vision(architecture: str, *inner_types: str, text_config: str = "always") -> Family:
    """A vision-language wrapper: the language model's own family reads it."""
    return Family(None, (architecture,), text_config=text_config, inner_types=inner_types)


_GATED = {"sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096}
_QWEN3_NEXT = {"head_dim": 256, "num_key_value_heads": 2}
_qwen3_next = states.gated_delta_net(reads_state_dtype=False)
_qwen3_5 = states.gated_delta_net(reads_state_dtype=True)
_mla, _sparse_mla = latent(), latent(is_sparse=True)

FAMILIES: dict[str, Family] = {
    # One kind of attention in every layer.
    "llama": Family(dense(), ("LlamaForCausalLM", "LLaMAForCausalLM")),
    "mistral": Family(dense(), ("MistralForCausalLM",), {"num_key_value_heads": 8, "sliding_window": 4096}),
    "ministral3": Family(dense(), ("Ministral3ForCausalLM",), {"num_key_value_heads": 8, "head_dim": 128}),
    "mixtral": Family(dense(), ("MixtralForCausalLM",), {"num_key_value_heads": 8}),
    "qwen2": Family(dense(attention.gated_window), ("Qwen2ForCausalLM",), {**_GATED, "num_key_value_heads": 32}),
    "qwen2_moe": Family(dense(attention.no_window), ("Qwen2MoeForCausalLM",), {"num_key_value_heads": 16}),
    "qwen3": Family(dense(attention.gated_window), ("Qwen3ForCausalLM",),
                    {**_GATED, "num_key_value_heads": 32, "head_dim": 128}),
    "qwen3_moe": Family(dense(attention.gated_window), ("Qwen3MoeForCausalLM",),
                        {"sliding_window": 4096, "num_key_value_heads": 4}),
    "phi3": Family(dense(), ("Phi3ForCausalLM",)),
    "gemma": Family(dense(), ("GemmaForCausalLM",),
                    {"head_dim": 256, "num_attention_heads": 16, "num_key_value_heads": 16}),
    "granite": Family(dense(), ("GraniteForCausalLM",)),
    "granitemoe": Family(dense(attention.no_window), ("GraniteMoeForCausalLM",)),
    "glm4": Family(dense(), ("Glm4ForCausalLM",), {"num_key_value_heads": 2, "head_dim": 128}),
    "glm4_moe": Family(dense(), ("Glm4MoeForCausalLM",), {"num_key_value_heads": 8}),
    "cohere": Family(dense(), ("CohereForCausalLM",)),
    "olmoe": Family(dense(), ("OlmoeForCausalLM",)),
    "stablelm": Family(dense(), ("StableLmForCausalLM",), {"num_key_value_heads": 32}),
    "ernie4_5": Family(dense(), ("Ernie4_5ForCausalLM",), {"num_key_value_heads": 2, "head_dim": 128}),
    "ernie4_5_moe": Family(dense(), ("Ernie4_5_MoeForCausalLM",), {"num_key_value_heads": 4}),
    "minimax_m2": Family(dense(), ("MiniMaxM2ForCausalLM",), {"num_key_value_heads": 8, "head_dim": 128}),
    "opt": Family(dense(attention.no_window, "model.decoder.layers.{}.self_attn.attn"), ("OPTForCausalLM",)),
    "falcon": Family(attention.falcon, ("FalconForCausalLM",)),
    # Sliding windows or chunks in some layers.
    "gemma2": Family(dense(attention.every_nth_full(None, 2)), ("Gemma2ForCausalLM",), _GEMMA),
    "gemma3_text": Family(dense(attention.every_nth_full("sliding_window_pattern", 6)), ("Gemma3ForCausalLM",),
                          _GEMMA),
    "cohere2": Family(dense(attention.every_nth_full("sliding_window_pattern", 4, extra=1)), ("Cohere2ForCausalLM",),
                      {"sliding_window": 4096}),
    "exaone4": Family(dense(attention.every_nth_full("sliding_window_pattern", 4)), ("Exaone4ForCausalLM",),
                      {"num_key_value_heads": 32, "sliding_window": 4096}),
    "gpt_oss": Family(dense(attention.alternating, "model.layers.{}.attn.attn"), ("GptOssForCausalLM",),
                      {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128}),
    "llama4_text": Family(attention.llama4, ("Llama4ForCausalLM",),
                          {"num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192}),
    # Latent attention.
    "deepseek_v2": Family(_mla, ("DeepseekV2ForCausalLM",)),
    "deepseek_v3": Family(_mla, ("DeepseekV3ForCausalLM",)),
    "kimi_k2": Family(_mla, ("DeepseekV3ForCausalLM",)),
    "glm4_moe_lite": Family(_mla, ("Glm4MoeLiteForCausalLM",)),
    "deepseek_v32": Family(_sparse_mla, ("DeepseekV32ForCausalLM",)),
    "glm_moe_dsa": Family(_sparse_mla, ("GlmMoeDsaForCausalLM",)),
    # Recurrent states.
    "qwen3_next": Family(_qwen3_next, ("Qwen3NextForCausalLM",), _QWEN3_NEXT),
    "qwen3_5_text": Family(_qwen3_5, ("Qwen3_5ForCausalLM",), {"head_dim": 256, "num_key_value_heads": 4}),
    "qwen3_5_moe_text": Family(_qwen3_5, ("Qwen3_5MoeForCausalLM",), _QWEN3_NEXT),
    "nemotron_h": Family(states.nemotron_h, ("NemotronHForCausalLM",), {"num_key_value_heads": 8}),
    "jamba": Family(states.jamba, ("JambaForCausalLM",), {"num_key_value_heads": 8}),
    "granitemoehybrid": Family(states.granite_hybrid, ("GraniteMoeHybridForCausalLM",)),
    "mamba": Family(states.mamba, ("MambaForCausalLM",)),
    "falcon_mamba": Family(states.mamba, ("FalconMambaForCausalLM",)),
    "mamba2": Family(states.mamba2, ("Mamba2ForCausalLM",), splits_layers=False),
    # Language models inside vision-language models.
    "gemma3": _vision("Gemma3ForConditionalGeneration", "gemma3_text"),
    "llama4": _vision("Llama4ForConditionalGeneration", "llama4_text"),
    "mistral3": _vision("Mistral3ForConditionalGeneration", "mistral", "ministral3"),
    "qwen2_5_vl": _vision("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", text_config="maybe"),
    "qwen3_vl": _vision("Qwen3VLForConditionalGeneration", "qwen3_vl_text"),
    "qwen3_vl_moe": _vision("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text"),
    "qwen3_5": _vision("Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
    "qwen3_5_moe": _vision("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"),
    "qwen2_5_vl_text": Family(dense(attention.gated_window), (),
                              {"sliding_window": 4096, "max_window_layers": 80, "num_key_value_heads": 8}),
    "qwen3_vl_text": Family(dense(), (), {"num_key_value_heads": 32, "head_dim": 128}),
    "qwen3_vl_moe_text": Family(dense(), (), {"num_key_value_heads": 16}),
    # An encoder-decoder, and a diffusion transformer.
    "whisper": Family(attention.whisper, ("WhisperForConditionalGeneration",), splits_layers=False),
    "hunyuan_image_3_moe": Family(attention.hunyuan_image, ("HunyuanImage3ForCausalMM",), kind="diffusion",
                                  splits_layers=False),
}
