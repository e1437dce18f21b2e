"""What one rank of a live engine holds: its config, its layout's name, and where each layer's view lies in memory.

Plain data, read inside the worker (``kvlayout.upstream.worker``) and sent or written as JSON. That JSON is a
capture's, with more keys, so whatever opens a capture opens a dump.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import msgspec

from kvlayout.capture.config_json import check_object, config_from_dict, config_to_dict
from kvlayout.capture.files import FORMAT, check_format, read_json, write_json
from kvlayout.config import KVCacheConfig
from kvlayout.errors import LayoutError, errors_in
from kvlayout.facts.backends import get_backend
from kvlayout.facts.machine import Machine
from kvlayout.versions import NEWEST, VLLM_VERSIONS


@dataclass(frozen=True)
class RankView:
    """One tensor that a layer reads and writes.

    Attributes:
        shape: as the tensor has it: [B, H, N, C] for attention, [B, N, C] for MLA, [B, ...] for a state
        stride_elements: of each axis, in elements of ``dtype``
        dtype: torch's name
        data_ptr: address of the first element
        storage_ptr, storage_nbytes: address and bytes of the allocation that it lies in
        device: torch's name
    """

    shape: tuple[int, ...]
    stride_elements: tuple[int, ...]
    dtype: str
    data_ptr: int
    storage_ptr: int
    storage_nbytes: int
    device: str

    def __post_init__(self):
        if not self.shape or len(self.shape) != len(self.stride_elements):
            raise LayoutError("stride_elements", self.stride_elements, "must be one an axis of the shape "
                              f"{self.shape}, which has at least one")

    @property
    def storage_offset_bytes(self) -> int:
        """Bytes from the start of its allocation."""
        return self.data_ptr - self.storage_ptr


@dataclass(frozen=True)
class Place:
    """Where a rank stands: its global rank, its place in each dimension, the sizes of these, and its process."""

    rank: int
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    world_size: int = 1
    pid: int = 0


@dataclass(frozen=True)
class RankDump:
    """What one rank holds.

    Attributes:
        place: which rank
        vllm_version: the full text, such as "0.32.0+cpu"
        layout_names: {"cache_config": name, "kv_cache_config": name}, None where it isn't recorded there
        config: the rank's tensors and groups; layers that only borrow another's cache are in ``shared``
        kernel_block_sizes: tokens, one a group
        backends: {layer: name of the backend that reads and writes it}
        machine: what the backends could ask about
        views: {layer: its tensors}: one, or for a layer of states one a state
        shared: {layer without a cache of its own: layer whose cache it uses}
        remapped: layers whose backend maps kernel blocks of its own into packed blocks (AttentionGroup.
            map_kv_cache_to_kernel_blocks, 0.32 and newer), so that their view isn't the config's
    """

    place: Place
    vllm_version: str
    layout_names: dict[str, str | None]
    config: KVCacheConfig
    kernel_block_sizes: tuple[int, ...]
    backends: dict[str, str]
    machine: Machine
    views: dict[str, tuple[RankView, ...]]
    shared: dict[str, str]
    remapped: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """The global rank."""
        return self.place.rank

    @property
    def base(self) -> int | None:
        """Address of the first byte of the allocation that the views lie in; None without views."""
        return next((view.storage_ptr for views in self.views.values() for view in views), None)

    def to_dict(self) -> dict:
        """Return the JSON of a capture with this rank's further keys; inverse of :meth:`from_dict`."""
        release = base_version(self.vllm_version)
        known = {layer: name for layer, name in self.backends.items() if is_known_backend(name, release)}
        return {
            "kvlayout": FORMAT, "kv_cache_config": config_to_dict(self.config),
            "kernel_block_sizes": list(self.kernel_block_sizes), "backends": known,
            "other_backends": {layer: name for layer, name in self.backends.items() if layer not in known},
            "vllm_version": release, "vllm_build": self.vllm_version, "machine": asdict(self.machine),
            "place": asdict(self.place), "layout_names": dict(self.layout_names),
            "views": {layer: [_plain(view) for view in views] for layer, views in self.views.items()},
            "shared": dict(self.shared), "remapped": list(self.remapped),
        }

    @classmethod
    def from_dict(cls, data: object) -> RankDump:
        """Return the dump of such a dict; LayoutError naming the key for one that is missing, unknown or odd."""
        check_object(data, "dump", _KEYS, _KEYS)
        check_format(data)
        parts = {}
        for name, kind in _KINDS.items():
            try:
                parts[name] = msgspec.convert(data[name], kind)
            except msgspec.ValidationError as error:
                reason, _, path = str(error).partition(" - at ")
                where = name + path.strip("`").removeprefix("$")
                raise LayoutError(where, data[name], f"has the wrong type: {reason}") from None
        with errors_in("kv_cache_config"):
            config = config_from_dict(data["kv_cache_config"])
        return cls(parts["place"], parts["vllm_build"], parts["layout_names"], config,
                   tuple(parts["kernel_block_sizes"]), parts["backends"] | parts["other_backends"], parts["machine"],
                   {layer: tuple(views) for layer, views in parts["views"].items()}, parts["shared"],
                   tuple(parts["remapped"]))

    def save(self, path: str | os.PathLike) -> None:
        """Write the dump to ``path`` in one step; LayoutError where it can't be written."""
        write_json(self.to_dict(), path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> RankDump:
        """Return the dump in a file; LayoutError naming the file for anything else."""
        data = read_json(path)
        with errors_in(f"{path}:"):
            return cls.from_dict(data)


def load_ranks(folder: str | os.PathLike) -> list[RankDump]:
    """Return the dumps of one engine that the plugin wrote into a folder, in order of rank.

    Raises LayoutError where the folder holds none, or one that can't be read.
    """
    try:
        paths = sorted(Path(folder).glob("rank-*.json"))
    except (OSError, TypeError, ValueError) as error:
        raise LayoutError("folder", folder, f"can't be read: {error}", "Give a folder's path") from error
    if not paths:
        raise LayoutError("folder", str(folder), "holds no rank-N.json",
                          "Start vLLM with KVLAYOUT_DUMP set to this folder, kvlayout being installed beside it")
    return sorted((RankDump.load(path) for path in paths), key=lambda dump: dump.rank)


_KINDS = {
    "kernel_block_sizes": list[int], "backends": dict[str, str], "other_backends": dict[str, str],
    "vllm_build": str, "machine": Machine, "place": Place, "layout_names": dict[str, str | None],
    "views": dict[str, list[RankView]], "shared": dict[str, str], "remapped": list[str],
}
_KEYS = ("kvlayout", "kv_cache_config", "vllm_version", *_KINDS)


def base_version(vllm_version: str) -> str:
    """Return the release of a build: "0.32.0" for "0.32.0+cpu"; the text itself where none is in it."""
    found = re.match(r"\d+\.\d+\.\d+", vllm_version)
    return found[0] if found else vllm_version


def _plain(view: RankView) -> dict:
    return {f.name: list(value) if isinstance(value := getattr(view, f.name), tuple) else value for f in fields(view)}


def is_known_backend(name: str, vllm_version: str) -> bool:
    """Whether the catalogue of that build's release has the backend, so that a plan can use it."""
    release = base_version(vllm_version)
    try:
        get_backend(name, release if release in VLLM_VERSIONS else NEWEST)
    except LayoutError:
        return False
    return True

