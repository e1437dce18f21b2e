"""Fuzzes our functions against the vLLM that is installed: ``python -m kvlayout.upstream.conformance``.

Each kind of question has its own generator; both sides must give the same values, or both refuse. One line a kind,
the first disagreements in full, exit status 1 if there is any. Any release of 0.29.0 to 0.33.0 will do; a newer one
is compared with what 0.33.0 does.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from kvlayout.facts.backends import backends
from kvlayout.upstream.fuzz.compare import Result, compare
from kvlayout.upstream.fuzz.kind import Kind, World
from kvlayout.upstream.release import load
from kvlayout.versions import VLLM_VERSIONS


def kinds() -> dict[str, Kind]:
    """Return every kind by name."""
    from kvlayout.upstream.fuzz import (
        grouping,
        kernel_blocks,
        placement,
        repack,
        resolve,
        selections,
        strides,
        views,
    )

    modules = (strides, views, grouping, placement, resolve, kernel_blocks, repack, selections)
    return {module.KIND.name: module.KIND for module in modules}


def installed_world() -> tuple[str, World]:
    """Return the installed vLLM's version, and the world of questions that it can answer."""
    from kvlayout.upstream.fuzz.connectors import importable_connectors
    from kvlayout.upstream.fuzz.repack import importable_backends
    from kvlayout.upstream.fuzz.theirs import lacking, machine

    release = load()
    rules = release.rules
    return release.version, World(rules, lacking(), importable_backends(rules), importable_connectors(rules),
                                  machine())


def report(results: list[Result], known: dict[str, Kind]) -> str:
    """Return the lines that are printed: one a kind, then the disagreements in full, then what is never asked."""
    lines = [result.line() for result in results]
    for result in results:
        for one in result.first:
            lines += ["", f"{result.kind} {one['number']}: {json.dumps(one['question'])}",
                      f"  ours:  {json.dumps(one['ours'])}", f"  vLLM:  {json.dumps(one['theirs'])}"]
    lines += ["", "Never asked:", *(f"  {result.kind}: {known[result.kind].left_out}" for result in results)]
    return "\n".join(lines)


def summary(results: list[Result], version: str, world: World, seed: int) -> dict:
    """Return the machine-readable result."""
    return {"date": time.strftime("%Y-%m-%d"), "vllm": version, "reproduced": world.vllm_version, "seed": seed,
            "cases": sum(one.cases for one in results), "refused": sum(one.refused for one in results),
            "disagreements": sum(one.disagreements for one in results),
            "seconds": round(sum(one.seconds for one in results), 1),
            "kinds": {one.kind: one.to_dict() for one in results}}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    known = kinds()
    parser = argparse.ArgumentParser(prog="python -m kvlayout.upstream.conformance", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="questions a kind (default 20000)")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other questions (default 0)")
    parser.add_argument("--kinds", nargs="+", choices=known, default=list(known), metavar="KIND",
                        help=f"only these of: {', '.join(known)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one a core)")
    parser.add_argument("--expect", metavar="RELEASE", help="fail at once if another vLLM is installed")
    parser.add_argument("--reproduce", choices=VLLM_VERSIONS, metavar="RELEASE",
                        help="let ours reproduce another release than the installed one; they disagree then")
    parser.add_argument("--json", type=Path, help="write the result into this file")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # vLLM warns at each odd model, thousands of times
    version, world = installed_world()
    if options.expect is not None and version != options.expect:
        parser.error(f"vLLM {version} is installed, not {options.expect}")
    if options.reproduce is not None:
        shared = tuple(name for name in world.backends if name in backends(options.reproduce))
        world = replace(world, vllm_version=options.reproduce, backends=shared)
    print(f"vLLM {version}, reproduced as {world.vllm_version}; seed {options.seed}", flush=True)
    results = []
    for name in options.kinds:
        results.append(compare(known[name], options.cases, options.seed, world, options.jobs))
        print(results[-1].line(), file=sys.stderr, flush=True)
    print(report(results, known))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(summary(results, version, world, options.seed), indent=1) + "\n")
    return 1 if any(one.disagreements for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
