"""The records of real vLLM in ``tests/golden``, as one vLLM release answers them.

A record is ``{"vllm": release, "input": {...}}`` with ``"output": {...}`` or ``"error": "<exception type>"``.
``tests/golden/README.md`` describes the inputs and outputs of each kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

from kvlayout.errors import LayoutError
from kvlayout.versions import NEWEST, at_least

FOLDER = Path(__file__).parent / "golden"
KINDS = ("strides", "views", "plan", "resolve", "groups", "omni")

# Spec fields that older releases don't have; a record that uses one has no answer there.
NEW_FIELDS = {"block_stride_alignment": "0.31.0", "dcp_sharded": "0.31.0"}


def load(name: str) -> list[dict]:
    """Return the lines of one file: "strides" reads tests/golden/strides.jsonl, "backends/..." its subfolder."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


@cache
def records(kind: str, version: str = NEWEST) -> list[dict]:
    """Return the records of ``kind`` as ``version`` of vLLM answers them. Shared: don't change them.

    Left out are inputs that use a field which that version doesn't have. All "omni" records are of
    vLLM-Omni 0.30.0, whatever ``version``. An unknown kind or version is an error.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of record; the kinds are {', '.join(KINDS)}")
    missing = {field for field, since in NEW_FIELDS.items() if not at_least(version, since)}
    changed = {_key(line["input"]): line for line in load("differences")
               if line["kind"] == kind and line["vllm"] == version}
    answers = []
    for record in load(kind):
        if missing & field_names(record["input"]):
            continue
        answer = changed.get(_key(record["input"]), record)
        answers.append({**{name: answer[name] for name in ("input", "output", "error") if name in answer},
                        "vllm": version})
    return answers


def field_names(value: object) -> set[str]:
    """Return every key of the dicts nested in ``value``."""
    if isinstance(value, dict):
        return set(value).union(*map(field_names, value.values()))
    return set().union(*map(field_names, value)) if isinstance(value, list) else set()


def assert_same(record: dict, compute: Callable[[dict], object]) -> None:
    """Fail, showing the record, unless ``compute(input)`` equals its output, or raises LayoutError for its error."""
    try:
        found = compute(record["input"])
    except LayoutError as error:
        found = error
    if "error" in record:
        assert isinstance(found, LayoutError), f"{record['input']}: vLLM raises {record['error']}, ours gives {found}"
    else:
        assert found == record["output"], f"{record['input']}: vLLM gives {record['output']}, ours {found!r}"


def _key(value: object) -> str:
    return json.dumps(value, sort_keys=True)
