"""The plan that a worker allocates from: tensors, groups of layers, and both together.

Field names and order are those of vLLM 0.33.0 (``vllm/v1/kv_cache_interface.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kvlayout.errors import LayoutError, check_int
from kvlayout.spec import KVCacheSpec, layer_specs
from kvlayout.spec_io import as_spec


def _tuple_of(argument: str, values: object, kind: type) -> tuple:
    """Return ``values`` as a tuple; LayoutError unless it is a collection of ``kind``."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Collection) \
            or not all(isinstance(one, kind) for one in values):
        names = "names" if kind is str else f"{kind.__name__} objects"
        raise LayoutError(argument, values, f"must be a list of {names}")
    return tuple(values)


@dataclass(frozen=True)
class KVCacheTensor:
    """Where same-shaped layers lie in the one backing allocation of ``size`` bytes.

    Block b of ``layers[l]`` starts at ``offset + l * layer_stride + b * block_stride``; all four are bytes.
    Tensors of different groups may overlay each other: a block id belongs to one group at a time.
    """

    size: int
    layers: tuple[str, ...]
    layer_stride: int
    block_stride: int
    offset: int = 0

    def __post_init__(self):
        object.__setattr__(self, "layers", _tuple_of("layers", self.layers, str))
        for name in ("size", "layer_stride", "block_stride", "offset"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), minimum=0))


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """Layers that share one block table, and their spec (one for all, or a UniformTypeKVCacheSpecs)."""

    layer_names: tuple[str, ...]
    kv_cache_spec: KVCacheSpec

    def __post_init__(self):
        object.__setattr__(self, "layer_names", _tuple_of("layer_names", self.layer_names, str))
        object.__setattr__(self, "kv_cache_spec", as_spec(self.kv_cache_spec, "kv_cache_spec"))

    @property
    def layer_specs(self) -> dict[str, KVCacheSpec]:
        """The spec of each layer."""
        return layer_specs(self.kv_cache_spec, self.layer_names)

    @property
    def page_sizes_bytes(self) -> list[int]:
        """Bytes of each layer's page, in layer order."""
        return [spec.page_size_bytes for spec in self.layer_specs.values()]


@dataclass(frozen=True)
class KVCacheConfig:
    """One worker's plan: ``num_blocks`` blocks, their tensors, and the groups that share block tables."""

    num_blocks: int
    kv_cache_tensors: tuple[KVCacheTensor, ...]
    kv_cache_groups: tuple[KVCacheGroupSpec, ...]
    kv_cache_layout: str | None = None

    def __post_init__(self):
        object.__setattr__(self, "num_blocks", check_int("num_blocks", self.num_blocks, minimum=0))
        for name, kind in (("kv_cache_tensors", KVCacheTensor), ("kv_cache_groups", KVCacheGroupSpec)):
            object.__setattr__(self, name, _tuple_of(name, getattr(self, name), kind))

    @property
    def size_bytes(self) -> int:
        """Bytes of the backing allocation; 0 where there are no tensors."""
        sizes = {tensor.size for tensor in self.kv_cache_tensors}
        if len(sizes) > 1:
            raise LayoutError("kv_cache_tensors", sorted(sizes), "must share one backing allocation, so one size")
        return sizes.pop() if sizes else 0

    @property
    def layer_specs(self) -> dict[str, KVCacheSpec]:
        """The spec of every layer, in group order."""
        return {name: spec for group in self.kv_cache_groups for name, spec in group.layer_specs.items()}

    def group_of(self, layer_name: str) -> int:
        """Return the index of the group that holds ``layer_name``; LayoutError if none does."""
        for index, group in enumerate(self.kv_cache_groups):
            if layer_name in group.layer_names:
                return index
        raise LayoutError("layer", layer_name, "is in no group of this config")
