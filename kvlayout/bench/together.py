"""What several backends of one worker make of one block size, where their layers share a group."""

from __future__ import annotations

from collections.abc import Sequence

from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.facts.catalogue import Backend
from kvlayout.finding import Finding
from kvlayout.kernel_blocks import AttentionGroup, prepare_kernel_block_sizes, select_common_block_size
from kvlayout.plan import Plan

_Served = list[AttentionGroup]


def check_kernel_blocks(plan: Plan, name: str, beside: Sequence[Backend]) -> list[Finding]:
    """Return what becomes of the blocks of backend ``name`` where layers of ``beside`` stand in the same groups.

    Sizes are tokens; ``beside`` is asked with ``name``'s pages. Rules: "no-kernel-block-together", a warning, and
    "kernel-block-together", a note: whether layers share a group isn't known before both models are. Nothing where
    the selection has a kernel block size.
    """
    groups = plan.config.kv_cache_groups
    mine = [index for index, group in enumerate(groups)
            if any(plan.backends[layer].name == name for layer in group.layer_names)]
    if not beside or not mine or plan.selection.kernel_block_size is not None:
        return []
    served = [_served(plan, group, beside if index in mine else ()) for index, group in enumerate(groups)]
    where = f"Where layers of {', '.join(one.name for one in beside)} share a group with those of {name}"
    try:
        sizes = prepare_kernel_block_sizes(plan.config, served, vllm_version=plan.selection.vllm_version)
    except LayoutError as error:
        return [_none(f"{where}, a block of {error.value} tokens {error.rule}.", error.value, error.cure)]
    found = []
    for index in mine:
        size, alone = sizes[index], plan.kernel_block_sizes[index]
        refusing = [one.backend.name for one in served[index] if one.backend.name != name and not _takes(one, size)]
        if refusing:  # a layout that is never split hands out whole blocks unasked
            found.append(_none(f"{where}, blocks of {size} tokens are handed to {', '.join(dict.fromkeys(refusing))} "
                               "too, which doesn't take them.", size))
        elif size != alone:
            found.append(Finding("kernel-block-together", "note", f"{where}, vLLM cuts blocks into kernel blocks of "
                                 f"{size} tokens, not of {alone} as the page is shown.", {"tokens": size}))
    return list({one.message: one for one in found}.values())  # several groups may give the same one


def _served(plan: Plan, group: KVCacheGroupSpec, beside: Sequence[Backend]) -> _Served:
    pairs = {(plan.backends[layer].name, spec): AttentionGroup(plan.backends[layer], spec)
             for layer, spec in group.layer_specs.items()}
    return [*pairs.values(), *(AttentionGroup(backend, spec) for backend in beside
                               for spec in dict.fromkeys(group.layer_specs.values()))]


def _takes(entry: AttentionGroup, size: int) -> bool:
    try:
        return select_common_block_size(size, [entry.backend], [entry.kv_cache_spec]) == size
    except LayoutError:
        return False


def _none(message: str, tokens: int, cure: str = "Choose another block size") -> Finding:
    return Finding("no-kernel-block-together", "warning", message, {"tokens": tokens}, None, cure)
