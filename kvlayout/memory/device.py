"""Devices by name, and how much memory each has free."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from kvlayout.errors import LayoutError

_CGROUP = Path("/sys/fs/cgroup")


def as_device(device: object) -> torch.device:
    """Return ``cpu``, ``cuda:i`` or ``meta`` as a torch.device; LayoutError for one that isn't here."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise LayoutError("device", device, "is not a device", "Use 'cpu', 'cuda:0' or 'meta'") from error
    if found.type == "cuda":
        count = torch.cuda.device_count()
        index = torch.cuda.current_device() if found.index is None and count else found.index
        if index is None or index >= count:
            raise LayoutError("device", str(device), f"isn't here: this machine has {count} CUDA devices",
                              "Use 'cpu' for real memory, or 'meta' to plan only")
        return torch.device("cuda", index)
    if found.type not in ("cpu", "meta"):
        raise LayoutError("device", str(device), "must be a CUDA device, the CPU, or meta")
    return torch.device(found.type)


def devices() -> list[str]:
    """Return the names of the devices that a cache can be allocated on here, the fastest first."""
    return [*(f"cuda:{i}" for i in range(torch.cuda.device_count())), "cpu", "meta"]


def memory_info(device: object) -> tuple[int, int] | None:
    """Return (free bytes, total bytes) of a device; None for ``meta``, which has no memory."""
    found = as_device(device)
    if found.type == "cuda":
        return torch.cuda.mem_get_info(found)
    if found.type == "meta":
        return None
    machine = psutil.virtual_memory()
    free, total = machine.available, machine.total
    limit = _cgroup_number("memory.max")
    if limit is not None and limit < total:
        used = _cgroup_number("memory.current") or 0
        # What the group holds as file cache is given back on demand.
        free, total = min(free, limit - used + _cgroup_file_bytes()), limit
    return max(0, free), total


def _cgroup_number(name: str) -> int | None:
    path = _CGROUP / name
    text = path.read_text().strip() if path.is_file() else "max"
    return int(text) if text.isdigit() else None


def _cgroup_file_bytes() -> int:
    path = _CGROUP / "memory.stat"
    if not path.is_file():
        return 0
    return sum(int(line.split()[1]) for line in path.read_text().splitlines()
               if line.split()[0] in ("inactive_file", "active_file"))
