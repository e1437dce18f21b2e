"""The course: small maps, tables and exercises that the notebooks show. Each name is loaded on first use."""

from kvlayout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {
    ".maps": ("real_map", "tiny_map"),
    ".tables": ("Table", "layout_table", "runs_table", "stride_table", "views_table"),
    ".clinic_tables": ("findings_table", "readings_table", "says", "versus"),
    ".cases": ("open_pool",),
    ".follow": ("FollowToken",),
    ".predict": ("Predict",),
})
