"""The classic mistake, on purpose: strides worked out from the shape, as if the view were contiguous.

[B, N, H, C] in one piece, slot x row: right for LBNHC as long as a page has no padding, and wrong for all else, where
heads lie apart, other layers' pages lie between two blocks, or a page is longer than its content.
"""

from __future__ import annotations

import torch

from kvlayout.bench.examples.triton_writer import launch


def write(key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Write as :func:`kvlayout.bench.examples.triton_writer.write`, but not always to the right place."""
    _, heads, block_size, content = kv_cache.shape
    launch(key, value, kv_cache, slot_mapping, block_size * heads * content, content, heads * content)
