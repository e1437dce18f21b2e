"""Words that say whose bytes they are: a random-looking number for each (layer, block, head slot, state, word).

It is separable: blocks are counted in batches of ``batch``, and a word is its batch's number XORed with a tile that
is the same for every batch. So a whole chunk is one tile and one number a batch. A word has at most 8 bytes, and
fewer where an offset or a stride asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

_TYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_KEYS = {"batch": 0x9E3779B97F4A7C15, "layer": 0xA0761D6478BD642F, "row": 0xD6E8FEB86659FD93,
         "cell": 0xC2B2AE3D27D4EB4F, "column": 0x165667B19E3779F9}
NEEDED_BYTES = 4  # of a fingerprint, taken together over the passes, so that all pages are told apart


def word_type(word_bytes: int) -> torch.dtype:
    """Return torch's integer type of that many bytes."""
    return _TYPES[word_bytes]


class Fingerprint:
    """The fingerprints of one pass over words of ``word_bytes``.

    ``salt`` makes two proofs of one cache differ, so that what an earlier one left can't pass for this one's.
    ``turn`` counts the passes: each shows other bits of the same hash.
    """

    def __init__(self, word_bytes: int, batch: int, salt: int, turn: int = 0):
        self.word_bytes, self.batch = word_bytes, batch
        self.shift = np.uint64(8 * word_bytes * turn)
        self.salt = salt

    def words(self, layer: int, block: int, head: int, state: int, word: int) -> np.ndarray:
        """Return the unsigned word of one coordinate, as an array of one item."""
        batch, row = divmod(block, self.batch)
        parts = self._mix(0, batch, "batch"), self._mix(0, layer, "layer"), self._mix(0, row, "row")
        return np.atleast_1d(parts[0] ^ parts[1] ^ parts[2] ^ self._mix(head, state, "cell")
                             ^ self._mix(0, word, "column"))

    def batches(self, count: int, device: torch.device) -> torch.Tensor:
        """Return [count], the numbers of the first batches."""
        return to_tensor(self._mix(0, np.arange(count), "batch"), device)

    def tile(self, layers: np.ndarray, rows: slice, heads: slice, states: slice, words: slice,
             device: torch.device) -> torch.Tensor:
        """Return [layers, rows, heads, states, words], what is the same for every batch; rows are blocks of one."""
        row, head, state, word = (np.arange(one.start, one.stop) for one in (rows, heads, states, words))
        parts = (self._mix(0, layers, "layer")[:, None] ^ self._mix(0, row, "row"),
                 self._mix(head[:, None], state, "cell")[..., None] ^ self._mix(0, word, "column"))
        outer, inner = (to_tensor(part, device) for part in parts)
        return outer[..., None, None, None] ^ inner

    def _mix(self, high, low, key: str) -> np.ndarray:
        """A 64-bit hash (splitmix64) of two numbers, cut down to a word; the high one stays below 2^24."""
        x = np.asarray(high, dtype=np.uint64) << np.uint64(40)
        with np.errstate(over="ignore"):
            x = x + np.asarray(low, dtype=np.uint64) + np.uint64((_KEYS[key] * (2 * self.salt + 1)) % 2**64)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        return (x >> self.shift).astype(_UNSIGNED[self.word_bytes])


def to_tensor(words: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return unsigned words as the signed torch type of the same bits, on ``device``."""
    words = np.ascontiguousarray(words)
    return torch.from_numpy(words.view(f"i{words.itemsize}")).to(device)


def boxes(extents: Sequence[int], order: Sequence[int], most: int) -> Iterator[tuple[slice, ...]]:
    """Yield slices (one an axis) that cut an array into boxes of at most ``most`` items, in physical order.

    ``order``: axes, outermost first. Outer axes are taken one index at a time, one axis in ranges, inner ones whole.
    """
    inner = 1
    cut = len(order)
    while cut and inner * extents[order[cut - 1]] <= most:
        cut -= 1
        inner *= extents[order[cut]]
    box = [slice(0, n) for n in extents]
    if not cut:
        yield tuple(box)
        return
    ranged, step = order[cut - 1], max(1, most // inner)
    outer = [extents[axis] for axis in order[:cut - 1]]
    for index in np.ndindex(*outer):
        for axis, i in zip(order, index):
            box[axis] = slice(i, i + 1)
        for start in range(0, extents[ranged], step):
            box[ranged] = slice(start, min(start + step, extents[ranged]))
            yield tuple(box)
