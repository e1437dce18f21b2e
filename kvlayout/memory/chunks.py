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
from itertools import takewhile

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
        self._layers_at_once = max(1, _ROOM_BYTES // (most * word_bytes))
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
        for _, part, tile, numbers in self._walk(self._raw()):
            part ^= tile
            part ^= numbers
            count(part.numel() * self.size)

    def _walk(self, wholes: Iterator) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield (layer, part of one of ``wholes``, its tile, its batches' numbers): [batches, ...] as they lie.

        A whole is (layer, local layers, words [layers, B, H, N, words]); tile and numbers broadcast against the part.
        """
        blocks, batch = self.region.geometry.shape[1], self.prints.batch
        full, rest = divmod(blocks, batch)
        numbers = self.prints.batches(full + 1, self.cache.device)[:, None, None, None, None, None]
        for name, local, words in wholes:
            batches = words[:, :full * batch].unflatten(1, (full, batch))
            for box in self._boxes:
                at_once = max(1, self._most // math.prod((len(words), *(one.stop - one.start for one in box))))
                for first in range(0, full, at_once):
                    some = slice(first, min(first + at_once, full))
                    yield name, self._as_it_lies(batches[:, some, *box]), self._tile(local, box), numbers[some]
                rows = slice(box[0].start, min(box[0].stop, rest))
                if rows.start < rows.stop:
                    last = words[:, full * batch:].unsqueeze(1)[:, :, rows, *box[1:]]
                    yield name, self._as_it_lies(last), self._tile(local, (rows, *box[1:])), numbers[full:]

    def _as_it_lies(self, part: torch.Tensor) -> torch.Tensor:
        return part.permute(self.order)

    def _tile(self, local: slice, box: tuple[slice, ...]) -> torch.Tensor:
        layers = self.region.layers[local]
        key = *self.order, layers.tobytes(), *((one.start, one.stop) for one in box)
        if key not in self._tiles:
            tile = self._as_it_lies(self.prints.tile(layers, *box, self.cache.device).unsqueeze(1)).contiguous()
            if sum(one.nbytes for one in self._tiles.values()) + tile.nbytes > _TILES_BYTES:
                self._tiles.clear()
            self._tiles[key] = tile
        return self._tiles[key]

    def _views(self) -> Iterator[tuple[str, slice, torch.Tensor]]:
        """The layers' own views, in words: those side by side whose views lie evenly within a block, stacked."""
        names = self.region.tensor.layers
        views = [self._view(name) for name in names]
        local = 0
        while local < len(names):
            several, step = _evenly(views[local:local + self._layers_at_once])
            view = views[local]
            yield names[local], slice(local, local + several), view.as_strided(
                (several, *view.shape), (step, *view.stride()), view.storage_offset())
            local += several

    def _view(self, name: str) -> torch.Tensor:
        view = self.cache.views[name]
        if view.element_size() > self.size and view.shape[3] > 1 and view.stride(3) != 1:
            # Parts of an element lie side by side and elements don't: no one stride of words says that.
            raise LayoutError("cache.views", name, f"scatters a state: its elements lie {view.stride(3)} apart; "
                              "the address map has its bytes side by side", "Give a view whose last stride is 1")
        return _as_words(view, self.region, self.size)

    def _raw(self) -> Iterator[tuple[str, slice, torch.Tensor]]:
        """The buffer at the map's addresses: many layers at once where they lie within a block, else one by one."""
        geometry, names = self.region.geometry, self.region.tensor.layers
        words = self.cache.buffer[:self.cache.nbytes // self.size * self.size].view(word_type(self.size))
        steps = [step // self.size for step in geometry.strides[:4]] + [max(1, geometry.strides[4] // self.size)]
        shape = geometry.shape[1:4] + (geometry.shape[4] // self.size,)
        several = self._layers_at_once if geometry.strides[0] < geometry.strides[1] else 1
        for local in range(0, len(names), several):
            first = words.storage_offset() + geometry.offset // self.size + local * steps[0]
            some = slice(local, min(local + several, len(names)))
            yield names[local], some, words.as_strided((some.stop - local, *shape), steps, first)


def _evenly(views: list[torch.Tensor]) -> tuple[int, int]:
    """How many of the first views differ in nothing but one even step inside a block, and that step; or (1, 0)."""
    first = views[0]
    alike = takewhile(lambda view: (view.stride(), view.untyped_storage().data_ptr())
                      == (first.stride(), first.untyped_storage().data_ptr()), views)
    steps = np.diff([view.storage_offset() for view in alike]).tolist()
    if not steps or not 0 < steps[0] < first.stride(0):
        return 1, 0
    return 1 + len(list(takewhile(lambda step: step == steps[0], steps))), steps[0]


def _as_words(view: torch.Tensor, region: Region, word_bytes: int) -> torch.Tensor:
    """The same bytes as [B, H, N, words]: the view's own storage, offset and strides, in another type."""
    _, blocks, heads, states, content = region.geometry.shape
    item = view.element_size()
    steps = [stride * item // word_bytes for stride in view.stride()[:3]]
    last = 1 if view.stride(3) == 1 or view.shape[3] == 1 else view.stride(3) * item // word_bytes
    flat = torch.empty(0, dtype=word_type(word_bytes), device=view.device).set_(view.untyped_storage())
    return flat.as_strided((blocks, heads, states, content // word_bytes), (*steps, last),
                           view.storage_offset() * item // word_bytes)


def _write(part, tile, numbers, library) -> Exception | None:
    """Write a chunk's words into ``part``; return why it can't be. ``library`` is NumPy or torch, the arrays' own."""
    try:
        library.bitwise_xor(tile, numbers, out=part)
    except (RuntimeError, ValueError) as error:
        return error
    return None


def _differs(part, tile, numbers, library):
    """Whether ``part`` isn't the chunk's words: without the tile, nothing but the batches' numbers may be left."""
    if library is torch:
        return (torch.bitwise_xor(part, tile) != numbers).any()
    at_once = max(1, _ROOM_BYTES // part[0].nbytes)
    rest, flags = _room((min(at_once, len(part)), *part.shape[1:]), part.dtype)
    for first in range(0, len(part), at_once):
        some = slice(first, min(first + at_once, len(part)))
        count = some.stop - first
        np.bitwise_xor(part[some], tile, out=rest[:count])
        if np.not_equal(rest[:count], numbers[some], out=flags[:count]).any():
            return True
    return False


def _room(shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """This thread's own room for some batches: memory that is asked for anew costs as much as the comparison."""
    size = math.prod(shape)
    nbytes = size * dtype.itemsize
    if getattr(_local, "words", None) is None or _local.words.nbytes < nbytes:
        _local.words, _local.flags = np.empty(nbytes, np.uint8), np.empty(nbytes, bool)
    return _local.words[:nbytes].view(dtype).reshape(shape), _local.flags[:size].reshape(shape)
