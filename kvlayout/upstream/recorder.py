"""Inside a worker: remembers which slots each step writes, and what the cache held before and holds after.

The model runner computes one slot mapping a KV cache group and step, and writes exactly there. So the recorder puts
itself around the method that returns it, on this one runner object: ``_get_slot_mappings`` of the V1 model runner,
``prepare_attn`` of the V2 one, and around ``execute_model``, so that dummy and profiling runs don't count.
Source: vLLM 0.29.0 to 0.33.0, ``vllm/v1/worker/gpu_model_runner.py`` and ``vllm/v1/worker/gpu/model_runner.py``.
"""

from __future__ import annotations

import functools

import numpy as np

from kvlayout.address import AddressMap
from kvlayout.capture.objects import as_config
from kvlayout.capture.rank_check import rank_plan
from kvlayout.errors import LayoutError
from kvlayout.rewritten import rewritten_states
from kvlayout.slot_mapping import Prediction, predict
from kvlayout.snapshot import changed
from kvlayout.spec import AttentionSpec
from kvlayout.upstream.worker import model_runner, own_config, rank_buffer, rank_dump, take
from kvlayout.upstream.zeroed import forget_zeroed

_HOME = "_kvlayout_recorder"


def start_watch(worker: object, most_bytes: int | None = None, granule_bytes: int | None = None) -> None:
    """Take the first snapshot and put a recorder onto this rank's model runner.

    Raises LayoutError where one is there already, or where this vLLM has no slot mappings to record.
    """
    runner = model_runner(worker)
    if hasattr(runner, _HOME):
        raise LayoutError("watch", runner.__dict__[_HOME].steps, "is recording on this engine already",
                          "Leave the other watch first")
    recorder = Recorder(runner, most_bytes, granule_bytes)
    recorder.before = take(rank_buffer(worker), most_bytes, granule_bytes)
    recorder.address_map = rank_plan(rank_dump(worker)).address_map
    recorder.buffer = rank_buffer(worker)
    recorder.put_on()


def stop_watch(worker: object, wants: bool = True) -> dict | None:
    """Take the recorder off again and return what it saw, as plain data; None if there is none or it isn't wanted.

    {"slots": {group: int64 bytes}, "blocks": {group: int64 bytes}, "tables": {request: [block ids of each group]},
    "changes": Changes.to_dict(), "rewritten": int64 bytes of rows, "steps", "copies": counts, "error": text or None};
    group numbers as text.
    """
    runner = model_runner(worker)
    recorder = runner.__dict__.get(_HOME)
    if recorder is None:
        return None
    recorder.take_off()
    return recorder.result() if wants else None


