"""Our objects as vLLM's own, and back: specs, quantisation modes, tensors, groups, configs, layouts.

Law: ``from_vllm(to_vllm(x)) == x``. vLLM's classes are those of the release that this Python has; a release without
one of our fields takes an object only where that field has its default.
Source: ``vllm/v1/kv_cache_interface.py`` and ``vllm/v1/kv_cache_layout.py``, 0.29.0 to 0.33.0.
"""

from __future__ import annotations

from dataclasses import fields

from kvlayout.capture.objects import as_config, as_group, as_tensor
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError, errors_in
from kvlayout.layout import KVCacheLayout, PhysicalLayout, as_layout
from kvlayout.spec import KVCacheSpec, KVQuantMode, MultipleOf, UniformTypeKVCacheSpecs
from kvlayout.spec_io import as_spec


def to_vllm(obj: object) -> object:
    """Return ``obj`` (a spec, a KVQuantMode, MultipleOf, tensor, group, config or layout) as vLLM's own object.

    Lists and dicts are converted item by item. LayoutError, naming the field and the release, for what the
    installed vLLM can't express: a spec class, field or mode that it lacks, or a layout that is no member.
    """
    if isinstance(obj, KVCacheSpec):
        return _spec(obj)
    if isinstance(obj, KVCacheConfig):
        return _config(obj)
    if isinstance(obj, KVCacheGroupSpec):
        return _interface().KVCacheGroupSpec(list(obj.layer_names), _spec(obj.kv_cache_spec))
    if isinstance(obj, KVCacheTensor):
        return _interface().KVCacheTensor(size=obj.size, layers=list(obj.layers), layer_stride=obj.layer_stride,
                                          block_stride=obj.block_stride, offset=obj.offset)
    if isinstance(obj, (KVCacheLayout, PhysicalLayout)):
        return _member(_layouts(), obj.name, "layout")
    if isinstance(obj, KVQuantMode):
        return _member(_interface().KVQuantMode, obj.name, "kv_quant_mode")
    if isinstance(obj, MultipleOf):
        from vllm.v1.attention.backend import MultipleOf as Theirs

        return Theirs(obj.base)
    if isinstance(obj, (list, tuple)):
        return type(obj)(to_vllm(item) for item in obj)
    if isinstance(obj, dict):
        return {name: to_vllm(item) for name, item in obj.items()}
    raise LayoutError("obj", obj, "has no counterpart in vLLM",
                      "Give a spec, a tensor, a group, a config or a layout of kvlayout's")


def from_vllm(obj: object) -> object:
    """Return one of vLLM's objects as ours; the inverse of :func:`to_vllm`.

    vLLM's fields that we don't have place no byte and are left out. LayoutError for anything else, and for a config
    with a pool in host memory (HiSparse).
    """
    if isinstance(obj, (list, tuple)):
        return type(obj)(from_vllm(item) for item in obj)
    if isinstance(obj, dict):
        return {name: from_vllm(item) for name, item in obj.items()}
    names = [base.__name__ for base in type(obj).__mro__]
    readers = {"KVCacheConfig": as_config, "KVCacheGroupSpec": as_group, "KVCacheTensor": as_tensor,
               "KVCacheSpec": as_spec, "KVCacheLayout": as_layout,
               "KVQuantMode": lambda mode: KVQuantMode[mode.name], "MultipleOf": lambda size: MultipleOf(size.base)}
    for name in names:
        if name in readers:
            return readers[name](obj)
    raise LayoutError("obj", obj, "has no counterpart here", f"Give one of vLLM's {', '.join(readers)}")


def _interface():
    import vllm.v1.kv_cache_interface as interface

    return interface


def _layouts():
    from vllm.v1.kv_cache_layout import KVCacheLayout as Theirs

    return Theirs


def _version() -> str:
    import vllm

    return vllm.__version__


def _member(enum: type, name: str, argument: str) -> object:
    if name in enum.__members__:
        return enum[name]
    raise LayoutError(argument, name, f"doesn't exist in vLLM {_version()}",
                      f"Use one of {', '.join(enum.__members__)}, or install a newer release")


def _config(config: KVCacheConfig) -> object:
    theirs = _interface().KVCacheConfig(
        num_blocks=config.num_blocks, kv_cache_tensors=[to_vllm(one) for one in config.kv_cache_tensors],
        kv_cache_groups=[to_vllm(one) for one in config.kv_cache_groups])
    theirs.kv_cache_layout = config.kv_cache_layout
    return theirs


def _spec(spec: KVCacheSpec) -> object:
    kind = type(spec).__name__
    theirs = getattr(_interface(), kind, None)
    if theirs is None:
        raise LayoutError("spec", kind, f"is a class that vLLM {_version()} doesn't have", "Install a newer release")
    known = {f.name for f in fields(theirs)}
    values = {}
    for f in fields(spec):
        value = getattr(spec, f.name)
        if f.name in known:
            with errors_in(kind):
                values[f.name] = _value(f.name, value)
        # A group's sharding is that of its first spec, which is checked itself.
        elif value != f.default and not (f.name == "dcp_sharded" and isinstance(spec, UniformTypeKVCacheSpecs)):
            raise LayoutError(f"{kind}.{f.name}", value, f"is a field that vLLM {_version()} doesn't have yet",
                              f"Leave it at its default {f.default!r}, or install a newer release")
    return theirs(**values)


def _value(name: str, value: object) -> object:
    """One field's value: element types as torch's, enums as vLLM's, nested specs converted."""
    if value is None:
        return None
    if name in ("dtype", "dtypes"):
        import torch

        return getattr(torch, value) if name == "dtype" else tuple(getattr(torch, one) for one in value)
    if name == "mamba_type":
        from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

        return _member(MambaAttentionBackendEnum, value.upper(), name)
    if name == "cache_role":
        roles = _interface().SparseCacheRole
        return _member(roles, value.upper(), name)
    if isinstance(value, (KVQuantMode, MultipleOf)):
        return to_vllm(value)
    return {layer: _spec(one) for layer, one in value.items()} if name == "kv_cache_specs" else value
