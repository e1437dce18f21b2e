"""Specs in and out: plain dicts (``{"type": "FullAttentionSpec", ...}``) and vLLM's own objects."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields
from enum import Enum
from fractions import Fraction
from functools import cache

from kvlayout import spec as _spec
from kvlayout.errors import LayoutError, errors_in
from kvlayout.spec import KVCacheSpec, KVQuantMode, MultipleOf, UniformTypeKVCacheSpecs

SPEC_TYPES = {
    name: kind for name, kind in vars(_spec).items()
    if isinstance(kind, type) and issubclass(kind, KVCacheSpec) and kind not in (KVCacheSpec, _spec.AttentionSpec)
}


def as_spec(spec: object, argument: str = "spec") -> KVCacheSpec:
    """Return ``spec`` as one of ours; vLLM's own spec objects (0.29 and newer) are converted field by field.

    A vLLM subclass that we don't know is taken as the nearest base class that we do. Fields that we don't have
    influence no size. Raises LayoutError for anything else.
    """
    if isinstance(spec, KVCacheSpec):
        return spec
    kind = next((SPEC_TYPES[base.__name__] for base in type(spec).__mro__ if base.__name__ in SPEC_TYPES), None)
    if kind is None:
        raise LayoutError(argument, spec, "is not a KV cache spec",
                          f"Give one of {', '.join(SPEC_TYPES)}, ours or vLLM's")
    values = {f.name: _plain(getattr(spec, f.name)) for f in fields(kind) if hasattr(spec, f.name)}
    if kind is UniformTypeKVCacheSpecs:
        values["kv_cache_specs"] = {name: as_spec(one) for name, one in spec.kv_cache_specs.items()}
    return kind(**values)


def _plain(value: object) -> object:
    """vLLM's enums by value (quantisation modes by name), its MultipleOf as ours, the rest as it is."""
    if type(value).__name__ == "MultipleOf" and not isinstance(value, MultipleOf):
        return MultipleOf(value.base)
    if type(value).__name__ == "KVQuantMode":
        return value.name
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name.lower()
    return value


def spec_from_dict(data: dict) -> KVCacheSpec:
    """Return the spec of ``{"type": class name, field: value, ...}``.

    LayoutError for an unknown type or field, a missing field, or a value of another type.
    """
    found = data.get("type") if isinstance(data, dict) else data
    if not isinstance(found, str) or found not in SPEC_TYPES:
        raise LayoutError("type", found, "is not a spec class", f"Use one of {', '.join(SPEC_TYPES)}")
    kind = SPEC_TYPES[data["type"]]
    values = {name: value for name, value in data.items() if name != "type"}
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise LayoutError(unknown[0], values[unknown[0]], f"is not a field of {kind.__name__}",
                          f"Its fields are {', '.join(sorted(known))}")
    missing = [f.name for f in fields(kind)
               if f.default is MISSING and f.default_factory is MISSING and f.name not in values]
    if missing:
        raise LayoutError(missing[0], None, f"is required by {kind.__name__}")
    for name, value in values.items():
        if not _fits(value, _hints(kind)[name]):
            raise LayoutError(name, value, f"has the wrong type for {kind.__name__}.{name}",
                              f"Its type is {_shown(_hints(kind)[name])}")
    alignment = values.get("block_stride_alignment")
    if isinstance(alignment, dict) and set(alignment) == {"multiple_of"}:
        values["block_stride_alignment"] = MultipleOf(alignment["multiple_of"])
    if kind is UniformTypeKVCacheSpecs:
        inner = {}
        for name, one in values["kv_cache_specs"].items():
            with errors_in(f"kv_cache_specs[{name!r}]"):
                inner[name] = spec_from_dict(one)
        values["kv_cache_specs"] = inner
    spec = kind(**values)
    # A spec with an alignment rounds its page anew, whatever it is given.
    if values.get("page_size_padded") is not None and values["page_size_padded"] < spec.unpadded_page_size_bytes:
        raise LayoutError("page_size_padded", values["page_size_padded"],
                          f"is below the page's own {spec.unpadded_page_size_bytes:,} bytes",
                          "Give at least those bytes, or None for no padding")
    return spec


@cache
def _hints(kind: type) -> dict[str, object]:
    return typing.get_type_hints(kind)


def _fits(value: object, hint: object) -> bool:
    """Whether a plain (JSON) value is one of ``hint``; the types that JSON lacks are checked by their own class."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, one) for one in arguments)
    if origin is tuple:
        return isinstance(value, (list, tuple)) and all(_fits(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if hint is MultipleOf:
        return isinstance(value, MultipleOf) or (isinstance(value, dict) and set(value) == {"multiple_of"})
    if hint in (Fraction, KVQuantMode):
        return isinstance(value, (str, hint))
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _shown(hint: object) -> str:
    return str(hint).replace("kvlayout.spec.", "").replace("fractions.", "") if typing.get_origin(hint) \
        else hint.__name__


def spec_to_dict(spec: KVCacheSpec) -> dict:
    """Return the plain dict of a spec, only fields that differ from their default; inverse of spec_from_dict."""
    data = {"type": type(spec).__name__}
    for f in fields(spec):
        value = getattr(spec, f.name)
        if value == f.default and f.name != "head_size_v":
            continue
        if isinstance(value, Fraction):
            value = str(value)
        elif isinstance(value, KVQuantMode):
            value = value.name
        elif isinstance(value, MultipleOf):
            value = {"multiple_of": value.base}
        elif isinstance(value, tuple):
            value = [list(item) if isinstance(item, tuple) else item for item in value]
        elif f.name == "kv_cache_specs":
            value = {name: spec_to_dict(one) for name, one in value.items()}
        data[f.name] = value
    return data