class Recorder:
    """What one watch sees on one rank."""

    def __init__(self, runner: object, most_bytes: int | None, granule_bytes: int | None):
        self.runner, self.sizes = runner, (most_bytes, granule_bytes)
        self.hook = next((name for name in ("_get_slot_mappings", "prepare_attn")
                          if callable(getattr(runner, name, None))), None)
        if self.hook is None or not callable(getattr(runner, "execute_model", None)):
            raise LayoutError("model_runner", type(runner).__name__, "computes no slot mapping that can be recorded",
                              "Watch an engine of vLLM 0.29 to 0.33")
        self.groups = own_config(as_config(runner.kv_cache_config)).kv_cache_groups
        self.slots = {index: np.zeros(0, dtype=np.int64) for index in range(len(self.groups))}
        self.blocks = {index: np.zeros(0, dtype=np.int64) for index in range(len(self.groups))}
        self.tables: dict[str, list[list[int]]] = {}
        self.steps = self.copies = 0
        self.error: str | None = None
        self.step = None  # the scheduler's output while a step runs
        self.before = self.address_map = self.buffer = None

    def put_on(self) -> None:
        """Shadow the two methods on the runner object; its class stays as it is."""
        execute, mapping = self.runner.execute_model, getattr(self.runner, self.hook)

        @functools.wraps(execute)
        def execute_model(scheduler_output, *args, **kwargs):
            dummy = kwargs.get("dummy_run", len(args) > 1 and args[1] is True)
            self.step = None if dummy else scheduler_output
            try:
                return execute(scheduler_output, *args, **kwargs)
            finally:
                self.step = None

        @functools.wraps(mapping)
        def recorded(*args, **kwargs):
            found = mapping(*args, **kwargs)
            if self.step is not None and self.error is None:
                try:
                    self.record(found, args)
                except Exception as error:  # the engine goes on; whoever watches is told
                    self.error = f"{type(error).__name__}: {error}"
            return found

        setattr(self.runner, _HOME, self)
        self.runner.execute_model = execute_model
        setattr(self.runner, self.hook, recorded)

    def take_off(self) -> None:
        """Let the class's own methods show again."""
        for name in ("execute_model", self.hook, _HOME):
            self.runner.__dict__.pop(name, None)

    def record(self, found: tuple, args: tuple) -> None:
        """Note one step: what the engine zeroed before it, its slots, and the block tables of its requests."""
        self.steps += 1
        self.copies += len(getattr(self.step, "kv_cache_block_copies", None) or ())
        zeroed = getattr(self.step, "new_block_ids_to_zero", None)
        if zeroed:
            self.before = forget_zeroed(self.before, self.buffer, self.address_map, self.slots, list(zeroed))
        by_group = dict(enumerate(found[1])) if self.hook == "prepare_attn" else found[0] or {}
        tables = self._tables(found, args)
        for index, group in enumerate(self.groups):
            if any(isinstance(spec, AttentionSpec) for spec in group.layer_specs.values()):
                slots = by_group[index].cpu().numpy().astype(np.int64)
                self.slots[index] = np.union1d(self.slots[index], slots[slots >= 0])
            else:
                self._note_states(index, [table[index] for table in tables.values()])
        self.tables.update(tables)

    def _note_states(self, index: int, rows: list[list[int]]) -> None:
        """A state layer writes one block a request; which of several the table doesn't say."""
        for row in rows:
            mine = [block for block in row if block]
            if len(mine) > 1:
                raise LayoutError("block_table", row, f"of group {index} has several state blocks, and which one a "
                                  "step writes isn't recorded", "Watch without prefix caching of states")
            self.blocks[index] = np.union1d(self.blocks[index], np.array(mine, dtype=np.int64))

    def _tables(self, found: tuple, args: tuple) -> dict[str, list[list[int]]]:
        """{request: the block ids (kernel blocks where those split the manager's) of each group}."""
        count = range(len(self.groups))
        if self.hook == "prepare_attn":
            batch = args[0]
            rows = [table.cpu().numpy() for table in found[0]]
            return {str(name): [_trimmed(rows[group][place]) for group in count]
                    for place, name in enumerate(batch.req_ids)}
        batch = self.runner.input_batch
        tables = [batch.block_table[group] for group in count]
        return {str(name): [table.get_numpy_array()[place, :table.num_blocks_per_row[place]].tolist()
                            for table in tables]
                for place, name in enumerate(batch.req_ids)}

    def result(self) -> dict:
        """The watch as plain data; holds nothing of the engine's."""
        changes = changed(self.before, take(self.buffer, *self.sizes))
        predictions = predictions_of(self.address_map, self.slots, self.blocks)
        rewritten = rewritten_states(self.address_map, self.before, changes, predictions)
        self.buffer = self.before = self.runner = None
        return {"slots": {str(group): one.tobytes() for group, one in self.slots.items()},
                "blocks": {str(group): one.tobytes() for group, one in self.blocks.items()},
                "tables": self.tables, "changes": changes.to_dict(), "rewritten": rewritten.tobytes(),
                "steps": self.steps, "copies": self.copies, "error": self.error}


def predictions_of(address_map: AddressMap, slots: dict[int, np.ndarray],
                   blocks: dict[int, np.ndarray]) -> list[Prediction]:
    """Return what recorded slots, and blocks of states, should touch: one a group that wrote anything."""
    found = []
    for index, group in enumerate(address_map.config.kv_cache_groups):
        is_attention = any(isinstance(spec, AttentionSpec) for spec in group.layer_specs.values())
        if is_attention and len(slots[index]):
            found.append(predict(address_map, index, slots[index]))
        elif not is_attention and len(blocks[index]):
            found.append(predict(address_map, index, blocks=blocks[index]))
    return found


def _trimmed(row: np.ndarray) -> list[int]:
    used = np.flatnonzero(row)
    return row[:used[-1] + 1].tolist() if len(used) else []
