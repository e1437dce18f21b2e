"""The Transfer tab, one side: its numbers are the library's, and what can't be is said beside the choice."""

import itertools
import time

import pytest

import kvlayout as kv
from kvlayout.clinic import Transfer
from kvlayout_widgets import Explorer
from kvlayout_widgets.panels.transfer_one import WHAT
from tests.clinic.test_transfers import EXPECTED, SIX
from tests.figure_reading import check_labels

NUMBERS = itertools.count(1)


def opened(title="One side", **choices):
    shown = Explorer(**({"model": "Qwen/Qwen3-0.6B", "num_blocks": 64} | choices))
    shown.show("Transfer")
    shown.tabs["Transfer"].show(title)
    return shown, shown.tabs["Transfer"].visible


def send(panel, name, **values):
    panel.picture.set_state({name: {**values, "n": next(NUMBERS)}})


def refused(shown, panel) -> str:
    """The reasons that stand beside the choices; the explorer itself reports none."""
    assert shown._status.value == ""
    rows = (panel.source, panel.target) if hasattr(panel, "source") else ()
    return "".join((panel.complaint.value, *(row.message.value for row in rows)))


@pytest.mark.parametrize("what", EXPECTED)
def test_the_standard_four_in_each_layout(what):
    shown, panel = opened(backend="FLASH_ATTN")
    shown.select(3, 5)
    panel.placed.value, panel.ids.value = "in these blocks", "4-6"
    panel.what.value = what
    assert {name: one.run_bytes for name, one in panel.by_layout.items()} == dict(zip(SIX, EXPECTED[what]))
    for layout in SIX:  # and of a cache that is in any other layout
        shown.choose(layout=layout)
        assert panel.by_layout[layout].run_bytes == EXPECTED[what][SIX.index(layout)]
        assert panel.drawing.footer.startswith(f"{layout}, this cache:")


def test_one_block_of_the_readme():
    shown, panel = opened(layout="BLNHC")
    shown.select(0, 5)
    assert panel.by_layout["BLNHC"].run_bytes == {1835008: 1}
    assert panel.by_layout["LBNHC"].run_bytes == {65536: 28}
    assert panel.drawing.headline == "Block 5 of 28 layers: contiguous runs in each layout · Qwen3 0.6B"
    assert "1 run, 1.75 MiB, 0 of 1 below, 0 % of bytes" in panel.drawing.footer
    assert "▶ this cache" in panel.text.value and "1,835,008 B (1.75 MiB)" in panel.text.value
    assert "connector registers: 1 (a block holds all layers, so there is one in all)" in panel.text.value
    send(panel, "hover", axes=0, x=16, y=1)
    assert panel.picture.readout == "LBNHC: 28 × 64 KiB, 1.75 MiB in all"


@pytest.mark.parametrize("text, expected", [
    ("64 KiB", "0 of 28 below, 0 % of bytes"), ("65537 B", "28 of 28 below, 100 % of bytes"),
    ("0.1 MiB", "28 of 28 below, 100 % of bytes"), ("64", "0 of 28 below"), ("65", "28 of 28 below")])
def test_a_threshold(text, expected):
    _, panel = opened(layout="LBNHC")
    panel.threshold.value = text
    assert expected in panel.drawing.footer and expected in panel.text.value
    check_labels(panel.drawing.figure)


def test_no_threshold():
    _, panel = opened(layout="LBNHC")
    panel.threshold.value = "0"
    assert panel.drawing.footer == "LBNHC, this cache:   28 runs, 64 KiB each"
    panel.threshold.value = ""
    assert "below" not in panel.drawing.footer


@pytest.mark.parametrize("text", ["abc", "-1", "64 XiB", "99999999 TiB", "<b>1</b>", "1" * 400, "nan", "64 KiB KiB"])
def test_a_threshold_that_is_no_size(text):
    shown, panel = opened()
    panel.threshold.value = text
    assert "✗ threshold" in refused(shown, panel) and "<b>" not in panel.complaint.value
    assert panel.drawing is None and panel.text.value == "" and panel.picture.layout.display == "none"
    panel.threshold.value = "64 KiB"
    assert refused(shown, panel) == "" and panel.drawing is not None and panel.picture.layout.display is None


