"""What is paid for nothing, and what a reader may wrongly assume: padding, unsupported layouts, K and V apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.clinic.bounds import block_set
from kvlayout.clinic.wording import layers_text
from kvlayout.errors import LayoutError, check_type
from kvlayout.finding import Finding
from kvlayout.kernel_blocks import supported_kernel_block_sizes, takes_kernel_block
from kvlayout.plan import Plan
from kvlayout.spec import AttentionSpec
from kvlayout.strided import merge_runs

_MOST_RUNS = 1 << 18
_MUCH = 0.25  # of a block without content


@dataclass(frozen=True)
class PaddingShare:
    """``content_bytes`` of ``block_bytes`` hold content where a block is lent to ``group`` (None: to any of them)."""

    group: int | None
    content_bytes: int
    block_bytes: int

    @property
    def share(self) -> float:
        """Share (0 to 1) of a block that holds nothing."""
        return max(0.0, 1 - self.content_bytes / self.block_bytes) if self.block_bytes else 0.0


def padding_shares(address_map: AddressMap) -> list[PaddingShare]:
    """Return one entry a group, then one for all (bytes that no group ever uses); none for a pool without blocks."""
    check_type("address_map", address_map, AddressMap)
    config = address_map.config
    if not config.num_blocks or not config.size_bytes:
        return []
    block = config.size_bytes // config.num_blocks
    found = [PaddingShare(index, sum(spec.unpadded_page_size_bytes for spec in group.layer_specs.values()), block)
             for index, group in enumerate(config.kv_cache_groups)]
    used = _used_of_block(address_map)
    return found if used is None else [*found, PaddingShare(None, used, block)]


def _used_of_block(address_map: AddressMap) -> int | None:
    """Bytes of block 0 that some group owns; None where its pieces are too many to count."""
    starts, lengths = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    seen = set()
    for region in address_map.regions:
        inner = block_set(region, address_map.config.num_blocks)
        key = (inner.offset, inner.extents, inner.strides)
        if inner.is_empty or key in seen:
            continue
        seen.add(key)
        if inner.num_runs > _MOST_RUNS:
            return None
        begin, length = inner.runs([None] * 5)
        starts.append(begin)
        lengths.append(np.full(len(begin), length, dtype=np.int64))
    return int(merge_runs(np.concatenate(starts), np.concatenate(lengths))[1].sum())


def lint_shares(address_map: AddressMap) -> list[Finding]:
    """Return how much of a block each group, and all of them, leave empty; nothing where it is all used."""
    found = []
    for one in padding_shares(address_map):
        if one.share <= 0:
            continue
        numbers = {"content_bytes": one.content_bytes, "block_bytes": one.block_bytes, "share": one.share}
        if one.group is None:
            text = (f"No group ever uses {one.block_bytes - one.content_bytes:,} of a block's {one.block_bytes:,} "
                    "bytes")
        else:
            text = (f"In a block lent to group {one.group} {one.content_bytes:,} of {one.block_bytes:,} bytes hold "
                    "content")
        found.append(Finding("padding-share", "warning" if one.share >= _MUCH else "note",
                             f"{text} ({one.share:.1%} unused).", {**numbers, "group": one.group}, None,
                             "Choose block sizes whose pages come out equal, or a block-outermost layout"
                             if one.share >= _MUCH else ""))
    return found


def lint_halves(address_map: AddressMap) -> list[Finding]:
    """Return a note for each distinct page in which K and V lie side by side in each state."""
    kinds: dict[tuple, list[str]] = {}
    for region in address_map.regions:
        if region.interior.scope != "state" or 0 in region.geometry.shape:
            continue
        begins = {field.name: begin for begin, field in region.interior.slot_fields(0)}
        if "K" in begins and "V" in begins:
            page = region.spec.unpadded_page_size_bytes
            kinds.setdefault((begins["K"], begins["V"], region.geometry.shape[4], page), []).extend(
                region.tensor.layers)
    return [Finding("kv-packed", "note", f"K and V of {layers_text(layers)} lie side by side in each state of "
                    f"{content:,} bytes, K at {k:,} and V at {v:,}: there's no axis of 2, and the second half of a "
                    f"page (from byte {page // 2:,} on) isn't V.",
                    {"k_offset": k, "v_offset": v, "state_bytes": content, "page_bytes": page},
                    {"layer": layers[0]}, "Split K from V along C, not along a leading axis")
            for (k, v, content, page), layers in kinds.items()]


def lint_backends(plan: Plan) -> list[Finding]:
    """Return an error for each backend that doesn't take the plan's layout, or its forced kernel block."""
    served: dict[str, list[str]] = {}
    for layer in plan.address_map.layers:
        if layer in plan.backends:
            served.setdefault(plan.backends[layer].name, []).append(layer)
    found = []
    for name, layers in served.items():
        backend = plan.backends[layers[0]]
        supported = backend.supported_kv_cache_layouts()
        names = None if supported is None else [getattr(layout, "name", layout) for layout in supported]
        if names is not None and plan.layout.name not in names:
            found.append(Finding(
                "unsupported-layout", "error", f"{name} serves {layers_text(layers)} and supports "
                f"{', '.join(names) or 'no layout'}, not {plan.layout.name}.",
                {"backend": name, "layout": plan.layout.name, "supported": names}, {"layer": layers[0]},
                f"Use {names[0]}" if names else "Choose another backend"))
        found += _kernel_block(plan, name, backend, layers)
    return found


def _kernel_block(plan: Plan, name: str, backend: object, layers: Sequence[str]) -> list[Finding]:
    """Only a size that somebody forced: what vLLM chooses is taken by all, or not split at all."""
    specs = plan.config.layer_specs
    size = plan.selection.kernel_block_size
    if size is None or not isinstance(specs[layers[0]], AttentionSpec):
        return []
    try:
        taken = supported_kernel_block_sizes(backend, specs[layers[0]])
    except LayoutError:
        return []
    if takes_kernel_block(taken, size):
        return []
    shown = [str(one) for one in taken]
    return [Finding("unsupported-kernel-block", "error", f"{name} serves {layers_text(layers)} and takes kernel "
                    f"blocks of {', '.join(shown) or 'no size'} tokens, not {size}.",
                    {"backend": name, "kernel_block_size": size, "supported": shown}, {"layer": layers[0]},
                    "Leave kernel_block_size out")]
