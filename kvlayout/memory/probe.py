"""Proof by memory: write through the views, read the raw buffer at the map's addresses, compare every byte.

Each group's layers are written with fingerprints, through their own [B, H, N, C] views. Then the raw buffer is
compared with the fingerprints that the address map expects at its addresses. Where something differs, or where a
group leaves bytes unowned, the expected ones are XORed into the buffer, and what isn't zero then lies wrong, padding
included. Groups overlay, so they are proven one after the other.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch

from kvlayout.errors import LayoutError
from kvlayout.memory.cache import KVCache
from kvlayout.memory.fingerprint import NEEDED_BYTES, Fingerprint, boxes, word_type
from kvlayout.memory.leftovers import Leftovers
from kvlayout.proof import Report
from kvlayout.region import Region

# A chunk of the CPU's stays in its cache, and so does a GPU's.
_CHUNK_BYTES = {"cpu": 4 << 20}
_OTHER_CHUNK_BYTES = 16 << 20
_SCAN_BYTES = 32 << 20
_MOST_THREADS = 8
_local = threading.local()

Progress = Callable[[int, int], None]


def verify(cache: KVCache, *, progress: Progress | bool | None = None) -> Report:
    """Prove that each view of ``cache`` reaches exactly the bytes that its address map says.

    Overwrites the whole cache, and leaves fingerprints in it where all is well, otherwise zeros. Beside it, it takes
    some tens of MiB.

    ``progress``: called with (bytes done, bytes to do); True shows a bar. What it raises ends the proof: the cache is
    zeroed, and nothing else stays allocated.
    Raises LayoutError for a cache that was freed or has no bytes, and for a view that can't be written.
    """
    _check(cache)
    started = time.perf_counter()
    with _meter(cache, progress) as meter:
        try:
            found = [_prove_group(cache, group, regions, meter) for group, regions in _groups(cache)]
        except BaseException as error:
            cache.buffer.zero_()
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(f"verify was stopped after {meter.done:,} of {meter.total:,} bytes: nothing "
                                        "is proven, and the cache holds zeros again") from error
            raise
    checked, padding, passes, leftovers = (list(part) for part in zip(*found)) if found else ([], [], [1], [])
    if any(one.wrong_bytes for one in leftovers):
        cache.buffer.zero_()
    _finish(cache.device)
    return Report(sum(checked), sum(padding), time.perf_counter() - started, max(passes),
                  sum(one.wrong_bytes for one in leftovers), tuple(m for one in leftovers for m in one.mismatches),
                  Leftovers.joint_map(leftovers, cache.address_map), str(cache.device),
                  sum(one.decoded_bytes for one in leftovers))


def _check(cache: KVCache) -> None:
    if not isinstance(cache, KVCache):
        raise LayoutError("cache", cache, "must be a KVCache", "Give what allocate_kv_cache returned")
    if cache.buffer is None:
        raise LayoutError("cache", cache, "was freed", "Allocate it again")
    if cache.device.type == "meta":
        raise LayoutError("cache", cache, "has no bytes to prove", "Allocate it on cpu or a CUDA device")
    missing = [name for name in cache.address_map.layers if name not in cache.views]
    if missing:
        raise LayoutError("cache.views", missing[0], "has no view, though it is a layer of the config",
                          "Give every layer its view")


def _groups(cache: KVCache) -> Iterator[tuple[int, list[Region]]]:
    for group in range(len(cache.config.kv_cache_groups)):
        regions = [region for region in cache.address_map.regions
                   if region.group == group and math.prod(region.geometry.shape)]
        if regions:
            yield group, regions


class _Meter:
    """Bytes done of all that there is to do."""

    def __init__(self, total: int, report: Progress | None):
        self.done, self.total, self._report = 0, total, report

    def add(self, count: int) -> None:
        self.done += count
        if self._report is not None:
            self._report(self.done, self.total)


@contextmanager
def _meter(cache: KVCache, progress: Progress | bool | None) -> Iterator[_Meter]:
    total = 0
    for _, regions in _groups(cache):
        owned = sum(math.prod(region.geometry.shape) for region in regions)
        passes = _passes(_word_bytes(cache, regions))
        total += passes * (2 * owned + (cache.nbytes if owned < cache.nbytes else 0))
    if progress is not True:
        yield _Meter(total, progress or None)
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, unit="B", unit_scale=True, desc="verify") as bar:
        yield _Meter(total, lambda done, _: bar.update(done - bar.n))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _passes(word_bytes: int) -> int:
    return max(1, NEEDED_BYTES // word_bytes)


def _word_bytes(cache: KVCache, regions: list[Region]) -> int:
    """The widest word that every offset and stride of a group's views and regions is a multiple of."""
    word = 8
    for region in regions:
        shape, strides = region.geometry.shape, region.geometry.strides
        numbers = [region.geometry.offset, *(s for n, s in zip(shape, strides[:4]) if n > 1)]
        for name in region.tensor.layers:
            view = cache.views[name]
            item = view.element_size()
            numbers += [item * s for n, s in zip(view.shape[:3], view.stride()[:3]) if n > 1]
            numbers.append(item * (view.storage_offset() - cache.buffer.storage_offset() // item))
            # Bytes of one state that don't lie side by side are written element by element.
            numbers.append(shape[4] if view.stride(3) == 1 or view.shape[3] == 1 else item)
        if strides[4] != 1 and shape[4] > 1:
            numbers.append(1)
        word = math.gcd(word, *numbers)
    return word


def _prove_group(cache: KVCache, group: int, regions: list[Region], meter: _Meter):
    owned = sum(math.prod(region.geometry.shape) for region in regions)
    gaps = max(0, cache.nbytes - owned)
    word_bytes = _word_bytes(cache, regions)
    passes, salt = _passes(word_bytes), secrets.randbits(30)
    leftovers = Leftovers(cache, group)
    for turn in range(passes):
        chunks = [_Chunks(cache, region, word_bytes, salt, turn) for region in regions]
        if gaps:
            cache.buffer.zero_()
        for one in chunks:
            one.write(meter)
        differs = False
        for one in chunks if not gaps else ():
            differs |= one.differs(meter)
        if not gaps and not differs:
            continue
        for one in chunks:
            one.cancel(meter if gaps else None)
        _scan(cache, {one.region.tensor_index: one.prints for one in chunks}, leftovers, meter if gaps else None)
        if leftovers.wrong_bytes:
            break
    return owned, gaps, passes, leftovers


class _Chunks:
    """One region, chunk by chunk: a batch of blocks of one layer, or a part of a page where a page is larger."""

    def __init__(self, cache: KVCache, region: Region, word_bytes: int, salt: int, turn: int):
        self.cache, self.region, self.size = cache, region, word_bytes
        _, blocks, heads, states, content = region.geometry.shape
        most = _CHUNK_BYTES.get(cache.device.type, _OTHER_CHUNK_BYTES) // word_bytes
        page = heads * states * content // word_bytes
        batch = min(blocks, max(1, most // page))
        self.prints = Fingerprint(word_bytes, batch, salt, turn)
        strides = region.geometry.strides[1:]
        # The page's own axes, outermost first, so that a chunk is walked as it lies.
        self.order = sorted(range(4), key=lambda axis: -strides[axis])
        self._tiles: dict = {}
        self._boxes = list(boxes((batch, heads, states, content // word_bytes), self.order, most))

    def write(self, meter: _Meter) -> None:
        """Write every word of the region's layers, through their views."""
        for name, error in self._each(self._view, _write, meter):
            if error is not None:
                raise LayoutError("cache.views", name, f"can't be written: {error}",
                                  "Give a view whose elements are each a place of their own")

    def differs(self, meter: _Meter) -> bool:
        """Whether the buffer holds anything but the expected words at the map's addresses."""
        wrong = [found for _, found in self._each(self._raw, _differs, meter)]
        return bool(wrong) and bool(torch.stack(wrong).any() if isinstance(wrong[0], torch.Tensor) else any(wrong))

    def _each(self, words: Callable, work: Callable, meter: _Meter) -> Iterator[tuple[str, object]]:
        """Do ``work`` on every chunk; yield (layer, its result).

        On the CPU in a few threads of NumPy: torch's own would wait for each other at every chunk, which on a busy
        machine takes ten times as long.
        """
        chunks = self._walk(words)
        if self.cache.device.type != "cpu":
            for name, part, tile, page in chunks:
                yield name, work(part, tile, page, torch)
                meter.add(part.numel() * self.size)
            return
        with ThreadPoolExecutor(min(_MOST_THREADS, torch.get_num_threads())) as pool:
            waiting = [(name, part.numel(), pool.submit(work, part.numpy(), tile.numpy(), page, np))
                       for name, part, tile, page in chunks]
            try:
                for name, count, future in waiting:
                    yield name, future.result()
                    meter.add(count * self.size)
            finally:
                pool.shutdown(cancel_futures=True)

    def cancel(self, meter: _Meter | None) -> None:
        """XOR the expected words into the buffer at the map's addresses."""
        for _, part, tile, page in self._walk(self._raw):
            part ^= tile
            part ^= page
            if meter is not None:
                meter.add(part.numel() * self.size)

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
        key = tuple((one.start, one.stop) for one in (rows, *inside))
        if key not in self._tiles:
            tile = self.prints.tile(rows, *inside, self.cache.device).permute(self.order).contiguous()
            # Two shapes of batch take turns, a full one and the last of a layer; a huge page's parts aren't kept.
            if len(self._boxes) == 1:
                self._tiles[key] = tile
            return tile
        return self._tiles[key]

    def _view(self, local: int, name: str) -> torch.Tensor:
        return _as_words(self.cache.views[name], name, self.region, self.size)

    def _raw(self, local: int, name: str) -> torch.Tensor:
        """The raw buffer at the map's addresses of one layer."""
        offset, (_, *extents, content), strides = (self.region.geometry.offset, self.region.geometry.shape,
                                                   self.region.geometry.strides)
        words = self.cache.buffer[:self.cache.nbytes // self.size * self.size].view(word_type(self.size))
        steps = [step // self.size for step in strides[1:4]] + [max(1, strides[4] // self.size)]
        first = words.storage_offset() + (offset + local * strides[0]) // self.size
        return words.as_strided((*extents, content // self.size), steps, first)


def _as_words(view: torch.Tensor, name: str, region: Region, word_bytes: int) -> torch.Tensor:
    """The same bytes as [B, H, N, words]: the view's own storage, offset and strides, in another type."""
    _, blocks, heads, states, content = region.geometry.shape
    item = view.element_size()
    if tuple(view.shape) != (blocks, heads, states, content // item):
        raise LayoutError("cache.views", name, f"has the shape {tuple(view.shape)}; the address map says "
                          f"{(blocks, heads, states, content // item)}", "Make the view from this config")
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
    rest = library.bitwise_xor(part, tile, out=_scratch(part) if library is np else None)
    return (rest.min() != page) | (rest.max() != page)


def _scratch(part: np.ndarray) -> np.ndarray:
    """This thread's own room for a chunk: memory that is asked for anew costs as much as the comparison."""
    if getattr(_local, "room", None) is None or _local.room.nbytes < part.nbytes:
        _local.room = np.empty(part.nbytes, np.uint8)
    return _local.room[:part.nbytes].view(part.dtype).reshape(part.shape)


def _scan(cache: KVCache, prints: dict[int, Fingerprint], leftovers: Leftovers, meter: _Meter | None) -> None:
    """Look for what isn't zero, through the whole buffer in address order; ``prints`` by tensor."""
    for start in range(0, cache.nbytes, _SCAN_BYTES):
        chunk = cache.buffer[start:start + _SCAN_BYTES]
        if int(torch.count_nonzero(chunk)):
            leftovers.add(start, chunk, prints)
        if meter is not None:
            meter.add(len(chunk))
