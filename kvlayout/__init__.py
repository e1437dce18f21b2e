"""kvlayout: what a vLLM KV cache looks like in memory, computed, allocated, and shown.

Names are vLLM's wherever it has one. Everything is loaded on first use: ``import kvlayout`` is light, and only
the names of ``kvlayout.memory`` bring in torch.
"""

from kvlayout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {
    ".errors": ("LayoutError", "LayoutConflict", "CacheMemoryError"),
    ".versions": ("VLLM_VERSIONS",),
    ".layout": ("KVCacheLayout", "PhysicalLayout", "all_layouts", "layout_from_name"),
    ".spec": (
        "KVQuantMode", "MultipleOf", "KVCacheSpec", "AttentionSpec", "FullAttentionSpec", "SlidingWindowSpec",
        "MLAAttentionSpec", "SlidingWindowMLASpec", "ChunkedLocalAttentionSpec", "CrossAttentionSpec", "MambaSpec",
        "UniformTypeKVCacheSpecs"),
    ".interior": ("Field", "Interior", "default_interior"),
    ".strides": ("compute_layer_kv_cache_shape_bytes", "compute_layout_strides"),
    ".config": ("KVCacheTensor", "KVCacheGroupSpec", "KVCacheConfig"),
    ".grouping": ("get_kv_cache_groups", "project_kv_cache_groups"),
    ".placement": ("build_kv_cache_tensor", "get_kv_cache_config_from_groups", "validate_kv_cache_layout"),
    ".address": ("AddressMap", "Owner", "Padding", "Overlap"),
    ".resolve": (
        "get_supported_kv_cache_layouts", "resolve_kv_cache_layout", "resolve", "record_kv_cache_layout",
        "Resolution", "ResolutionError"),
    ".diffusion": (
        "resolve_diffusion_kv_cache_layout", "get_connector_required_kv_cache_layout", "adopt_kv_cache_layout",
        "assert_backend_layout_supported"),
    ".kernel_blocks": ("select_common_block_size", "prepare_kernel_block_sizes"),
    ".facts.backends": ("backends", "get_backend", "as_backend"),
    ".facts.machine": ("Machine",),
    ".facts.models": ("presets", "get_preset", "model_from_config", "model_from_specs"),
    ".selection": ("Selection",),
    ".plan": ("Plan", "make_plan"),
    ".readers": ("compare_readers", "WrongReader"),
    ".memory.cache": ("KVCache", "allocate_kv_cache", "create_kv_cache_views"),
    ".memory.probe": ("verify",),
    ".proof": ("Report", "Mismatch"),
}, rooms=("bench", "capture", "clinic", "plugins"))
