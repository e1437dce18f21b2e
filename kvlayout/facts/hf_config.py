"""Reading a Hugging Face config.json: which layers the model has and what each caches.

A model type that isn't listed, or a field that is missing or odd, is a LayoutError that names it; nothing is guessed.
Source: vLLM 0.33.0, ``vllm/transformers_utils/model_arch_config_convertor.py``, ``vllm/config/model.py`` (element
type), ``vllm/utils/torch_utils.py`` (KV cache dtype of a quantised checkpoint).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kvlayout.errors import LayoutError
from kvlayout.facts.fields import Fields
from kvlayout.facts.hf_families import FAMILIES, Family
from kvlayout.facts.layers import AttentionLayer, IndexerLayer, LatentLayer
from kvlayout.facts.states import STATE_KINDS, GatedDeltaNetLayer, Mamba1Layer, Mamba2Layer

Layer = AttentionLayer | LatentLayer | IndexerLayer | Mamba1Layer | Mamba2Layer | GatedDeltaNetLayer


@dataclass(frozen=True)
class Architecture:
    """What a config says about the KV cache.

    Attributes:
        model_type: the config's
        kind: "dense", "sliding", "sliding hybrid", "chunked hybrid", "mla", "sparse mla", "mamba", "mamba hybrid",
            "encoder-decoder" or "diffusion"
        layers: what is cached, in vLLM's order; feed-forward layers have nothing
        num_layers: decoder layers, which pipeline stages share out
        num_attention_heads: query heads; 0 for a model without attention
        dtype: element type of the model, by torch name; None where the config doesn't say
        kv_cache_dtype: what "auto" means: "auto", or the format that the checkpoint was quantised for
        max_model_len: tokens, without RoPE scaling; None where the config doesn't say
        mamba_chunk_size: tokens that a Mamba kernel takes at a time
        splits_layers: it can be served in pipeline stages
    """

    model_type: str
    kind: str
    layers: tuple[Layer, ...]
    num_layers: int
    num_attention_heads: int
    dtype: str | None
    kv_cache_dtype: str
    max_model_len: int | None
    mamba_chunk_size: int
    splits_layers: bool


def load_config(config: dict | str | Path) -> dict:
    """Return a config given as a dict, as JSON text, or as the path of a config.json or of its folder."""
    if isinstance(config, dict):
        return config
    if not isinstance(config, str | Path):
        raise LayoutError("config", config, "must be a dict, or the path of a config.json")
    if isinstance(config, str) and config.lstrip().startswith("{"):
        return _parse("config", config)
    path = Path(config)
    if path.is_dir():
        path /= "config.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise LayoutError("config", str(config), f"can't be read as a file: {error}",
                          "Give a dict, a config.json, the folder that holds it, or a preset's name") from error
    return _parse(str(path), text)


def _parse(argument: str, text: str) -> dict:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise LayoutError(argument, text, f"isn't JSON: {error}") from error
    if not isinstance(value, dict):
        raise LayoutError(argument, value, "must be a JSON object")
    return value


def read_config(config: dict) -> Architecture:
    """Return what ``config`` says about the KV cache.

    Raises LayoutError for an unknown model type or architecture, and for a field that is missing or odd.
    """
    top = Fields(config)
    model_type = top.text("model_type")
    family = FAMILIES.get(model_type)
    if family is None or not family.architectures:
        listed = ", ".join(sorted(name for name, known in FAMILIES.items() if known.architectures))
        raise LayoutError("model_type", model_type, "isn't a model type that can be read",
                          f"Known are {listed}. For another, name its layers' specs: model_from_specs(name, "
                          "{layer: spec})")
    _check_architectures(top, family)
    inner, fields, prefix = _language_model(top, family)
    layers = inner.read(fields, prefix)
    if not layers:
        raise LayoutError("hybrid_override_pattern", config.get("hybrid_override_pattern"),
                          "leaves no layer that caches anything")
    kind = family.kind or _kind({layer.kind for layer in layers})
    # vLLM's own assumption for a model without positions.
    unlimited = 2048 if kind == "mamba" else None
    return Architecture(
        model_type=model_type, kind=kind, layers=tuple(layers),
        num_layers=fields.number("decoder_layers", "num_hidden_layers"),
        num_attention_heads=fields.number("decoder_attention_heads", "num_attention_heads", default=0),
        dtype=_dtype(top, fields, model_type), kv_cache_dtype=_checkpoint_cache_dtype(top, is_mla="mla" in kind),
        max_model_len=fields.number("max_position_embeddings", "max_target_positions", default=unlimited),
        mamba_chunk_size=fields.number("mamba_chunk_size", "chunk_size", default=2048),
        splits_layers=family.splits_layers)


def _check_architectures(top: Fields, family: Family) -> None:
    named = top.items("architectures")
    if named is None:
        return
    unknown = [name for name in named if name not in family.architectures]
    if unknown or not named:
        top.fail("architectures", named, f"isn't what this model type is read as ({', '.join(family.architectures)})",
                 "Drafts, embedders and classifiers cache otherwise: name their specs with model_from_specs")


def _language_model(top: Fields, family: Family) -> tuple[Family, Fields, str]:
    """The family and fields of the part that caches, and the prefix of its layers' names."""
    if family.text_config == "never":
        return family, Fields(top.values, defaults=family.defaults), ""
    default = family.inner_types[0] if len(family.inner_types) == 1 else None
    nested = top.values
    path = ""
    if family.text_config == "always" or top.get("text_config") is not None:
        nested, path = top.part("text_config").values, "text_config."
        inner_type = Fields(nested, path).text("model_type", default=default)
    else:
        inner_type = default
    if inner_type not in family.inner_types:
        top.fail("text_config.model_type", inner_type, f"isn't one of {', '.join(family.inner_types)}")
    inner = FAMILIES[inner_type]
    return inner, Fields(nested, path, inner.defaults), "language_model."


