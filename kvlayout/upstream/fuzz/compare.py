"""Puts random questions of one kind to both sides and counts how the answers compare; imports no vLLM by itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
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


def compare(kind: Kind, cases: int, seed: int | str, world: World,
            progress: Callable[[int], None] = lambda done: None) -> Result:
    """Put ``cases`` questions, each drawn from its own number, so that any one can be drawn again alone."""
    result, number, started = Result(kind.name), 0, time.perf_counter()
    while result.cases < cases:
        question = draw(kind, number, seed, world)
        number += 1
        if kind.is_left_out(question, world):
            result.left_out += 1
            if result.left_out > 20 * cases + 100:
                raise ValueError(f"{kind.name}: almost every question that is drawn is left out")
            continue
        result.cases += 1
        judge(kind, question, number - 1, world, result)
        progress(result.cases)
    result.seconds = time.perf_counter() - started
    return result


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
