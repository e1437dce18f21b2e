"""From a config's fields to attention layers: plain, sliding, chunked, encoder-decoder, diffusion.

Source: vLLM 0.33.0, ``vllm/model_executor/models/`` (each model's attention and layer names) and
``vllm/engine/arg_utils.py`` (a window for all layers); transformers 5.20 for what its classes fill in.
"""

from __future__ import annotations

from collections.abc import Callable

from kvlayout.facts.fields import Fields
from kvlayout.facts.layers import AttentionLayer

SELF_ATTENTION = "model.layers.{}.self_attn.attn"
Windows = Callable[[Fields, int], list[int | None]]


def num_heads(fields: Fields) -> int:
    """Return the query heads of the whole model."""
    return fields.number("num_attention_heads")


def num_kv_heads(fields: Fields, heads: int, *names: str) -> int:
    """Return the KV heads of the whole model; as many as query heads where the field is null."""
    names = names or ("num_key_value_heads",)
    total = fields.number(*names, default=heads)
    if heads % total:
        fields.fail(names[0], total, f"doesn't divide the {heads} attention heads")
    return total


def head_size(fields: Fields, heads: int, *names: str) -> int:
    """Return the elements of one head: as the config says, or the hidden size split over the heads."""
    size = fields.number(*(names or ("head_dim",)), default=None)
    if size is not None:
        return size
    hidden = fields.number("hidden_size")
    if hidden % heads:
        fields.fail("hidden_size", hidden, f"is no multiple of the {heads} attention heads",
                    "Add head_dim to the config if heads have a size of their own")
    return hidden // heads


def one_window(fields: Fields, layers: int) -> list[int | None]:
    """``sliding_window`` holds for every layer, or, with ``layer_types``, for those that are called sliding."""
    return _windows(fields, layers, fields.per_layer("layer_types", layers, _TYPES))


def gated_window(fields: Fields, layers: int) -> list[int | None]:
    """``sliding_window`` counts with ``use_sliding_window`` only, and then for all layers or for none."""
    if not fields.flag("use_sliding_window", False):
        return [None] * layers
    window = fields.number("sliding_window", default=None, minimum=0)
    types = fields.per_layer("layer_types", layers, _TYPES)
    if types is None and "max_window_layers" in fields.defaults:
        first = fields.number("max_window_layers", minimum=0)
        types = [_SLIDING if window and layer >= first else _FULL for layer in range(layers)]
    if types is not None and len(set(types)) > 1:
        fields.fail("max_window_layers", fields.get("max_window_layers"), "gives only some layers a sliding window, "
                    "which vLLM refuses for this model type", "Set use_sliding_window to false")
    return _windows(fields, layers, types)


def no_window(fields: Fields, layers: int) -> list[int | None]:
    """Every layer attends to all tokens; a config that says otherwise isn't read."""
    if fields.flag("use_sliding_window", False):
        fields.fail("use_sliding_window", True, "isn't read for this model type", "Give the layers by hand")
    return [None] * layers


def every_nth_full(pattern: str | None, default: int, extra: int = 0) -> Windows:
    """``layer_types``, or else each n-th layer full and the rest sliding; n from the field ``pattern``.

    extra: tokens that vLLM adds to the window.
    """
    def windows(fields: Fields, layers: int) -> list[int | None]:
        types = fields.per_layer("layer_types", layers, _TYPES)
        if types is None:
            n = fields.number(pattern, default=default) if pattern else default
            types = [_SLIDING if (layer + 1) % n else _FULL for layer in range(layers)]
        return [window and window + extra for window in _windows(fields, layers, types)]
    return windows


def alternating(fields: Fields, layers: int) -> list[int | None]:
    """Even layers slide. vLLM goes by the number alone, so that other ``layer_types`` are refused."""
    expected = [_FULL if layer % 2 else _SLIDING for layer in range(layers)]
    types = fields.per_layer("layer_types", layers, _TYPES)
    if types not in (None, expected):
        fields.fail("layer_types", types, "differs from the alternation that vLLM hard-codes for this model type")
    return _windows(fields, layers, expected)


_SLIDING, _FULL = "sliding_attention", "full_attention"
_TYPES = (_FULL, _SLIDING)


