"""Records how vLLM prints its configs: ``python -m kvlayout.facts.record_reprs OUT.jsonl``.

Run it with a Python that has vLLM (no GPU is needed). vLLM's own planner places groups of its own specs, of every
class and with every kind of field value. One JSON object a line: ``vllm``, ``case``, ``layout``, ``text`` (what
``repr`` prints) and ``config`` (the same object read field by field).
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

from kvlayout.capture.config_json import config_to_dict
from kvlayout.capture.objects import as_config
from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.facts.models import get_preset
from kvlayout.grouping import get_kv_cache_groups
from kvlayout.spec import KVCacheSpec, MultipleOf, UniformTypeKVCacheSpecs
from kvlayout.spec_io import spec_from_dict, spec_to_dict

_DENSE = {"type": "FullAttentionSpec", "block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": "bfloat16"}
_WINDOW = {**_DENSE, "type": "SlidingWindowSpec", "sliding_window": 128}
_LATENT = {**_DENSE, "type": "MLAAttentionSpec", "num_kv_heads": 1, "head_size": 576, "block_size": 64}
_STATES = {"type": "MambaSpec", "block_size": 16, "shapes": [[3, 8], [4, 16, 8]], "dtypes": ["bfloat16", "float32"]}

# One group a spec, or one group of several specs a layer (a list); every class that vLLM has, every kind of value.
CASES: dict[str, tuple[str, list]] = {
    "dense": ("LBNHC", [_DENSE]),
    "fp8": ("LBHNC", [{**_DENSE, "dtype": "float8_e4m3fn", "kv_quant_mode": "FP8_PER_TENSOR"}]),
    "per token head": ("LBHNC", [{**_DENSE, "dtype": "int8", "kv_quant_mode": "INT8_PER_TOKEN_HEAD",
                                  "state_content_bytes": 136, "num_head_slots": 2}]),
    "uneven heads": ("LHBNC", [{**_DENSE, "head_size_v": 32}]),
    "padded": ("BLHNC", [{**_DENSE, "page_size_padded": 8448}]),
    "hybrid": ("BLNHC", [_DENSE, _WINDOW]),
    "mixed pages": ("BLHNC", [_DENSE, {**_WINDOW, "num_kv_heads": 4}, _STATES]),
    "latent with an index": ("BLHNC", [[
        {**_LATENT, "head_size": 656, "dtype": "uint8", "cache_dtype_str": "fp8_ds_mla", "alignment": 576},
        {**_LATENT, "head_size": 132, "dtype": "uint8", "cache_role": "indexer"}]]),
    "latent of two tokens a state": ("BHLNC", [{**_LATENT, "tokens_per_state": 2}]),
    "half a token a state": ("LBNHC", [{**_DENSE, "tokens_per_state": "1/2"}]),
    "whole kernel blocks": ("LBHNC", [{**_DENSE, "block_stride_alignment": {"multiple_of": 16}}]),
    "aligned blocks": ("LBHNC", [{**_DENSE, "block_stride_alignment": 512}]),
    "window over latents": ("LBNHC", [{**_WINDOW, "type": "SlidingWindowMLASpec", "num_kv_heads": 1}]),
    "chunks": ("LBNHC", [{**_DENSE, "type": "ChunkedLocalAttentionSpec", "attention_chunk_size": 32}]),
    "cross attention": ("LBNHC", [{**_DENSE, "type": "CrossAttentionSpec"}]),
    "sinks": ("LBNHC", [{**_DENSE, "type": "SinkFullAttentionSpec", "sink_len": 4}]),
    "states alone": ("LBNHC", [{**_STATES, "page_size_padded": 4096, "mamba_type": "gdn_attn"}]),
    "no cache": ("LBNHC", []),
}
MODELS = {"Qwen/Qwen3-0.6B": "LBHNC", "openai/gpt-oss-20b": "BLNHC", "deepseek-ai/DeepSeek-V3.2-Exp": "BLHNC"}


def groups_of(case: str) -> list[KVCacheGroupSpec]:
    """Return the groups of a case: of three layers each, or one pipeline stage of a model, grouped as vLLM does."""
    if case in MODELS:
        return get_kv_cache_groups(get_preset(case).kv_cache_specs(pp_size=6, pp_rank=1), MODELS[case])
    groups = []
    for index, entry in enumerate(CASES[case][1]):
        names = [f"model.layers.{3 * index + i}.self_attn.attn" for i in range(3)]
        if isinstance(entry, list):
            spec = UniformTypeKVCacheSpecs(entry[0]["block_size"], {
                name: spec_from_dict(entry[i % len(entry)]) for i, name in enumerate(names)})
        else:
            spec = spec_from_dict(entry)
        groups.append(KVCacheGroupSpec(names, spec))
    return groups


def main(path: str) -> None:
    """Record every case, each with and without the layout's name, into ``path``."""
    import vllm

    lines = []
    for case in (*CASES, *MODELS):
        layout = MODELS.get(case) or CASES[case][0]
        try:
            config = _place(groups_of(case), layout)
        except (LayoutError, TypeError, AttributeError, KeyError) as error:  # a release without that class or value
            print(f"{case}: not in {vllm.__version__}: {error}")
            continue
        for name in (None, layout):
            config.kv_cache_layout = name
            lines.append({"vllm": vllm.__version__, "case": case, "layout": layout, "text": repr(config),
                          "config": config_to_dict(as_config(config))})
    Path(path).write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def _place(groups: list[KVCacheGroupSpec], layout: str):
    """Return vLLM's own config for 64 MiB, by its own planner."""
    from vllm.config import CacheConfig
    from vllm.v1 import kv_cache_interface as interface

    try:
        from vllm.v1.core import kv_cache_planning as planner
    except ImportError:  # before 0.33
        from vllm.v1.core import kv_cache_utils as planner
    theirs = [interface.KVCacheGroupSpec(list(group.layer_names), _their_spec(group.kv_cache_spec, interface))
              for group in groups]
    cache_config = CacheConfig()
    cache_config.kv_cache_layout = layout
    choices = SimpleNamespace(cache_config=cache_config, attention_config=SimpleNamespace(hisparse_config=None))
    return planner.get_kv_cache_config_from_groups(choices, theirs, 1 << 26)


def _their_spec(spec: KVCacheSpec, interface):
    import torch
    from vllm.v1.attention.backend import MultipleOf as TheirMultipleOf
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

    kind = getattr(interface, type(spec).__name__)
    plain, values = spec_to_dict(spec), {}
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name not in plain or field.name not in kind.__dataclass_fields__:
            continue  # its default, or a field that came with a later release
        if isinstance(spec, UniformTypeKVCacheSpecs) and field.name == "kv_cache_specs":
            value = {name: _their_spec(one, interface) for name, one in value.items()}
        elif field.name == "dtype":
            value = getattr(torch, value)
        elif field.name == "dtypes":
            value = tuple(getattr(torch, one) for one in value)
        elif field.name == "kv_quant_mode":
            value = interface.KVQuantMode[value.name]
        elif field.name == "mamba_type":
            value = MambaAttentionBackendEnum[value.upper()]
        elif field.name == "cache_role":
            value = interface.SparseCacheRole(value)
        elif isinstance(value, MultipleOf):
            value = TheirMultipleOf(value.base)
        values[field.name] = value
    return kind(**values)


if __name__ == "__main__":
    main(sys.argv[1])
