"""The course: small maps, tables and exercises that the notebooks show. Each name is loaded on first use."""

from kvlayout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {
    ".maps": ("real_map", "tiny_map"),
    ".tables": ("Table", "layout_table", "runs_table", "stride_table", "views_table"),
    ".clinic_tables": ("findings_table", "readings_table", "says", "versus"),
    ".bench_tables": ("trial_table", "page_table", "score_table", "matrix_table", "diff_table"),
    ".cases": ("open_pool",),
    ".listing": ("listing",),
    ".follow": ("FollowToken",),
    ".predict": ("Predict",),
})
