"""What every spec has: a block of tokens, and the sizes of the page that it takes in one layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from kvlayout.errors import LayoutError, check_int


@dataclass(frozen=True)
class MultipleOf:
    """A size that may be any multiple of ``base`` tokens (vLLM's class of the same name)."""

    base: int

    def __post_init__(self):
        check_int("MultipleOf.base", self.base, minimum=1)

    def __str__(self) -> str:
        return f"multiples of {self.base}"


def set_fields(spec: object, **values: object) -> None:
    """Set fields of a frozen spec while it is made."""
    for name, value in values.items():
        object.__setattr__(spec, name, value)


@dataclass(frozen=True)
class KVCacheSpec:
    """What every layer's cache has: a block of ``block_size`` tokens. Use one of the subclasses."""

    block_size: int
    dcp_sharded: bool = field(default=False, kw_only=True)
    block_stride_alignment: int | MultipleOf | None = field(default=None, kw_only=True)
    is_draft: bool = field(default=False, kw_only=True, compare=False)

    def __post_init__(self):
        set_fields(self, block_size=check_int("block_size", self.block_size, minimum=1))
        alignment = self.block_stride_alignment
        if alignment is not None and not isinstance(alignment, MultipleOf):
            check_int("block_stride_alignment", alignment, minimum=1)

    # Whether vLLM makes a [B, H, N, C] view of each layer, and whether a slot mapping addresses its tokens.
    has_layer_views = True
    uses_slot_mapping = True

    @property
    def num_states(self) -> int:
        """N: token states of one block."""
        return self.get_num_kernel_states(self.block_size)

    def get_num_kernel_states(self, kernel_block_size: int) -> int:
        """Return N for a block of ``kernel_block_size`` tokens; 0 where that is shorter than one state."""
        return int(kernel_block_size // self.tokens_per_state) if self.tokens_per_state > 0 else 1

    @property
    def unpadded_page_size_bytes(self) -> int:
        """H x N x C: the bytes of one page that hold content."""
        return self.num_heads * self.num_states * self.state_content_size_bytes

    @property
    def page_size_bytes(self) -> int:
        """Bytes from one page's start to its end, padding included."""
        padded = self.page_size_padded
        return self.unpadded_page_size_bytes if padded is None else padded

    def _check_padding(self):
        if self.page_size_padded is None:
            return
        check_int("page_size_padded", self.page_size_padded, minimum=1)
        if self.page_size_padded < self.unpadded_page_size_bytes:
            raise LayoutError("page_size_padded", self.page_size_padded,
                              f"is below the page's own {self.unpadded_page_size_bytes:,} bytes",
                              "Give at least those bytes, or None for no padding")

    def get_block_stride_alignment(self) -> int:
        """Bytes that the distance between two blocks must be a multiple of (vLLM 0.31 and newer)."""
        alignment = self.block_stride_alignment
        if not isinstance(alignment, MultipleOf):
            return alignment or 1
        kernel_block_size = math.gcd(alignment.base, self.block_size)
        if kernel_block_size == self.block_size:
            return 1
        page_size = self.copy_with_new_block_size(kernel_block_size).page_size_bytes
        if page_size == 0:
            raise LayoutError("block_stride_alignment", alignment,
                              f"makes kernel blocks of {kernel_block_size} tokens, which hold no state",
                              f"Use a multiple of {self.tokens_per_state} tokens")
        return page_size

    def copy_with_new_block_size(self, block_size: int):
        """Return the same spec for blocks of ``block_size`` tokens."""
        return replace(self, block_size=block_size)
