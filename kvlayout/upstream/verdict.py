"""What the judge says: one Check for each question, with both answers where they differ; plain data, no vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from fractions import Fraction

import msgspec

from kvlayout.errors import LayoutError
from kvlayout.plan import Plan
from kvlayout.spec import MultipleOf

ABSENT = "(absent)"


@dataclass(frozen=True)
class Check:
    """One question put to vLLM.

    Attributes:
        name: the question: "resolution", "placement", "views" ...
        ok: whether all values agree; None where it wasn't judged
        compared: how many values were compared
        ours, theirs: the first values that differ, as JSON values; theirs is the exception where vLLM refuses
        where: place of those values: "kv_cache_tensors[0].block_stride"
        reason: why it wasn't judged, or what limits it; empty otherwise
    """

    name: str
    ok: bool | None
    compared: int = 0
    ours: object = None
    theirs: object = None
    where: str = ""
    reason: str = ""

    @property
    def sentence(self) -> str:
        """One sentence about it, with both numbers where they differ."""
        if self.ok is None:
            return f"{self.name}, not judged: {self.reason}"
        limit = f" ({self.reason})" if self.reason else ""
        if self.ok:
            return f"{self.name}: all {self.compared:,} values agree{limit}"
        return f"{self.name}, {self.where}: kvlayout {_shown(self.ours)}, vLLM {_shown(self.theirs)}{limit}"


@dataclass(frozen=True)
class Verdict:
    """vLLM's answers beside ours.

    Attributes:
        vllm_version: the release that answered, "0.33.0"
        build: "official" or "cpu", the community's CPU build
        checks: in the order of the way from specs to views
    """

    vllm_version: str
    build: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing differs, and something was judged at all."""
        return self.first is None and any(check.ok for check in self.checks)

    @property
    def first(self) -> Check | None:
        """The first check whose values differ."""
        return next((check for check in self.checks if check.ok is False), None)

    @property
    def compared(self) -> int:
        """How many values were compared in all."""
        return sum(check.compared for check in self.checks)

    @property
    def not_judged(self) -> tuple[Check, ...]:
        """The checks that couldn't be made."""
        return tuple(check for check in self.checks if check.ok is None)

    @property
    def summary(self) -> str:
        """One sentence for a badge."""
        who = f"vLLM {self.vllm_version} ({self.build} build)"
        if self.first is not None:
            return f"{who} differs in {self.first.sentence}."
        left = f"; not judged: {', '.join(check.name for check in self.not_judged)}" if self.not_judged else ""
        if not self.ok:
            return f"{who} judged nothing{left}."
        judged = sum(check.ok is True for check in self.checks)
        return f"{who} agrees with all {self.compared:,} values of {judged} checks{left}."

    def to_dict(self) -> dict:
        """Return it as JSON values; the inverse of :meth:`from_dict`."""
        return {"vllm_version": self.vllm_version, "build": self.build,
                "checks": [asdict(check) for check in self.checks]}

    @classmethod
    def from_dict(cls, data: object) -> Verdict:
        """Return the verdict that :meth:`to_dict` wrote; LayoutError for anything else."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise LayoutError("verdict", data, f"is not a verdict: {error}",
                              "Give what Verdict.to_dict returned") from None


def reproducer(plan: Plan, verdict: Verdict) -> dict:
    """Return the first difference as a small JSON: selection, versions, both numbers, and how to repeat it.

    LayoutError where nothing differs. Classes of the user's own can't be written down; they are named.
    """
    if verdict.first is None:
        raise LayoutError("verdict", verdict.summary, "has no difference to reproduce")
    own = sorted({backend.class_path for backend in plan.backends.values() if hasattr(backend, "asked")})
    return {
        "kvlayout_judge": 1,
        "selection": json.loads(plan.selection.to_json()) | {"vllm_version": plan.selection.vllm_version},
        "vllm_version": verdict.vllm_version, "build": verdict.build,
        "check": asdict(verdict.first),
        **({"own_backends": own} if own else {}),
        "how": "from kvlayout.upstream.judge import judge_selection; judge_selection(this['selection'])",
    }


def compare(name: str, ours: object, theirs: object, reason: str = "") -> Check:
    """Compare two nested values (dicts and lists of plain values) leaf by leaf, and return the first difference.

    A leaf that only one side has differs. Order counts: each path is compared in the order in which ours has it.
    """
    left, right = flatten(ours), flatten(theirs)
    paths = [*left, *(path for path in right if path not in left)]
    for path in paths:
        mine, other = left.get(path, ABSENT), right.get(path, ABSENT)
        if mine != other or type(mine) is not type(other):
            return Check(name, False, len(paths), mine, other, path, reason)
    return Check(name, True, len(paths), reason=reason)


def flatten(value: object, path: str = "") -> dict[str, object]:
    """Return {path: leaf} of nested dicts, lists and tuples, leaves as JSON values; an empty list is a leaf."""
    if isinstance(value, Mapping) and value:
        parts = [(f"{path}.{key}" if path else str(key), one) for key, one in value.items()]
    elif isinstance(value, (list, tuple)) and value:
        parts = [(f"{path}[{index}]", one) for index, one in enumerate(value)]
    else:
        return {path: plain(value)}
    return {place: leaf for name, one in parts for place, leaf in flatten(one, name).items()}


def plain(value: object) -> object:
    """Return a leaf of either side as a JSON value: enums and element types by name, fractions as text."""
    if isinstance(value, Enum):
        return value.name.lower()
    if value is None or isinstance(value, (bool, int, str, float)):
        return value
    if hasattr(value, "__index__"):
        return value.__index__()
    if isinstance(value, (Mapping, list, tuple)):
        return {} if isinstance(value, Mapping) else []
    if isinstance(value, MultipleOf) or type(value).__name__ == "MultipleOf":
        return f"multiple of {value.base}"
    if isinstance(value, Fraction):
        return str(value)
    return str(value).removeprefix("torch.")


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
