"""Prototyping: what a backend or a layout of one's own would be handed, and what it would cost."""

from kvlayout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {
    ".scores": ("Measure", "MEASURES", "Score", "score_layouts"),
    ".footprint": ("DecodeShape",),
    ".matrix": ("BackendMatrix", "MatrixRow", "Cell", "backend_matrix", "MatrixDiff", "MatrixChange", "matrix_diff"),
    ".prototype": ("try_backend", "Trial", "Verdict", "Standing", "PackedPage"),
    ".own_backend": ("PrototypeBackend",),
    ".backend_check": ("check_backend",),
    ".running": ("Wanted",),
})
