"""The judge's badge: whether the installed vLLM computes the same. It loads in the background; nobody has to wait."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from html import escape
from weakref import WeakSet

import ipywidgets as widgets

from kvlayout.errors import LayoutError
from kvlayout.facts.user_backend import name_of
from kvlayout.plan import Plan
from kvlayout.upstream.background import Judge
from kvlayout.upstream.verdict import Verdict, reproducer
from kvlayout.versions import VLLM_VERSIONS
from kvlayout_widgets.state import State

_badges: WeakSet[Badge] = WeakSet()


@cache
def shared_judge() -> Judge:
    """Return the kernel's one judge: a vLLM takes 700 MB, so explorers share it."""
    return Judge(on_state=lambda: [badge.show() for badge in list(_badges)])


class Badge:
    """One line: absent, loading, agreeing, differing (with a file that reproduces it), or failed (with Retry)."""

    def __init__(self, state: State, download: Callable[[str, bytes, str], None], judge: Judge | None = None):
        self.state, self._download = state, download
        self.judge = shared_judge() if judge is None else judge
        self.verdict: Verdict | None = None
        self.error: LayoutError | None = None
        self._asked: Plan | None = None
        self.text = widgets.HTML()
        self.export = _button("Save the difference", "A small JSON: the selection, the versions and both numbers")
        self.retry = _button("Retry", "Load vLLM again")
        self.widget = widgets.HBox([self.text, self.export, self.retry],
                                   layout=widgets.Layout(align_items="center", flex_flow="row wrap"))
        self.export.on_click(lambda _: self._save())
        self.retry.on_click(lambda _: self._again())
        _badges.add(self)
        state.observe(lambda change: self.ask(), "plan")
        if self.judge.state != "absent":
            self.judge.start()
        self.ask()

    def ask(self) -> None:
        """Have the present plan judged."""
        self.verdict = self.error = None
        plan = self._asked = self.state.plan
        if self.judge.state not in ("absent", "failed"):
            if self._is_own(plan):
                self.error = LayoutError("backend", plan.selection.backend,
                                         "is a class of your own, which vLLM in its own process doesn't have")
            else:
                self.judge.ask(plan.selection, lambda answer: self._answered(plan, answer))
        self.show()

    def _is_own(self, plan: Plan) -> bool:
        return any(name_of(one) == plan.selection.backend for one in self.state.backends)

    @property
    def is_waiting(self) -> bool:
        """Whether an answer for the present plan is still to come."""
        return self.verdict is None and self.error is None and self.judge.state in ("loading", "ready")

    def _answered(self, plan: Plan, answer: Verdict | LayoutError) -> None:
        if plan is self.state.plan:
            self.verdict, self.error = (answer, None) if isinstance(answer, Verdict) else (None, answer)
            self.show()
        # The newest request of all explorers wins, so those that lost ask again.
        for badge in list(_badges):
            if badge is not self and badge.judge is self.judge and badge.is_waiting:
                badge.ask()

    def _again(self) -> None:
        self.judge.start()
        self.ask()

    def _save(self) -> None:
        data = json.dumps(reproducer(self._asked, self.verdict), indent=1).encode()
        self._download(f"difference-vllm-{self.verdict.vllm_version}.json", data, "application/json")

    def show(self) -> None:
        """Show what is known."""
        kind, words, more = self._words()
        self.text.value = (f'<span class="kvl-badge kvl-badge-{kind}" title="{escape(more)}">{escape(words)}</span>')
        self.export.layout.display = None if kind == "bad" else "none"
        self.retry.layout.display = None if self.judge.state == "failed" else "none"

    def _words(self) -> tuple[str, str, str]:
        judge, verdict = self.judge, self.verdict
        name = f"vLLM {judge.version}" if judge.version else "vLLM"
        if judge.state == "absent":
            return "soft", (f"vLLM isn't installed here; its recorded vectors of {VLLM_VERSIONS[0]} to "
                            f"{VLLM_VERSIONS[-1]} stand in for it"), judge.reason
        if judge.state == "failed":
            return "warn", f"⚠ the judge failed: {judge.reason}", "The numbers are kvlayout's own"
        if self.error is not None:
            return "warn", f"⚠ {name} didn't judge this: {self.error}", "The numbers are kvlayout's own"
        if verdict is None:
            doing = "is loading" if judge.state == "loading" else "is computing the same"
            return "soft", f"… {name} {doing}", judge.reason
        lines = "\n".join(check.sentence for check in verdict.checks)
        if verdict.first is not None:
            return "bad", f"✗ {verdict.summary}", lines
        if not verdict.ok:
            return "warn", f"⚠ {verdict.summary}", lines
        other = self.state.plan.selection.vllm_version
        of = "" if other == verdict.vllm_version else f", by the rules of {verdict.vllm_version} instead of {other}"
        return "good", f"✓ {name} computes the same {verdict.compared:,} values{of}", lines


def _button(label: str, tooltip: str) -> widgets.Button:
    return widgets.Button(description=label, tooltip=tooltip, layout=widgets.Layout(width="150px", display="none"))
