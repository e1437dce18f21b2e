"""Backends: which attention backend of a release takes which layout, what can run, and what a release changed."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from kvlayout.bench import BackendMatrix, Cell, MatrixDiff, MatrixRow, backend_matrix, matrix_diff
from kvlayout.captured import is_captured
from kvlayout.errors import LayoutError
from kvlayout.facts.backends import as_backend, backends
from kvlayout.facts.machine import PLATFORMS
from kvlayout.layout import KVCacheLayout
from kvlayout.plan import reported_specs
from kvlayout.spec import AttentionSpec, MLAAttentionSpec
from kvlayout.versions import VLLM_VERSIONS
from kvlayout_widgets.control import choose, chosen, parse_integer
from kvlayout_widgets.html import fold, layout_chips, paragraph, span, table
from kvlayout_widgets.panels.choices import dropdown, text_field
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, TextTab

SIGNS = {"first choice": ("★ first choice", "good"), "supported": ("✓ supported", ""), "refused": ("✗ no", "bad"),
         "depends": ("◐ depends", "amber"), "not recorded": ("? not recorded", "soft")}
_CHOSEN = "as chosen"
_MLA = {"": None, "yes": True, "no": False}
_HINT = ("Read from what was recorded of each release. Point at a cell for the reason; a backend stays listed where "
         "what is recorded doesn't settle what was asked.")


class MatrixPanel(TextTab):
    """Backends by vLLM's six layouts, filtered by what they must do, and the difference to another release."""

    title = "Backends"
    asks = "Which backend takes which layout, which can I run, and what did another release say?"
    depends_on = frozenset({"plan", "problem"})

    def __init__(self, state: State, act: Act):
        self.version = dropdown("vLLM", [_CHOSEN, *VLLM_VERSIONS], "The release whose backends are listed", 40, 150)
        self.other = dropdown("Compare with", [("no other", ""), *((one, one) for one in VLLM_VERSIONS)],
                              "Another release, whose differences are listed", 92, 190)
        self.platform = dropdown("Platform", [("any", ""), *((one, one) for one in PLATFORMS)], "Where it must run",
                                 58, 150)
        self.dtype = dropdown("Model dtype", [("any", "")], "The model's element type", 90, 200)
        self.kv_cache_dtype = dropdown("KV dtype", [("any", "")], "A value of --kv-cache-dtype", 62, 200)
        self.mla = dropdown("Keeps", [("anything", ""), ("latents (MLA)", "yes"), ("keys and values", "no")],
                            "Latent attention (MLA), or plain keys and values", 44, 190)
        self.head_size = text_field("Head size", "Elements of a head that it must take", 64, 130)
        self.block_size = text_field("Block size", "Tokens a block that it must take", 66, 140)
        self.name = text_field("Name has", "Part of a backend's name", 76, 200)
        self.mine = widgets.Button(description="What can I run?", layout=widgets.Layout(width="140px"),
                                   tooltip="Ask for what the selected layer needs on the machine that is chosen")
        self.clear = widgets.Button(description="Clear", layout=widgets.Layout(width="70px"),
                                    tooltip="Ask for nothing")
        self.filters = (self.platform, self.dtype, self.kv_cache_dtype, self.mla, self.head_size, self.block_size,
                        self.name)
        super().__init__(state, act, (self.version, self.other, *self.filters, self.mine, self.clear), _HINT)
        self.matrix: BackendMatrix | None = None
        self.diff: MatrixDiff | None = None
        self._is_setting = False
        for one in (self.version, self.other, *self.filters):
            one.observe(lambda _: None if self._is_setting else self.later(), "value")
        self.mine.on_click(lambda _: self._ask(self._needs))
        self.clear.on_click(lambda _: self._ask(dict))

    def html(self) -> str:
        self.matrix = self.diff = None
        version = self.state.choices["vllm_version"] if self.version.value == _CHOSEN else self.version.value
        self._offer(version)
        wanted = self._wanted()
        # One that has vLLM's own name stands for vLLM's.
        own = [one for one in self.state.backends if as_backend(one, version).name not in backends(version)]
        self.matrix = backend_matrix(version, **wanted, backends=own)
        diff = ""
        if self.other.value:
            old, new = sorted((self.other.value, version), key=VLLM_VERSIONS.index)
            self.diff = matrix_diff(backend_matrix(old, **wanted), backend_matrix(new, **wanted))
            diff = diff_html(self.diff)
        used = {one.name for one in self.state.plan.backends.values()}
        return diff + matrix_html(self.matrix, self.name.value.strip(), used)

    def _wanted(self) -> dict[str, object]:
        return {"platform": chosen(self.platform), "dtype": chosen(self.dtype),
                "kv_cache_dtype": chosen(self.kv_cache_dtype), "mla": _MLA[self.mla.value],
                "head_size": parse_integer(self.head_size.value, "head_size", self.head_size.placeholder),
                "block_size": parse_integer(self.block_size.value, "block_size", self.block_size.placeholder)}

    def _offer(self, version: str) -> None:
        """List the element types that the release's backends name; one that none does stays, and is refused."""
        def fill() -> None:
            for menu, lists in ((self.dtype, "dtypes"), (self.kv_cache_dtype, "kv_cache_dtypes")):
                known = sorted({name for one in backends(version).values() for name in getattr(one, lists)})
                choose(menu, chosen(menu), [("any", None), *((one, one) for one in known)])
        self._set(fill)

    def _needs(self) -> dict[str, object]:
        """What the selected layer needs, as values of the filters."""
        plan, at = self.state.plan, self.state.coordinate
        if at is None:
            raise LayoutError("What can I run?", "no layer", "is selected: the pool holds no byte",
                              "Plan at least one block")
        spec = plan.config.layer_specs[at.layer]
        if not isinstance(spec, AttentionSpec):
            raise LayoutError("What can I run?", at.layer, "keeps recurrent state, which has no head size",
                              "Select an attention layer")
        # A backend is asked about the page that the layer reports, not about the one that another one packed.
        asked = spec if is_captured(plan.selection.model) else reported_specs(plan)[at.layer]
        captured = is_captured(plan.selection.model)
        is_free = plan.selection.block_size is None and not captured
        known = [value for _, value in self.dtype.options]
        return {"platform": plan.selection.machine.platform,
                # A page of a quantised cache doesn't say what the model computes with.
                "dtype": asked.dtype if asked.dtype in known else None,
                "kv_cache_dtype": None if captured else plan.selection.kv_cache_dtype,
                "mla": "yes" if isinstance(asked, MLAAttentionSpec) else "no", "head_size": str(asked.head_size),
                # Where nobody asked for a size, vLLM takes one that the backend likes.
                "block_size": "" if is_free else str(spec.block_size)}

    def _ask(self, answers) -> None:
        try:
            found = answers()
        except LayoutError as error:
            self.complaint.value = paragraph(f"✗ {error}", "refused")
            return

        def fill() -> None:
            for name in ("platform", "mla", "head_size", "block_size", "name"):
                getattr(self, name).value = found.get(name, "")
            choose(self.dtype, found.get("dtype"))
            choose(self.kv_cache_dtype, found.get("kv_cache_dtype"))
        self._set(fill)
        self.later()

    def _set(self, change) -> None:
        self._is_setting = True
        try:
            change()
        finally:
            self._is_setting = False


