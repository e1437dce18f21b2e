"""A kind of question that is put to our functions and to vLLM's own, and how an answer is taken.

A question is plain JSON, so that a disagreement can be written down and asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from kvlayout.errors import LayoutError
from kvlayout.facts.machine import Machine


@dataclass(frozen=True)
class World:
    """What the questions are limited to: the release to reproduce, and what the installed vLLM lacks.

    ``lacking``: spec classes, fields ("SlidingWindowSpec.extra_retained_tokens") and KVQuantMode members.
    ``backends`` and ``connectors``: names of those that can be asked in this process;
    ``machine``: what backends see of it.
    """

    vllm_version: str
    lacking: frozenset[str] = frozenset()
    backends: tuple[str, ...] = ()
    connectors: tuple[str, ...] = ()
    machine: Machine = Machine()


@dataclass(frozen=True)
class Kind:
    """``ask(rng, world)`` draws a question, ``ours(question, world)`` and ``theirs(question, world)`` answer it.

    ``name`` is short, ``compared`` says what is compared, ``left_out`` what is never asked, and why. Answers are
    plain values. ``is_left_out(question, world)``: true for a drawn question that isn't put at all.
    """

    name: str
    compared: str
    left_out: str
    ask: Callable[[Random, World], dict]
    ours: Callable[[dict, World], object]
    theirs: Callable[[dict, World], object]
    is_left_out: Callable[[dict, World], bool] = lambda question, world: False


@dataclass(frozen=True)
class Refusal:
    """An exception in place of an answer."""

    error: str
    text: str


class BrokenDouble(Exception):
    """vLLM asked one of our stand-ins for something that it doesn't have: a fault of the test, not an answer."""


class Double:
    """A stand-in for one of vLLM's config objects, with just these attributes."""

    def __init__(self, **values: object):
        self.__dict__.update(values)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise BrokenDouble(f"vLLM asked for {name} beside {', '.join(vars(self))}")


def answer_of_ours(kind: Kind, question: dict, world: World) -> object:
    """Return our answer, or a Refusal. Only a LayoutError refuses; any other exception is a fault and named so."""
    try:
        return kind.ours(question, world)
    except LayoutError as error:
        return Refusal("LayoutError", str(error))
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"


def answer_of_vllm(kind: Kind, question: dict, world: World) -> object:
    """Return vLLM's answer, or a Refusal for whatever it raises."""
    try:
        return kind.theirs(question, world)
    except (BrokenDouble, LayoutError):  # our own code has no say on this side
        raise
    except Exception as error:
        return Refusal(type(error).__name__, str(error)[:500])