def _windows(fields: Fields, layers: int, types: list[str] | None) -> list[int | None]:
    window = fields.number("sliding_window", default=None, minimum=0) or None
    if types is None:
        return [window] * layers
    if window is None and _SLIDING in types:
        fields.fail("sliding_window", fields.get("sliding_window"), "is missing, although some layers slide")
    return [window if kind == _SLIDING else None for kind in types]


def dense(windows: Windows = one_window, name: str = SELF_ATTENTION) -> Callable:
    """Return the reader of decoders whose layers all have the same heads."""
    def read(fields: Fields, prefix: str) -> list[AttentionLayer]:
        layers, heads = fields.num_layers(), num_heads(fields)
        kv_heads, size = num_kv_heads(fields, heads), head_size(fields, heads)
        return [AttentionLayer(prefix + name.format(layer), layer, kv_heads, size, window)
                for layer, window in enumerate(windows(fields, layers))]
    return read


def falcon(fields: Fields, prefix: str) -> list[AttentionLayer]:
    """Multi-query unless the config says otherwise; the newer architecture names its KV heads."""
    layers, heads = fields.num_layers(), num_heads(fields)
    if fields.flag("new_decoder_architecture", False):
        kv_heads = num_kv_heads(fields, heads, "num_kv_heads", "n_head_kv")
    else:
        kv_heads = 1 if fields.flag("multi_query", True) else heads
    size = head_size(fields, heads)
    return [AttentionLayer(f"{prefix}transformer.h.{layer}.self_attention.attn", layer, kv_heads, size)
            for layer in range(layers)]


def llama4(fields: Fields, prefix: str) -> list[AttentionLayer]:
    """Layers with rotary positions attend inside chunks; those without (0 in ``no_rope_layers``) to all tokens."""
    layers, heads = fields.num_layers(), num_heads(fields)
    kv_heads, size = num_kv_heads(fields, heads), head_size(fields, heads)
    chunk = fields.number("attention_chunk_size", default=None, minimum=0) or None
    rotary = fields.items("no_rope_layers")
    if not rotary:
        n = fields.number("no_rope_layer_interval", default=4)
        rotary = [int((layer + 1) % n != 0) for layer in range(layers)]
    if len(rotary) != layers or any(flag not in (0, 1) for flag in rotary):
        fields.fail("no_rope_layers", rotary, f"must be 0 or 1 for each of the {layers} layers")
    return [AttentionLayer(prefix + SELF_ATTENTION.format(layer), layer, kv_heads, size,
                           attention_chunk_size=chunk if flag else None) for layer, flag in enumerate(rotary)]


def whisper(fields: Fields, prefix: str) -> list[AttentionLayer]:
    """Each decoder layer caches its own tokens and the encoder's; the encoder caches nothing.

    The names start with a dot because vLLM gives this model an empty prefix.
    """
    layers, heads = fields.num_layers("decoder_layers"), fields.number("decoder_attention_heads")
    hidden = fields.number("d_model")
    if hidden % heads:
        fields.fail("d_model", hidden, f"is no multiple of the {heads} attention heads")
    read = []
    for layer in range(layers):
        start = f"{prefix}.decoder.layers.{layer}.layers."
        read.append(AttentionLayer(f"{start}self_attn.attn", layer, heads, hidden // heads))
        read.append(AttentionLayer(f"{start}encoder_attn.attn", layer, heads, hidden // heads, is_cross=True))
    return read


def hunyuan_image(fields: Fields, prefix: str) -> list[AttentionLayer]:
    """The diffusion transformer of HunyuanImage 3, with vLLM-Omni's paged cache: non-causal, always bfloat16.

    Source: vLLM-Omni 0.30.0, ``vllm_omni/diffusion/models/hunyuan_image3/hunyuan_image3_transformer.py``
    (ImageKVCacheManager) and ``vllm_omni/diffusion/attention/layer.py`` (get_kv_cache_spec).
    """
    layers, heads = fields.num_layers(), num_heads(fields)
    kv_heads, size = num_kv_heads(fields, heads), head_size(fields, heads, "head_dim", "attention_head_dim")
    return [AttentionLayer(prefix + SELF_ATTENTION.format(layer), layer, kv_heads, size, non_causal=True,
                           fixed_dtype="bfloat16") for layer in range(layers)]
