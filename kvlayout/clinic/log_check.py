"""Lines of vLLM's log against a selection: which numbers agree, which differ, and which can't be."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvlayout.capture.log_facts import Fact
from kvlayout.capture.pasted import read
from kvlayout.clinic import log_counts, log_layouts, log_pages
from kvlayout.clinic.log_subject import IMPOSSIBLE, MOST, UNKNOWN, Answer, Subject, exact
from kvlayout.errors import LayoutError

_CHECKS = {
    "kv_cache_size": log_counts.cache_size,
    "maximum_concurrency": log_counts.concurrency,
    "available_kv_cache_memory": log_counts.available_memory,
    "kv_cache_memory_needed": log_counts.memory_needed,
    "num_gpu_blocks_override": log_counts.override,
    "num_gpu_blocks": log_counts.num_gpu_blocks,
    "attention_block_size": log_pages.attention_block_size,
    "mamba_page_padding": log_pages.mamba_page_padding,
    "registered_kv_caches": log_pages.registered,
    "storage_bounds": log_pages.storage_bounds,
    "storage_size": log_pages.storage_bounds,
    "kv_cache_layout": log_layouts.used,
    "connector_layout": log_layouts.wished,
    "requested_layout": log_layouts.requested,
}
# Values that may have decimals; all other numbers are counts.
_DECIMAL = ("gib", "needed_gib", "available_gib", "times", "percent")
_LONGEST = 160


@dataclass(frozen=True)
class LogFact:
    """One fact of a log line, checked.

    Attributes:
        line: the pasted line, shortened; number: which line of the text it is, from 1
        name: what the fact is about
        said, ours: the line's value and the selection's, as text with units
        verdict: "agrees"; "differs" (possible, but not this cache); "can't be" (no cache of this selection gives it);
            "can't tell" (the answer depends on what neither says)
        why: one sentence with the arithmetic
    """

    line: str
    number: int
    name: str
    said: str
    ours: str
    verdict: str
    why: str

    @property
    def is_right(self) -> bool:
        """Whether nothing speaks against it: it agrees, or can't be told."""
        return self.verdict in ("agrees", UNKNOWN)


def check_log(text: str, subject: object) -> list[LogFact]:
    """Return every fact that ``text``, pasted from a log, states of a KV cache, set against ``subject``.

    ``subject``: a Plan, a KVCacheConfig or an AddressMap; a Plan also knows its backends, max_model_len and memory.
    Prefixes, quotes and wrapped lines are taken off. An empty list where the text states nothing. Raises LayoutError
    for what is no text, and for another subject.
    """
    facts = read(text).facts
    known = Subject(subject, facts)
    return [_checked(fact, known) for fact in facts]


def _checked(fact: Fact, subject: Subject) -> LogFact:
    answer = _too_large(fact)
    if answer is None:
        try:
            answer = _CHECKS[fact.kind](fact.values, subject)
        except LayoutError as error:  # a subject that contradicts itself, whatever the line says
            answer = Answer(fact.kind.replace("_", " "), _shown(fact.values), "", UNKNOWN, f"{error}")
    line = fact.text if len(fact.text) <= _LONGEST else f"{fact.text[:_LONGEST - 3]}..."
    return LogFact(line, fact.line, answer.name, answer.said, answer.ours, answer.verdict, answer.why)


def _too_large(fact: Fact) -> Answer | None:
    """The answer for a number that no machine has."""
    for name, value in fact.values.items():
        listed = value if isinstance(value, tuple) else (value,)
        is_text = isinstance(value, str) and re.match(r"\d|\[|\(|torch\.Size", value) is not None
        whole = name in _DECIMAL or not any(isinstance(one, float) for one in listed)
        if is_text or not whole or any(isinstance(one, int | float) and exact(one) is None
                                       and not isinstance(one, bool) for one in listed):
            return Answer(fact.kind.replace("_", " "), _shown(fact.values), "", IMPOSSIBLE,
                          f"{name} is no count of at most 2^63 − 1 = {MOST:,}.")
    return None


def _shown(values: dict) -> str:
    text = ", ".join(f"{name} {str(value)[:40] if isinstance(value, str) else _short(value)}"
                     for name, value in values.items())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST - 3]}..."


def _short(value: object) -> str:
    if isinstance(value, int) and abs(value) > MOST:
        return f"of {value.bit_length()} bits"
    if isinstance(value, tuple):
        return f"of {len(value)} numbers"
    return str(value)
