"""Scenes with real engines. One scene is one process: ``python -m tests.live.scenes NAME FOLDER`` writes facts.json.

The tests read the facts; here nothing is judged.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from kvlayout.capture import check_rank, rank_plan
from kvlayout.errors import LayoutError
from kvlayout.upstream.attach import attach
from kvlayout.upstream.tiny_engine import generate, tiny_engine

PROMPTS = (37, 150, 301)


def start(model: str, folder: Path, **options):
    return tiny_engine(model, folder=folder / "model", **options)


def watched(engine, llm, lengths, tokens: int, seed: int = 0, others: bool = False) -> dict:
    """Watch one run; return its numbers for each rank, with ``others`` also by wrong plans."""
    with engine.watch() as watch:
        made = generate(llm, lengths, tokens, seed=seed)
    dumps = wrong_dumps(engine.ranks[0]) if others else {}
    return {"lengths": list(lengths), "made": made, "ranks": [seen(watch, dump.rank) for dump in engine.ranks],
            "wrong": {name: wrong(watch, engine.ranks[0], dump) for name, dump in dumps.items()}}


def seen(watch, rank: int) -> dict:
    landing = watch.landing(rank)
    return {"slots": {group: slots.tolist() for group, slots in watch.slots(rank).items()},
            "tables": watch.block_tables(rank), "steps": watch.steps(rank), **numbers(landing)}


def numbers(landing) -> dict:
    return {"ok": landing.ok, "cells": int(landing.predicted.sum()), "missing": len(landing.missing),
            "unexpected": len(landing.unexpected), "stray_bytes": int(landing.stray_bytes.sum()),
            "outside_bytes": landing.outside_bytes, "predicted_bytes": int(landing.predicted_bytes.sum()),
            "changed_bytes": int(landing.changed_bytes.sum()), "exact": bool(landing.is_exact.all()),
            "declared": bool(landing.is_declared.all()), "rules": [one.rule for one in landing.findings]}


def wrong_dumps(dump) -> dict:
    """Dumps that say what the engine isn't: another layout, blocks of half the size, the default interior."""
    config = dump.config
    groups = tuple(replace(group, kv_cache_spec=replace(
        group.kv_cache_spec, block_size=group.kv_cache_spec.block_size // 2)) for group in config.kv_cache_groups)
    tensors = tuple(replace(one, block_stride=one.block_stride // 2) for one in config.kv_cache_tensors)
    halves = replace(config, num_blocks=2 * config.num_blocks, kv_cache_groups=groups, kv_cache_tensors=tensors)
    return {"layout": replace(dump, config=replace(config, kv_cache_layout="LBNHC")),
            "block size": replace(dump, config=halves,
                                  kernel_block_sizes=tuple(size // 2 for size in dump.kernel_block_sizes)),
            "interior": replace(dump, backends={})}


def wrong(watch, dump, other) -> dict:
    plan = rank_plan(other)
    return {"views": [one.rule for one in check_rank(dump, plan)], **numbers(watch.landing(dump.rank, plan))}


def failure(action) -> dict:
    """Return the type and text of the error that ``action`` must raise."""
    try:
        action()
    except Exception as error:
        return {"type": type(error).__name__, "is_layout_error": isinstance(error, LayoutError), "text": str(error)}
    return {"type": None, "is_layout_error": False, "text": ""}


def llama(folder: Path) -> dict:
    """One rank in this process."""
    llm = start("llama-tiny", folder, num_gpu_blocks_override=24)
    engine = attach(llm)
    facts = {"check": [str(one) for one in engine.check()], "repr": repr(engine),
             "runs": [watched(engine, llm, PROMPTS, 8, seed, others=not seed) for seed in (0, 1, 2, 2)]}
    tensors = engine.tensors()
    facts["tensors"] = {name: [list(one.shape), list(one.stride()), one.data_ptr()] for name, one in tensors.items()}
    del tensors
    facts["twice"] = failure(lambda: inside(engine, lambda: engine.watch().__enter__()))
    facts["bad prompt"] = failure(lambda: inside(engine, lambda: generate(llm, (5000,), 1)))
    facts["after the bad prompt"] = watched(engine, llm, (20,), 4)["ranks"][0]
    runner = engine.call(of_runner)[0]
    facts["left on the runner"] = runner
    llm.llm_engine.engine_core.shutdown()
    facts["after shutdown"] = failure(engine.refresh)
    return facts


def of_runner(worker) -> list[str]:
    """The names that a watch puts onto the model runner, as far as they are there."""
    names = ("execute_model", "_get_slot_mappings", "_kvlayout_recorder")
    return [name for name in names if name in vars(worker.model_runner)]


def inside(engine, action) -> None:
    with engine.watch():
        action()


def gemma(folder: Path) -> dict:
    """Three groups over the same bytes, and so few blocks that they pass from group to group in one run."""
    llm = start("gemma3-hybrid-tiny", folder, num_gpu_blocks_override=20)
    engine = attach(llm)
    return {"check": [str(one) for one in engine.check()],
            "runs": [watched(engine, llm, PROMPTS, 8, others=True), watched(engine, llm, (150, 301), 160, 1)]}


def ranks(folder: Path) -> dict:
    """Two tensor-parallel ranks in processes of their own, one of which is killed at the end."""
    llm = start("llama-tiny", folder, num_gpu_blocks_override=24, tensor_parallel_size=2,
                distributed_executor_backend="mp")
    engine = attach(llm)
    facts = {"check": [str(one) for one in engine.check()], "repr": repr(engine), "pid": os.getpid(),
             "pids": [dump.place.pid for dump in engine.ranks],
             "other layout": [str(one) for one in engine.check("BLHNC")],
             "runs": [watched(engine, llm, PROMPTS, 8, others=True)], "tensors": failure(engine.tensors),
             "snapshots": {rank: one.size_bytes for rank, one in engine.snapshot().items()}}

    def die():
        os.kill(engine.ranks[1].place.pid, signal.SIGKILL)
        generate(llm, (40,), 60)

    facts["died"] = failure(lambda: inside(engine, die))
    facts["afterwards"] = {"refresh": failure(engine.refresh), "snapshot": failure(engine.snapshot),
                           "watch": failure(lambda: inside(engine, lambda: None)),
                           "attach": failure(lambda: attach(llm))}
    return facts


SCENES = {"llama": llama, "gemma": gemma, "ranks": ranks}

if __name__ == "__main__":
    name, folder = sys.argv[1], Path(sys.argv[2])
    (folder / "facts.json").write_text(json.dumps(SCENES[name](folder)))
