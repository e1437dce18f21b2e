"""A pasted text with several KVCacheConfigs: whoever takes the first says so, beside the answer."""

import pytest

from kvlayout import LayoutError, Selection, make_plan
from kvlayout.captured import capture_note, captured_selection
from kvlayout_widgets import Explorer
from kvlayout_widgets.catalogue import FROM_CONFIG
from tests.unit.test_cli import QWEN, run

NOTE = "The text holds 3 different configs; the first is taken"
CONFIGS = [make_plan(Selection(model=QWEN, num_blocks=blocks)).config for blocks in (8, 9, 10)]


def logged(*configs):
    return "".join(f"(Worker_TP{rank} pid={rank}) INFO 03-07 08:18:10 [a.py:1] {one!r}\n"
                   for rank, one in enumerate(configs))


@pytest.fixture
def several(tmp_path):
    path = tmp_path / "several.log"
    path.write_text(logged(*CONFIGS))
    return path


@pytest.mark.parametrize("command", [
    ("explain",), ("lint",), ("decode", "--address", 7), ("decode", "--slot", 3), ("transfer",),
    ("formula", "block")], ids=["explain", "lint", "address", "slot", "transfer", "formula"])
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_every_command_says_it_on_stderr(several, command, form):
    name, *rest = command
    done = run(name, several, *rest, *form)
    assert done.exit_code in (0, 1), done.stderr
    assert done.stderr == f"kvlayout: {several}: {NOTE}.\n" and NOTE not in done.stdout


def test_from_stdin(several):
    assert run("explain", "-", stdin=several.read_text()).stderr == f"kvlayout: -: {NOTE}.\n"


def test_equal_configs_and_one_alone_are_no_choice(tmp_path):
    for name, text in (("one.log", logged(CONFIGS[0])), ("equal.log", logged(*[CONFIGS[0]] * 3))):
        (tmp_path / name).write_text(text)
        assert run("explain", tmp_path / name).stderr == ""


def test_the_selection_keeps_it_through_its_json(several):
    selection = Selection.from_dict(captured_selection(several).to_dict())
    assert capture_note(selection.model) == NOTE
    assert make_plan(selection).config == CONFIGS[0]
    for model in (QWEN, {}, {"note": NOTE}, {"kv_cache_config": {}, "note": [5]}):
        assert capture_note(model) == ""


def test_the_explorer_says_it_beside_the_model(several):
    explorer = Explorer(str(several))
    control = explorer.controls.by_argument["model"]
    assert NOTE in control.message.value
    explorer.choose(model=QWEN)
    assert control.message.value == ""


def test_pasted_into_the_model_control():
    explorer = Explorer(Selection(model=QWEN))
    control = explorer.controls.by_argument["model"]
    listed, text = control.parts
    listed.value = FROM_CONFIG
    text.value = logged(*CONFIGS)
    assert explorer.plan.config == CONFIGS[0] and NOTE in control.message.value
    text.value = logged(CONFIGS[1])
    assert explorer.plan.config == CONFIGS[1] and control.message.value == ""


def test_a_note_of_a_file_is_shown_as_text():
    capture = captured_selection(CONFIGS[0]).model | {"note": "<img src=x>"}
    explorer = Explorer(captured_selection(capture))
    assert "&lt;img src=x&gt;" in explorer.controls.by_argument["model"].message.value
    with pytest.raises(LayoutError):
        captured_selection({"note": NOTE})
