"""From a config's fields to the layers of models with recurrent states, most of them mixed with attention.

Source: vLLM 0.33.0, ``vllm/model_executor/models/`` (qwen3_next, qwen3_5, nemotron_h, jamba, granitemoehybrid, mamba,
mamba2: get_mamba_state_shape_from_config and layer names) and ``models/config.py`` (the states' element types).
"""

from __future__ import annotations

from collections.abc import Callable

from kvlayout.dtypes import dtype_name
from kvlayout.facts.fields import Fields
from kvlayout.facts.hf_attention import SELF_ATTENTION, head_size, num_heads, num_kv_heads
from kvlayout.facts.layers import AttentionLayer
from kvlayout.facts.states import GatedDeltaNetLayer, Mamba1Layer, Mamba2Layer

_FLOATS = ("float32", "float16", "bfloat16")


def state_dtype(fields: Fields, name: str, default: str | None) -> str | None:
    """Return the recurrent state's element type from the field ``name``; None for the model's own ("auto")."""
    value = fields.text(name, default=default)
    if value in (None, "auto"):
        return None
    if value not in _FLOATS:
        fields.fail(name, value, "is no element type that vLLM keeps a state in", f"Use one of {', '.join(_FLOATS)}")
    return dtype_name(value)


def gated_delta_net(reads_state_dtype: bool) -> Callable:
    """Return the reader of Qwen3-Next and its kin: linear attention, each n-th layer with full attention."""
    def read(fields: Fields, prefix: str) -> list[AttentionLayer | GatedDeltaNetLayer]:
        layers, heads = fields.num_layers(), num_heads(fields)
        kv_heads, size = num_kv_heads(fields, heads), head_size(fields, heads)
        types = fields.per_layer("layer_types", layers, ("linear_attention", "full_attention"))
        if types is None:
            n = fields.number("full_attention_interval", default=4)
            types = ["linear_attention" if (layer + 1) % n else "full_attention" for layer in range(layers)]
        dtype = state_dtype(fields, "mamba_ssm_dtype", None) if reads_state_dtype else None
        state = dict(
            num_key_heads=fields.number("linear_num_key_heads"),
            num_value_heads=fields.number("linear_num_value_heads"),
            key_head_dim=fields.number("linear_key_head_dim"), value_head_dim=fields.number("linear_value_head_dim"),
            conv_kernel=fields.number("linear_conv_kernel_dim", minimum=2))
        return [AttentionLayer(prefix + SELF_ATTENTION.format(layer), layer, kv_heads, size)
                if kind == "full_attention"
                else GatedDeltaNetLayer(f"{prefix}model.layers.{layer}.linear_attn", layer, dtype, **state)
                for layer, kind in enumerate(types)]
    return read


def nemotron_h(fields: Fields, prefix: str) -> list[AttentionLayer | Mamba2Layer]:
    """One letter a layer: M Mamba 2, * attention, - and E feed-forward, which cache nothing."""
    heads, layers = num_heads(fields), fields.num_layers()
    pattern = fields.text("hybrid_override_pattern")
    if len(pattern) != layers:
        fields.fail("hybrid_override_pattern", pattern, f"has {len(pattern)} letters for {layers} layers")
    if set(pattern) - set("M*-E"):
        fields.fail("hybrid_override_pattern", pattern, "may hold only M, *, - and E")
    kv_heads, size = num_kv_heads(fields, heads), head_size(fields, heads, "head_dim", "attention_head_dim")
    window = fields.number("sliding_window", default=None, minimum=0) or None
    dtype = state_dtype(fields, "mamba_ssm_cache_dtype", "float32")
    mamba_heads, mamba_size = fields.number("mamba_num_heads"), fields.number("mamba_head_dim")
    state = dict(
        intermediate_size=mamba_heads * mamba_size, num_groups=fields.number("n_groups"), num_heads=mamba_heads,
        head_dim=mamba_size, state_size=fields.number("ssm_state_size"),
        conv_kernel=fields.number("conv_kernel", minimum=2))
    found = []
    for layer, letter in enumerate(pattern):
        if letter == "M":
            found.append(Mamba2Layer(f"{prefix}model.layers.{layer}.mixer", layer, dtype, **state))
        elif letter == "*":
            found.append(AttentionLayer(f"{prefix}model.layers.{layer}.mixer.attn", layer, kv_heads, size, window))
    return found


