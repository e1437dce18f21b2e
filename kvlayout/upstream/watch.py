"""A run under watch: what the engine's own slot mappings say it wrote, and the bytes that changed, on each rank."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvlayout.capture.rank_check import rank_plan
from kvlayout.errors import LayoutError
from kvlayout.finding import Finding
from kvlayout.landing import Landing, land
from kvlayout.plan import Plan
from kvlayout.slot_mapping import Prediction
from kvlayout.snapshot import Changes
from kvlayout.upstream.failures import explained, is_death
from kvlayout.upstream.recorder import predictions_of, start_watch, stop_watch

if TYPE_CHECKING:
    from kvlayout.upstream.attach import LiveEngine


class Watch:
    """A context around a run of an attached engine; nothing of it stays in the workers once it is left."""

    def __init__(self, engine: LiveEngine, most_bytes: int | None = None, granule_bytes: int | None = None):
        self.engine, self._sizes = engine, (most_bytes, granule_bytes)
        self._records: dict[int, dict] = {}

    def __enter__(self) -> Watch:
        self._records = {}
        try:
            self.engine.call(start_watch, *self._sizes)
        except BaseException:
            # One rank may have started where another couldn't. A dead engine has nothing left to take off.
            _quietly(lambda: self.engine.call(stop_watch, False))
            raise
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if error is not None:
            # The run's own error is what matters; if the engine is dead, this call fails too.
            _quietly(lambda: self.engine.call(stop_watch, False))
            if is_death(error):
                raise explained(self.engine.llm, error) from error
            return
        records = self.engine.call(stop_watch)
        for rank, record in zip(self.engine.order, records):
            if record is None:
                raise LayoutError("watch", rank, "was ended on this rank by someone else", "Watch again")
            if record["error"] is not None:
                raise LayoutError("watch", rank, f"couldn't record this rank's steps: {record['error']}")
        self._records = dict(zip(self.engine.order, records))

    def _record(self, rank: int) -> dict:
        self.engine.rank(rank)
        if rank not in self._records:
            raise LayoutError("watch", rank, "has recorded nothing yet, or its run failed",
                              "Leave the with block first")
        return self._records[rank]

    def steps(self, rank: int = 0) -> int:
        """Return how many steps with tokens the rank ran."""
        return self._record(rank)["steps"]

    def slots(self, rank: int = 0) -> dict[int, np.ndarray]:
        """Return {group: the slots that were written, sorted int64}; none for groups of states."""
        return {int(group): np.frombuffer(one, dtype=np.int64)
                for group, one in self._record(rank)["slots"].items()}

    def blocks(self, rank: int = 0) -> dict[int, np.ndarray]:
        """Return {group: the blocks of states that were written}; empty for attention."""
        return {int(group): np.frombuffer(one, dtype=np.int64)
                for group, one in self._record(rank)["blocks"].items()}

    def block_tables(self, rank: int = 0) -> dict[str, list[list[int]]]:
        """Return {request: the block ids of each group} at the request's last step; kernel blocks where split."""
        return self._record(rank)["tables"]

    def changes(self, rank: int = 0) -> Changes:
        """Return the bytes that changed on the rank."""
        return Changes.from_dict(self._record(rank)["changes"])

    def predictions(self, rank: int = 0, plan: Plan | None = None) -> list[Prediction]:
        """Return what the recorded slots and blocks should touch, one a group that wrote anything."""
        address_map = (rank_plan(self.engine.rank(rank)) if plan is None else plan).address_map
        return predictions_of(address_map, self.slots(rank), self.blocks(rank))

    def landing(self, rank: int = 0, plan: Plan | None = None, *,
                progress: Callable[[int, int], None] | None = None) -> Landing:
        """Return how the bytes that changed on a rank agree with what its slot mappings predict.

        ``plan``: by default ours of the rank's own config; another one is compared as it is.
        """
        rewritten = None
        if plan is None:
            plan = rank_plan(self.engine.rank(rank))
            rewritten = np.frombuffer(self._record(rank)["rewritten"], dtype=np.int64).reshape(-1, 4)
        found = land(plan.address_map, self.changes(rank), self.predictions(rank, plan), rewritten=rewritten,
                     progress=progress)
        copies = self._record(rank)["copies"]
        if not copies:
            return found
        note = Finding("block-copies", "note", f"The engine copied {copies:,} blocks in this run; the bytes of their "
                       "copies changed too.", {"copies": copies})
        return replace(found, findings=(*found.findings, note))


def _quietly(action: Callable[[], object]) -> None:
    """Do ``action``; its LayoutError would hide the error that is on its way."""
    try:
        action()
    except LayoutError as error:
        logging.getLogger(__name__).debug("couldn't clean up: %s", error)
