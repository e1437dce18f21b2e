"""The bytes of one page in address order, as rows to draw: also of a page that a layout scatters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.rounding import ceil_div
from kvlayout_widgets.figures.theme import format_bytes
from kvlayout_widgets.figures.wording import count

MOST_ROWS = 16


@dataclass(frozen=True)
class PageBytes:
    """A page's runs in address order, joined to positions 0, 1, 2 ... and cut into rows.

    Attributes:
        starts, lengths: the runs' byte offsets and bytes, padding of the page included
        fold: positions (bytes) of one row
        row_words: what one row is
    """

    starts: np.ndarray
    lengths: np.ndarray
    fold: int
    row_words: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the page, padding included."""
        return int(self.lengths.sum())

    @property
    def num_rows(self) -> int:
        """Rows that the page takes."""
        return ceil_div(self.num_bytes, self.fold)

    def offsets(self, positions: np.ndarray) -> np.ndarray:
        """Return the byte offsets of positions; past the page's end those of its last byte."""
        ends = np.cumsum(self.lengths)
        positions = np.minimum(positions, self.num_bytes - 1)
        run = np.searchsorted(ends, positions, side="right")
        return self.starts[run] + positions - (ends - self.lengths)[run]

    def positions(self, offsets: np.ndarray) -> np.ndarray:
        """Return the positions of byte offsets that lie in the page."""
        run = np.searchsorted(self.starts, offsets, side="right") - 1
        return (np.cumsum(self.lengths) - self.lengths)[run] + offsets - self.starts[run]


def page_bytes(address_map: AddressMap, layer: str, block: int) -> PageBytes:
    """Return the bytes of one page of one layer."""
    region = address_map.region(layer)
    starts, lengths = address_map.run_arrays(layer, block)
    if address_map.layout.is_block_compact:
        starts, lengths = starts[:1], np.array([region.page_size_bytes])
    if 1 < len(starts) <= MOST_ROWS and len(np.unique(lengths)) == 1:
        length = int(lengths[0])
        return PageBytes(starts, lengths, length, f"one contiguous run, {format_bytes(length)}")
    fold, words = _fold(region, int(lengths.sum())) if len(starts) == 1 else (int(lengths.sum()), "all runs, joined")
    return PageBytes(starts, lengths, fold, words)


def _fold(region, size: int) -> tuple[int, str]:
    """Return (bytes of a row, what it is): the outermost step inside the page, or several of them."""
    _, _, heads, states, _ = region.geometry.shape
    _, _, head_stride, state_stride, _ = region.geometry.strides
    steps = [(stride, axis) for stride, extent, axis in ((head_stride, heads, "H"), (state_stride, states, "N"))
             if extent > 1]
    if region.interior.scope == "page" or not steps:
        return size, "the whole page"
    stride, axis = max(steps)
    times = ceil_div(size, stride * MOST_ROWS)
    return stride * times, f"{count(times, axis)}, {format_bytes(stride * times)}"
