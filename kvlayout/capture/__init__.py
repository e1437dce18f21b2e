"""A KVCacheConfig in and out: JSON files, text pasted from a log, and vLLM's own objects."""

from kvlayout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {
    ".files": ("load", "save"),
    ".config_json": ("config_to_dict", "config_from_dict"),
    ".objects": ("as_config",),
    ".pasted": ("parse", "read", "Pasted"),
    ".reader": ("SharedTensor",),
    ".log_facts": ("Fact",),
    ".fitting": ("fitting_layouts",),
    ".dump": ("RankDump", "RankView", "Place", "load_ranks"),
    ".rank_check": ("check_rank", "check_ranks", "rank_plan"),
})