def matrix_html(matrix: BackendMatrix, part: str, used: set[str]) -> str:
    """Return the matrix as a table, and why the rest is left out.

    ``part``: what a name must have in it to be listed; ``used``: backends to mark.
    """
    rows = [row for row in matrix if part.lower() in row.backend.lower()]
    names = list(KVCacheLayout.__members__)
    cells = [(_name(row, row.backend in used), *(cell_html(row.cells[name]) for name in names),
              "".join(paragraph(one, "note") for one in row.not_settled)) for row in rows]
    listed = {row.backend for row in matrix} | set(matrix.excluded)
    own = " and of your own" if listed - set(backends(matrix.version)) else ""
    said = f"{len(rows):,} of {len(listed):,} backends of vLLM {matrix.version}{own}"
    if not rows:
        named = f" and has {part!r} in its name" if part else ""
        shown = paragraph(f"✗ No backend of vLLM {matrix.version} does all that{named}.", "note")
    else:
        header = ("backend, and where it runs", *map(layout_chips, names), "not settled")
        shown = f'<div class="kvl-scroll">{table(header, cells)}</div>'
    excluded = [(escape(name), escape(why)) for name, why in matrix.excluded.items() if part.lower() in name.lower()]
    rest = fold(f"{len(excluded):,} that can't, and why", table(("backend", "why not"), excluded)) if excluded else ""
    return paragraph(said, "section") + _legend() + shown + rest


