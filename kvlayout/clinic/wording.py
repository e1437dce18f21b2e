"""Words that the clinic's findings share."""

from __future__ import annotations

from collections.abc import Sequence


def layers_text(layers: Sequence[str]) -> str:
    """Return "layer x" or "28 layers (x to y)"."""
    return f"layer {layers[0]}" if len(layers) == 1 else f"{len(layers)} layers ({layers[0]} to {layers[-1]})"


def plural(count: int, one: str) -> str:
    """Return "1 block" or "1,000 blocks"."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"
