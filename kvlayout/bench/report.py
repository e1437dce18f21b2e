"""The verdict on a kernel: over which shapes it was run, in how many it was wrong, and the first divergence."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvlayout.bench.case import FEATURES, Case
from kvlayout.bench.fault import Fault, Places, find_faults, places
from kvlayout.bench.kernel_map import KernelMap, kernel_map
from kvlayout.bench.observation import Observation

_NAMED = 12  # layouts that a sentence lists


@dataclass(frozen=True, eq=False)
class KernelReport:
    """What check_writer and check_reader found.

    Attributes:
        cases: shapes that were run, those whose offsets pass 2^31 not counted; ``far_cases``: these
        failed: how many of all of them went wrong
        first: the first divergence; None if there is none
        faults: the first one of each kind, in the order in which they came up
        counts: {kind of fault: in how many cases}
        map: of the first wrong case that ran to its end; None if there is none
        places: element by element, where it should be and where the kernel had it, of the same case
        by_layout, by_feature: {layout or property of a shape: (cases that went wrong, cases)}
        always: the properties in which all faults lie: every wrong case has them, and not every case does; without
            those that just come along with another of them
        not_checked: what couldn't be checked and why, one sentence each
        seconds: for everything
    """

    cases: int
    far_cases: int
    failed: int
    first: Fault | None
    faults: tuple[Fault, ...]
    counts: dict[str, int]
    map: KernelMap | None
    places: Places | None
    by_layout: dict[str, tuple[int, int]]
    by_feature: dict[str, tuple[int, int]]
    always: tuple[str, ...]
    not_checked: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether shapes were run and nothing went wrong; what wasn't checked is in ``not_checked``."""
        return self.failed == 0 and self.cases + self.far_cases > 0

    def __bool__(self) -> bool:
        return self.ok

    def sentences(self) -> list[str]:
        """Return the verdict as plain text, the most important first."""
        total = self.cases + self.far_cases
        names = ", ".join(self.by_layout) if len(self.by_layout) <= _NAMED else f"{len(self.by_layout)} layouts"
        scope = f"{names}, {self.far_cases} of them with offsets past 2^31" if self.far_cases else names
        if not total:
            text = ["No shape could be run, so nothing is known."]
        elif self.ok:
            text = [f"Right in all {total:,} shapes ({scope}).",
                    "Among them: " + ", ".join(f"{name} {cases:,}" for name, (_, cases) in self.by_feature.items())
                    + "."]
        else:
            text = [f"Wrong in {self.failed:,} of {total:,} shapes ({scope}).",
                    f"First: {self.first}",
                    "Its shape: " + ", ".join(f"{name}={value}" for name, value in self.first.shape.items()) + ".",
                    self._layout_sentence(),
                    "Kinds: " + ", ".join(f"{kind} in {count}" for kind, count in self.counts.items()) + " cases.",
                    *(f"The first {one}" for one in self.faults[1:])]
            if self.always:
                text.append(f"Every wrong case has: {', '.join(self.always)}.")
        return text + [f"Not checked: {one}" for one in self.not_checked]

    def _layout_sentence(self) -> str:
        """All of a few layouts; of many, those that went wrong, the first of them by name."""
        few = len(self.by_layout) <= _NAMED
        told = {name: counts for name, counts in self.by_layout.items() if few or counts[0]}
        more = f", and {len(told) - _NAMED} more layouts" if len(told) > _NAMED else ""
        return "By layout: " + ", ".join(f"{name} {failed} of {cases}" for name, (failed, cases)
                                         in list(told.items())[:_NAMED]) + f"{more}."

    def __str__(self) -> str:
        return "\n".join(self.sentences() + ([] if self.map is None else [str(self.map)]))


class Tally:
    """Collects outcomes, case by case, and makes the report."""

    def __init__(self, features: Sequence[str]):
        """``features``: those of FEATURES that matter to the kernel, and that its shapes can have."""
        self._ignored = set(FEATURES) - set(features)
        self._started = time.perf_counter()
        self._faults: dict[str, Fault] = {}
        self._counts: Counter[str] = Counter()
        self._by_layout: dict[str, tuple[int, int]] = {}
        self._by_feature: dict[str, tuple[int, int]] = {}
        self._shapes: list[tuple[frozenset[str], bool]] = []  # properties of each case, and whether it went wrong
        self._near: set[str] = set()
        self._seen: Observation | None = None
        self._cases = self._far = self._failed = 0

    def add(self, case: Case, outcome: Observation | Fault) -> None:
        """Count one case: what was observed in it, or why nothing could be."""
        faults = [outcome] if isinstance(outcome, Fault) else [] if outcome.ok else find_faults(outcome)
        self._cases += not case.is_far
        self._far += case.is_far
        self._failed += bool(faults)
        for one in faults:
            self._faults.setdefault(one.kind, one)
        self._counts.update(one.kind for one in faults)
        if faults and self._seen is None and isinstance(outcome, Observation):
            self._seen = outcome
        if not case.is_far:
            self._near.add(case.layout.name)
        features = [name for name in case.features if name not in self._ignored]
        self._shapes.append((frozenset(features), bool(faults)))
        for table, names in ((self._by_layout, [case.layout.name]), (self._by_feature, features)):
            for name in names:
                failed, cases = table.get(name, (0, 0))
                table[name] = failed + bool(faults), cases + 1

    def report(self, not_checked: list[str]) -> KernelReport:
        """Return the report of all that was added."""
        faults = tuple(self._faults.values())
        seen = self._seen
        return KernelReport(
            self._cases, self._far, self._failed, faults[0] if faults else None, faults, dict(self._counts),
            None if seen is None else kernel_map(seen), None if seen is None else places(seen), self._by_layout,
            self._by_feature, self._always(), (*not_checked, *self._never_tried()),
            time.perf_counter() - self._started)

    def _always(self) -> tuple[str, ...]:
        cases = {name: {number for number, (features, _) in enumerate(self._shapes) if name in features}
                 for name in self._by_feature}
        wrong = {number for number, (_, failed) in enumerate(self._shapes) if failed}
        found = [name for name in cases if wrong and wrong <= cases[name] and len(cases[name]) < len(self._shapes)]
        # All cases with far offsets are of the given element type, say: of two such, the narrower one tells.
        return tuple(name for name in found if not any(cases[other] < cases[name] for other in found))

    def _never_tried(self) -> list[str]:
        """What a user may take for tried, and no shape had."""
        if not self._shapes:
            return []
        missing = [name for name in FEATURES if name not in {*self._by_feature, *self._ignored, "offsets past 2^31"}]
        told = [f"{', '.join(missing)}: no shape that was tried has them."] if missing else []
        far = [name for name in self._by_layout if name not in self._near]
        return told + ([f"{', '.join(far)} but for offsets past 2^31: there were fewer cases than layouts."] if far
                       else [])
