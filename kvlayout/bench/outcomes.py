"""Every way a recorded answer of a backend can go, with the condition of vLLM's source that decides it.

Only what the platform settles is decided here; every other condition stays open, and is shown as it is written.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import product

from kvlayout.candidates import common_layouts
from kvlayout.errors import LayoutError
from kvlayout.facts.catalogue import Backend, Branch, load
from kvlayout.spec import MultipleOf

UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Outcome:
    """``value``, where ``when`` holds and no earlier outcome's does; None always holds. UNKNOWN: not recorded."""

    when: str | None
    value: tuple | str | None


def layout_outcomes(backend: Backend, platform: str | None = None) -> list[Outcome]:
    """Return the ways that the declared layouts (names, most preferred first; None for any) can go on a platform."""
    if backend.parts:
        listed = {one.class_path: one for one in load(backend.vllm_version).values()}
        return _joint([layout_outcomes(listed[path], platform) for path in backend.parts])
    return _outcomes(backend.layout_branches, backend.layouts, platform)


def block_size_outcomes(backend: Backend, platform: str | None = None) -> list[Outcome]:
    """Return the ways that the kernel block sizes (tokens, exact or MultipleOf) can go on a platform."""
    found = _outcomes(backend.kernel_block_branches, backend.kernel_block_sizes, platform)
    # No sizes at all isn't an answer: the source computes them.
    return [one if one.value is not None else Outcome(one.when, UNKNOWN) for one in found]


def takes_block(sizes: tuple[int | MultipleOf, ...], block_size: int) -> bool:
    """Whether a block of so many tokens is one of these kernel blocks, or can be cut into some."""
    return any(block_size % (size.base if isinstance(size, MultipleOf) else size) == 0 for size in sizes)


def _outcomes(branches: tuple[Branch, ...], recorded: tuple | None, platform: str | None) -> list[Outcome]:
    found = []
    for branch in branches:
        holds = True if branch.when is None else decide(ast.parse(branch.when, mode="eval").body, platform)
        if holds is False:
            continue
        value = UNKNOWN if branch.expression is not None else branch.value
        found.append(Outcome(None if holds else branch.when, value))
        if holds:
            break
    return found or [Outcome(None, recorded)]


def _joint(parts: list[list[Outcome]]) -> list[Outcome]:
    """The ways of several backends that must all agree: one for each choice of theirs."""
    found = []
    for chosen in product(*parts):
        when = " and ".join(one.when for one in chosen if one.when is not None) or None
        values = [one.value for one in chosen]
        found.append(Outcome(when, UNKNOWN if UNKNOWN in values else _common(values)))
    return found


def _common(values: list[tuple | None]) -> tuple:
    try:
        common = common_layouts((f"part {index}", value) for index, value in enumerate(values))
        return tuple(one.name for one in common.layouts)
    except LayoutError:
        return ()


def decide(node: ast.expr, platform: str | None) -> bool | None:
    """Whether a condition holds on a platform; None where more than the platform decides."""
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            parts = [decide(value, platform) for value in values]
            return False if False in parts else None if None in parts else True
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = decide(operand, platform)
            return None if inner is None else not inner
    if platform is None:
        return None
    text = ast.unparse(node)
    for name in ("rocm", "xpu"):
        if text == f"current_platform.is_{name}()":
            return platform == name
    if text == "capability is not None" and platform == "cuda":
        return True
    # A CPU and an Intel GPU have no CUDA capability; one of CDNA's is AMD's alone.
    of_cuda = text.startswith(("capability", "current_platform.is_device_capability_family("))
    if of_cuda and platform in ("cpu", "xpu"):
        return False
    if text.startswith("get_cdna_version()") and platform != "rocm":
        return False
    return None
