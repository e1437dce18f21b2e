"""Log: numbers that vLLM has printed, set against this cache."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from kvlayout.clinic import LogFact, check_log
from kvlayout_widgets.html import paragraph, span, table
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, TextTab

_EMPTY = ("Paste lines of vLLM's log, prefixes and all, such as: INFO 03-07 08:18:10 [kv_cache_utils.py:1314] GPU KV "
          "cache size: 2,440,192 tokens")
_VERDICTS = {"agrees": ("✓", "good"), "differs": ("✗", "bad"), "can't be": ("✗", "bad"), "can't tell": ("?", "soft")}
_SHOWN = 200


class LogPanel(TextTab):
    """A pasted log, and each fact that it states of a KV cache with a verdict."""

    title = "Log"
    asks = "Which numbers of a log agree with this cache, and which can't be?"
    depends_on = frozenset({"plan"})

    def __init__(self, state: State, act: Act):
        self.log = widgets.Textarea(placeholder="Paste lines of a vLLM log", continuous_update=False,
                                    tooltip="Lines as vLLM printed them; prefixes and quotes are taken off",
                                    layout=widgets.Layout(width="98%", height="120px"))
        super().__init__(state, act, (self.log,))
        self.log.observe(lambda _: self.later(), "value")

    def html(self) -> str:
        if not self.log.value.strip():
            return paragraph(_EMPTY, "note")
        facts = check_log(self.log.value, self.state.plan)
        if not facts:
            return paragraph("These lines state nothing of a KV cache that could be checked. " + _EMPTY, "note")
        return facts_table(facts)


def facts_table(facts: list[LogFact]) -> str:
    """Return the facts with their verdicts, below a count."""
    wrong = sum(not fact.is_right for fact in facts)
    agreed = sum(fact.verdict == "agrees" for fact in facts)
    said = f"{agreed} of {len(facts)} agree, {wrong} don't, {len(facts) - agreed - wrong} can't be told"
    rows = []
    for fact in facts[:_SHOWN]:
        sign, kind = _VERDICTS[fact.verdict]
        rows.append((str(fact.number), escape(fact.name), escape(fact.said), escape(fact.ours),
                     span(f"{sign} {fact.verdict}", kind), escape(fact.why)))
    more = paragraph(f"and {len(facts) - _SHOWN:,} more", "note") if len(facts) > _SHOWN else ""
    return (paragraph(f"{'✗' if wrong else '✓'} {said}", "bad" if wrong else "good")
            + table(("line", "about", "the log says", "this cache", "verdict", "why"), rows) + more)
