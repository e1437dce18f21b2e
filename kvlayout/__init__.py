"""kvlayout: what a vLLM KV cache looks like in memory, computed, allocated, and shown.

Names are vLLM's wherever it has one. Everything is loaded on first use: ``import kvlayout`` is light, and only
the names of ``kvlayout.memory`` bring in torch.
"""

from importlib import import_module

_HOME = {
    "kvlayout.errors": ("LayoutError", "LayoutConflict", "CacheMemoryError"),
    "kvlayout.versions": ("VLLM_VERSIONS",),
    "kvlayout.layout": ("KVCacheLayout", "PhysicalLayout", "layout_from_name"),
    "kvlayout.spec": (
        "KVQuantMode", "MultipleOf", "KVCacheSpec", "AttentionSpec", "FullAttentionSpec", "SlidingWindowSpec",
        "MLAAttentionSpec", "SlidingWindowMLASpec", "ChunkedLocalAttentionSpec", "CrossAttentionSpec", "MambaSpec",
        "UniformTypeKVCacheSpecs"),
    "kvlayout.interior": ("Field", "Interior", "default_interior"),
    "kvlayout.strides": ("compute_layer_kv_cache_shape_bytes", "compute_layout_strides"),
    "kvlayout.config": ("KVCacheTensor", "KVCacheGroupSpec", "KVCacheConfig"),
    "kvlayout.grouping": ("get_kv_cache_groups", "project_kv_cache_groups"),
    "kvlayout.placement": ("build_kv_cache_tensor", "get_kv_cache_config_from_groups", "validate_kv_cache_layout"),
    "kvlayout.address": ("AddressMap", "Owner", "Padding", "Overlap"),
    "kvlayout.resolve": (
        "get_supported_kv_cache_layouts", "resolve_kv_cache_layout", "resolve", "record_kv_cache_layout",
        "Resolution", "ResolutionError"),
    "kvlayout.diffusion": (
        "resolve_diffusion_kv_cache_layout", "get_connector_required_kv_cache_layout", "adopt_kv_cache_layout",
        "assert_backend_layout_supported"),
    "kvlayout.kernel_blocks": ("select_common_block_size", "prepare_kernel_block_sizes"),
    "kvlayout.facts.backends": ("backends", "get_backend", "as_backend"),
    "kvlayout.facts.models": ("presets", "get_preset", "model_from_config", "model_from_specs"),
    "kvlayout.selection": ("Selection",),
    "kvlayout.plan": ("Plan", "make_plan"),
    "kvlayout.memory.cache": ("KVCache", "allocate_kv_cache", "create_kv_cache_views"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'kvlayout' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
