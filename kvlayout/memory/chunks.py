"""One tensor's layers, chunk by chunk: fingerprints written through views, and looked for at the map's addresses.

On the CPU a few threads of NumPy do it: torch's own would wait for each other at every chunk, which on a busy machine
takes ten times as long. On a GPU torch does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from kvlayout.errors import LayoutError
from kvlayout.memory.cache import KVCache
from kvlayout.memory.fingerprint import Fingerprint, boxes, word_type
from kvlayout.region import Region

# A chunk of the CPU's stays in its cache, and so does a GPU's.
_CHUNK_BYTES = {"cpu": 2 << 20}
_OTHER_CHUNK_BYTES = 16 << 20
_TILES_BYTES = 64 << 20  # tiles that are kept, of all regions together
_MOST_THREADS = 8
_local = threading.local()


class Chunks:
    """One region, chunk by chunk: a batch of blocks of one layer, or a part of a page where a page is larger.

    ``tiles``: kept here, and shared by all regions that have the same ``word_bytes``, ``salt`` and ``turn``.
    """

    def __init__(self, cache: KVCache, region: Region, word_bytes: int, salt: int, turn: int,
                 tiles: dict[tuple, torch.Tensor]):
        self.cache, self.region, self.size = cache, region, word_bytes
        _, blocks, heads, states, content = region.geometry.shape
        most = _CHUNK_BYTES.get(cache.device.type, _OTHER_CHUNK_BYTES) // word_bytes
        page = heads * states * content // word_bytes
        batch = min(blocks, max(1, most // page))
        self.prints = Fingerprint(word_bytes, batch, salt, turn)
        strides = region.geometry.strides[1:]
        # The page's own axes, outermost first, so that a chunk is walked as it lies.
        self.order = sorted(range(4), key=lambda axis: -strides[axis])
        self._tiles = tiles
        self._boxes = list(boxes((batch, heads, states, content // word_bytes), self.order, most))

    def write(self, count: Callable[[int], None]) -> None:
        """Write every word of the region's layers, through their views."""
        for name, error in self._each(self._view, _write, count):
            if error is not None:
                raise LayoutError("cache.views", name, f"can't be written: {error}",
                                  "Give a view whose elements are each a place of their own")

    def differs(self, count: Callable[[int], None]) -> bool:
        """Whether the buffer holds anything but the expected words at the map's addresses."""
        wrong = [found for _, found in self._each(self._raw, _differs, count)]
        return bool(wrong) and bool(torch.stack(wrong).any() if isinstance(wrong[0], torch.Tensor) else any(wrong))

    def _each(self, words: Callable, work: Callable, count: Callable[[int], None]) -> Iterator[tuple[str, object]]:
        """Do ``work`` on every chunk; yield (layer, its result)."""
        chunks = self._walk(words)
        if self.cache.device.type != "cpu":
            for name, part, tile, page in chunks:
                yield name, work(part, tile, page, torch)
                count(part.numel() * self.size)
            return
        threads = min(_MOST_THREADS, torch.get_num_threads())
        with ThreadPoolExecutor(threads) as pool:
            waiting: deque[tuple[str, int, Future]] = deque()

            def first() -> tuple[str, object]:
                name, numel, future = waiting.popleft()
                found = future.result()
                count(numel * self.size)
                return name, found

            try:
                for name, part, tile, page in chunks:
                    waiting.append((name, part.numel(), pool.submit(work, part.numpy(), tile.numpy(), page, np)))
                    if len(waiting) > 4 * threads:  # each chunk that waits holds its tile
                        yield first()
                while waiting:
                    yield first()
            finally:
                pool.shutdown(cancel_futures=True)

    def cancel(self, count: Callable[[int], None]) -> None:
        """XOR the expected words into the buffer at the map's addresses."""
        for _, part, tile, page in self._walk(self._raw):
            part ^= tile
            part ^= page
            count(part.numel() * self.size)

    def _walk(self, words: Callable) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, int]]:
        """Yield (layer, part of what ``words`` gives of it, its tile, its page number), axes in physical order."""
        blocks, batch = self.region.geometry.shape[1], self.prints.batch
        for local, name in enumerate(self.region.tensor.layers):
            whole = words(local, name)
            starts = range(0, blocks, batch)
            for start, page in zip(starts, self.prints.pages(int(self.region.layers[local]), len(starts))):
                for box in self._boxes:
                    rows = slice(box[0].start, min(box[0].stop, blocks - start))
                    if rows.start < rows.stop:
                        inside = (slice(start + rows.start, start + rows.stop), *box[1:])
                        yield name, whole[inside].permute(self.order), self._tile(rows, *box[1:]), page

    def _tile(self, rows: slice, *inside: slice) -> torch.Tensor:
        key = *self.order, *((one.start, one.stop) for one in (rows, *inside))
        if key not in self._tiles:
            tile = self.prints.tile(rows, *inside, self.cache.device).permute(self.order).contiguous()
            if sum(one.nbytes for one in self._tiles.values()) + tile.nbytes > _TILES_BYTES:
                self._tiles.clear()
            self._tiles[key] = tile
        return self._tiles[key]

    def _view(self, local: int, name: str) -> torch.Tensor:
        view = self.cache.views[name]
        if view.element_size() > self.size and view.shape[3] > 1 and view.stride(3) != 1:
            # Parts of an element lie side by side and elements don't: no one stride of words says that.
            raise LayoutError("cache.views", name, f"scatters a state: its elements lie {view.stride(3)} apart; "
                              "the address map has its bytes side by side", "Give a view whose last stride is 1")
        return _as_words(view, self.region, self.size)

    def _raw(self, local: int, name: str) -> torch.Tensor:
        """The raw buffer at the map's addresses of one layer."""
        offset, (_, *extents, content), strides = (self.region.geometry.offset, self.region.geometry.shape,
                                                   self.region.geometry.strides)
        words = self.cache.buffer[:self.cache.nbytes // self.size * self.size].view(word_type(self.size))
        steps = [step // self.size for step in strides[1:4]] + [max(1, strides[4] // self.size)]
        first = words.storage_offset() + (offset + local * strides[0]) // self.size
        return words.as_strided((*extents, content // self.size), steps, first)


def _as_words(view: torch.Tensor, region: Region, word_bytes: int) -> torch.Tensor:
    """The same bytes as [B, H, N, words]: the view's own storage, offset and strides, in another type."""
    _, blocks, heads, states, content = region.geometry.shape
    item = view.element_size()
    steps = [stride * item // word_bytes for stride in view.stride()[:3]]
    last = 1 if view.stride(3) == 1 or view.shape[3] == 1 else view.stride(3) * item // word_bytes
    flat = torch.empty(0, dtype=word_type(word_bytes), device=view.device).set_(view.untyped_storage())
    return flat.as_strided((blocks, heads, states, content // word_bytes), (*steps, last),
                           view.storage_offset() * item // word_bytes)


def _write(part, tile, page: int, library) -> Exception | None:
    """Write a chunk's words into ``part``; return why it can't be. ``library`` is NumPy or torch, the arrays' own."""
    try:
        library.bitwise_xor(tile, page, out=part)
    except (RuntimeError, ValueError) as error:
        return error
    return None


def _differs(part, tile, page: int, library):
    """Whether ``part`` isn't the chunk's words: without the tile, nothing but the page's number may be left."""
    if library is torch:
        low, high = torch.aminmax(torch.bitwise_xor(part, tile))
        return (low != page) | (high != page)
    rest, differs = _room(part)
    np.bitwise_xor(part, tile, out=rest)
    return np.not_equal(rest, page, out=differs).any()


def _room(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """This thread's own room for a chunk: memory that is asked for anew costs as much as the comparison."""
    if getattr(_local, "words", None) is None or _local.words.nbytes < part.nbytes:
        _local.words, _local.flags = np.empty(part.nbytes, np.uint8), np.empty(part.nbytes, bool)
    return (_local.words[:part.nbytes].view(part.dtype).reshape(part.shape),
            _local.flags[:part.size].reshape(part.shape))
