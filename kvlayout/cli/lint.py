"""lint: what is wrong, or easily done wrong, with a cache's layout."""

from __future__ import annotations

from dataclasses import asdict

from kvlayout.capture.config_json import config_from_dict
from kvlayout.captured import CONFIG, is_captured
from kvlayout.cli.show import AsJson, Backend, Blocks, Layout, Model, TpSize, command, put_json, say
from kvlayout.cli.source import read_selection
from kvlayout.clinic.linting import lint as findings_of
from kvlayout.errors import LayoutError
from kvlayout.finding import Finding
from kvlayout.plan import make_plan
from kvlayout.selection import Selection


@command
def lint(
    file: Model,
    layout: Layout = None,
    backend: Backend = None,
    tp: TpSize = 1,
    blocks: Blocks = None,
    as_json: AsJson = False,
) -> int:
    """List findings: errors, warnings (only some kernels or sizes suffer) and notes. Errors give status 1."""
    chosen = {"tp_size": None if tp == 1 else tp, "num_blocks": blocks}
    found = findings(read_selection(file, layout=layout, backend=backend, **chosen))
    if as_json:
        put_json({"findings": [asdict(one) for one in found]})
    for one in [] if as_json else found:
        say(f"{one.severity.upper()}  {one.rule}: {one.message}", *([f"  {one.cure}."] if one.cure else []))
    if not found and not as_json:
        say("No findings.")
    return int(any(one.is_error for one in found))


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
