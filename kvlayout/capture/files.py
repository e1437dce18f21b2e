"""Configs in files: ``{"kvlayout": 1, "kv_cache_config": {...}}`` as JSON.

A rank's dump is such a file with further keys beside these two; ``load`` reads the config of either.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from kvlayout.capture.config_json import config_from_dict, config_to_dict
from kvlayout.capture.objects import as_config
from kvlayout.config import KVCacheConfig
from kvlayout.errors import LayoutError, errors_in
from kvlayout.selection import decode_json

FORMAT = 1


def load(path: str | os.PathLike) -> KVCacheConfig:
    """Return the config of a file written by :func:`save`, or of a rank's dump.

    Raises LayoutError naming the file, and the place in it, for anything else: no such file, broken or cut JSON,
    another format, unknown or missing keys, values of another type.
    """
    return config_from_dict_in(read_json(path), str(path))


def save(config: KVCacheConfig, path: str | os.PathLike) -> None:
    """Write ``config`` (ours or vLLM's own) to ``path``, which holds either the old content or all of the new."""
    write_json({"kvlayout": FORMAT, "kv_cache_config": config_to_dict(as_config(config))}, path)


def config_from_dict_in(data: object, source: str) -> KVCacheConfig:
    """Return the config in a file's decoded JSON; LayoutErrors begin with ``source``."""
    with errors_in(f"{source}:"):
        if not isinstance(data, dict) or not {"kvlayout", "kv_cache_config"} <= set(data):
            shown = sorted(data) if isinstance(data, dict) else type(data).__name__
            raise LayoutError("keys", shown, "are not those of a captured config, kvlayout and kv_cache_config",
                              "Write the file with kvlayout.capture.save; pasted text goes to kvlayout.capture.parse")
        check_format(data)
        return config_from_dict(data["kv_cache_config"])


def check_format(data: Mapping) -> None:
    """Raise LayoutError unless the decoded JSON is of the format that this release reads."""
    found = data.get("kvlayout")
    if found != FORMAT or isinstance(found, bool):
        raise LayoutError("kvlayout", found, f"is not the format that this release reads, {FORMAT}",
                          "Open it with the release that wrote it")


def read_json(path: str | os.PathLike) -> object:
    """Return the decoded JSON of a file; LayoutError naming the file where it can't be read or is not JSON."""
    try:
        text = Path(path).read_bytes()
    except (OSError, TypeError, ValueError) as error:  # the last two: no path at all, or one with a NUL in it
        raise LayoutError("path", path, f"can't be read: {getattr(error, 'strerror', None) or error}",
                          "Give a file's path") from error
    return decode_json(text, str(path))


def write_json(data: object, path: str | os.PathLike) -> None:
    """Write ``data`` as JSON to ``path`` in one step: whoever reads sees the old content or all of the new.

    Raises LayoutError naming the path where it can't be written; no part of a file stays then.
    """
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    try:
        target = Path(os.path.realpath(path))
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
    except (OSError, TypeError, ValueError) as error:  # no path at all, or one without a file's name
        raise LayoutError("path", path, f"can't be written: {error}", "Give a file's path") from error
    try:
        with open(part, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, target)
    except OSError as error:
        raise LayoutError("path", str(path), f"can't be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # it's there only if the write failed
            part.unlink()
