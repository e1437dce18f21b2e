"""A config that no address map can be made of: what can be said of it nevertheless, tensor by tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kvlayout.address import AddressMap
from kvlayout.clinic.blocks import lint_uneven
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.finding import Finding
from kvlayout.interior import Interior
from kvlayout.layout import KVCacheLayout

_MOST_NAMED = 8


def refused(error: LayoutError, where: dict | None = None, rule: str = "refused") -> Finding:
    """Return the finding that a LayoutError is."""
    return Finding(rule, "error", f"{error.argument} {error.rule}: {_short(error.value)}.",
                   {"argument": error.argument, "value": _short(error.value), "rule": error.rule}, where, error.cure)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:297]}..."


def lint_broken(
    config: KVCacheConfig, layout: KVCacheLayout, kernel_block_sizes: Sequence[int | None] | None, error: LayoutError,
    interiors: dict[str, Interior] | None = None,
) -> tuple[list[Finding], AddressMap | None]:
    """Return why the config is refused, and a map of the tensors that are sound by themselves, or None."""
    found = _names(config) + _sizes(config)
    sizes = _as_sizes(config, kernel_block_sizes)
    uneven = lint_uneven(config, sizes)
    named = {one.numbers["tensor"] for one in uneven}
    if uneven:
        sizes = None
    found += uneven
    sound = []
    for index, tensor in enumerate(config.kv_cache_tensors):
        groups = _groups_of(config, tensor.layers)
        part = replace(config, kv_cache_tensors=(tensor,), kv_cache_groups=groups)
        try:
            if groups and sum(len(group.layer_names) for group in groups) == len(tensor.layers):
                AddressMap(part, layout, _sizes_of(config, groups, sizes), _chosen(interiors, tensor.layers))
                sound.append(index)
        except LayoutError as problem:
            if index not in named:
                found.append(refused(problem, {"layer": tensor.layers[0]} if tensor.layers else None))
    if not any(one.is_error for one in found):
        found.append(refused(error))
    return found, _map_of(config, layout, sizes, sound, interiors)


def _names(config: KVCacheConfig) -> list[Finding]:
    """Layers that groups and tensors name too often, or not at all."""
    grouped = Counter(name for group in config.kv_cache_groups for name in group.layer_names)
    placed = Counter(name for tensor in config.kv_cache_tensors for name in tensor.layers)
    found = []
    for rule, names, what, cure in (
        ("layer-without-tensor", [n for n in grouped if n not in placed], "in a group, but in no tensor",
         "Give every layer of every group a place in one tensor"),
        ("layer-without-group", [n for n in placed if n not in grouped], "in a tensor, but in no group",
         "Add it to a group, or take it out of the tensor"),
        ("layer-twice", [n for n, count in (*grouped.items(), *placed.items()) if count > 1],
         "named more than once", "Name a layer in one group and one tensor, once"),
    ):
        if names:
            names = list(dict.fromkeys(names))
            shown = ", ".join(names[:_MOST_NAMED]) + (" ..." if len(names) > _MOST_NAMED else "")
            found.append(Finding(rule, "error", f"{len(names):,} of {len(grouped):,} layers are {what}: {shown}.",
                                 {"count": len(names), "layers": names[:_MOST_NAMED]}, {"layer": names[0]}, cure))
    return found


def _sizes(config: KVCacheConfig) -> list[Finding]:
    sizes = Counter(tensor.size for tensor in config.kv_cache_tensors)
    if len(sizes) <= 1:
        return []
    shown = ", ".join(f"{size:,} ({count} tensors)" for size, count in sizes.most_common(_MOST_NAMED))
    return [Finding("sizes-differ", "error", "The tensors must share one backing allocation, but name several "
                    f"sizes: {shown} bytes.", {"sizes": dict(sizes.most_common(_MOST_NAMED))}, None,
                    "Give every tensor the size of the whole allocation")]


def _groups_of(config: KVCacheConfig, layers: Sequence[str]) -> tuple[KVCacheGroupSpec, ...]:
    """The groups, cut down to ``layers``."""
    wanted = set(layers)
    cut = [replace(group, layer_names=tuple(name for name in group.layer_names if name in wanted))
           for group in config.kv_cache_groups]
    return tuple(group for group in cut if group.layer_names)


def _as_sizes(config: KVCacheConfig, sizes: object) -> list[int | None] | None:
    """Kernel block sizes, if they are one whole number or None a group."""
    if isinstance(sizes, Sequence) and len(sizes) == len(config.kv_cache_groups) and all(
            one is None or (isinstance(one, int) and not isinstance(one, bool) and one > 0) for one in sizes):
        return list(sizes)
    return None


def _sizes_of(config: KVCacheConfig, groups: Sequence[KVCacheGroupSpec], sizes: list | None) -> list | None:
    if sizes is None:
        return None
    return [sizes[config.group_of(group.layer_names[0])] for group in groups]


def _chosen(interiors: dict[str, Interior] | None, layers: Sequence[str]) -> dict[str, Interior]:
    return {name: one for name, one in (interiors or {}).items() if name in set(layers)}


def _map_of(config, layout, sizes, sound: list[int], interiors) -> AddressMap | None:
    """The sound tensors together, in an allocation of the largest size that any names."""
    size = max((config.kv_cache_tensors[index].size for index in sound), default=0)
    tensors = tuple(replace(config.kv_cache_tensors[index], size=size) for index in sound)
    layers = [name for tensor in tensors for name in tensor.layers]
    try:
        if not layers or len(set(layers)) < len(layers):
            return None
        groups = _groups_of(config, layers)
        part = replace(config, kv_cache_tensors=tensors, kv_cache_groups=groups)
        return AddressMap(part, layout, _sizes_of(config, groups, sizes), _chosen(interiors, layers))
    except LayoutError:
        return None
