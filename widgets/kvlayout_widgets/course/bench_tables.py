"""Tables of the bench: what the resolver says to a backend, layouts scored, backends × layouts, and what changed."""

from __future__ import annotations

from collections.abc import Sequence

from kvlayout.bench import MEASURES, BackendMatrix, MatrixDiff, PackedPage, Score, Standing, Trial
from kvlayout.bench.matrix import DEPENDS, FIRST, REFUSED, SUPPORTED
from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.course.tables import Table
from kvlayout_widgets.figures.theme import exact_bytes

_SIGNS = {FIRST: "1st", SUPPORTED: "yes", REFUSED: "–", DEPENDS: "depends"}


def trial_table(trial: Trial) -> Table:
    """Return the verdicts of a trial: the backend alone, and together with the others."""
    rows = []
    for name, verdict in (("alone", trial.alone), ("together", trial.together)):
        if verdict is None:
            rows.append((name, "not asked", "", ""))
            continue
        rows.append((name, verdict.layout or "none", "; ".join(map(_standing, verdict.standings)), verdict.why))
    return Table(("", "layout", "who gets which of its choices", "why"), tuple(rows), "What the resolver says",
                 is_prose=True)


def _standing(one: Standing) -> str:
    if one.choice is None:
        return f"{one.backend} none"
    return f"{one.backend} any" if one.choice == 0 else f"{one.backend} choice {one.choice} of {len(one.declared)}"


def page_table(page: PackedPage) -> Table:
    """Return what a page is: its sizes and strides, and the view that a kernel is handed."""
    view = page.view
    rows = [("layers with such pages", f"{len(page.layers):,}"),
            ("blocks, heads, states, bytes of a state", " × ".join(f"{extent:,}" for extent in page.shape)),
            ("strides in bytes", ", ".join(f"{step:,}" for step in page.strides)),
            ("page", f"{exact_bytes(page.page_size_bytes)}, {page.padding_bytes:,} of it padding"),
            ("kernel block", f"{page.kernel_block_size} tokens")]
    if view is None:
        rows.append(("view", f"none: {page.view_refused}"))
    else:
        rows.append((f"strides of the view in {view.dtype}", ", ".join(f"{step:,}" for step in view.stride_elements)))
    return Table(("", "one page"), tuple(rows), "The page as it would be packed", is_prose=True)


def score_table(scores: Sequence[Score], measures: Sequence[str]) -> Table:
    """Return the scores of layouts by some of MEASURES; yes and no as words."""
    rows = []
    for one in scores:
        cells = [one.measures.get(name) for name in measures]
        rows.append((one.layout.name, *(("refused" if one.refused else "–") if cell is None else _number(name, cell)
                                        for name, cell in zip(measures, cells))))
    return Table(("layout", *(f"{name} [{MEASURES[name].unit}]" for name in measures)), tuple(rows),
                 "Layouts by what they cost")


def _number(measure: str, value: int) -> str:
    return ("no", "yes")[value] if MEASURES[measure].unit == "yes/no" else f"{value:,}"


def matrix_table(matrix: BackendMatrix) -> Table:
    """Return backends × layouts, one backend a row; where something asked isn't settled by the records, and what."""
    rows = [(row.backend, *(_SIGNS.get(row.cells[name].state, "not recorded") for name in KVCacheLayout.__members__))
            for row in matrix]
    header, is_open = ("backend", *KVCacheLayout.__members__), any(row.not_settled for row in matrix)
    if is_open:
        header += ("not settled",)
        rows = [(*cells, "; ".join(row.not_settled)) for cells, row in zip(rows, matrix)]
    rest = f"; {len(matrix.excluded)} others can't do what is asked" if matrix.excluded else ""
    return Table(header, tuple(rows), f"vLLM {matrix.version}: {len(matrix)} backends{rest}", is_prose=is_open,
                 breaks=is_open)


def diff_table(diff: MatrixDiff) -> Table:
    """Return what changed between two releases, one change a row."""
    rows = [("new", name, "") for name in diff.added] + [("gone", name, "") for name in diff.removed]
    rows += [("can now", name, f"before: {why}") for name, why in diff.gained.items()]
    rows += [("can't any more", name, why) for name, why in diff.lost.items()]
    rows += [("renamed", old, f"now {new}") for old, new in diff.renamed.items()]
    rows += [(one.what, one.backend, f"{one.old}; now {one.new}: {one.new.why}") for one in diff.cells]
    rows += [(one.what, one.backend, f"{_fact(one.old)}; now {_fact(one.new)}") for one in diff.facts]
    return Table(("what", "backend", "change"), tuple(rows) or (("nothing", "", ""),),
                 f"From vLLM {diff.old} to {diff.new}", is_prose=True, breaks=True)


def _fact(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else "nothing" if value is None else str(value)
