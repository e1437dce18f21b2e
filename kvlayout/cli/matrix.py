"""matrix: which backend of a vLLM release takes which layout, and what changed between two releases."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kvlayout.bench.matrix import (
    DEPENDS,
    FIRST,
    REFUSED,
    SUPPORTED,
    BackendMatrix,
    Cell,
    MatrixDiff,
    backend_matrix,
    matrix_diff,
)
from kvlayout.bench.outcomes import UNKNOWN
from kvlayout.cli.show import AsJson, command, put_json, say, table
from kvlayout.layout import KVCacheLayout
from kvlayout.spec import MultipleOf
from kvlayout.versions import NEWEST

_SIGNS = {FIRST: "1st", SUPPORTED: "yes", REFUSED: "no", DEPENDS: "if", UNKNOWN: "?"}


@command
def matrix(
    version: Annotated[str, typer.Argument(help="A vLLM release.")] = NEWEST,
    diff: Annotated[str | None, typer.Option(help="Another release: say what changed from VERSION to it.")] = None,
    platform: Annotated[str | None, typer.Option(help="cuda, rocm, cpu or xpu.")] = None,
    dtype: Annotated[str | None, typer.Option(help="A model's element type, such as bfloat16.")] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="A KV cache dtype, such as auto or fp8.")] = None,
    mla: Annotated[bool | None, typer.Option("--mla/--no-mla", help="Latent attention, or plain.")] = None,
    head_size: Annotated[int | None, typer.Option(help="Elements of a head.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens a block.")] = None,
    as_json: AsJson = False,
) -> int:
    """List what can run what is asked, and its layouts, as recorded; a --diff that finds something gives status 1."""
    wanted = dict(platform=platform, dtype=dtype, kv_cache_dtype=kv_cache_dtype, mla=mla, head_size=head_size,
                  block_size=block_size)
    made = backend_matrix(version, **wanted)
    if diff is not None:
        changed = matrix_diff(made, backend_matrix(diff, **wanted))
        if as_json:
            put_json(_plain(asdict(changed)))
        else:
            _say_diff(changed)
        return int(bool(changed))
    if as_json:
        put_json({"version": made.version, "excluded": made.excluded, "rows": [
            {"backend": row.backend, "class_path": row.class_path, "from_source": row.from_source,
             "not_settled": row.not_settled, "facts": _plain(row.facts),
             "cells": {name: asdict(cell) for name, cell in row.cells.items()}} for row in made]})
    else:
        _say_matrix(made)
    return 0


def _say_matrix(made: BackendMatrix) -> None:
    names = list(KVCacheLayout.__members__)
    table(("backend", *names), [(row.backend, *(_SIGNS[row.cells[name].state] for name in names)) for row in made],
          title=f"vLLM {made.version}: {len(made)} backends, and {len(made.excluded)} that can't do what is asked")
    say("", "1st: its first choice; yes: supported; no: refused; if: it depends, see below; ?: not recorded.")
    for row in made:
        depends = {cell.why: [name for name in names if row.cells[name] == cell] for cell in row.cells.values()
                   if cell.state == DEPENDS}
        say(*(f"{row.backend}, {' and '.join(which)}: {why}." for why, which in depends.items()),
            *(f"{row.backend}: {sentence}." for sentence in row.not_settled))


def _say_diff(changed: MatrixDiff) -> None:
    say(f"vLLM {changed.old} to {changed.new}" + ("" if changed else ": nothing of what is recorded changed"))
    for word, names in (("new", changed.added), ("gone", changed.removed)):
        say(*(f"{word}: {name}" for name in names))
    say(*(f"can now: {name} ({why} before)" for name, why in changed.gained.items()),
        *(f"can't any more: {name} ({why})" for name, why in changed.lost.items()))
    say(*(f"renamed: {old} is {new} now" for old, new in changed.renamed.items()),
        *(f"{one.backend}, {one.what}: {_shown(one.old)} → {_shown(one.new)}"
          for one in (*changed.cells, *changed.facts)))


def _shown(value: object) -> str:
    if isinstance(value, Cell):
        return f"{value} ({value.why})" if value.state == DEPENDS else str(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none listed"
    return "none" if value is None else str(value)


def _plain(value: object) -> object:
    """The same with MultipleOf(n) as {"multiple_of": n}, as the catalogue's own files have it."""
    if isinstance(value, MultipleOf):
        return {"multiple_of": value.base}
    if isinstance(value, dict):
        # asdict has taken a MultipleOf apart already.
        return {"multiple_of": value["base"]} if set(value) == {"base"} else {
            name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
