"""How the values of a cache are quantised, by vLLM's names."""

from __future__ import annotations

from enum import IntEnum

from kvlayout.errors import LayoutError


class KVQuantMode(IntEnum):
    """How the values of a cache are quantised. It changes no size by itself: the backend repacks the page."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4
    NVFP4 = 5
    TURBOQUANT_K8V4 = 6
    TURBOQUANT_4BIT_NC = 7
    TURBOQUANT_K3V4_NC = 8
    TURBOQUANT_3BIT_NC = 9
    NVFP4_DS_MLA = 10
    ULTRAQUANT_4BIT = 11
    OCTAVE_K3V4 = 12
    OCTAVE_K3V3 = 13
    OCTAVE_K3V3_COMPACT = 14

    @property
    def is_per_token_head(self) -> bool:
        """Each (token, head) carries fp32 scales of its own."""
        return self.name.endswith("PER_TOKEN_HEAD")

    @property
    def is_nvfp4(self) -> bool:
        """Packed fp4 data and fp8 block scales."""
        return self is KVQuantMode.NVFP4

    @property
    def is_turboquant(self) -> bool:
        """One of the TurboQuant formats."""
        return self.name.startswith("TURBOQUANT")

    @property
    def is_octave(self) -> bool:
        """One of the Octave formats."""
        return self.name.startswith("OCTAVE")

    @property
    def is_ultraquant(self) -> bool:
        """The UltraQuant 4-bit format."""
        return self is KVQuantMode.ULTRAQUANT_4BIT


def as_quant_mode(mode: object) -> KVQuantMode:
    """Return a mode given by name, as a member, or as vLLM's own; LayoutError for anything else."""
    name = mode if isinstance(mode, str) else getattr(mode, "name", None)
    if name in KVQuantMode.__members__:
        return KVQuantMode[name]
    raise LayoutError("kv_quant_mode", mode, "is not a quantisation mode",
                      f"Use a KVQuantMode: {', '.join(KVQuantMode.__members__)}")
