"""names: a layout in other systems' words."""

from __future__ import annotations

from typing import Annotated

import typer

from kvlayout.cli.show import AsJson, command, put_json, table
from kvlayout.clinic.vocabulary import names as words_of
from kvlayout.layout import KVCacheLayout, layout_from_name


@command
def names(
    layout: Annotated[str | None, typer.Argument(help="One layout; all six if left out.")] = None,
    as_json: AsJson = False,
) -> int:
    """Say what vLLM, FlashInfer, LMCache and NIXL call a layout."""
    chosen = list(KVCacheLayout) if layout is None else [layout_from_name(layout)]
    found = {one.name: words_of(one) for one in chosen}
    if as_json:
        put_json(found)
        return 0
    for name, words in found.items():
        table(("in", "word"), [(vocabulary, word or "(no word)") for vocabulary, word in words.items()], title=name)
    return 0