def test_a_request_by_its_tokens():
    shown, panel = opened(layout="LBNHC")
    panel.what.value = "one request"
    assert panel.drawing.headline.startswith("Blocks 1 to 32 of 28 layers")
    assert panel.by_layout["LBNHC"].run_bytes == {32 * 65536: 28}
    panel.tokens.value = "33"
    assert panel.by_layout["LBNHC"].run_bytes == {3 * 65536: 28}
    panel.placed.value = "every other block"
    assert panel.by_layout["LBNHC"].run_bytes == {65536: 84}
    assert panel.by_layout["BLNHC"].run_bytes == {1835008: 3}
    panel.tokens.value = "512"
    assert "up to block 63" not in refused(shown, panel)  # 1, 3 ... 63 are just there
    panel.tokens.value = "513"
    assert "are 33 blocks of 16 tokens, up to block 65; the pool ends with block 63" in refused(shown, panel)


@pytest.mark.parametrize("text", ["0", "-3", "x", "1.5", "1" * 30, "10,000,000,000"])
def test_a_request_of_no_length(text):
    shown, panel = opened()
    panel.what.value, panel.tokens.value = "one request", text
    assert "✗ Tokens" in refused(shown, panel)


@pytest.mark.parametrize("text", ["x", "5-3", "1,024", "64", "0-99999", "-1", "1 - ", "<script>", "9" * 30,
                                  "0x10", "1.5"])
def test_blocks_that_are_none(text):
    shown, panel = opened()
    panel.what.value, panel.placed.value = "one request", "in these blocks"
    panel.ids.value = text
    assert "✗" in refused(shown, panel) and "<script>" not in panel.complaint.value
    assert panel.drawing is None


def test_no_blocks_yet():
    shown, panel = opened()
    panel.what.value, panel.placed.value, panel.ids.value = "one request", "in these blocks", " "
    assert "Type the request" in refused(shown, panel) and "5, 9 or 1-4" in panel.complaint.value
    assert "✗" not in panel.complaint.value


@pytest.mark.parametrize("size, rank, reason", [
    ("3", "0", "split or share 8 head slots"), ("2", "2", "must be below tp_size=2"), ("0", "0", "at least 1"),
    ("x", "0", "not a whole number"), ("2", "-1", "at least 0"), ("9" * 18, "0", "head slots")])
def test_a_head_shard_that_can_not_be(size, rank, reason):
    shown, panel = opened()
    panel.what.value, panel.tp_size.value, panel.tp_rank.value = "one head shard", size, rank
    assert reason in refused(shown, panel)


def test_a_latent_is_shared_not_cut():
    shown, panel = opened(model="deepseek-ai/DeepSeek-V3.2-Exp")
    panel.what.value = "one block"
    whole = panel.by_layout
    panel.what.value, panel.tp_size.value, panel.tp_rank.value = "one head shard", "8", "5"
    assert panel.by_layout == whole
    assert isinstance(whole["BHLNC"], str) and "mixed page sizes" in panel.text.value
    assert "refused" in panel.drawing.alt_text()
    check_labels(panel.drawing.figure)


def test_the_selected_layers_group_of_a_hybrid():
    shown, panel = opened(model="google/gemma-3-27b-it", layout="LBNHC")
    address_map = shown.plan.address_map
    shown.select(0, 5)
    assert panel.drawing.headline.startswith("Block 5 of 9 layers of group 0")
    assert panel.by_layout["LBNHC"].total_bytes == 9 * address_map.region(0).page_size_bytes
    shown.select(20, 5)
    assert "of 9 layers of group 2" in panel.drawing.headline
    assert "Regions that a connector registers: 10 (" in panel.text.value
    assert panel.text.value.count("<caption>") == 3


