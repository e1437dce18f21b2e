"""The Code tab: its Python runs, and finds the offset that the explorer shows."""

from html import unescape

import pytest

from kvlayout import Selection, presets
from kvlayout_widgets import Explorer
from kvlayout_widgets.kvlayout_code import kvlayout_code
from kvlayout_widgets.state import State
from kvlayout_widgets.vllm_code import names_code, vllm_code

CHOICES = [
    *({"model": name, "num_blocks": 40, "device": "meta"} for name in presets()),
    {"layout": "BHLNC", "num_blocks": 40},
    {"kv_cache_dtype": "int8_per_token_head", "backend": "TRITON_ATTN"},
    {"block_size": 64, "kernel_block_size": 16},
    {"available_memory": 1 << 28, "tp_size": 2, "vllm_version": "0.30.0"},
    {"machine": {"platform": "cuda", "cuda_major": 9}, "backend": "FLASHINFER"},
    {"connector": "NixlConnector", "pp_size": 2, "pp_rank": 1, "max_model_len": 4096},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_the_code_runs_and_finds_the_offset(choices, capsys):
    state = State(Selection.from_dict(choices))
    found = {}
    exec(kvlayout_code(state.plan, state.coordinate), found)
    assert found["plan"].selection == state.plan.selection
    assert found["offset"] == state.coordinate.offset(state.plan.address_map)
    assert found["owner"].layer == state.coordinate.layer
    assert found["figure"].axes
    assert "KVCache(" in capsys.readouterr().out


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_the_vllm_code_is_python_with_the_same_numbers(choices):
    state = State(Selection.from_dict(choices))
    text = vllm_code(state.plan.address_map, state.coordinate, "0.33.0")
    compile(text, "vllm", "exec")
    assert f"assert offset == {state.coordinate.offset(state.plan.address_map)}" in text
    assert f"KVCacheLayout.{state.plan.layout.name}" in text
    for tensor in state.plan.config.kv_cache_tensors:
        assert f"block_stride={tensor.block_stride}, offset={tensor.offset}" in text


@pytest.mark.parametrize("names", [
    ("a.0.b", "a.1.b", "a.2.b"), ("a.3.b", "a.5.b", "a.7.b"), ("a.1.b", "a.5.b", "a.6.b"), ("a.0.b",),
    ("x", "y"), ("a.0.b", "c.1.b"), ("a.0.b.1", "a.1.b.1"), ("a.00.b", "a.1.b"), ("a.2.b", "a.1.b"), ("{0}", "{1}"),
    ('"0', '"1')])
def test_names_are_written_so_that_python_reads_them_back(names):
    found = {}
    exec(f"names = {names_code(names)}", found)
    assert found["names"] == list(names)


def test_the_tab_shows_the_same_texts():
    shown = Explorer(model="llama-tiny", layout="BLNHC", num_blocks=8)
    shown.show("Code")
    text = unescape(shown.tabs["Code"].texts.value)
    assert kvlayout_code(shown.plan, shown.state.coordinate) in text
    assert vllm_code(shown.plan.address_map, shown.state.coordinate, "0.33.0") in text
    assert shown.to_json() in text
