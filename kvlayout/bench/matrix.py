"""Backends x layouts of a vLLM release, from what was recorded of it, and what changed between two releases.

Nothing is guessed: what the recording doesn't say is "not recorded", and what depends on more than the platform
shows vLLM's own condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from kvlayout.bench.outcomes import UNKNOWN, Outcome, layout_outcomes
from kvlayout.bench.running import Wanted
from kvlayout.candidates import DEFAULT_PREFERENCE
from kvlayout.errors import LayoutError, check_type
from kvlayout.facts.backends import as_backend, own_backends
from kvlayout.facts.backends import backends as recorded_backends
from kvlayout.facts.catalogue import Backend
from kvlayout.layout import KVCacheLayout
from kvlayout.versions import NEWEST

FIRST, SUPPORTED, REFUSED, DEPENDS = "first choice", "supported", "refused", "depends"
STATES = (FIRST, SUPPORTED, REFUSED, DEPENDS, UNKNOWN)
_FACTS = ("platforms", "dtypes", "kv_cache_dtypes", "head_sizes", "kernel_block_sizes", "is_mla", "is_sparse",
          "is_ssm", "repacked_by")


@dataclass(frozen=True)
class Cell:
    """What a backend says to a layout: one of STATES, and why.

    ``choice``: which choice of its own it is, 1 the first; None where it has no order, or where that depends.
    """

    state: str
    why: str
    choice: int | None = None

    def __str__(self) -> str:
        return f"supported, choice {self.choice}" if self.state == SUPPORTED and self.choice else self.state


@dataclass(frozen=True)
class MatrixRow:
    """One backend.

    Attributes:
        backend, class_path: its name here and its class
        cells: {layout's name: Cell} for vLLM's six
        not_settled: what isn't recorded of what was asked, or depends; empty where it is known to do
        facts: {"platforms", "dtypes", ...: as recorded}; kernel_block_sizes in tokens
        from_source: read from vLLM's source, not asked on a machine
    """

    backend: str
    class_path: str
    cells: dict[str, Cell] = field(hash=False)
    not_settled: tuple[str, ...] = ()
    facts: dict[str, object] = field(default_factory=dict, hash=False, repr=False)
    from_source: bool = False

    def layouts(self, *states: str) -> list[str]:
        """Return the names of the layouts in any of these states; the first choice first."""
        found = [name for name, cell in self.cells.items() if cell.state in states]
        return sorted(found, key=lambda name: self.cells[name].state != FIRST)


@dataclass(frozen=True)
class BackendMatrix:
    """The rows of what can do what was asked, those that are settled first, and {backend: why not} of the rest.

    Iterates over the rows.
    """

    version: str
    wanted: Wanted
    rows: tuple[MatrixRow, ...]
    excluded: dict[str, str] = field(hash=False)

    def __iter__(self) -> Iterator[MatrixRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        names = ", ".join(row.backend for row in self.rows)
        return f"<BackendMatrix of vLLM {self.version}: {names or 'no backend'}; {len(self.excluded)} excluded>"

    def row(self, backend: str) -> MatrixRow | None:
        """Return the row of that name, or None."""
        return next((row for row in self.rows if row.backend == backend), None)


def backend_matrix(version: str = NEWEST, *, platform: str | None = None, dtype: str | None = None,
                   kv_cache_dtype: str | None = None, mla: bool | None = None, head_size: int | None = None,
                   block_size: int | None = None, backends: Iterable[object] = ()) -> BackendMatrix:
    """Return the matrix of a release's backends that can do what is asked; see :class:`Wanted` for the filters.

    ``backends`` of one's own, classes as :func:`as_backend` takes, come before them. A backend stays where what is
    recorded doesn't settle it, and says so. Raises LayoutError for a release that isn't recorded, for a filter's
    value that none of its backends knows, and for a name that two backends share.
    """
    check_type("version", version, str)
    wanted = Wanted(platform, dtype, kv_cache_dtype, mla, head_size, block_size)
    known = _with_own(version, backends)
    wanted.check_dtypes(known)
    rows, excluded = [], {}
    for name, backend in known.items():
        against, open_ = wanted.answers(backend)
        if against:
            excluded[name] = "; ".join(against)
        else:
            rows.append(replace(_row(backend, platform), not_settled=tuple(open_)))
    # What is known to do it comes first.
    return BackendMatrix(version, wanted, tuple(sorted(rows, key=lambda row: bool(row.not_settled))), excluded)


def _with_own(version: str, given: Iterable[object]) -> dict[str, Backend]:
    known = dict(recorded_backends(version))
    mine: dict[str, Backend] = {}
    for one in own_backends(given):
        backend = as_backend(one, version)
        if backend.name in known or backend.name in mine:
            raise LayoutError("backends", backend.name, "is the name of another backend too",
                              "Rename your class")
        mine[backend.name] = backend
    return {**mine, **known}


def _row(backend: Backend, platform: str | None) -> MatrixRow:
    ways = layout_outcomes(backend, platform)
    cells = {layout.name: _cell(layout.name, ways) for layout in KVCacheLayout}
    return MatrixRow(backend.name, backend.class_path, cells, (), {name: getattr(backend, name) for name in _FACTS},
                     backend.from_source)


def _cell(layout: str, ways: list[Outcome]) -> Cell:
    cells = [_settled(layout, one.value) for one in ways]
    if len({cell.state for cell in cells}) == 1:
        whys = dict.fromkeys(cell.why for cell in cells)
        choices = {cell.choice for cell in cells}
        return Cell(cells[0].state, "; or ".join(whys), choices.pop() if len(choices) == 1 else None)
    by_state: dict[str, list[str]] = {}
    for cell, way in zip(cells, ways):
        by_state.setdefault(cell.state, []).append("otherwise" if way.when is None else f"if {way.when}")
    return Cell(DEPENDS, "; ".join(f"{state} {' or '.join(whens)}" for state, whens in by_state.items()))


def _settled(layout: str, declared: tuple | str | None) -> Cell:
    if declared == UNKNOWN:
        return Cell(UNKNOWN, "vLLM's source computes what it declares")
    if declared is None:
        if layout == DEFAULT_PREFERENCE[0].name:
            return Cell(FIRST, "declares no layout, and vLLM's default preference begins with this one")
        return Cell(SUPPORTED, "declares no layout, so any will do")
    if layout not in declared:
        return Cell(REFUSED, f"declares only {', '.join(declared)}" if declared else "its parts share no layout")
    place = declared.index(layout)
    return Cell(FIRST, "its first choice", 1) if place == 0 else Cell(
        SUPPORTED, f"choice {place + 1} of {len(declared)}, after {', '.join(declared[:place])}", place + 1)


@dataclass(frozen=True)
class MatrixChange:
    """What changed for one backend that both have: a layout's cell or a fact, ``old`` and ``new``."""

    backend: str
    what: str
    old: object
    new: object


@dataclass(frozen=True)
class MatrixDiff:
    """What changed between two matrices.

    Attributes:
        old, new: the releases
        added, removed: backends that only one release has, by name
        gained, lost: {name: why not} of those that both have, where only the new or the old one can do what was
            asked; empty without filters
        renamed: {old name: new name} of the same class
        cells: changed states of a layout (``what`` is its name, ``old`` and ``new`` are Cells)
        facts: changed facts (``what`` is the fact's name)
    """

    old: str
    new: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    gained: dict[str, str] = field(hash=False)
    lost: dict[str, str] = field(hash=False)
    renamed: dict[str, str] = field(hash=False)
    cells: tuple[MatrixChange, ...]
    facts: tuple[MatrixChange, ...]

    def __bool__(self) -> bool:
        return any((self.added, self.removed, self.gained, self.lost, self.renamed, self.cells, self.facts))


def matrix_diff(old: str | BackendMatrix, new: str | BackendMatrix) -> MatrixDiff:
    """Return what changed from ``old`` to ``new``, each a release or a matrix of one.

    LayoutError where the two were asked different things: what a filter leaves out would look like a change.
    """
    old, new = (backend_matrix(one) if isinstance(one, str) else one for one in (old, new))
    for name, one in (("old", old), ("new", new)):
        check_type(name, one, BackendMatrix)
    if old.wanted != new.wanted:
        raise LayoutError("new", new.wanted, f"was asked something else than old, {old.wanted}",
                          "Give both matrices the same filters")
    before, after = ({row.backend: row for row in one} for one in (old, new))
    was, now = map(_by_class, (old, new))
    # A class is the same one under another name.
    named = {name: now.get(path, name) for path, name in was.items()}
    back = {new_name: name for name, new_name in named.items()}
    cells, facts = [], []
    for name, row in before.items():
        row_now = after.get(named[name])
        if row_now is not None:
            cells += _cell_changes(row, row_now)
            facts += [MatrixChange(row_now.backend, fact, value, row_now.facts[fact])
                      for fact, value in row.facts.items() if value != row_now.facts[fact]]
    return MatrixDiff(
        old.version, new.version,
        added=tuple(name for name in after if back.get(name, name) not in was.values()),
        removed=tuple(name for name in before if named[name] not in now.values()),
        gained={name: old.excluded[back[name]] for name in after if back.get(name) in old.excluded},
        lost={named[name]: new.excluded[named[name]] for name in before if named[name] in new.excluded},
        renamed={name: named[name] for name in before if named[name] != name and named[name] in after},
        cells=tuple(cells), facts=tuple(facts))


def _by_class(matrix: BackendMatrix) -> dict[str, str]:
    """{class path: name} of all backends that a matrix was asked about, those that it leaves out too."""
    recorded = {one.class_path: name for name, one in recorded_backends(matrix.version).items()}
    return recorded | {row.class_path: row.backend for row in matrix}


def _cell_changes(old: MatrixRow, new: MatrixRow) -> list[MatrixChange]:
    """Where the state differs, or what it depends on, or the order among the layouts that both support."""
    kept = [name for name, cell in old.cells.items() if cell.choice and new.cells[name].choice]
    orders = [sorted(kept, key=lambda name: row.cells[name].choice) for row in (old, new)]
    changes = []
    for layout, was in old.cells.items():
        now = new.cells[layout]
        moved = layout in kept and orders[0] != orders[1] and was.choice != now.choice
        if was.state != now.state or moved or (was.state == DEPENDS and was.why != now.why):
            changes.append(MatrixChange(new.backend, layout, was, now))
    return changes
