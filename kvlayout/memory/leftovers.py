"""What a proof left in the buffer: whose bytes differ, what was expected, and whose view wrote what is there."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from kvlayout.address import AddressMap
from kvlayout.memory.cache import KVCache
from kvlayout.memory.fingerprint import Fingerprint
from kvlayout.proof import MOST_BINS, Mismatch, MismatchMap
from kvlayout.strided import StridedSet

_MOST_SHOWN = 16
_MOST_DECODED = 1 << 28


class Leftovers:
    """The differing bytes of one group.

    Attributes:
        wrong_bytes: how many there are
        decoded_bytes: how many of them were looked up
        mismatches: the first, one a word
    """

    def __init__(self, cache: KVCache, group: int):
        self.cache, self.group, self.map = cache, group, cache.address_map
        self.wrong_bytes = self.decoded_bytes = 0
        self.mismatches: list[Mismatch] = []
        self.regions = [region for region in self.map.regions if region.group == group]
        blocks = max((region.geometry.shape[1] for region in self.map.regions), default=1)
        self.blocks_per_bin = -(-blocks // MOST_BINS)
        self.counts = np.zeros((len(self.map.layers), -(-blocks // self.blocks_per_bin)), dtype=np.int64)

    def add(self, start: int, chunk: torch.Tensor, prints: dict[int, Fingerprint]) -> None:
        """Take the bytes of ``chunk`` (int8, from byte ``start`` of the buffer) that aren't zero.

        ``prints``: {tensor index: the fingerprints that were written there}.
        """
        places = torch.nonzero(chunk).flatten()
        self.wrong_bytes += len(places)
        if self.decoded_bytes >= _MOST_DECODED:
            return
        self.decoded_bytes += len(places)
        offsets = start + places.cpu().numpy()
        if all(region.addresses.is_nested for region in self.regions):
            located = self.map.locate(offsets, self.group)
            owned = located.layer >= 0
            np.add.at(self.counts, (located.layer[owned], located.block[owned] // self.blocks_per_bin), 1)
        size = next(iter(prints.values())).word_bytes
        for word in np.unique(offsets[:_MOST_SHOWN * size] // size):
            if len(self.mismatches) < _MOST_SHOWN:
                self.mismatches.append(self._mismatch(int(word) * size, size, prints))

    def _mismatch(self, begin: int, size: int, prints: dict[int, Fingerprint]) -> Mismatch:
        """Describe the word at byte ``begin``."""
        left = self.cache.buffer[begin:begin + size].cpu().numpy().view(np.uint8)
        expected = self._expected(begin, size, prints)
        found = left ^ expected
        first = begin + int(np.flatnonzero(left)[0])
        whose = (None, 0, 0, 0, 0, "padding")
        owner = next((one for one in self.map.owners(first) if one.group == self.group), None)
        if owner is not None:
            whose = (owner.layer, owner.block, owner.head, owner.state, owner.byte, owner.field)
        writer = self._writer(begin, found, prints) if found.any() else None
        return Mismatch(self.group, first, *whose, expected.tobytes(), found.tobytes(), writer)

    def _expected(self, begin: int, size: int, prints: dict[int, Fingerprint]) -> np.ndarray:
        """The XOR of the fingerprints of all that the map places there: more than one only in a broken config."""
        total = np.zeros(size, np.uint8)
        for region in self.regions:
            for layer, block, head, state, byte in region.addresses.all_indices(begin):
                mine = prints[region.tensor_index]
                total ^= mine.words(region.layers[layer], block, head, state, byte // size).view(np.uint8)
        return total

    def _writer(self, begin: int, found: np.ndarray, prints: dict[int, Fingerprint]):
        """Whose view wrote ``found`` at byte ``begin``: its strides lead there, and it is that coordinate's word."""
        for region in self.regions:
            mine = prints[region.tensor_index]
            for name in region.tensor.layers:
                for block, head, state, word in self._reached(name, mine.word_bytes).all_indices(begin):
                    wrote = mine.words(self.map.layer_index(name), block, head, state, word)
                    if np.array_equal(wrote.view(np.uint8), found):
                        return name, block, head, state, word * mine.word_bytes
        return None

    def _reached(self, name: str, word_bytes: int) -> StridedSet:
        """The addresses that a layer's view really reaches, in whole words."""
        view = self.cache.views[name]
        item = view.element_size()
        steps = [stride * item for stride in view.stride()[:3]]
        last = word_bytes if view.stride(3) == 1 or view.shape[3] == 1 else view.stride(3) * item
        extents = (*view.shape[:3], view.shape[3] * item // word_bytes)
        return StridedSet(view.data_ptr() - self.cache.buffer.data_ptr(), extents, (*steps, last))

    @staticmethod
    def joint_map(leftovers: Iterable[Leftovers], address_map: AddressMap) -> MismatchMap | None:
        """Return the wrong bytes of all groups by layer and bin of blocks; None where nothing is wrong."""
        listed = list(leftovers)
        if not any(one.wrong_bytes for one in listed):
            return None
        counts = np.sum([one.counts for one in listed], axis=0)
        return MismatchMap(address_map.layers, listed[0].blocks_per_bin, counts)

