"""Kernel blocks: the block size, in tokens, that all backends of a group can work with.

A manager block may be seen as several kernel blocks, where a backend's kernels take no block as large.
Source: vLLM 0.29.0 to 0.33.0, ``vllm/v1/worker/utils.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from kvlayout.candidates import backend_name
from kvlayout.config import KVCacheConfig
from kvlayout.errors import LayoutError, check_int
from kvlayout.spec import AttentionSpec, EncoderOnlyAttentionSpec, KVCacheSpec, MambaSpec, MultipleOf
from kvlayout.spec_io import as_spec
from kvlayout.versions import NEWEST, at_least


@dataclass(frozen=True)
class AttentionGroup:
    """A backend and the spec that it serves inside one KV cache group, as in vLLM."""

    backend: object
    kv_cache_spec: KVCacheSpec


def supported_kernel_block_sizes(
    backend: object, kv_cache_spec: object | None = None
) -> tuple[int | MultipleOf, ...]:
    """Return what ``backend`` takes: exact sizes in tokens and MultipleOf, ours; both may depend on the spec.

    A backend whose method takes no spec is asked without one. LayoutError for anything that is no size.
    """
    ask = getattr(backend, "get_supported_kernel_block_sizes", None)
    if ask is None:
        raise LayoutError("backends", backend, "has no get_supported_kernel_block_sizes()",
                          "Give vLLM's backend classes, or objects with that method")
    sizes = ask(kv_cache_spec) if inspect.signature(ask).parameters else ask()
    argument = f"get_supported_kernel_block_sizes of {backend_name(backend)}"
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        raise LayoutError(argument, sizes, "must be a list of sizes", "Give whole numbers of tokens, or MultipleOf")
    return tuple(MultipleOf(size.base) if type(size).__name__ == "MultipleOf"
                 else check_int(argument, size, minimum=1) for size in sizes)


def select_common_block_size(
    kv_manager_block_size: int, backends: Sequence[object], kv_cache_specs: Sequence[object | None] | None = None
) -> int:
    """Return the largest kernel block size, in tokens, that divides the manager's and that all backends take.

    The manager's own size is taken if all accept it: an exact size must be equal, MultipleOf takes multiples.
    ``kv_cache_specs``: one spec or None for each backend (vLLM 0.32 and newer ask with it). LayoutError names what
    each backend takes, where nothing fits.
    """
    check_int("kv_manager_block_size", kv_manager_block_size, minimum=1)
    backends = list(backends)
    # An empty list of specs means none, as in vLLM.
    specs = list(kv_cache_specs or [None] * len(backends))
    if len(specs) != len(backends):
        raise LayoutError("kv_cache_specs", kv_cache_specs,
                          f"must have one entry for each of {len(backends)} backends",
                          "Give None for a backend without a spec")
    taken = [supported_kernel_block_sizes(backend, spec) for backend, spec in zip(backends, specs)]
    exact = {size for sizes in taken for size in sizes
             if not isinstance(size, MultipleOf) and kv_manager_block_size % size == 0}
    # Where all take some multiple, all take the manager's size too: any other candidate is somebody's exact size.
    for size in (kv_manager_block_size, *sorted(exact, reverse=True)):
        if all(takes_kernel_block(sizes, size) for sizes in taken):
            return size
    shown = "; ".join(f"{backend_name(backend)} takes {', '.join(map(str, sizes)) or 'none'}"
                      for backend, sizes in zip(backends, taken))
    raise LayoutError("kv_manager_block_size", kv_manager_block_size,
                      f"has no divisor that every backend takes as a kernel block ({shown})",
                      "Choose a block size that is a multiple of what all of them take")


def prepare_kernel_block_sizes(
    kv_cache_config: KVCacheConfig, backends_of_group: Sequence[Sequence[object]], *, vllm_version: str = NEWEST
) -> list[int]:
    """Return the kernel block size, in tokens, of each KV cache group; encoder-only groups are left out.

    ``backends_of_group``: for each group its backends, or AttentionGroups where the spec that a backend serves
    isn't the group's (first) one. Never split: Mamba, specs without layer views (0.30 and newer), and groups with a
    tensor that has other layers' pages between its blocks (0.32 and newer).
    """
    groups = kv_cache_config.kv_cache_groups
    if len(backends_of_group) != len(groups):
        raise LayoutError("backends_of_group", backends_of_group,
                          f"must have one entry for each of {len(groups)} groups",
                          "Give an empty list for a group that no attention backend serves")
    sizes = []
    for group, entries in zip(groups, backends_of_group):
        spec = _first_spec(group.kv_cache_spec)
        if not getattr(spec, "has_layer_views", True) and at_least(vllm_version, "0.30.0"):
            sizes.append(spec.block_size)
            continue
        kind = as_spec(spec, "kv_cache_spec")
        if isinstance(kind, EncoderOnlyAttentionSpec):
            continue
        block_size = group.kv_cache_spec.block_size
        if isinstance(kind, MambaSpec):
            sizes.append(kind.block_size)
        elif not isinstance(kind, AttentionSpec):
            raise LayoutError("kv_cache_spec", kind, "is neither attention nor a recurrent state")
        elif at_least(vllm_version, "0.32.0") and _is_packed(kv_cache_config, group.layer_names):
            sizes.append(block_size)
        else:
            # Up to 0.31 backends are asked without a spec.
            asks = at_least(vllm_version, "0.32.0")
            sizes.append(select_common_block_size(
                block_size, [getattr(entry, "backend", entry) for entry in entries],
                [getattr(entry, "kv_cache_spec", spec) if asks else None for entry in entries]))
    return sizes


def takes_kernel_block(sizes: Sequence[int | MultipleOf], size: int) -> bool:
    """Whether kernels that take ``sizes`` (tokens) can be handed blocks of ``size`` tokens as they are."""
    return any(size % one.base == 0 if isinstance(one, MultipleOf) else size == one for one in sizes)


def _first_spec(spec: object) -> object:
    """Return the spec itself, or the first layer's of a uniform-type group; ours or vLLM's, as it is."""
    return next(iter(spec.kv_cache_specs.values())) if hasattr(spec, "kv_cache_specs") else spec


def _is_packed(kv_cache_config: KVCacheConfig, layer_names: Sequence[str]) -> bool:
    """Whether other layers' pages lie between the blocks of a tensor that holds one of these layers."""
    names = set(layer_names)
    return any(tensor.block_stride > tensor.layer_stride and not names.isdisjoint(tensor.layers)
               for tensor in kv_cache_config.kv_cache_tensors)
