"""Prototyping: what a backend or layout would be handed, what it costs, and kernels tested on real memory."""

from kvlayout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {
    ".scores": ("KEEPS", "Measure", "MEASURES", "Score", "layers_alike", "ranked", "score_layouts", "shard_words"),
    ".footprint": ("DecodeShape",),
    ".matrix": ("BackendMatrix", "MatrixRow", "Cell", "backend_matrix", "MatrixDiff", "MatrixChange", "matrix_diff"),
    ".prototype": ("try_backend", "Trial", "Verdict", "Standing", "PackedPage"),
    ".own_backend": ("PrototypeBackend",),
    ".backend_check": ("check_backend",),
    ".running": ("Wanted",),
    ".shapes": ("VARY",),
    ".kernels": ("check_writer", "check_reader"),
    ".report": ("KernelReport",),
    ".fault": ("Fault", "Places"),
    ".kernel_map": ("KernelMap",),
}, rooms=("examples",))
