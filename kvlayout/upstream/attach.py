"""A running engine, attached: what each rank holds, whether it is what our plan says, and where its tokens land.

All is read through ``LLM.collective_rpc``, over whatever executor the engine has: in process, multiprocess or Ray.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable

from kvlayout.capture.dump import RankDump
from kvlayout.capture.rank_check import check_rank, check_ranks
from kvlayout.errors import LayoutError
from kvlayout.finding import Finding
from kvlayout.snapshot import Snapshot
from kvlayout.upstream import worker
from kvlayout.upstream.failures import explained
from kvlayout.upstream.watch import Watch

# A worker that hangs must not hang the caller for ever; a snapshot of a large cache takes a while.
TIMEOUT_SECONDS = 300.0


def attach(llm: object, *, timeout: float | None = TIMEOUT_SECONDS) -> LiveEngine:
    """Return the engine of a ``vllm.LLM``, read once from every rank.

    ``timeout``: seconds that one call to the workers may take. Raises LayoutError where ``llm`` is none, its engine
    has died, its executor can't take functions, or its vLLM is older than 0.29; nothing stays in the workers then.
    """
    return LiveEngine(llm, timeout)


class LiveEngine:
    """An attached engine.

    Attributes:
        llm, timeout: as given
        ranks: what was read at the start, or by the last :meth:`refresh`; in order of rank
        order: the rank of each answer, in the order in which the executor gives them
    """

    def __init__(self, llm: object, timeout: float | None = TIMEOUT_SECONDS):
        call = getattr(llm, "collective_rpc", None)
        if not callable(call) or inspect.isclass(llm):
            raise LayoutError("llm", llm, "is no engine of vLLM's: it has no collective_rpc", "Give a vllm.LLM")
        if inspect.iscoroutinefunction(call):
            raise LayoutError("llm", llm, "is asynchronous", "Give a vllm.LLM; for `vllm serve` set KVLAYOUT_DUMP")
        self.llm, self.timeout = llm, timeout
        self.ranks: list[RankDump] = []
        self.order: list[int] = []
        self.refresh()

    def refresh(self) -> None:
        """Read every rank anew."""
        answers = self.call(worker.read_rank)
        if not isinstance(answers, (list, tuple)) or not answers:
            raise LayoutError("llm", self.llm, f"gave {answers!r} for what its ranks hold, no list of answers",
                              "Give a vllm.LLM whose workers run")
        dumps = [RankDump.from_dict(one) for one in answers]
        self.ranks = sorted(dumps, key=lambda dump: dump.rank)
        self.order = [dump.rank for dump in dumps]

    def call(self, function: Callable, *args: object) -> list:
        """Return ``function(worker, *args)`` of every rank; LayoutError in plain words where it can't be had."""
        try:
            return self.llm.collective_rpc(function, timeout=self.timeout, args=args)
        except LayoutError:
            raise  # in process, a worker's own error arrives as it was raised
        except Exception as error:
            raise explained(self.llm, error) from error

    @property
    def is_in_process(self) -> bool:
        """Whether the only worker runs in this process."""
        return len(self.ranks) == 1 and self.ranks[0].place.pid == os.getpid()

    def check(self, layout_name: str | None = None) -> list[Finding]:
        """Return what contradicts our plan on any rank, and which ranks disagree; empty where all fits.

        ``layout_name``: what the control plane resolved, by default what most ranks have.
        """
        return [*check_ranks(self.ranks, layout_name), *(one for dump in self.ranks for one in check_rank(dump))]

    def rank(self, rank: int) -> RankDump:
        """Return one rank's dump; LayoutError for a rank that isn't there."""
        for dump in self.ranks:
            if dump.rank == rank:
                return dump
        raise LayoutError("rank", rank, f"must be one of {', '.join(str(dump.rank) for dump in self.ranks)}")

    def snapshot(self, *, most_bytes: int | None = None, granule_bytes: int | None = None) -> dict[int, Snapshot]:
        """Return {rank: the bytes of its cache now}; arguments as for ``kvlayout.memory.snapshot.take_snapshot``."""
        found = self.call(worker.snapshot_rank, most_bytes, granule_bytes)
        return {rank: Snapshot.from_dict(data) for rank, data in zip(self.order, found)}

    def watch(self, *, most_bytes: int | None = None, granule_bytes: int | None = None) -> Watch:
        """Return a context that watches the cache: ``with engine.watch() as watch: llm.generate(...)``.

        Its slots, block tables and landings are there once it is left. Arguments as for :meth:`snapshot`.
        """
        return Watch(self, most_bytes, granule_bytes)

    def tensors(self, rank: int = 0) -> dict:
        """Return {layer: the engine's own tensor}; LayoutError where the worker is another process."""
        self.rank(rank)
        if not self.is_in_process:
            raise LayoutError("rank", rank, "lies in another process, whose tensors can't be had here",
                              "Set VLLM_ENABLE_V1_MULTIPROCESSING=0 and use one rank, or take a snapshot")
        return self.call(worker.rank_tensors)[0]

    def __repr__(self) -> str:
        layouts = sorted({str(dump.config.kv_cache_layout) for dump in self.ranks})
        where = "in process" if self.is_in_process else "over collective_rpc"
        return f"LiveEngine({len(self.ranks)} ranks {where}, {' and '.join(layouts)})"