def test_kernel_blocks_are_called_so():
    shown, panel = opened(layout="LBNHC", block_size=64, kernel_block_size=16)
    shown.select(0, 7)
    assert panel.drawing.headline.startswith("Kernel block 7 of 28 layers")
    panel.what.value = "one request"
    assert panel.drawing.headline.startswith("Kernel blocks 1 to 32")


def test_a_captured_config_and_a_pool_without_blocks():
    plan = kv.make_plan(kv.Selection(model="Qwen/Qwen3-0.6B", layout="BLHNC", num_blocks=16))
    shown = Explorer(plan.config)
    shown.show("Transfer")
    panel = shown.tabs["Transfer"].visible
    assert panel.by_layout["BLHNC"].run_bytes == {1835008: 1}
    assert panel.by_layout["LHBNC"].run_bytes == {8192: 224}
    for title in ("One side", "Two sides"):
        empty, panel = opened(title, num_blocks=0)
        assert refused(empty, panel) == "" and panel.drawing is None
        assert panel._empty.layout.display is None


def test_it_costs_the_same_for_any_pool():
    shown, panel = opened(model="llama-tiny", num_blocks=None, available_memory=140 << 30)
    for what in WHAT:
        panel.what.value = what
        start = time.process_time()
        panel.draw("light")
        assert time.process_time() - start < 2 and refused(shown, panel) == ""
    assert panel.by_layout["LBNHC"].num_runs == 4
    panel.tokens.value = f"{16 * 60000}"
    panel.placed.value = "every other block"
    panel.draw("light")
    assert refused(shown, panel) == ""
    panel.placed.value, panel.ids.value = "in these blocks", "0-60000, 60002-65000"
    assert sum(isinstance(one, Transfer) for one in panel.by_layout.values()) == 6


def test_too_many_pieces_are_refused():
    shown, panel = opened(model="meta-llama/Llama-3.3-70B-Instruct", num_blocks=100_000)
    panel.what.value, panel.tokens.value = "one request", f"{16 * 60000:,}"
    assert panel.by_layout["LBNHC"].run_bytes == {60000 * 65536: 80}
    panel.placed.value, panel.tokens.value = "every other block", f"{16 * 30000:,}"
    assert "30,000 blocks" in refused(shown, panel) and "more than the 1,638" in panel.complaint.value


def test_a_layout_that_vllm_refuses_is_marked():
    _, panel = opened(backend="FLEX_ATTENTION")  # which takes LBNHC alone
    assert panel.text.value.count("not for vLLM here: is not supported by FLEX_ATTENTION") == 5
    _, panel = opened(backend="FLASH_ATTN")
    assert "not for vLLM" not in panel.text.value


def test_a_head_shard_where_slots_are_no_heads():
    shown, panel = opened(backend="ROCM_ATTN")
    panel.what.value = "one head shard"
    assert "2 head slots that aren" in refused(shown, panel)
    shown, panel = opened(backend="FLASHINFER", kv_cache_dtype="nvfp4")
    panel.what.value = "one head shard"
    assert refused(shown, panel) == "" and panel.by_layout[shown.plan.layout.name].total_bytes == 28 * 8 * 16 * 72


def test_a_block_table_with_its_brackets_is_a_request():
    _, panel = opened()
    panel.what.value, panel.placed.value, panel.ids.value = "one request", "in these blocks", "[0, 7, 9]"
    assert "Blocks 0, 7 and 9 of 28 layers" in panel.drawing.headline


@pytest.mark.parametrize(("box", "what", "example"), [
    ("tp_size", "one head shard", "2"), ("tp_rank", "one head shard", "0"), ("tokens", "one request", "512")])
def test_a_box_offers_its_own_example_and_takes_it_where_it_is_empty(box, what, example):
    shown, panel = opened(layout="LBHNC")
    panel.what.value = what
    control = getattr(panel, box)
    control.value = "many"
    assert f"Write one such as 64, or {example}" in panel.complaint.value and "auto" not in panel.complaint.value
    control.value = example
    expected = panel.by_layout
    control.value = ""
    assert panel.complaint.value == ""
    assert {name: one.run_bytes for name, one in panel.by_layout.items()} == \
        {name: one.run_bytes for name, one in expected.items()}
