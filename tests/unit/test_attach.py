"""What attaching does where no engine is, and the parts that run in workers, on caches of our own."""

import logging
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import kvlayout as kv
from kvlayout.landing import land
from kvlayout.memory.snapshot import take_snapshot
from kvlayout.rewritten import rewritten_states
from kvlayout.slot_mapping import predict
from kvlayout.snapshot import Changes, changed
from kvlayout.upstream import plugin
from kvlayout.upstream.attach import attach
from kvlayout.upstream.zeroed import forget_zeroed

SPEC = kv.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="bfloat16")
GROUPS = [kv.KVCacheGroupSpec(["a", "b"], SPEC), kv.KVCacheGroupSpec(["c", "d"], SPEC)]


class Engine:
    """Answers collective_rpc with an error, as an engine in trouble does."""

    def __init__(self, error):
        self.error = error

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        raise self.error


class Asynchronous:
    async def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        return []


EngineDeadError = type("EngineDeadError", (Exception,), {})


@pytest.mark.parametrize(("llm", "words"), [
    (None, "no collective_rpc"),
    (Engine, "no collective_rpc"),
    (Asynchronous(), "asynchronous"),
    (Engine(EngineDeadError("see the log")), "is dead"),
    (Engine(RuntimeError("Executor failed.")), "is dead"),
    (Engine(TimeoutError("RPC call timed out.")), "no answer in time"),
    (Engine(TypeError("Set VLLM_ALLOW_INSECURE_SERIALIZATION=1 to allow")), "VLLM_ENABLE_V1_MULTIPROCESSING=0"),
    (Engine(RuntimeError("Worker failed with error 'no room'\nand a trace")), "'no room'. Use an engine"),
])
def test_what_is_no_living_engine_is_one_clear_error(llm, words):
    with pytest.raises(kv.LayoutError) as caught:
        attach(llm)
    assert caught.value.argument == "llm" and words in str(caught.value) and "\n" not in str(caught.value)


def cache_of(layout: str):
    config = kv.get_kv_cache_config_from_groups(GROUPS, 0, layout, num_gpu_blocks_override=6)
    return kv.allocate_kv_cache(config, "cpu", layout)


@pytest.mark.parametrize("layout", list(kv.KVCacheLayout.__members__))
def test_blocks_zeroed_in_the_run_are_no_change(layout):
    cache = cache_of(layout)
    cache.buffer.random_(1, 100)
    before = take_snapshot(cache.buffer, granule_bytes=64)
    slots = {0: np.array([2 * 16, 3 * 16 + 1]), 1: np.array([2 * 16 + 5])}
    for name in "abcd":
        cache.views[name][2].zero_()
    before = forget_zeroed(before, cache.buffer, cache.address_map, slots, [2])
    # Nothing but block 2 was touched, so nothing has changed; what was written there earlier is gone.
    assert changed(before, take_snapshot(cache.buffer, granule_bytes=64)).changed_bytes == 0
    assert {group: rows.tolist() for group, rows in slots.items()} == {0: [3 * 16 + 1], 1: []}
    cache.views["a"][3, 1, 1] = -1.5
    changes = changed(before, take_snapshot(cache.buffer, granule_bytes=64))
    assert changes.changed_bytes > 0


def test_a_block_that_was_not_wiped_keeps_its_tokens():
    cache = cache_of("LBHNC")
    cache.buffer.random_(1, 100)
    before = take_snapshot(cache.buffer, granule_bytes=64)
    slots = {0: np.array([2 * 16]), 1: np.array([2 * 16])}
    same = forget_zeroed(before, cache.buffer, cache.address_map, slots, [2])
    assert np.array_equal(same.content, before.content) and [len(one) for one in slots.values()] == [1, 1]


def test_a_state_written_again_with_equal_bytes_is_not_missing():
    cache = cache_of("BLHNC")
    cache.buffer.random_(1, 100)
    before = take_snapshot(cache.buffer, granule_bytes=64)
    cache.views["a"][3, :, 4] = -1.5
    cache.views["b"][3, :, 4] = -1.5
    changes = changed(before, take_snapshot(cache.buffer, granule_bytes=64))
    # Row 5 of block 3, and all of block 4, were to be written too, and hold what they held.
    predictions = [predict(cache.address_map, 0, [3 * 16 + 4, 3 * 16 + 5, 4 * 16])]
    assert {one.rule for one in land(cache.address_map, changes, predictions).findings if one.is_error} == {
        "cell-missing", "interior-contradiction"}
    rows = rewritten_states(cache.address_map, before, changes, predictions)
    assert sorted(map(tuple, rows[:, 1::2].tolist())) == 4 * [(3, 5)] + 4 * [(4, 0)]
    landing = land(cache.address_map, changes, predictions, rewritten=rows)
    assert landing.ok and [one.rule for one in landing.findings] == ["same-value"]


def test_a_state_of_zeros_that_stays_is_missing():
    cache = cache_of("LBNHC")
    before = take_snapshot(cache.buffer, granule_bytes=64)
    changes = changed(before, before)
    predictions = [predict(cache.address_map, 1, [40])]
    assert len(rewritten_states(cache.address_map, before, changes, predictions)) == 0
    assert not land(cache.address_map, changes, predictions).ok


def test_changes_travel_as_plain_data():
    cache = cache_of("LBHNC")
    before = take_snapshot(cache.buffer, granule_bytes=64)
    cache.views["a"][1].fill_(2.0)
    changes = changed(before, take_snapshot(cache.buffer, granule_bytes=64, most_bytes=128))
    back = Changes.from_dict(changes.to_dict())
    assert back.changed_bytes == changes.changed_bytes and not back.is_exact
    for name in ("granules", "masks", "exact"):
        assert np.array_equal(getattr(back, name), getattr(changes, name))


def test_the_plugin_does_nothing_unless_it_is_asked():
    code = ("import sys; from kvlayout.upstream.plugin import register; register(); "
            "print([name for name in ('torch', 'vllm', 'numpy', 'msgspec') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def wrapper_class(worker):
    class Wrapper:
        def __init__(self):
            self.worker, self.seen = worker, None

        def initialize_from_config(self, kv_cache_configs):
            self.seen = kv_cache_configs
            return "as before"

    return Wrapper


@pytest.mark.parametrize("worker", [None, SimpleNamespace(model_runner=None),
                                    SimpleNamespace(model_runner=SimpleNamespace(vllm_config=None))])
def test_a_dump_that_fails_is_one_line_and_the_engine_goes_on(worker, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(plugin.VARIABLE, str(tmp_path / "dumps"))
    kind = wrapper_class(worker)
    plugin.wrap(kind)
    plugin.wrap(kind)  # a second time changes nothing
    wrapper = kind()
    with caplog.at_level(logging.WARNING, logger="vllm.kvlayout"):
        assert wrapper.initialize_from_config(["config"]) == "as before"
    assert wrapper.seen == ["config"]
    (record,) = caplog.records
    assert "kvlayout wrote no dump: LayoutError" in record.getMessage() and "\n" not in record.getMessage()
    assert not (tmp_path / "dumps").exists()


def test_without_vllm_the_plugin_says_so_in_one_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(plugin.VARIABLE, str(tmp_path))
    monkeypatch.setitem(sys.modules, "vllm", None)
    with caplog.at_level(logging.WARNING, logger="vllm.kvlayout"):
        plugin.register()
    (record,) = caplog.records
    assert "kvlayout writes no dump" in record.getMessage()
