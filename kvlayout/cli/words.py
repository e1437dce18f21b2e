"""names: a layout, or a cache's, in other systems' words; of a cache its fingerprint too."""

from __future__ import annotations

from typing import Annotated

import typer

from kvlayout.cli.show import (
    AsJson,
    Backend,
    Blocks,
    BlockSize,
    CacheDtype,
    Layout,
    TpSize,
    command,
    put_json,
    say,
    table,
)
from kvlayout.cli.source import STDIN, guess_notes, is_file, other_plans, read_plan
from kvlayout.clinic.byte_map import fingerprint
from kvlayout.clinic.vocabulary import names as words_of
from kvlayout.errors import LayoutError
from kvlayout.facts.models import get_preset
from kvlayout.layout import KVCacheLayout, layout_from_name


@command
def names(
    what: Annotated[str | None, typer.Argument(help="A layout, all six if left out; or a cache: a preset or a "
                                               "file, - is stdin.")] = None,
    backend: Backend = None,
    layout: Layout = None,
    tp: TpSize = 1,
    blocks: Blocks = None,
    block_size: BlockSize = None,
    kv_dtype: CacheDtype = None,
    as_json: AsJson = False,
) -> int:
    """Say what vLLM, FlashInfer, LMCache and NIXL call a layout, and the fingerprint of a cache's byte map."""
    choices = {"backend": backend, "layout": layout, "tp_size": None if tp == 1 else tp, "num_blocks": blocks,
               "block_size": block_size, "kv_cache_dtype": kv_dtype}
    layouts = list(KVCacheLayout) if what is None else _layouts(what)
    if layouts:
        for name, value in choices.items():
            if value is not None:
                raise LayoutError(name, value, "is for a cache, and a layout alone is none",
                                  "Name a preset or a file")
        found = {one.name: words_of(one) for one in layouts}
    else:
        plan = read_plan(what, **choices)
        found = {one.layout.name: {**words_of(one.layout), "fingerprint": fingerprint(one.address_map)}
                 for one in (plan, *other_plans(plan))}
        say(*([] if as_json else guess_notes(plan)))
    if as_json:
        put_json(found)
        return 0
    for name, words in found.items():
        table(("in", "word"), [(vocabulary, word or "(no word)") for vocabulary, word in words.items()], title=name)
    return 0


def _layouts(what: str) -> list[KVCacheLayout]:
    """The one layout of that name; an empty list for a cache. LayoutError for what is neither."""
    try:
        return [layout_from_name(what)]
    except LayoutError as error:
        if what == STDIN or is_file(what):
            return []
        try:
            get_preset(what)
        except LayoutError:
            raise LayoutError("what", what, "is neither a layout nor a preset",
                              f"{error.cure}, a preset's name or a file") from None
        return []
