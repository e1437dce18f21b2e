"""The judge's badge: each state in words, the newest plan's verdict, and a difference as a file."""

import json
import sys
import time

import pytest

from kvlayout.upstream.background import Judge
from kvlayout.upstream.verdict import Check, Verdict
from kvlayout_widgets import Explorer
from kvlayout_widgets.badge import Badge

GOOD = Verdict("0.33.0", "official", (Check("placement", True, 61), Check("omni", None, reason="isn't installed")))
BAD = Verdict("0.33.0", "official", (
    Check("placement", False, 61, 65536, 32768, "kv_cache_tensors[0].block_stride"),))

# Says that it is ready, and answers each request: gemma differs, whatever else agrees; "die" ends it.
WORKER = f"""
import json, sys
print(json.dumps({{"state": "ready", "version": "0.33.0", "build": "official"}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    model = asked["selection"]["model"]
    if "mistral" in model.lower():
        sys.exit("out of memory")
    verdict = json.loads({json.dumps(json.dumps(BAD.to_dict()))} if "gemma" in model else
                         {json.dumps(json.dumps(GOOD.to_dict()))})
    print(json.dumps({{"id": asked["id"], "verdict": verdict}}), flush=True)
"""


@pytest.fixture
def judged():
    shown, saved = Explorer(model="Qwen/Qwen3-0.6B", num_blocks=8), []
    with Judge(command=[sys.executable, "-c", WORKER]) as judge:
        badge = Badge(shown.state, lambda *file: saved.append(file), judge)
        judge._on_state = badge.show
        yield shown, badge, saved


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the badge never changed"
        time.sleep(0.01)


def test_without_vllm_it_says_what_stands_in_for_it():
    shown = Explorer(model="llama-tiny", num_blocks=8)
    if shown.badge.judge.state != "absent":
        pytest.skip("vLLM is installed here")
    assert "recorded vectors of 0.29.0 to 0.33.0 stand in" in shown.badge.text.value
    assert shown.badge.export.layout.display == shown.badge.retry.layout.display == "none"


def test_agreement_is_green_with_the_version(judged):
    _, badge, _ = judged
    until(lambda: "kvl-badge-good" in badge.text.value)
    assert "✓ vLLM 0.33.0 computes the same 61 values<" in badge.text.value
    assert "omni, not judged: isn&#x27;t installed" in badge.text.value
    assert badge.export.layout.display == "none"


def test_a_difference_is_red_with_both_numbers_and_can_be_saved(judged):
    shown, badge, saved = judged
    shown.choose(model="google/gemma-3-27b-it")
    until(lambda: "kvl-badge-bad" in badge.text.value)
    assert "kv_cache_tensors[0].block_stride: kvlayout 65,536, vLLM 32,768" in badge.text.value
    badge.export.click()
    (name, data, mime), = saved
    made = json.loads(data)
    assert name == "difference-vllm-0.33.0.json" and mime == "application/json"
    assert made["selection"]["model"] == "google/gemma-3-27b-it" and "65536" in json.dumps(made)
    shown.choose(model="Qwen/Qwen3-0.6B")
    until(lambda: "kvl-badge-good" in badge.text.value)


def test_rules_of_another_release_are_named(judged):
    shown, badge, _ = judged
    shown.choose(vllm_version="0.31.0")
    until(lambda: "kvl-badge-good" in badge.text.value)
    assert "by the rules of 0.33.0 instead of 0.31.0" in badge.text.value


def test_a_worker_that_dies_is_a_warning_and_can_be_tried_again(judged):
    shown, badge, _ = judged
    shown.choose(model="mistralai/Mistral-7B-v0.1")
    until(lambda: badge.judge.state == "failed" and "failed" in badge.text.value)
    assert "out of memory" in badge.text.value and badge.retry.layout.display is None
    shown.choose(model="Qwen/Qwen3-0.6B")
    badge.retry.click()
    until(lambda: "kvl-badge-good" in badge.text.value)
    assert badge.retry.layout.display == "none"


def test_a_backend_of_ones_own_is_not_judged():
    class Mine:
        @staticmethod
        def supported_kv_cache_layouts():
            return ["LBNHC"]

    shown = Explorer(model="Qwen/Qwen3-0.6B", num_blocks=8, backends=[Mine], backend="Mine")
    with Judge(command=[sys.executable, "-c", WORKER]) as judge:
        badge = Badge(shown.state, lambda *file: None, judge)
        until(lambda: judge.state == "ready")
        badge.show()
        assert "is a class of your own" in badge.text.value and "kvl-badge-warn" in badge.text.value
