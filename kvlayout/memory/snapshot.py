"""Takes a :class:`kvlayout.snapshot.Snapshot` of real memory, chunk by chunk, on the device where it lies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kvlayout.errors import LayoutError, check_int
from kvlayout.snapshot import GRANULE_BYTES, Snapshot, digest, salts

MOST_BYTES = 256 << 20
_CHUNK_BYTES = 32 << 20


def take_snapshot(
    buffer: torch.Tensor,
    *,
    most_bytes: int = MOST_BYTES,
    runs: tuple[np.ndarray, np.ndarray] | None = None,
    granule_bytes: int = GRANULE_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Snapshot:
    """Return the snapshot of a flat int8 ``buffer``; the buffer is only read.

    ``most_bytes``: bytes of content that are held at most; the rest of what isn't zero is digested.
    ``runs``: (starts, lengths) in bytes, as ``AddressMap.run_arrays`` gives them, whose content is held in any case.
    ``progress(done_bytes, total_bytes)`` is called after each chunk; what it raises ends the work, nothing stays.
    """
    check_int("most_bytes", most_bytes, minimum=0)
    if check_int("granule_bytes", granule_bytes, minimum=8) % 8 or granule_bytes > _CHUNK_BYTES:
        raise LayoutError("granule_bytes", granule_bytes, f"must be a multiple of 8 bytes, at most {_CHUNK_BYTES:,}")
    if progress is not None and not callable(progress):
        raise LayoutError("progress", progress, "must be None or a function of (done_bytes, total_bytes)")
    if not isinstance(buffer, torch.Tensor) or buffer.dtype not in (torch.int8, torch.uint8) or buffer.dim() != 1 \
            or not buffer.is_contiguous() or buffer.storage_offset() % 8:
        raise LayoutError("buffer", getattr(buffer, "shape", buffer), "must be a flat, contiguous int8 tensor that "
                          "begins at a multiple of 8 bytes of its storage", "Give KVCache.buffer")
    if buffer.device.type == "meta":
        raise LayoutError("buffer", "meta", "has no bytes to read", "Give a buffer on cpu or a CUDA device")
    size = buffer.numel()
    forced = _granules(runs, granule_bytes, size)
    room = max(0, most_bytes // granule_bytes - len(forced))
    salt = torch.from_numpy(salts(granule_bytes)).to(buffer.device)
    kept, content, digested, digests = [], [], [], []
    step = max(1, _CHUNK_BYTES // granule_bytes) * granule_bytes
    for start in range(0, size, step):
        words = _words(buffer[start:start + step], granule_bytes)
        first = start // granule_bytes
        numbers = first + torch.nonzero(torch.count_nonzero(words, dim=1)).flatten().cpu().numpy()
        held = np.isin(numbers, forced)
        extra = np.flatnonzero(~held)[:room]
        room -= len(extra)
        held[extra] = True
        if held.any():
            kept.append(numbers[held])
            rows = words[torch.from_numpy(numbers[held] - first).to(buffer.device)]
            content.append(rows.cpu().numpy().view(np.uint8))
        if not held.all():
            digested.append(numbers[~held])
            rows = words[torch.from_numpy(numbers[~held] - first).to(buffer.device)]
            digests.append(digest(rows, salt).cpu().numpy())
        if progress is not None:
            progress(min(size, start + step), size)
    return Snapshot(size, granule_bytes, _joined(kept), _rows(content, granule_bytes), _joined(digested),
                    _joined(digests))


def _words(chunk: torch.Tensor, granule_bytes: int) -> torch.Tensor:
    """The chunk as int64 [granules, words]; a last part of a granule is filled up with zeros."""
    missing = -chunk.numel() % granule_bytes
    if missing:
        chunk = torch.nn.functional.pad(chunk, (0, missing))
    return chunk.view(torch.int64).view(-1, granule_bytes // 8)


def _granules(runs, granule_bytes: int, size: int) -> np.ndarray:
    """The numbers of the granules that the runs touch, sorted."""
    if runs is None:
        return np.zeros(0, dtype=np.int64)
    parts = [np.asarray(part) for part in runs] if isinstance(runs, tuple) else []
    if len(parts) != 2 or parts[0].ndim != 1 or parts[0].shape != parts[1].shape \
            or any(part.size and part.dtype.kind not in "iu" for part in parts):
        raise LayoutError("runs", runs, "must be two arrays of whole numbers, starts and lengths",
                          "Give what AddressMap.run_arrays returned")
    starts, lengths = (part.astype(np.int64) for part in parts)
    # By subtraction: a sum of two huge numbers would wrap.
    if len(starts) and (min(starts.min(), lengths.min()) < 0 or (lengths > size - starts).any()):
        raise LayoutError("runs", runs, f"leave the buffer of {size:,} bytes")
    wanted = np.zeros(-(-size // granule_bytes) + 1, dtype=np.int64)
    # +1 where a run begins and -1 behind its end: the running sum is above 0 in every granule that a run touches.
    np.add.at(wanted, starts // granule_bytes, 1)
    np.add.at(wanted, (starts + lengths - 1) // granule_bytes + 1, -1)
    return np.flatnonzero(np.cumsum(wanted) > 0)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _rows(parts: list[np.ndarray], granule_bytes: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, granule_bytes), dtype=np.uint8)
