"""The recorder on model runners of both kinds, reduced to what it touches; the V1 kind also runs in tests/live."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import kvlayout as kv
from kvlayout.landing import land
from kvlayout.memory.snapshot import take_snapshot
from kvlayout.snapshot import Changes
from kvlayout.upstream.recorder import Recorder, predictions_of

SPEC = kv.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="bfloat16")
GROUPS = [kv.KVCacheGroupSpec(["a", "b"], SPEC), kv.KVCacheGroupSpec(["c", "d"], SPEC)]


class Runner:
    """Writes ones into the states of its slots; ``slots`` are those of the next step, one row a group."""

    def __init__(self, cache, tables):
        self.kv_cache_config, self.cache, self.tables, self.slots = cache.config, cache, tables, None

    def write(self):
        for group, slots in enumerate(self.slots.tolist()):
            for slot in filter(lambda one: one >= 0, slots):
                for name in self.kv_cache_config.kv_cache_groups[group].layer_names:
                    self.cache.views[name][slot // 16, :, slot % 16] = 1.0


class V2Runner(Runner):
    def prepare_attn(self, input_batch):
        return tuple(torch.tensor(table) for table in self.tables), self.slots

    def execute_model(self, scheduler_output, intermediate_tensors=None, dummy_run=False):
        self.prepare_attn(SimpleNamespace(req_ids=["r0"]))
        if not dummy_run:
            self.write()
        return "out"


class V1Runner(Runner):
    def _get_slot_mappings(self, num_tokens_padded):
        return dict(enumerate(self.slots)), {}

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        self._get_slot_mappings(num_tokens_padded=3)
        self.write()
        return "out"

    def _dummy_run(self):
        self._get_slot_mappings(num_tokens_padded=3)

    @property
    def input_batch(self):
        tables = [SimpleNamespace(num_blocks_per_row=np.array([2]),
                                  get_numpy_array=lambda table=table: np.array(table)) for table in self.tables]
        return SimpleNamespace(req_ids=["r0"], block_table=tables)


def watched(kind):
    config = kv.get_kv_cache_config_from_groups(GROUPS, 0, "BLHNC", num_gpu_blocks_override=6)
    cache = kv.allocate_kv_cache(config, "cpu", "BLHNC")
    runner = kind(cache, [[[1, 2, 0]], [[3, 4, 0]]])
    recorder = Recorder(runner, None, 64)
    recorder.before, recorder.buffer = take_snapshot(cache.buffer, granule_bytes=64), cache.buffer
    recorder.address_map = cache.address_map
    recorder.put_on()
    return runner, recorder, cache


STEP = SimpleNamespace(new_block_ids_to_zero=None, kv_cache_block_copies=None)


@pytest.mark.parametrize("kind", [V1Runner, V2Runner])
def test_the_slots_of_real_steps_are_recorded_and_no_others(kind):
    runner, recorder, cache = watched(kind)
    for slots in ([[16, 17, -1], [48, 49, -1]], [[32, -1, -1], [50, -1, -1]]):
        runner.slots = torch.tensor(slots)
        assert runner.execute_model(STEP) == "out"
    runner.slots = torch.tensor([[20, 21, 22], [52, 53, 54]])
    if kind is V2Runner:
        runner.execute_model(STEP, dummy_run=True)
        runner.execute_model(STEP, None, True)
    else:
        runner._dummy_run()
    recorder.take_off()
    assert not {"execute_model", "prepare_attn", "_get_slot_mappings", "_kvlayout_recorder"} & set(vars(runner))
    found = recorder.result()
    slots = {int(group): np.frombuffer(one, np.int64) for group, one in found["slots"].items()}
    assert {group: one.tolist() for group, one in slots.items()} == {0: [16, 17, 32], 1: [48, 49, 50]}
    assert found["tables"] == {"r0": [[1, 2], [3, 4]]} and (found["steps"], found["error"]) == (2, None)
    predictions = predictions_of(cache.address_map, slots, {0: [], 1: []})
    assert land(cache.address_map, Changes.from_dict(found["changes"]), predictions).ok


@pytest.mark.parametrize("kind", [V1Runner, V2Runner])
def test_a_recorder_that_fails_leaves_the_engine_alone(kind):
    runner, recorder, _ = watched(kind)
    runner.slots, runner.tables = torch.tensor([[16], [48]]), []
    assert runner.execute_model(STEP) == "out"
    recorder.take_off()
    assert "IndexError" in recorder.result()["error"]


def test_a_runner_without_slot_mappings_is_refused():
    config = kv.get_kv_cache_config_from_groups(GROUPS, 0, "BLHNC", num_gpu_blocks_override=6)
    with pytest.raises(kv.LayoutError, match="no slot mapping"):
        Recorder(SimpleNamespace(kv_cache_config=config), None, None)