def _kind(kinds: set[str]) -> str:
    """The model's kind, from its layers' kinds."""
    if "cross" in kinds:
        return "encoder-decoder"
    if kinds & STATE_KINDS:
        return "mamba" if kinds <= STATE_KINDS else "mamba hybrid"
    if "mla" in kinds:
        return "sparse mla" if "indexer" in kinds else "mla"
    if "chunked" in kinds:
        return "chunked hybrid"
    if "sliding" in kinds:
        return "sliding hybrid" if "attention" in kinds else "sliding"
    return "dense"


_DTYPES = {"bfloat16": "bfloat16", "float16": "float16", "half": "float16", "float32": "float32", "float": "float32"}
# vLLM serves these in bfloat16 where the checkpoint says float16.
_NO_FLOAT16 = ("gemma2", "gemma3", "gemma3_text", "glm4")


def _dtype(top: Fields, fields: Fields, model_type: str) -> str | None:
    """The element type of ``--dtype auto`` on a GPU with bfloat16: as the config says, but float32 is halved."""
    for part in (top, fields):
        name = part.text("dtype", "torch_dtype", default=None)
        if name is None:
            continue
        dtype = _DTYPES.get(name.removeprefix("torch."))
        if dtype is None:
            part.fail("dtype" if part.get("dtype") is not None else "torch_dtype", name,
                      "isn't an element type that vLLM computes in", "Use bfloat16, float16 or float32")
        return "bfloat16" if dtype == "float32" or (dtype == "float16" and model_type in _NO_FLOAT16) else dtype
    return None


def _checkpoint_cache_dtype(top: Fields, is_mla: bool) -> str:
    """The KV cache dtype that a quantised checkpoint asks for, or "auto"."""
    quantised = top.get("quantization_config", top.get("compression_config"))
    if quantised is None:
        return "auto"
    if not isinstance(quantised, dict):
        top.fail("quantization_config", quantised, "must be an object")
    method = str(quantised.get("quant_method", "")).lower().replace("_", "-")
    if method == "compressed-tensors":
        # vLLM's MLA layers don't look at it.
        return "auto" if quantised.get("kv_cache_scheme") is None or is_mla else "fp8"
    if not method.startswith("modelopt"):
        return "auto"
    inner = quantised.get("quantization", quantised)
    asked = None
    for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
        asked = asked or (inner.get(name) if isinstance(inner, dict) else None) or quantised.get(name)
    if isinstance(asked, dict):
        bits = asked.get("num_bits") if asked.get("type") == "float" else None
        asked = "nvfp4" if bits == 4 else "fp8" if bits == 8 and asked.get("dynamic") is False else None
    return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(str(asked).lower(), "auto")
