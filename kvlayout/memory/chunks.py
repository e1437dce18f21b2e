"""One tensor's layers, chunk by chunk: fingerprints written through views, and looked for at the map's addresses.

On the CPU a few threads of NumPy do it: torch's own would wait for each other at every chunk, which on a busy machine
takes ten times as long. On a GPU torch does.
"""

from __future__ import annotations

import math
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

# Of a tile, and of what one call works on: a CPU's tile stays in its core's cache for all of a call's batches.
_BYTES = {"cpu": (64 << 10, 32 << 20)}
_OTHER_BYTES = (2 << 20, 32 << 20)
_ROOM_BYTES = 2 << 20  # of a comparison that a thread holds: it stays in the cores' common cache
_TILES_BYTES = 64 << 20  # tiles that are kept, of all regions together
_MOST_THREADS = 8
_local = threading.local()


class Chunks:
    """One region, chunk by chunk: some batches of blocks of one layer, or a part of a page of each where it is large.

    ``tiles``: kept here, and shared by all regions that have the same ``word_bytes``, ``salt`` and ``turn``.
    """

    def __init__(self, cache: KVCache, region: Region, word_bytes: int, salt: int, turn: int,
                 tiles: dict[tuple, torch.Tensor]):
        self.cache, self.region, self.size = cache, region, word_bytes
        _, blocks, heads, states, content = region.geometry.shape
        most, self._most = (n // word_bytes for n in _BYTES.get(cache.device.type, _OTHER_BYTES))
        page = heads * states * content // word_bytes
        batch = min(blocks, max(1, most // page))
        self.prints = Fingerprint(word_bytes, batch, salt, turn)
        strides = region.geometry.strides
        # Of [layers, batches, blocks, heads, states, words], outermost first, so that a chunk is walked as it lies.
        inner = sorted((0, 2, 3, 4, 5), key=lambda axis: -strides[max(0, axis - 1)])
        self.order = 1, *inner
        self._tiles = tiles
        self._boxes = list(boxes((batch, heads, states, content // word_bytes),
                                 [axis - 2 for axis in inner if axis], most))

    def write(self, count: Callable[[int], None]) -> None:
        """Write every word of the region's layers, through their views."""
        for name, error in self._each(self._views(), _write, count):
            if error is not None:
                raise LayoutError("cache.views", name, f"can't be written: {error}",
                                  "Give a view whose elements are each a place of their own")

    def differs(self, count: Callable[[int], None]) -> bool:
        """Whether the buffer holds anything but the expected words at the map's addresses."""
        wrong = [found for _, found in self._each(self._raw(), _differs, count)]
        return bool(wrong) and bool(torch.stack(wrong).any() if isinstance(wrong[0], torch.Tensor) else any(wrong))

    def _each(self, wholes: Iterator, work: Callable, count: Callable[[int], None]) -> Iterator[tuple[str, object]]:
        """Do ``work`` on every chunk; yield (layer, its result)."""
        chunks = self._walk(wholes)
        if self.cache.device.type != "cpu":
            for name, *chunk in chunks:
                yield name, work(*chunk, torch)
                count(chunk[0].numel() * self.size)
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
                for name, *chunk in chunks:
                    waiting.append((name, chunk[0].numel(), pool.submit(work, *(one.numpy() for one in chunk), np)))
                    if len(waiting) > 4 * threads:  # each chunk that waits holds its tile
                        yield first()
                while waiting:
                    yield first()
            finally:
                pool.shutdown(cancel_futures=True)

    def cancel(self, count: Callable[[int], None]) -> None:
        """XOR the expected words into the buffer at the map's addresses."""
        for _, part, tile, pages in self._walk(self._raw()):
            part ^= tile
            part ^= pages
            count(part.numel() * self.size)

    def _walk(self, wholes: Iterator) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield (layer, part of one of ``wholes``, its tile, its pages' numbers): [batches, ...] as they lie.

        A whole is (layer, local layers, words [layers, B, H, N, words]); tile and pages broadcast against the part.
        """
        blocks, batch = self.region.geometry.shape[1], self.prints.batch
        full, rest = divmod(blocks, batch)
        for name, local, words in wholes:
            batches = words[:, :full * batch].unflatten(1, (full, batch))
            pages = self.prints.pages(self.region.layers[local], full + 1, self.cache.device)
            for box in self._boxes:
                at_once = max(1, self._most // math.prod((len(words), *(one.stop - one.start for one in box))))
                for first in range(0, full, at_once):
                    some = slice(first, min(first + at_once, full))
                    yield name, *self._chunk(batches[:, some, *box], pages[:, some], box)
                rows = slice(box[0].start, min(box[0].stop, rest))
                if rows.start < rows.stop:
                    last = words[:, full * batch:].unsqueeze(1)
                    yield name, *self._chunk(last[:, :, rows, *box[1:]], pages[:, full:], (rows, *box[1:]))

    def _chunk(self, part: torch.Tensor, pages: torch.Tensor, box: tuple[slice, ...]):
        return part.permute(self.order), self._tile(box), pages[..., None, None, None, None].permute(self.order)

    def _tile(self, box: tuple[slice, ...]) -> torch.Tensor:
        key = *self.order, *((one.start, one.stop) for one in box)
        if key not in self._tiles:
            tile = self.prints.tile(*box, self.cache.device)[None, None].permute(self.order).contiguous()
            if sum(one.nbytes for one in self._tiles.values()) + tile.nbytes > _TILES_BYTES:
                self._tiles.clear()
            self._tiles[key] = tile
        return self._tiles[key]

    def _views(self) -> Iterator[tuple[str, slice, torch.Tensor]]:
        """Each layer's own view, in words."""
        for local, name in enumerate(self.region.tensor.layers):
            view = self.cache.views[name]
            if view.element_size() > self.size and view.shape[3] > 1 and view.stride(3) != 1:
                # Parts of an element lie side by side and elements don't: no one stride of words says that.
                raise LayoutError("cache.views", name, f"scatters a state: its elements lie {view.stride(3)} apart; "
                                  "the address map has its bytes side by side", "Give a view whose last stride is 1")
            yield name, slice(local, local + 1), _as_words(view, self.region, self.size).unsqueeze(0)

    def _raw(self) -> Iterator[tuple[str, slice, torch.Tensor]]:
        """The buffer at the map's addresses: all layers at once where they lie within a block, else one by one."""
        geometry, names = self.region.geometry, self.region.tensor.layers
        words = self.cache.buffer[:self.cache.nbytes // self.size * self.size].view(word_type(self.size))
        steps = [step // self.size for step in geometry.strides[:4]] + [max(1, geometry.strides[4] // self.size)]
        shape = geometry.shape[1:4] + (geometry.shape[4] // self.size,)
        several = len(names) if geometry.strides[0] < geometry.strides[1] else 1
        for local in range(0, len(names), several):
            first = words.storage_offset() + geometry.offset // self.size + local * steps[0]
            yield names[local], slice(local, local + several), words.as_strided((several, *shape), steps, first)


def _as_words(view: torch.Tensor, region: Region, word_bytes: int) -> torch.Tensor:
    """The same bytes as [B, H, N, words]: the view's own storage, offset and strides, in another type."""
    _, blocks, heads, states, content = region.geometry.shape
    item = view.element_size()
    steps = [stride * item // word_bytes for stride in view.stride()[:3]]
    last = 1 if view.stride(3) == 1 or view.shape[3] == 1 else view.stride(3) * item // word_bytes
    flat = torch.empty(0, dtype=word_type(word_bytes), device=view.device).set_(view.untyped_storage())
    return flat.as_strided((blocks, heads, states, content // word_bytes), (*steps, last),
                           view.storage_offset() * item // word_bytes)


def _write(part, tile, pages, library) -> Exception | None:
    """Write a chunk's words into ``part``; return why it can't be. ``library`` is NumPy or torch, the arrays' own."""
    try:
        library.bitwise_xor(tile, pages, out=part)
    except (RuntimeError, ValueError) as error:
        return error
    return None


def _differs(part, tile, pages, library):
    """Whether ``part`` isn't the chunk's words: without the tile, nothing but the pages' numbers may be left."""
    if library is torch:
        return (torch.bitwise_xor(part, tile) != pages).any()
    at_once = max(1, _ROOM_BYTES // part[0].nbytes)
    rest, flags = _room((min(at_once, len(part)), *part.shape[1:]), part.dtype)
    for first in range(0, len(part), at_once):
        some = slice(first, min(first + at_once, len(part)))
        count = some.stop - first
        np.bitwise_xor(part[some], tile, out=rest[:count])
        if np.not_equal(rest[:count], pages[some], out=flags[:count]).any():
            return True
    return False


def _room(shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """This thread's own room for some batches: memory that is asked for anew costs as much as the comparison."""
    size = math.prod(shape)
    nbytes = size * dtype.itemsize
    if getattr(_local, "words", None) is None or _local.words.nbytes < nbytes:
        _local.words, _local.flags = np.empty(nbytes, np.uint8), np.empty(nbytes, bool)
    return _local.words[:nbytes].view(dtype).reshape(shape), _local.flags[:size].reshape(shape)
