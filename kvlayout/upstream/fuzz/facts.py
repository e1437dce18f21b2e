"""Specs, groups, tensors and configs, ours or vLLM's, as plain values that compare field by field."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from fractions import Fraction
from functools import cache

from kvlayout.spec import UniformTypeKVCacheSpecs
from kvlayout.spec_io import SPEC_TYPES


@cache
def field_names(kind: str, lacking: frozenset[str]) -> tuple[str, ...]:
    """Return the fields of a spec class that both sides have."""
    return tuple(f.name for f in fields(SPEC_TYPES[kind])
                 if f"{kind}.{f.name}" not in lacking and f.name != "kv_cache_specs")


def spec_facts(spec: object, lacking: frozenset[str] = frozenset()) -> dict:
    """Return class, fields and page size of a spec, as they are stored; a uniform type's specs by layer."""
    kind = type(spec).__name__
    told = {"type": kind, "page_size_bytes": spec.page_size_bytes}
    for name in field_names(kind, lacking):
        told[name] = _plain(getattr(spec, name))
    if kind == UniformTypeKVCacheSpecs.__name__:
        seen: dict[int, dict] = {}
        told["kv_cache_specs"] = [
            (layer, seen[id(one)] if id(one) in seen else seen.setdefault(id(one), spec_facts(one, lacking)))
            for layer, one in spec.kv_cache_specs.items()]
    return told


def groups_facts(groups: object, lacking: frozenset[str] = frozenset()) -> list[dict]:
    """Return the layers and the spec of each group."""
    return [{"layers": list(group.layer_names), "spec": spec_facts(group.kv_cache_spec, lacking)}
            for group in groups]


def tensor_facts(tensor: object) -> dict:
    """Return a tensor as plain values."""
    return {"size": tensor.size, "layers": list(tensor.layers), "layer_stride": tensor.layer_stride,
            "block_stride": tensor.block_stride, "offset": tensor.offset}


def config_facts(config: object) -> dict:
    """Return a config's blocks and tensors."""
    return {"num_blocks": config.num_blocks, "tensors": [tensor_facts(one) for one in config.kv_cache_tensors]}


def _plain(value: object) -> object:
    kind = type(value)
    if value is None or kind in (int, bool, str):
        return value
    if kind.__name__ == "MultipleOf":
        return {"multiple_of": value.base}
    if kind.__name__ == "KVQuantMode":
        return value.name
    if isinstance(value, Enum):
        return (value.value if isinstance(value, str) else value.name).lower()
    if isinstance(value, Fraction):
        # A whole Fraction is the same number of tokens.
        return value.numerator if value.denominator == 1 else str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value).removeprefix("torch.")
