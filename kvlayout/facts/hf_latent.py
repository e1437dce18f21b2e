"""From a config's fields to latent-attention layers and the sparse indexer's.

Source: vLLM 0.33.0, ``vllm/model_executor/models/deepseek_v2.py`` and ``vllm/models/deepseek_v32``.
"""

from __future__ import annotations

from collections.abc import Callable

from kvlayout.facts.fields import Fields
from kvlayout.facts.hf_attention import SELF_ATTENTION, num_heads
from kvlayout.facts.layers import IndexerLayer, LatentLayer


def latent(is_sparse: bool | None = None) -> Callable:
    """Return the reader of MLA decoders: is_sparse True wants an indexer, None has one if the config does."""
    def read(fields: Fields, prefix: str) -> list[LatentLayer | IndexerLayer]:
        layers = fields.num_layers()
        num_heads(fields)
        size = fields.number("kv_lora_rank") + fields.number("qk_rope_head_dim", minimum=0)
        topk = fields.number("index_topk", default=None) if not is_sparse else fields.number("index_topk")
        if topk is None:
            return [LatentLayer(prefix + SELF_ATTENTION.format(layer), layer, size) for layer in range(layers)]
        head_dim = fields.number("index_head_dim")
        found = []
        for layer, selects in enumerate(_layers_that_select(fields, layers)):
            if selects:
                name = f"{prefix}model.layers.{layer}.self_attn.indexer.k_cache"
                found.append(IndexerLayer(name, layer, head_dim))
            found.append(LatentLayer(prefix + SELF_ATTENTION.format(layer), layer, size, topk, selects))
        return found
    return read


def _layers_that_select(fields: Fields, layers: int) -> list[bool]:
    """Which layers select tokens; the others reuse an earlier layer's choice."""
    pattern = fields.get("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, str | list) or [one for one in pattern if one in ("F", "S")] != list(pattern) \
                or len(pattern) != layers:
            fields.fail("index_topk_pattern", pattern, f"must be F (full) or S (shared) for each of {layers} layers")
        return [letter == "F" for letter in pattern]
    every = fields.number("index_topk_freq", default=1)
    offset = fields.number("index_skip_topk_offset", default=2, minimum=0)
    return [max(layer - offset + 1, 0) % every == 0 for layer in range(layers)]