def jamba(fields: Fields, prefix: str) -> list[AttentionLayer | Mamba1Layer]:
    """Attention once a period, Mamba elsewhere."""
    layers, heads = fields.num_layers(), num_heads(fields)
    kv_heads, size = num_kv_heads(fields, heads), head_size(fields, heads)
    period, offset = fields.number("attn_layer_period"), fields.number("attn_layer_offset", minimum=0)
    if offset >= period:
        fields.fail("attn_layer_offset", offset, f"must be below attn_layer_period={period}")
    state = dict(intermediate_size=fields.number("mamba_expand") * fields.number("hidden_size"),
                 state_size=fields.number("mamba_d_state"), conv_kernel=fields.number("mamba_d_conv", minimum=2))
    return [AttentionLayer(f"{prefix}model.layers.{layer}.attn", layer, kv_heads, size)
            if layer % period == offset else Mamba1Layer(f"{prefix}model.layers.{layer}.mixer", layer, None, **state)
            for layer in range(layers)]


def granite_hybrid(fields: Fields, prefix: str) -> list[AttentionLayer | Mamba2Layer]:
    """Mamba 2 and attention as ``layer_types`` says."""
    layers, heads = fields.num_layers(), num_heads(fields)
    kv_heads, size = num_kv_heads(fields, heads), head_size(fields, heads)
    types = fields.per_layer("layer_types", layers, ("mamba", "linear_attention", "attention", "full_attention"))
    if types is None:
        fields.fail("layer_types", None, "is missing", "Add it to the config; it is never guessed")
    inner, mamba_heads = fields.number("mamba_expand") * fields.number("hidden_size"), fields.number("mamba_n_heads")
    if inner % mamba_heads:
        fields.fail("mamba_n_heads", mamba_heads, f"doesn't divide the {inner} channels (mamba_expand x hidden_size)")
    if fields.get("mamba_d_head") not in ("auto", None) and fields.number("mamba_d_head") * mamba_heads != inner:
        fields.fail("mamba_d_head", fields.get("mamba_d_head"), f"times {mamba_heads} heads isn't {inner} channels")
    state = dict(
        intermediate_size=inner, num_groups=fields.number("mamba_n_groups"), num_heads=mamba_heads,
        head_dim=inner // mamba_heads, state_size=fields.number("mamba_d_state"),
        conv_kernel=fields.number("mamba_d_conv", minimum=2))
    return [AttentionLayer(prefix + SELF_ATTENTION.format(layer), layer, kv_heads, size)
            if kind in ("attention", "full_attention")
            else Mamba2Layer(f"{prefix}model.layers.{layer}.mixer", layer, None, **state)
            for layer, kind in enumerate(types)]


def mamba(fields: Fields, prefix: str) -> list[Mamba1Layer]:
    """Mamba in every layer."""
    inner = fields.number("intermediate_size", default=None)
    if inner is None:
        inner = fields.number("expand") * fields.number("hidden_size")
    state = dict(intermediate_size=inner, state_size=fields.number("state_size"),
                 conv_kernel=fields.number("conv_kernel", minimum=2))
    return [Mamba1Layer(f"{prefix}backbone.layers.{layer}.mixer", layer, None, **state)
            for layer in range(fields.num_layers())]


def mamba2(fields: Fields, prefix: str) -> list[Mamba2Layer]:
    """Mamba 2 in every layer."""
    heads, size = fields.number("num_heads"), fields.number("head_dim")
    inner = fields.number("expand") * fields.number("hidden_size")
    if heads * size != inner:
        fields.fail("num_heads", heads, f"x head_dim={size} isn't expand x hidden_size={inner}")
    state = dict(intermediate_size=inner, num_groups=fields.number("n_groups"), num_heads=heads, head_dim=size,
                 state_size=fields.number("state_size"), conv_kernel=fields.number("conv_kernel", minimum=2))
    return [Mamba2Layer(f"{prefix}backbone.layers.{layer}.mixer", layer, None, **state)
            for layer in range(fields.num_layers())]
