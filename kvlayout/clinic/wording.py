"""Words that the clinic's findings share."""

from __future__ import annotations

from collections.abc import Sequence

from kvlayout.address import AddressMap
from kvlayout.clinic.block_bytes import kernel_ratio


def layers_text(layers: Sequence[str]) -> str:
    """Return "layer x" or "28 layers (x to y)"."""
    return f"layer {layers[0]}" if len(layers) == 1 else f"{len(layers)} layers ({layers[0]} to {layers[-1]})"


def plural(count: int, one: str) -> str:
    """Return "1 block" or "1,000 blocks"."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def block_words(block: int, kernel_blocks: int = 1) -> str:
    """Return a block as the map counts it in words: with its manager block where that is split into kernel blocks."""
    if kernel_blocks == 1:
        return f"block {block:,}"
    manager, part = divmod(block, kernel_blocks)
    return f"kernel block {block:,} (manager block {manager:,}, part {part + 1:,} of {kernel_blocks:,})"


def map_block_words(address_map: AddressMap, layer: str | int, block: int) -> str:
    """Return :func:`block_words` of a block of a layer of the map; LayoutError for a layer that it doesn't have."""
    return block_words(block, kernel_ratio(address_map, address_map.region(layer).group))


def block_noun(address_map: AddressMap, layer: str | int) -> str:
    """Return what the map counts for a layer: "block" or "kernel block"; LayoutError as :func:`map_block_words`."""
    return "block" if kernel_ratio(address_map, address_map.region(layer).group) == 1 else "kernel block"
