"""vLLM's own objects and functions as the installed release has them, made from plain JSON without our classes.

Where the functions live in which release: ``kvlayout.upstream.release``.
"""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from functools import cache
from types import ModuleType

from kvlayout.facts.machine import PLATFORMS, Machine
from kvlayout.spec import KVQuantMode
from kvlayout.spec_io import SPEC_TYPES
from kvlayout.upstream.fuzz.kind import Double
from kvlayout.upstream.release import load


def interface() -> ModuleType:
    """Return the module of vLLM's specs, tensors, strides and views."""
    return load().interface


def planner() -> ModuleType:
    """Return the module that groups layers and places them."""
    return load().planning


@cache
def lacking() -> frozenset[str]:
    """Return which of our spec classes, fields and quantisation modes the installed vLLM doesn't have."""
    names = {f"KVQuantMode.{mode.name}" for mode in KVQuantMode
             if mode.name not in interface().KVQuantMode.__members__}
    for name, ours in SPEC_TYPES.items():
        kind = getattr(interface(), name, None)
        if kind is None:
            names.add(name)
        else:
            names |= {f"{name}.{f.name}" for f in fields(ours)} - {f"{name}.{f.name}" for f in fields(kind)}
    alignment = interface().KVCacheSpec.__dataclass_fields__.get("block_stride_alignment")
    if alignment is not None and "MultipleOf" not in str(alignment.type):
        names.add("block_stride_alignment.MultipleOf")  # 0.31 takes bytes only
    return frozenset(names)


def layout(name: str) -> object:
    """Return vLLM's layout of that name."""
    return interface().KVCacheLayout[name]


def spec(data: dict) -> object:
    """Return vLLM's spec of ``{"type": class, field: value, ...}``, straight from these values."""
    return getattr(interface(), data["type"])(
        **{name: _value(name, value) for name, value in data.items() if name != "type"})


def _value(name: str, value: object) -> object:
    import torch

    if value is None:
        return None
    if name == "dtype":
        return getattr(torch, value)
    if name == "dtypes":
        return tuple(getattr(torch, one) for one in value)
    if name == "shapes":
        return tuple(map(tuple, value))
    if name == "tokens_per_state" and isinstance(value, str):
        return Fraction(value)
    if name == "kv_quant_mode":
        return interface().KVQuantMode[value]
    if name == "cache_role":
        return interface().SparseCacheRole(value)
    if name == "mamba_type":
        from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

        return MambaAttentionBackendEnum[value.upper()]
    if name == "block_stride_alignment" and isinstance(value, dict):
        return multiple_of(value["multiple_of"])
    return {layer: spec(one) for layer, one in value.items()} if name == "kv_cache_specs" else value


def multiple_of(base: int) -> object:
    """Return vLLM's MultipleOf."""
    from vllm.v1.attention.backend import MultipleOf

    return MultipleOf(base)


def groups(data: list[dict]) -> list:
    """Return vLLM's groups of ``[{"layer_names": [...], "spec": {...}}, ...]``."""
    return [interface().KVCacheGroupSpec(list(one["layer_names"]), spec(one["spec"])) for one in data]


@cache
def _cache_config_class() -> type:
    from vllm.config import CacheConfig

    # The real method, over a stand-in's attributes.
    return type("CacheConfigDouble", (Double,), {
        "get_resolved_kv_cache_layout": CacheConfig.get_resolved_kv_cache_layout})


def cache_config(**values: object) -> Double:
    """Return a stand-in for CacheConfig that reads the recorded layout as vLLM does."""
    return _cache_config_class()(**values)


def machine() -> Machine:
    """Return this machine as backends ask about it."""
    from vllm.platforms import current_platform

    for name in PLATFORMS:
        if getattr(current_platform, f"is_{name}")():
            capability = current_platform.get_device_capability() if name == "cuda" else None
            return Machine(name, cuda_major=capability and capability.major)
    return Machine()


def groups_of(config: Double, layers: dict[str, object]) -> list:
    """Return vLLM's groups of these layers, or what vLLM raises for groups that leave layers out.

    vLLM looks for layers left out only in a later step (0.33 ``_check_exact_partition``, before that an assertion in
    ``get_kv_cache_configs``), after get_kv_cache_groups has returned.
    """
    found = planner().get_kv_cache_groups(config, dict(layers))
    if hasattr(planner(), "_check_exact_partition"):
        planner()._check_exact_partition(found, layers)
    assert sum(len(group.layer_names) for group in found) == len(layers), "layers are in no group"
    return found


def vllm_config(layout_name: str, *, num_gpu_blocks_override: int | None = None,
                disable_hybrid_kv_cache_manager: bool = False, max_model_len: int = 1) -> Double:
    """Return a stand-in for VllmConfig: what grouping and placement ask for, nothing more."""
    return Double(
        cache_config=cache_config(kv_cache_layout=layout_name, num_gpu_blocks_override=num_gpu_blocks_override,
                                  mamba_cache_mode="none", prefix_cache_retention_interval=None),
        scheduler_config=Double(disable_hybrid_kv_cache_manager=disable_hybrid_kv_cache_manager,
                                max_num_encoder_input_tokens=1, max_num_batched_tokens=1),
        attention_config=Double(hisparse_config=None),
        parallel_config=Double(decode_context_parallel_size=1, tensor_parallel_size=1,
                               prefill_context_parallel_size=1, pipeline_parallel_size=1),
        model_config=Double(max_model_len=max_model_len, original_max_model_len=max_model_len,
                            supports_kv_cache_grouping=False),
        speculative_config=None, kv_transfer_config=None, max_in_flight_tokens=1, num_prefill_lookahead_tokens=0)
