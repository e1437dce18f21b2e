"""The judge: real vLLM computes a plan with its own functions, and every value is compared with ours.

It is never averaged, hidden or preferred: a difference is a red check with both numbers, and what can't be judged is
named with its reason. Each step of vLLM's goes on from its own step before, so that nothing of ours but the facts
that it is asked with (specs, declared layouts and block sizes) gets into its answers.
Functions of vLLM 0.29.0 to 0.33.0: see the docstrings of :class:`~kvlayout.upstream.hearing.Hearing`.
"""

from __future__ import annotations

from dataclasses import replace

from kvlayout.captured import is_captured
from kvlayout.errors import LayoutError
from kvlayout.plan import Plan, make_plan
from kvlayout.selection import Selection
from kvlayout.upstream.hearing import Hearing
from kvlayout.upstream.release import Release, load
from kvlayout.upstream.verdict import Check, Verdict, reproducer

__all__ = ["Check", "Verdict", "judge", "judge_selection", "reproducer"]


def judge(plan: Plan) -> Verdict:
    """Return what the installed vLLM says to ``plan``: specs, resolution, groups, placement, strides, views.

    A plan for another release is made anew for the installed one, and the first check says so; a captured config
    stays as it is. LayoutError where vLLM is absent or can't be imported.
    """
    release = load()
    note, plan = _for_release(plan, release)
    checks = [] if note is None else [note]
    if plan is not None:
        checks += Hearing(plan, release).checks()
    return Verdict(release.version, release.build, tuple(checks))


def judge_selection(selection: Selection | dict) -> Verdict:
    """Return the verdict on the plan of ``selection`` (or its dict); LayoutError where it can't be planned."""
    if not isinstance(selection, Selection):
        selection = Selection.from_dict(selection)
    return judge(make_plan(selection))


def _for_release(plan: Plan, release: Release) -> tuple[Check | None, Plan | None]:
    """Return the plan for the installed release, and a note where that isn't the one that was asked for."""
    asked = plan.selection.vllm_version
    if asked == release.version:
        return None, plan
    if is_captured(plan.selection.model):
        return Check("vllm_version", None, reason=f"the config is read as {asked}'s, but {release.version} is "
                     "installed: its layers are judged as they lie"), plan
    unknown = "" if release.rules == release.version else f", whose rules we take to be {release.rules}'s"
    if asked == release.rules:
        return Check("vllm_version", None, reason=f"{release.version} is installed{unknown}"), plan
    own = [backend.asked for backend in plan.backends.values() if hasattr(backend, "asked")]
    try:
        again = make_plan(replace(plan.selection, vllm_version=release.rules), backends=own)
    except LayoutError as error:
        return Check("vllm_version", None, reason=f"the selection is for {asked}, and has no plan for the installed "
                     f"{release.version}{unknown}: {error}"), None
    return Check("vllm_version", None, reason=f"the selection is for {asked}, but {release.version} is installed"
                 f"{unknown}: compared with the plan for {release.rules}"), again
