"""Figures of layouts: library objects in, matplotlib Figures out; no pyplot state and no ipywidgets."""

from kvlayout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {
    ".common": ("Coordinate",),
    ".offsets": ("OffsetsFigure", "offsets_figure"),
    ".page": ("PageFigure", "page_figure"),
    ".memory": ("MemoryFigure", "memory_figure"),
    ".compare": ("CompareFigure", "compare_figure"),
    ".divergence": ("DivergenceFigure", "divergence_figure"),
    ".reach": ("ReachFigure", "reach_figure"),
    ".spans": ("Span", "SpansFigure", "spans_figure"),
    ".strips": ("StripsFigure", "strips_figure"),
    ".resolver": ("ResolverFigure", "resolver_figure"),
    ".strides": ("StridesFigure", "strides_figure"),
    ".transfer": ("TransferFigure", "transfer_figure"),
    ".scores": ("ScoresFigure", "scores_figure"),
    ".exchange": ("ExchangeFigure", "exchange_figure"),
    ".kernel_map": ("KernelMapFigure", "kernel_map_figure"),
    ".tradeoff": ("TradeoffFigure", "tradeoff_figure"),
})
