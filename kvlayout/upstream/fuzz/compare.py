"""Puts random questions of one kind to both sides and counts how the answers compare; imports no vLLM by itself."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import count
from random import Random

from kvlayout.upstream.fuzz.kind import Kind, Refusal, World, answer_of_ours, answer_of_vllm

KEPT = 3  # disagreements of a kind that are kept in full


@dataclass
class Result:
    """How one kind went.

    Attributes:
        kind: its name
        cases: questions put; those in ``left_out`` are not counted
        values: both gave values, and the same
        refused: both refused
        disagreements: all else
        left_out: questions drawn but not put, see the kind's ``left_out``
        refused_with: vLLM's exceptions where both refused
        seconds: for all of it
        first: the first disagreements in full
    """

    kind: str
    cases: int = 0
    values: int = 0
    refused: int = 0
    disagreements: int = 0
    left_out: int = 0
    refused_with: Counter = field(default_factory=Counter)
    seconds: float = 0.0
    first: list[dict] = field(default_factory=list)

    def to_dict(self) -> dict:
        """Return it as plain values."""
        return asdict(self) | {"refused_with": dict(self.refused_with), "seconds": round(self.seconds, 1)}

    def line(self) -> str:
        """Return it as one line."""
        share = self.refused / self.cases if self.cases else 0
        left_out = f", {self.left_out} drawn but left out" if self.left_out else ""
        return (f"{self.kind:14} {self.cases:7,} cases  {self.values:7,} both gave values  {self.refused:7,} both "
                f"refused ({share:.0%})  {self.disagreements:5,} disagreements  {self.seconds:6.1f} s{left_out}")


def compare(kind: Kind, cases: int, seed: int | str, world: World, jobs: int = 1) -> Result:
    """Put ``cases`` questions, each drawn from its own number, so that any one can be drawn again alone.

    ``jobs`` processes share the numbers out; they are forked, so that vLLM is imported once.
    """
    started = time.perf_counter()
    if jobs == 1:
        parts = [_compare_every(kind, cases, seed, world, 0, 1)]
    else:
        tasks = [(kind.name, cases // jobs + (job < cases % jobs), seed, world, job, jobs) for job in range(jobs)]
        _FORKED[kind.name] = kind
        with multiprocessing.get_context("fork").Pool(jobs) as pool:
            parts = pool.starmap(_compare_forked, tasks)
    result = merged(kind.name, parts)
    result.seconds = time.perf_counter() - started
    return result


_FORKED: dict[str, Kind] = {}  # functions aren't sent to another process; a forked one has them already


def _compare_forked(name: str, *rest) -> Result:
    return _compare_every(_FORKED[name], *rest)


def _compare_every(kind: Kind, cases: int, seed: int | str, world: World, first: int, step: int) -> Result:
    """Put ``cases`` of the questions ``first``, ``first + step`` and so on."""
    result, numbers = Result(kind.name), count(first, step)
    while result.cases < cases:
        number = next(numbers)
        question = draw(kind, number, seed, world)
        if kind.is_left_out(question, world):
            result.left_out += 1
            if result.left_out > 20 * cases + 100:
                raise ValueError(f"{kind.name}: almost every question that is drawn is left out")
            continue
        result.cases += 1
        judge(kind, question, number, world, result)
    return result


def merged(name: str, parts: Iterable[Result]) -> Result:
    """Return the sum of parts of one kind, with the first disagreements of all."""
    total = Result(name)
    for part in parts:
        for count_of in ("cases", "values", "refused", "disagreements", "left_out"):
            setattr(total, count_of, getattr(total, count_of) + getattr(part, count_of))
        total.refused_with += part.refused_with
        total.first = sorted(total.first + part.first, key=lambda one: one["number"])[:KEPT]
    return total


def draw(kind: Kind, number: int, seed: int | str, world: World) -> dict:
    """Return question ``number`` of a seed."""
    return kind.ask(Random(f"{seed}/{kind.name}/{number}"), world)


def judge(kind: Kind, question: dict, number: int, world: World, result: Result) -> None:
    """Put one question and count the answers into ``result``."""
    ours, theirs = answer_of_ours(kind, question, world), answer_of_vllm(kind, question, world)
    if isinstance(ours, Refusal) and isinstance(theirs, Refusal):
        result.refused += 1
        result.refused_with[theirs.error] += 1
    elif not isinstance(ours, Refusal) and not isinstance(theirs, Refusal) and ours == theirs:
        result.values += 1
    else:
        result.disagreements += 1
        if len(result.first) < KEPT:
            result.first.append({"number": number, "question": question, "ours": _shown(ours),
                                 "theirs": _shown(theirs)})


def _shown(answer: object) -> object:
    return {"refused": answer.error, "text": answer.text} if isinstance(answer, Refusal) else answer
