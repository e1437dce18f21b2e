"""The vLLM releases whose behaviour this library reproduces; a leaf module."""

from __future__ import annotations

from kvlayout.errors import LayoutError

VLLM_VERSIONS = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
NEWEST = VLLM_VERSIONS[-1]


def at_least(vllm_version: str, since: str) -> bool:
    """Whether ``vllm_version`` behaves as ``since`` or a later release; LayoutError for an unknown one."""
    if vllm_version not in VLLM_VERSIONS:
        raise LayoutError("vllm_version", vllm_version, "is not a release this library reproduces",
                          f"Choose one of {', '.join(VLLM_VERSIONS)}")
    return VLLM_VERSIONS.index(vllm_version) >= VLLM_VERSIONS.index(since)
