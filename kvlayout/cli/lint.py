"""lint: what is wrong, or easily done wrong, with a cache's layout."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kvlayout.capture.config_json import config_from_dict
from kvlayout.captured import CONFIG, is_captured
from kvlayout.cli.show import AsJson, Backend, Blocks, Layout, TpSize, command, put_json, say
from kvlayout.cli.source import STDIN, read_selection
from kvlayout.clinic.linting import lint as findings_of
from kvlayout.clinic.ranks import compare_ranks
from kvlayout.errors import LayoutError
from kvlayout.finding import Finding
from kvlayout.plan import make_plan
from kvlayout.selection import Selection


@command
def lint(
    files: Annotated[list[str], typer.Argument(help="A preset's name or a file, - is stdin; several are the ranks "
                                               "of one engine, which are compared too.")],
    layout: Layout = None,
    backend: Backend = None,
    tp: TpSize = 1,
    blocks: Blocks = None,
    as_json: AsJson = False,
) -> int:
    """List findings: errors, warnings (only some kernels or sizes suffer) and notes. Errors give status 1."""
    chosen = {"tp_size": None if tp == 1 else tp, "num_blocks": blocks}
    if files.count(STDIN) > 1:
        raise LayoutError("files", STDIN, "can be read only once")
    subjects = [read_selection(file, layout=layout, backend=backend, **chosen) for file in files]
    parts = {file if files.count(file) == 1 else f"{file} (rank {rank})": findings(one)
             for rank, (file, one) in enumerate(zip(files, subjects))}
    between = compare_ranks([make_plan(one) for one in subjects]) if len(files) > 1 else []
    if as_json and len(files) == 1:
        put_json({"findings": [asdict(one) for one in next(iter(parts.values()))]})
    elif as_json:
        put_json({"ranks": {name: [asdict(one) for one in part] for name, part in parts.items()},
                  "between_ranks": [asdict(one) for one in between]})
    elif len(files) == 1:
        _say(next(iter(parts.values())))
    else:
        for rank, (name, part) in enumerate(parts.items()):
            say(f"Rank {rank}, {name}:")
            _say(part)
        say("Between the ranks:")
        _say(between)
    return int(any(one.is_error for part in (*parts.values(), between) for one in part))


def _say(found: list[Finding]) -> None:
    for one in found:
        say(f"{one.severity.upper()}  {one.rule}: {one.message}", *([f"  {one.cure}."] if one.cure else []))
    if not found:
        say("No findings.")


def findings(selection: Selection) -> list[Finding]:
    """Return the findings of a selection's plan; of a captured config that contradicts itself, what it says."""
    try:
        plan = make_plan(selection)
    except LayoutError:
        if not is_captured(selection.model):
            raise
        # The sizes may be the very fault: a padded page that is to be split has no plan.
        return findings_of(config_from_dict(selection.model[CONFIG]), selection.layout,
                           kernel_block_sizes=selection.model.get("kernel_block_sizes"))
    return findings_of(plan)
