"""A KVCacheConfig as plain dicts and lists, the shape that its JSON has, and back; strict both ways.

``{"num_blocks": 4, "kv_cache_layout": "BLHNC", "kv_cache_tensors": [{"size": ..., "layers": [...], ...}],
"kv_cache_groups": [{"layer_names": [...], "kv_cache_spec": {"type": "FullAttentionSpec", ...}}]}``
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, asdict, fields

from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError, errors_in
from kvlayout.layout import AXES, layout_from_name
from kvlayout.spec_io import spec_from_dict, spec_to_dict


def config_to_dict(config: KVCacheConfig) -> dict:
    """Return ``config`` as a plain dict that JSON can hold; inverse of :func:`config_from_dict`."""
    return {
        "num_blocks": config.num_blocks,
        "kv_cache_layout": config.kv_cache_layout,
        "kv_cache_tensors": [{**asdict(one), "layers": list(one.layers)} for one in config.kv_cache_tensors],
        "kv_cache_groups": [{"layer_names": list(one.layer_names), "kv_cache_spec": spec_to_dict(one.kv_cache_spec)}
                            for one in config.kv_cache_groups],
    }


def config_from_dict(data: object) -> KVCacheConfig:
    """Return the config of a plain dict.

    Raises LayoutError, its argument a path such as ``kv_cache_groups[1].kv_cache_spec.head_size``, for a key that is
    unknown or missing, a value of another type, or one that no spec, tensor or config can have.
    """
    check_keys(data, KVCacheConfig, "kv_cache_config")
    layout = data.get("kv_cache_layout")
    if layout is not None:
        check_layout_name(layout)
    tensors, groups = [], []
    for index, one in enumerate(_list(data["kv_cache_tensors"], "kv_cache_tensors")):
        with errors_in(f"kv_cache_tensors[{index}]"):
            check_keys(one, KVCacheTensor, "tensor")
            tensors.append(KVCacheTensor(**{**one, "layers": _names(one["layers"], "layers")}))
    for index, one in enumerate(_list(data["kv_cache_groups"], "kv_cache_groups")):
        with errors_in(f"kv_cache_groups[{index}]"):
            check_keys(one, KVCacheGroupSpec, "group")
            names = _names(one["layer_names"], "layer_names")
            with errors_in("kv_cache_spec"):
                spec = spec_from_dict(one["kv_cache_spec"])
            groups.append(KVCacheGroupSpec(names, spec))
    return KVCacheConfig(data["num_blocks"], tuple(tensors), tuple(groups), layout)


def check_layout_name(name: object) -> None:
    """Raise LayoutError unless ``name`` is one of vLLM's layouts or aliases, or a prototype's order of the axes."""
    if not isinstance(name, str) or sorted(name) != sorted(AXES):
        layout_from_name(name, "kv_cache_layout")


def check_keys(data: object, kind: type, argument: str) -> None:
    """Raise LayoutError unless ``data`` is a dict with every field of ``kind`` that has no default, and no other."""
    required = [f.name for f in fields(kind) if f.default is MISSING]
    check_object(data, argument, required, [f.name for f in fields(kind)])


def check_object(data: object, argument: str, required: Iterable[str], known: Iterable[str]) -> None:
    """Raise LayoutError unless ``data`` is a dict that has all the ``required`` keys and only ``known`` ones."""
    known = list(known)
    if not isinstance(data, dict):
        raise LayoutError(argument, data, f"must be an object with {', '.join(known)}")
    unknown = [key for key in data if key not in known]
    if unknown:
        raise LayoutError(str(unknown[0]), data[unknown[0]], f"is not a key of {argument}",
                          f"Its keys are {', '.join(known)}")
    missing = [key for key in required if key not in data]
    if missing:
        raise LayoutError(missing[0], None, f"is missing from {argument}, which has {', '.join(data) or 'nothing'}")


def _list(value: object, argument: str) -> list:
    if not isinstance(value, (list, tuple)):
        raise LayoutError(argument, value, "must be a list")
    return list(value)


def _names(value: object, argument: str) -> tuple[str, ...]:
    for index, name in enumerate(_list(value, argument)):
        if not isinstance(name, str):
            raise LayoutError(f"{argument}[{index}]", name, "must be a layer's name")
    return tuple(value)
