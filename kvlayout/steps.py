"""The record of a resolution: which rule left which layouts, and why the others were dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvlayout.errors import LayoutConflict, LayoutError
from kvlayout.layout import KVCacheLayout, PhysicalLayout, as_layout, layout_from_name


@dataclass(frozen=True)
class Step:
    """One rule applied: layout names ``before`` and ``after`` it, why others were ``dropped``, one plain sentence.

    ``rule`` is a slug: "backends-support", "backends-prefer" (common_layouts), "pinned", "workers-agree",
    "mixed-specs", "dcp", "requested", "connector", "default" (resolve). Each step starts from what the one before
    it left; only a pin brings in a layout that wasn't among those before. ``dropped`` has a reason for each name
    that is gone, and for a connector's wish that can't be met.
    """

    rule: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    dropped: dict[str, str] = field(hash=False)
    sentence: str


@dataclass(frozen=True)
class Resolution:
    """The layout of the whole model, and the steps to it; the last step decided.

    ``others``: names of the layouts that fit a captured config as well, and put some byte elsewhere: where there are
    any, ``layout`` is a guess.
    """

    layout: KVCacheLayout | PhysicalLayout
    steps: tuple[Step, ...]
    others: tuple[str, ...] = ()

    @property
    def is_guess(self) -> bool:
        """Whether another layout may as well be meant, so that every address depends on which."""
        return bool(self.others)

    @property
    def why(self) -> str:
        """The sentence of the step that decided."""
        return self.steps[-1].sentence


class ResolutionError(LayoutConflict):
    """No layout can be resolved. ``steps``: what was done until then; the last one failed and left nothing."""

    def __init__(self, argument: str, value: object, rule: str, cure: str, steps: Sequence[Step]):
        super().__init__(argument, value, rule, cure)
        self.steps = tuple(steps)

    def __reduce__(self):
        return type(self), (self.argument, self.value, self.rule, self.cure, self.steps)


class StepTable:
    """The steps so far, and the names that are still candidates."""

    def __init__(self, candidates: Iterable[str]):
        self.candidates = tuple(candidates)
        self.steps: list[Step] = []

    def step(
        self,
        rule: str,
        sentence: str,
        after: Iterable[str] | None = None,
        dropped: Mapping[str, str] | None = None,
    ) -> None:
        """Record one step; ``after`` None leaves the candidates as they are."""
        after = self.candidates if after is None else tuple(after)
        self.steps.append(Step(rule, self.candidates, after, dict(dropped or {}), sentence))
        self.candidates = after

    def narrow(self, rule: str, because: str, keep: Callable[[KVCacheLayout], bool], needed: str, cure: str) -> None:
        """Keep the candidates that ``keep`` holds for, the ``needed`` ones. None left: ResolutionError."""
        before = self.candidates
        kept = [name for name in before if keep(KVCacheLayout[name])]
        self.step(rule, f"{because}.", kept, {name: f"is not {needed}" for name in before if name not in kept})
        if not kept:
            raise ResolutionError("supported_layouts", list(before), f"hold no {needed} layout: {because}",
                                  cure, self.steps)

    def decide(self, rule: str, sentence: str, layout: KVCacheLayout | PhysicalLayout) -> Resolution:
        """Record the step that chooses ``layout``, and return the resolution."""
        others = (name for name in self.candidates if name != layout.name)
        self.step(rule, sentence, (layout.name,), dict.fromkeys(others, f"is not chosen, {layout.name} is"))
        return Resolution(layout, tuple(self.steps))

    def failure(self, rule: str, error: LayoutError, dropped: Mapping[str, str] | None = None) -> ResolutionError:
        """Record the step that ends in ``error``, and return the error with all steps, to be raised."""
        if dropped is None:
            dropped = dict.fromkeys(self.candidates, "is not chosen, because this step failed")
        self.step(rule, str(LayoutError(error.argument, error.value, error.rule)), (), dropped)
        return ResolutionError(error.argument, error.value, error.rule, error.cure, self.steps)

    def layout(self, rule: str, argument: str, value: object) -> KVCacheLayout | PhysicalLayout:
        """Return the layout that ``value`` names, as vLLM reads names; if it names none, ``rule`` fails."""
        try:
            return layout_from_name(value, argument) if isinstance(value, str) else as_layout(value, argument)
        except LayoutError as error:
            raise self.failure(rule, error) from None

    def why_gone(self, name: str) -> str:
        """Return why ``name`` is no candidate any more, as a clause."""
        gone = next((step for step in self.steps if name in step.dropped), None)
        return f"not every backend supports {name}" if gone is None else f"{name} {gone.dropped[name]} ({gone.rule})"
