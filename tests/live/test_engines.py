"""Real engines on the CPU: attached, checked, dumped by the plugin, and every byte of a run explained."""

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from kvlayout.capture import check_rank, check_ranks, load, load_ranks
from kvlayout.captured import captured_selection
from kvlayout.plan import make_plan
from kvlayout.slot_mapping import slots_of

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
COMMON = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
ENVIRONMENT = {
    "llama": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    "gemma": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    "ranks": {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"},
}
SCENES = sorted(ENVIRONMENT)


@cache
def folder_of(scene: str) -> Path:
    """Run a scene once; its folder then holds facts.json and the plugin's dumps."""
    folder = Path(mkdtemp(prefix=f"kvlayout-{scene}-"))
    settings = {**COMMON, **ENVIRONMENT[scene], "KVLAYOUT_DUMP": str(folder / "dumps")}
    with open(folder / "log.txt", "w") as log:
        done = subprocess.run([sys.executable, "-m", "tests.live.scenes", scene, str(folder)], cwd=ROOT, stdout=log,
                              stderr=subprocess.STDOUT, env={**os.environ, **settings}, timeout=600)
    assert (folder / "facts.json").exists(), f"exit status {done.returncode}: " + log_of(folder)[-4000:]
    return folder


def log_of(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def facts_of(scene: str) -> dict:
    return json.loads((folder_of(scene) / "facts.json").read_text())


RUNS = [("llama", 0), ("llama", 1), ("llama", 2), ("llama", 3), ("gemma", 0), ("gemma", 1), ("ranks", 0)]


@pytest.mark.parametrize("scene", SCENES)
def test_every_view_is_as_planned(scene):
    assert facts_of(scene)["check"] == []


@pytest.mark.parametrize("scene, run", RUNS)
def test_the_bytes_that_changed_are_those_predicted(scene, run):
    for seen in facts_of(scene)["runs"][run]["ranks"]:
        assert seen["ok"] and seen["exact"] and seen["declared"], seen["rules"]
        assert (seen["missing"], seen["unexpected"], seen["stray_bytes"], seen["outside_bytes"]) == (0, 0, 0, 0)
        assert seen["cells"] > 0 and set(seen["rules"]) <= {"same-value"}


@pytest.mark.parametrize("scene, run", [one for one in RUNS if one not in (("llama", 3), ("gemma", 1))])
def test_a_prompt_of_p_tokens_and_t_made_writes_p_plus_t_minus_1_slots(scene, run):
    facts = facts_of(scene)["runs"][run]
    written = [length + made - 1 for length, made in zip(facts["lengths"], facts["made"])]
    for seen in facts["ranks"]:
        for group, slots in seen["slots"].items():
            assert len(slots) == sum(written)
            tables = [blocks[int(group)] for blocks in seen["tables"].values()]
            mine = [slots_of(table, np.arange(count), 128) for table, count in zip(tables, written)]
            assert sorted(np.concatenate(mine)) == slots


def test_a_cached_prefix_is_not_written_again():
    again, before = (facts_of("llama")["runs"][run]["ranks"][0]["slots"]["0"] for run in (3, 2))
    # Of prompts of 37, 150 and 301 tokens 0, 1 and 2 whole blocks of 128 were kept.
    assert len(again) == len(before) - 3 * 128


def test_blocks_pass_from_group_to_group_within_one_run():
    seen = facts_of("gemma")["runs"][1]["ranks"][0]
    blocks = [{slot // 128 for slot in slots} for slots in seen["slots"].values()]
    assert len(blocks) == 3 and any(blocks[a] & blocks[b] for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("scene", SCENES)
def test_a_wrong_plan_is_found_out(scene):
    wrong = facts_of(scene)["runs"][0]["wrong"]
    assert "view-shape" in wrong["block size"]["views"]
    assert set(wrong["block size"]["rules"]) & {"cell-missing", "cell-unexpected"}
    # On a rank with one KV head each order of H and N is the same.
    if scene != "ranks":
        assert "view-stride" in wrong["layout"]["views"] and not wrong["layout"]["ok"]
    # Cells are right without a declared interior; only what lies inside them isn't.
    assert wrong["interior"]["views"] == [] and "interior-contradiction" in wrong["interior"]["rules"]
    assert wrong["interior"]["missing"] == wrong["interior"]["unexpected"] == 0


@pytest.mark.parametrize("scene, count", [("llama", 1), ("gemma", 1), ("ranks", 2)])
def test_the_plugins_dumps_open_and_check(scene, count):
    folder = folder_of(scene) / "dumps"
    assert sorted(path.name for path in folder.iterdir()) == [f"rank-{rank}.json" for rank in range(count)]
    dumps = load_ranks(folder)
    assert check_ranks(dumps) == []
    for dump in dumps:
        path = folder / f"rank-{dump.rank}.json"
        plan = make_plan(captured_selection(path))
        assert check_rank(dump) == check_rank(dump, plan) == []
        assert load(path) == dump.config == plan.config
        assert {backend.name for backend in plan.backends.values()} == {"CPU_ATTN"} and plan.interiors


@pytest.mark.parametrize("scene", SCENES)
def test_the_dump_opens_in_the_explorer(scene):
    if find_spec("ipywidgets") is None:
        pytest.skip("ipywidgets isn't installed here; tests/unit opens dumps in the explorer")
    from kvlayout_widgets import Explorer

    path = folder_of(scene) / "dumps" / "rank-0.json"
    assert Explorer(str(path)).plan.config == load(path)


def test_tensors_in_process_are_the_engines_own():
    facts, dump = facts_of("llama"), load_ranks(folder_of("llama") / "dumps")[0]
    for layer, (view,) in dump.views.items():
        assert facts["tensors"][layer] == [list(view.shape), list(view.stride_elements), view.data_ptr]


def test_nothing_stays_behind_a_watch():
    facts = facts_of("llama")
    assert facts["left on the runner"] == []
    assert facts["twice"]["is_layout_error"] and "already" in facts["twice"]["text"]
    assert facts["bad prompt"]["type"] and not facts["bad prompt"]["is_layout_error"]
    assert facts["after the bad prompt"]["ok"] and facts["after the bad prompt"]["cells"] > 0


def test_an_engine_that_was_shut_down_gives_one_clear_error():
    assert facts_of("llama")["after shutdown"]["is_layout_error"], facts_of("llama")["after shutdown"]


def test_two_ranks_are_read_in_their_own_processes():
    facts = facts_of("ranks")
    assert len({facts["pid"], *facts["pids"]}) == 3
    assert facts["tensors"]["is_layout_error"] and "another process" in facts["tensors"]["text"]
    assert set(facts["snapshots"]) == {"0", "1"} and len(set(facts["snapshots"].values())) == 1
    assert [one[:20] for one in facts["other layout"]] == ["error rank-layout: R"] * 2


def test_an_engine_that_dies_in_a_watch_gives_one_clear_error():
    facts = facts_of("ranks")
    for error in (facts["died"], *facts["afterwards"].values()):
        assert error["is_layout_error"] and "is dead" in error["text"], error
