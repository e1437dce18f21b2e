"""Proof by memory: write through the views, read the raw buffer at the map's addresses, compare every byte.

Each group's layers are written with fingerprints, through their own [B, H, N, C] views. Then the raw buffer is
compared with the fingerprints that the address map expects at its addresses. Where something differs, or where a
group leaves bytes unowned, the expected ones are XORed into the buffer, and what isn't zero then lies wrong, padding
included. Groups overlay, so they are proven one after the other.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from kvlayout.errors import LayoutError
from kvlayout.memory.cache import KVCache
from kvlayout.memory.checks import check_bytes, check_provable
from kvlayout.memory.chunks import Chunks
from kvlayout.memory.fingerprint import NEEDED_BYTES, Fingerprint
from kvlayout.memory.leftovers import Leftovers
from kvlayout.proof import Report
from kvlayout.region import Region

_SCAN_BYTES = 32 << 20
_WAIT_SECONDS = 1  # for a write of one element or page to end

Progress = Callable[[int, int], None]


def verify(cache: KVCache, *, progress: Progress | bool | None = None) -> Report:
    """Prove that each view of ``cache`` reaches exactly the bytes that its address map says.

    Overwrites the whole cache, and leaves fingerprints in it where all is well, otherwise zeros. Beside it, it takes
    some tens of MiB.

    ``progress``: called with (bytes done, bytes to do); True shows a bar. What it raises ends the proof: the cache is
    zeroed, and nothing else stays allocated.
    Bytes are compared, not element types: a float16 view in a bfloat16 one's place passes.
    Raises LayoutError for a cache that was freed (also meanwhile), has no bytes, or is being proven already, and for
    a view that can't be written.
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise LayoutError("progress", progress, "must be a bool, None or a function",
                          "Give True for a bar, or a function of (bytes done, bytes to do)")
    check_bytes(cache)
    with cache.exclusive(_WAIT_SECONDS):
        try:
            check_provable(cache)
            return _prove(cache, progress)
        except Exception:
            if cache.buffer is not None:
                raise
    # Raised out here, so that no traceback holds the frames that still hold views of the buffer.
    raise LayoutError("cache", cache, "was freed while it was being proven", "Free it when verify has ended")


def _prove(cache: KVCache, progress: Progress | bool | None) -> Report:
    started = time.perf_counter()
    with _meter(cache, progress) as meter:
        try:
            found = [_prove_group(cache, group, regions, meter) for group, regions in _groups(cache)]
        except BaseException as error:
            _zero(cache)
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(f"verify was stopped after {meter.done:,} of {meter.total:,} bytes: nothing "
                                        "is proven, and the cache holds zeros again") from error
            raise
    checked, padding, passes, leftovers = (list(part) for part in zip(*found)) if found else ([], [], [1], [])
    if any(one.wrong_bytes for one in leftovers):
        _zero(cache)
    _finish(cache.device)
    return Report(sum(checked), sum(padding), time.perf_counter() - started, max(passes),
                  sum(one.wrong_bytes for one in leftovers), tuple(m for one in leftovers for m in one.mismatches),
                  Leftovers.joint_map(leftovers, cache.address_map), str(cache.device),
                  sum(one.decoded_bytes for one in leftovers))


def _zero(cache: KVCache) -> None:
    buffer = cache.buffer
    if buffer is not None:  # it may have been freed meanwhile
        buffer.zero_()


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
        tiles: dict[tuple, torch.Tensor] = {}
        chunks = [Chunks(cache, region, word_bytes, salt, turn, tiles) for region in regions]
        if gaps:
            cache.buffer.zero_()
        for one in chunks:
            one.write(meter.add)
        differs = False
        for one in chunks if not gaps else ():
            differs |= one.differs(meter.add)
        if not gaps and not differs:
            continue
        for one in chunks:
            one.cancel(meter.add if gaps else _nothing)
        _scan(cache, {one.region.tensor_index: one.prints for one in chunks}, leftovers, meter if gaps else None)
        if leftovers.wrong_bytes:
            break
    return owned, gaps, passes, leftovers


def _nothing(count: int) -> None:
    """Bytes that the meter doesn't count: it can't be known beforehand that they will be looked at."""


def _scan(cache: KVCache, prints: dict[int, Fingerprint], leftovers: Leftovers, meter: _Meter | None) -> None:
    """Look for what isn't zero, through the whole buffer in address order; ``prints`` by tensor."""
    for start in range(0, cache.nbytes, _SCAN_BYTES):
        chunk = cache.buffer[start:start + _SCAN_BYTES]
        if int(torch.count_nonzero(chunk)):
            leftovers.add(start, chunk, prints)
        if meter is not None:
            meter.add(len(chunk))
