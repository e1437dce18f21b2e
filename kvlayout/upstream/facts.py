"""Objects of both sides as nested plain values, read by attribute alone, so that vLLM's numbers stay vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

_SIZES = ("num_heads", "num_states", "state_content_size_bytes", "page_size_bytes")
# Before 0.32 a state spec of vLLM's has no such property.
_OPTIONAL = ("unpadded_page_size_bytes",)


def paired_specs(ours: Mapping[str, object], theirs: Mapping[str, object]) -> tuple[dict, dict]:
    """Return both sides' facts of {name: spec}: class, the fields that both classes have, and all sizes.

    Of a spec of several layers: its sum, and each layer's facts. A name that only one side has keeps its class.
    """
    left, right = {}, {}
    for name, spec in ours.items():
        left[name], right_facts = _paired(spec, theirs[name]) if name in theirs else ({"type": _kind(spec)}, None)
        if right_facts is not None:
            right[name] = right_facts
    right |= {name: {"type": _kind(spec)} for name, spec in theirs.items() if name not in ours}
    return left, right


def paired_groups(ours: Iterable[object], theirs: Iterable[object]) -> tuple[dict, dict]:
    """Return both sides' groups: layer names in order, and the group's spec."""
    mine, others = list(ours), list(theirs)
    left, right = paired_specs({str(i): group.kv_cache_spec for i, group in enumerate(mine)},
                               {str(i): group.kv_cache_spec for i, group in enumerate(others)})
    return tuple({"groups": [{"layer_names": list(group.layer_names), "kv_cache_spec": facts[str(index)]}
                             for index, group in enumerate(side)]}
                 for side, facts in ((mine, left), (others, right)))


def config_facts(config: object) -> dict:
    """Return a config's block count, layers of each group, and tensors."""
    return {
        "num_blocks": config.num_blocks,
        "kv_cache_tensors": [
            {"layers": list(one.layers), "size": one.size, "layer_stride": one.layer_stride,
             "block_stride": one.block_stride, "offset": one.offset} for one in config.kv_cache_tensors],
        "kv_cache_groups": [list(group.layer_names) for group in config.kv_cache_groups],
    }


def _paired(ours: object, theirs: object) -> tuple[dict, dict]:
    inner = [getattr(spec, "kv_cache_specs", None) for spec in (ours, theirs)]
    if None not in inner:
        both = [{"type": _kind(spec), "block_size": spec.block_size, "page_size_bytes": spec.page_size_bytes}
                for spec in (ours, theirs)]
        return tuple({**own, "kv_cache_specs": layers} for own, layers in zip(both, paired_specs(*inner)))
    if inner != [None, None]:
        return {"type": _kind(ours)}, {"type": _kind(theirs)}
    names = [f.name for f in fields(ours) if hasattr(theirs, f.name)]
    names += [name for name in _OPTIONAL if hasattr(ours, name) and hasattr(theirs, name)]
    names += [name for name in _SIZES if name not in names]
    return _facts(ours, names), _facts(theirs, names)


def _facts(spec: object, names: Iterable[str]) -> dict:
    return {"type": _kind(spec), **{name: getattr(spec, name) for name in names}}


def _kind(spec: object) -> str:
    return type(spec).__name__
