"""A fault or a remark that a check found: one sentence with its numbers, and where."""

from __future__ import annotations

from dataclasses import dataclass, field

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    Attributes:
        rule: a slug, such as "cell-unexpected"
        severity: "error", "warning" or "note"
        message: one sentence, with its numbers
        numbers: {name: number or text} of the message
        coordinate: {"layer": ..., "block": ..., "head": ..., "state": ...} of the first case, as far as they apply
        cure: what to do; may be empty
    """

    rule: str
    severity: str
    message: str
    numbers: dict = field(default_factory=dict)
    coordinate: dict | None = None
    cure: str = ""

    @property
    def is_error(self) -> bool:
        """Whether it says that something is wrong."""
        return self.severity == "error"

    def __str__(self) -> str:
        return f"{self.severity} {self.rule}: {self.message}{f' {self.cure}.' if self.cure else ''}"
