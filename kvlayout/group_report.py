"""What a grouping costs, group by group: how much of each block holds content, and what is left empty.

Every block has the size that the largest group needs, whichever group it is given to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout, PhysicalLayout, as_layout
from kvlayout.placement import get_kv_cache_bytes_per_block, layer_block_stride
from kvlayout.versions import NEWEST, at_least


@dataclass(frozen=True)
class GroupReport:
    """One group in a block of ``block_bytes`` bytes.

    Attributes:
        layer_names: its layers, in order
        kinds: the classes of their specs, each once
        block_size: tokens of one block
        page_sizes_bytes: bytes of each layer's page, in layer order
        content_bytes: bytes of all these pages that hold content
        block_bytes: bytes of one block, the same for every group
        padding_layers: layers of this group's page size that would still fit into a block; 0 for mixed page sizes
    """

    layer_names: tuple[str, ...]
    kinds: tuple[str, ...]
    block_size: int
    page_sizes_bytes: tuple[int, ...]
    content_bytes: int
    block_bytes: int
    padding_layers: int

    @property
    def padding_share(self) -> float:
        """Share (0 to 1) of a block's bytes that hold no content when the block is given to this group."""
        return 1 - self.content_bytes / self.block_bytes

    @property
    def sentence(self) -> str:
        """The group in one sentence, for a person."""
        if not self.layer_names:
            return "No layer here: the group belongs to other pipeline ranks."
        count = len(self.layer_names)
        layers = "1 layer" if count == 1 else f"{count} layers"
        text = (f"{layers} of {' and '.join(self.kinds)}, {self.block_size} tokens a block: "
                f"{self.content_bytes:,} of {self.block_bytes:,} bytes hold content")
        if self.padding_layers:
            text += f", with room for {self.padding_layers} more"
        return f"{text} ({self.padding_share:.1%} unused)."


def explain_groups(
    kv_cache_groups: Sequence[KVCacheGroupSpec],
    layout: KVCacheLayout | PhysicalLayout,
    *,
    vllm_version: str = NEWEST,
) -> list[GroupReport]:
    """Return one report a group, in order. LayoutError where the groups have no page at all."""
    if not kv_cache_groups:
        return []
    layout = as_layout(layout)
    block_bytes = get_kv_cache_bytes_per_block(kv_cache_groups, layout, vllm_version=vllm_version)
    if block_bytes == 0:
        raise LayoutError("kv_cache_groups", list(kv_cache_groups), "hold no page of any byte",
                          "Give groups with layers, whose blocks hold at least one state")
    aligns_each_page = at_least(vllm_version, "0.32.0") and not layout.is_block_outermost
    reports = []
    for group in kv_cache_groups:
        specs = list(group.layer_specs.values())
        pages = tuple(spec.page_size_bytes for spec in specs)
        strides = {layer_block_stride(spec) if aligns_each_page else spec.page_size_bytes for spec in specs} - {0}
        reports.append(GroupReport(
            layer_names=group.layer_names,
            kinds=tuple(dict.fromkeys(type(spec).__name__ for spec in specs)),
            block_size=group.kv_cache_spec.block_size,
            page_sizes_bytes=pages,
            content_bytes=sum(spec.unpadded_page_size_bytes for spec in specs),
            block_bytes=block_bytes,
            padding_layers=block_bytes // strides.pop() - len(specs) if len(strides) == 1 else 0,
        ))
    return reports