def cell_html(cell: Cell) -> str:
    """Return a cell's state by sign and word, with the reason as its tooltip."""
    return span(*SIGNS[cell.state], cell.why)


def diff_html(diff: MatrixDiff) -> str:
    """Return what changed from one release to the next."""
    head = paragraph(f"vLLM {diff.old} to {diff.new}", "section")
    if not diff:
        return head + paragraph("✓ Nothing changed of what is asked for.", "good")
    lines = [f"{words}: {', '.join(names)}" for words, names in (
        ("New", diff.added), ("Gone", diff.removed),
        ("Renamed", [f"{old} → {new}" for old, new in diff.renamed.items()])) if names]
    rows = [(escape(one.backend), layout_chips(one.what),
             *(cell_html(cell) + (paragraph(cell, "note") if one.old.state == one.new.state else "")
               for cell in (one.old, one.new))) for one in diff.cells]
    rows += [(escape(one.backend), escape(one.what.replace("_", " ")), *_fact_change(one.old, one.new))
             for one in diff.facts]
    lines += [f"{words}: {name} ({why})" for words, found in (("Can now, but couldn't", diff.gained),
                                                              ("Can't any more", diff.lost))
              for name, why in found.items()]
    body = "".join(paragraph(line, "line") for line in lines)
    if rows:
        body += f'<div class="kvl-scroll">{table(("backend", "what", diff.old, diff.new), rows)}</div>'
    return head + body


def _fact_change(old: object, new: object) -> tuple[str, str]:
    """Two values of a fact; of long lists only what is new or gone."""
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) + len(new) > 8:
        gone, come = ([one for one in first if one not in second] for first, second in ((old, new), (new, old)))
        return (escape(f"{_value(tuple(gone))}, no longer") if gone else span("all of it", "soft"),
                escape(f"{_value(tuple(come))}, new") if come else span("the rest", "soft"))
    return escape(_value(old)), escape(_value(new))


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_value, value)) or "none listed"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not at all" if value is None else str(value).rpartition(".")[2] or str(value)


def _name(row: MatrixRow, is_used: bool) -> str:
    mark = "<b>▶</b> " if is_used else ""
    where = row.facts["platforms"]
    parts = ["not recorded where" if where == ("any",) else ", ".join(where)]
    kinds = (("MLA", row.facts["is_mla"]), ("sparse", row.facts["is_sparse"]), ("state", row.facts["is_ssm"]),
             ("read from source", row.from_source))
    parts += [words for words, is_so in kinds if is_so]
    name = f'<div class="kvl-long" title="{escape(row.class_path)}">{mark}{escape(row.backend)}</div>'
    return name + paragraph(" · ".join(parts), "note")


def _legend() -> str:
    parts = " · ".join(span(*one) for one in SIGNS.values())
    return f'<div class="kvl-note">{parts} · <b>▶</b> used by this cache</div>'
