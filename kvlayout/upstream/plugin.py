"""A vLLM general plugin: with KVLAYOUT_DUMP=DIR set, each rank writes DIR/rank-N.json as its cache is initialised.

``vllm serve`` needs no change: vLLM loads the entry point ``vllm.general_plugins`` in each of its processes. Unset,
it does nothing. Whatever goes wrong here is one line in the log; the engine goes on. With data parallelism the files
are dpD-rank-N.json. Each file is a capture: ``Explorer(path)``, ``RankDump.load(path)``, ``load_ranks(DIR)``.
Source: vLLM 0.29.0 to 0.33.0, ``WorkerWrapperBase.initialize_from_config`` (``vllm/v1/worker/worker_base.py``), which
every executor calls.
"""

from __future__ import annotations

import functools
import logging
import os

VARIABLE = "KVLAYOUT_DUMP"
# A child of vLLM's own logger, the only one that vLLM gives a handler.
_log = logging.getLogger("vllm.kvlayout")


def register() -> None:
    """The entry point. Being called again changes nothing."""
    if not os.environ.get(VARIABLE):
        return
    try:
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        wrap(WorkerWrapperBase)
    except Exception as error:  # an engine must start whatever becomes of its dump
        _log.warning("kvlayout writes no dump: %s: %s", type(error).__name__, _one_line(error))


def wrap(wrapper_class: type) -> None:
    """Let ``initialize_from_config`` of vLLM's worker wrapper write a dump once it is done."""
    original = wrapper_class.initialize_from_config
    if getattr(original, "_kvlayout", False):
        return

    @functools.wraps(original)
    def initialize_from_config(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        write_dump(self.worker)
        return result

    initialize_from_config._kvlayout = True
    wrapper_class.initialize_from_config = initialize_from_config


def write_dump(worker: object) -> str | None:
    """Write this rank's dump into the folder that KVLAYOUT_DUMP names; return the path, None if it failed."""
    try:
        from kvlayout.upstream.worker import rank_dump

        folder = os.environ[VARIABLE]
        dump = rank_dump(worker)
        parallel = worker.model_runner.vllm_config.parallel_config
        several = getattr(parallel, "data_parallel_size", 1) > 1
        prefix = f"dp{parallel.data_parallel_rank}-" if several else ""
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{prefix}rank-{dump.rank}.json")
        dump.save(path)
    except Exception as error:  # the cache is there and the engine can serve
        _log.warning("kvlayout wrote no dump: %s: %s", type(error).__name__, _one_line(error))
        return None
    _log.info("kvlayout wrote %s", path)
    return path


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
