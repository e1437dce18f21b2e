"""The controls' labels, and their tooltips in vLLM's own terms."""

LABELS = {
    "model": ("Model", "--model: a preset with recorded facts, or any model's config.json"),
    "kv_cache_dtype": ("KV dtype", "--kv-cache-dtype: element type of the cache; auto is the model's own"),
    "tp_size": ("TP size", "--tensor-parallel-size: ranks that split the KV heads"),
    "pp_size": ("PP size", "--pipeline-parallel-size: stages that split the layers"),
    "pp_rank": ("PP rank", "The pipeline stage whose cache is shown, from 0"),
    "max_model_len": ("Max length", "--max-model-len, tokens; only the block of a recurrent state depends on it"),
    "vllm_version": ("Version", "The vLLM release whose rules are applied"),
    "backend": ("Backend", "--attention-backend: the AttentionBackend class that reads and writes the cache"),
    "machine": ("Machine", "The hardware and settings that backends ask about before they declare layouts, block "
                "sizes or pages (current_platform, device capability)"),
    "connector": ("Connector", "kv_connector of --kv-transfer-config; its wish for a layout counts if it is a "
                  "candidate"),
    "requested": ("Requested", "The environment variable VLLM_KV_CACHE_LAYOUT; must be a candidate"),
    "disable_hybrid_kv_cache_manager": ("No hybrid", "--disable-hybrid-kv-cache-manager: one kind of group "
                                        "for all layers"),
    "layout": ("Layout", "KVCacheLayout: the physical order of layer L, block B, head slot H, token state N and "
               "content C, outermost first. auto is what the resolver chooses; any other is forced"),
    "block_size": ("Block size", "--block-size: tokens in one block of the block table; auto is what the backend "
                   "prefers"),
    "kernel_block_size": ("Kernel block", "Tokens in a block as the kernel sees it; auto is what "
                          "prepare_kernel_block_sizes gives"),
    "num_blocks": ("Size", "num_gpu_blocks: blocks in the pool, or the memory in GiB to fill with blocks"),
    "device": ("Device", "Where Allocate takes memory; meta takes none"),
}
