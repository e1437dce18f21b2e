"""The judge's own process: JSON lines in, JSON lines out. ``python -m kvlayout.upstream.worker_judge``

In: ``{"id": 1, "selection": {...}}``. Out: ``{"state": "ready", "version": ..., "build": ...}`` once vLLM is loaded
(or ``"absent"`` or ``"failed"`` with a ``"reason"``, and the end), then for each request ``{"id": 1, "verdict":
{...}}`` or ``{"id": 1, "error": {...}}``. What vLLM prints goes to stderr. The end of stdin ends the process.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TextIO

from kvlayout.errors import LayoutError
from kvlayout.selection import Selection, decode_json
from kvlayout.upstream.release import found, load


def main() -> int:
    """Serve requests until stdin ends; return the exit status."""
    answers = _own_stdout()
    if found() is None:
        _say(answers, {"state": "absent", "reason": "vLLM isn't installed in this Python"})
        return 0
    try:
        release = load()
        from kvlayout.upstream.judge import judge_selection
    except LayoutError as error:
        _say(answers, {"state": "failed", "reason": str(error)})
        return 1
    _say(answers, {"state": "ready", "version": release.version, "build": release.build})
    for line in sys.stdin:
        request = decode_json(line, "request")
        _say(answers, {"id": request["id"], **_answer(request["selection"], judge_selection)})
    return 0


def _own_stdout() -> TextIO:
    """Return the process's stdout, and turn everything else that writes to it, C code too, to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return answers


def _answer(selection: dict, judge_selection) -> dict:
    try:
        return {"verdict": judge_selection(Selection.from_dict(selection)).to_dict()}
    except LayoutError as error:
        return {"error": {"argument": error.argument, "value": _json_value(error.value), "rule": error.rule,
                          "cure": error.cure}}
    except Exception as error:  # the process must outlive one bad request, and the UI must hear of it
        return {"error": {"argument": "selection", "value": None, "rule": "can't be judged: the judge failed with "
                          f"{type(error).__name__}: {error}", "cure": "Please report it with the selection's JSON"}}


def _json_value(value: object) -> object:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return repr(value)
    return value


def _say(answers: TextIO, message: dict) -> None:
    answers.write(json.dumps(message, allow_nan=False) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
