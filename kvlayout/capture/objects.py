"""vLLM's own config objects as ours, by their fields' names; vLLM itself isn't imported.

Source: ``KVCacheConfig``, ``KVCacheTensor``, ``KVCacheGroupSpec`` in ``vllm/v1/kv_cache_interface.py``, 0.29 to 0.33.
"""

from __future__ import annotations

from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError, errors_in
from kvlayout.layout import as_layout
from kvlayout.spec_io import as_spec


def as_config(config: object, argument: str = "kv_cache_config") -> KVCacheConfig:
    """Return ``config`` as one of ours; vLLM's own KVCacheConfig (0.29 and newer) is converted field by field.

    Fields that we don't have place no byte and are left out. Raises LayoutError for anything else: another object,
    a config from before 0.29 (its tensors have no strides), or one with a host pool (HiSparse).
    """
    if isinstance(config, KVCacheConfig):
        return config
    with errors_in(argument):
        num_blocks, tensors, groups = _fields(config, "config", "num_blocks", "kv_cache_tensors", "kv_cache_groups")
        layout = getattr(config, "kv_cache_layout", None)
        found = []
        for index, tensor in enumerate(tensors):
            with errors_in(f"kv_cache_tensors[{index}]"):
                found.append(as_tensor(tensor))
        ours = []
        for index, group in enumerate(groups):
            with errors_in(f"kv_cache_groups[{index}]"):
                ours.append(as_group(group))
        name = None if layout is None else as_layout(layout, "kv_cache_layout").name
        return KVCacheConfig(num_blocks, tuple(found), tuple(ours), name)


def as_tensor(tensor: object) -> KVCacheTensor:
    """Return vLLM's KVCacheTensor as ours; LayoutError where it has no strides or lies in a host pool."""
    if isinstance(tensor, KVCacheTensor):
        return tensor
    if hasattr(tensor, "shared_by") and not hasattr(tensor, "layer_stride"):
        raise LayoutError("shared_by", tensor.shared_by, "is the field of a tensor from before vLLM 0.29, which has "
                          "no strides", "The layout can't be known from it: capture the config with 0.29 or newer")
    if getattr(tensor, "host_resident", False):
        raise LayoutError("host_resident", True, "puts the tensor into a pool of its own in the host's memory",
                          "Only the device's allocation is described; leave such tensors out")
    size, layers, layer_stride, block_stride = _fields(
        tensor, "tensor", "size", "layers", "layer_stride", "block_stride")
    return KVCacheTensor(size, tuple(layers), layer_stride, block_stride, getattr(tensor, "offset", 0))


def as_group(group: object) -> KVCacheGroupSpec:
    """Return vLLM's KVCacheGroupSpec as ours; LayoutError for a spec class that we don't know."""
    if isinstance(group, KVCacheGroupSpec):
        return group
    names, spec = _fields(group, "group", "layer_names", "kv_cache_spec")
    return KVCacheGroupSpec(tuple(names), as_spec(spec, "kv_cache_spec"))


def _fields(value: object, what: str, *names: str) -> list:
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        raise LayoutError(what, value, f"has no {', '.join(missing)}", "Give vLLM's own object, or ours")
    return [getattr(value, name) for name in names]
