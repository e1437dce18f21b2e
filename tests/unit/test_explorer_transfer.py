"""The Transfer tab: its numbers are the library's, exact, and what can't be is said beside the choice."""

import itertools
import time

import pytest

import kvlayout as kv
from kvlayout.clinic import Transfer
from kvlayout_widgets import Explorer
from kvlayout_widgets.block_ids import ids_words, parse_block_ids
from kvlayout_widgets.figures.exchange import FATES
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


def set_all(row, **values):
    for name, value in values.items():
        row.controls[name].value = value


def refused(shown, panel) -> str:
    """The reasons that stand beside the choices; the explorer itself reports none."""
    assert shown._status.value == ""
    rows = (panel.source, panel.target) if hasattr(panel, "source") else ()
    return "".join((panel.complaint.value, *(row.message.value for row in rows)))


# ---- one side ----

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


@pytest.mark.parametrize("text", ["0", "-3", "x", "1.5", "", "1" * 30, "10,000,000,000"])
def test_a_request_of_no_length(text):
    shown, panel = opened()
    panel.what.value, panel.tokens.value = "one request", text
    assert "✗ Tokens" in refused(shown, panel)


@pytest.mark.parametrize("text", ["x", "5-3", "1,024", "64", "0-99999", "1;2", "-1", "1 - ", "<script>", "9" * 30,
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
        start = time.perf_counter()
        panel.draw("light")
        assert time.perf_counter() - start < 2 and refused(shown, panel) == ""
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


# ---- two sides ----

def test_the_exchange_of_the_readme():
    shown, panel = opened("Two sides", layout="LBNHC", backend="FLASH_ATTN")
    panel.source.blocks.value = "5, 9"
    set_all(panel.target, tp_size="2", ranks="1", layout="LBHNC", blocks="0, 1")
    found = panel._answer.found
    assert found.coverage == 1.0 and len(found.segments) == 3584
    assert panel.drawing.headline == "TP 1 LBNHC → rank 1 of TP 2 LBHNC, blocks 0 and 1 · Qwen3 0.6B"
    assert panel.drawing.subline == ("✓ Each of the 1,835,008 bytes of the target's 2 blocks in 28 layers is written "
                                     "exactly once, by its right owner, in 3,584 copies.")
    assert "8 KV heads in all, of which the target holds 4 to 7" in panel.text.value
    assert panel.drawing.sums == {"wrong": 0, "twice": 0, "missing": 0, "right": 1835008}


def test_vllm_42740_two_of_128_cells():
    shown, panel = opened("Two sides", layout="LBNHC")
    panel.source.blocks.value = panel.target.blocks.value = "1"
    panel.mistake.value, panel.taken_for.value = "source", "LBHNC"
    assert panel._answer.found.coverage == 2 / 128
    right = panel.drawing.cells[list(FATES).index("right")]
    assert [tuple(at) for at in zip(*right.nonzero())] == [(0, 0), (7, 15)]
    assert panel.drawing.headline.startswith("TP 1 LBNHC (taken for LBHNC) → rank 0 of TP 1 LBNHC, block 1")
    assert panel.drawing.footer == ("First wrong byte, 66,048:   layer 0 · block 1 · head slot 1 · state 0 holds the "
                                    "source's block 1 · head slot 0 · state 2")
    assert "The source is in LBNHC, and is taken for LBHNC." in panel.text.value
    send(panel, "hover", axes=1, x=0.5, y=1.5)
    assert panel.picture.readout == (
        "layer 0 · block 1 · head slot 1 · state 0\n100 % wrong\n"
        "its first byte holds byte 73,728 of source rank 0: layer 0 · block 1 · head slot 0 · state 2 · K element 0")
    panel.taken_for.value = "LBNHC"
    assert "nothing is mistaken" in panel.text.value and panel._answer.found.is_right


def test_four_ranks_to_one_of_two_and_one_that_is_left_out():
    shown, panel = opened("Two sides", layout="LBHNC")
    set_all(panel.source, tp_size="4", blocks="3, 9", num_blocks="32")
    set_all(panel.target, tp_size="2", ranks="1", blocks="1, 7")
    segments = panel._answer.found.segments
    assert (len(segments), set(segments.length.tolist()), set(segments.source.tolist())) == (112, {16384}, {2, 3})
    assert "2 ranks send nothing." in panel.text.value
    panel.source.ranks.value = "0-2"
    assert "✗ 50 % of the 1,835,008 bytes" in panel.text.value and "917,504 are written by nobody" in panel.text.value
    assert "layer 0 · block 1 · head slot 2 · state 0 · K element 0" in panel.text.value
    missing = panel.drawing.cells[list(FATES).index("missing")]
    assert missing.sum(axis=1).tolist() == [0, 0, 8192, 8192]


def test_replicated_heads_that_all_ranks_send():
    shown, panel = opened("Two sides", tp_size=16)
    assert panel._answer.found.is_right and panel._answer.total_heads == 8
    panel.replicas.value = "all"
    assert panel._answer.found.twice == panel._answer.found.target_bytes
    assert panel.drawing.sums["right"] == 0


def test_stages_of_a_pipeline():
    shown, panel = opened("Two sides")
    panel.source.pp_size.value = "2"
    assert panel._answer.found.is_right and panel.drawing.headline.startswith("TP 1, 2 stages LBNHC")
    panel.source.stages.value = "1"
    assert panel._answer.found.coverage == 0.5
    assert panel.drawing.page[0] == shown.plan.address_map.layers[0]  # the first that is missing
    set_all(panel.target, pp_size="2", stages="1")
    assert panel._answer.found.is_right and len(panel._answer.layers) == 14
    shown.select(0, 5)  # its page isn't at this stage
    assert refused(shown, panel) == "" and panel.drawing.page[0] == panel._answer.layers[0]


def test_ids_of_kernel_blocks():
    shown, panel = opened("Two sides", block_size=64, kernel_block_size=16, layout="LBNHC")
    assert panel.source.block_ids.layout.display is None
    set_all(panel.source, blocks="3")
    set_all(panel.target, blocks="5")
    assert panel._answer.found.is_right and panel._answer.blocks == [20, 21, 22, 23]
    panel.source.block_ids.value = "map"
    assert panel._answer.found.coverage == 0.25
    panel.source.blocks.value = "12-15"
    assert panel._answer.found.is_right
    _, other = opened("Two sides")
    assert other.source.block_ids.layout.display == "none"


def test_another_block_size_matches_by_tokens():
    shown, panel = opened("Two sides")
    set_all(panel.source, block_size="32", blocks="7", num_blocks="100")
    set_all(panel.target, blocks="9, 4")
    assert panel._answer.found.is_right and panel._answer.found.target_bytes == 2 * 28 * 65536


def test_a_hybrid_moves_the_selected_layers_group():
    shown, panel = opened("Two sides", model="google/gemma-3-27b-it")
    shown.select(20, 5)
    set_all(panel.source, tp_size="4")
    group = shown.plan.address_map.region(20).group
    assert panel._answer.found.is_right
    assert panel._answer.layers == shown.plan.config.kv_cache_groups[group].layer_names
    assert f"of group {group}, the selected layer" in panel.text.value


def test_recurrent_states_go_whole():
    shown, panel = opened("Two sides", model="Qwen/Qwen3-Next-80B-A3B-Instruct")
    layers = shown.plan.address_map.layers
    shown.select(next(name for name in layers if "linear" in name), 1)
    assert panel._answer.found.is_right
    panel.source.tp_size.value = "2"
    assert "recurrent state" in refused(shown, panel)
    shown.select(next(name for name in layers if "self_attn" in name), 1)
    assert refused(shown, panel) == "" and panel._answer.found.is_right


def test_latents_of_any_rank():
    shown, panel = opened("Two sides", model="deepseek-ai/DeepSeek-V3.2-Exp")
    set_all(panel.source, tp_size="8", ranks="6")
    set_all(panel.target, tp_size="4", ranks="3", layout="BLNHC")
    assert panel._answer.found.is_right and panel._answer.total_heads == 1
    panel.mistake.value, panel.taken_for.value = "target", "BHLNC"
    assert "mixed page sizes" in refused(shown, panel)


def test_a_captured_config_is_there_once_in_any_layout():
    plan = kv.make_plan(kv.Selection(model="Qwen/Qwen3-0.6B", layout="LBNHC", num_blocks=16))
    shown = Explorer(plan.config)
    shown.show("Transfer")
    shown.tabs["Transfer"].show("Two sides")
    panel = shown.tabs["Transfer"].visible
    assert "can&#x27;t be planned for another TP size" in panel.note.value
    for row in (panel.source, panel.target):
        assert [name for name, one in row.controls.items() if one.disabled] == [
            "tp_size", "ranks", "pp_size", "stages", "block_size", "num_blocks"]
    panel.target.layout.value = "BLHNC"
    assert panel._answer.found.is_right
    panel.mistake.value, panel.taken_for.value = "source", "LBHNC"
    assert panel._answer.found.coverage == 2 / 128
    panel.source.blocks.value = "16"
    assert "below the 16 blocks" in refused(shown, panel)
    shown.choose(**{**shown.selection.to_dict(), "model": "llama-tiny", "num_blocks": 8})
    assert not panel.source.tp_size.disabled and panel.note.value == ""


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("name", ["tp_size", "ranks", "pp_size", "stages", "block_size", "num_blocks", "blocks"])
def test_bad_input_of_each_field(side, name):
    shown, panel = OPEN
    control = getattr(panel, side).controls[name]
    old = control.value
    try:
        for text in ("abc", "-1", "1.5", "9" * 17, "9" * 40, "<i>1</i>", "0x1", "nan", "7-5"):
            control.value = text
            said = refused(shown, panel)
            assert "✗" in said and "<i>" not in said, text
            assert panel.drawing is None and panel.text.value == ""
    finally:
        control.value = old
    assert refused(shown, panel) == "" and panel.drawing is not None


@pytest.mark.parametrize("side, name, text, where", [
    ("source", "tp_size", "3", "source"), ("target", "ranks", "1", "target"), ("target", "ranks", "0, 0", "target"),
    ("source", "ranks", "7", "source"), ("target", "stages", "2", "target"), ("target", "pp_size", "29", "target"),
    ("source", "blocks", "64", "panel"), ("target", "blocks", "0-300", "panel"),
    ("source", "blocks", "0-300", "panel"), ("target", "num_blocks", "0", "panel"),
    ("source", "ranks", "0-999", "source")])
def test_the_reason_stands_beside_the_side_at_fault(side, name, text, where):
    shown, panel = OPEN
    control = getattr(panel, side).controls[name]
    old, control.value = control.value, text
    said = {"source": panel.source.message.value, "target": panel.target.message.value,
            "panel": panel.complaint.value}
    control.value = old
    assert {key for key, value in said.items() if "✗" in value} == {where}
    assert shown._status.value == ""


def test_more_than_is_worked_out_is_refused_with_what_would_do():
    shown, panel = opened("Two sides", model="meta-llama/Llama-3.3-70B-Instruct", num_blocks=1000)
    panel.source.blocks.value = panel.target.blocks.value = "0-39"
    assert "are 409,600 cells" in refused(shown, panel) and "Give at most 12" in panel.complaint.value
    panel.source.blocks.value = panel.target.blocks.value = "0-11"
    assert refused(shown, panel) == ""


def test_empty_block_ids_say_what_to_type():
    shown, panel = opened("Two sides")
    panel.target.blocks.value = "  "
    assert "such as 5, 9 or 0-3" in panel.complaint.value and "✗" not in panel.complaint.value
    assert panel.drawing is None


def test_a_click_shows_a_page_and_leaves_the_selection():
    shown, panel = opened("Two sides", layout="LBNHC")
    at = shown.state.coordinate
    send(panel, "click", axes=0, x=1.5, y=4.5)
    assert panel.drawing.page == (shown.plan.address_map.layers[4], 1)
    assert shown.state.coordinate == at
    answer = panel._answer
    shown.select(9, 3)
    assert panel._answer is not answer  # another layer is asked for
    send(panel, "hover", axes=0, x=0.5, y=0.5)
    assert panel.picture.readout == "layer 0 · block 0\n100 % right"
    send(panel, "click", axes=1, x=99, y=99)
    send(panel, "hover", axes=1, x=99, y=99)
    assert panel.picture.readout == ""
    shown.choose(layout="BLNHC")
    assert "BLNHC → rank 0 of TP 1 BLNHC" in panel.drawing.headline


@pytest.mark.parametrize("text, ids", [
    ("5, 9", [5, 9]), ("0-3", [0, 1, 2, 3]), ("0–2,7", [0, 1, 2, 7]), ("3 1", [3, 1]), (" 4 - 5 ,, 9 ", [4, 5, 9]),
    ("", []), ("7,7", [7, 7])])
def test_block_ids_as_typed(text, ids):
    assert parse_block_ids(text, "ids") == ids


@pytest.mark.parametrize("text", ["a", "3-1", "1-2-3", "01", "1e3", "½", "٣", "1-", "0-99999999999999999"])
def test_block_ids_that_are_none(text):
    with pytest.raises(kv.LayoutError):
        parse_block_ids(text, "ids")


@pytest.mark.parametrize("ids, words", [
    ([5], "block 5"), ([5, 9], "blocks 5 and 9"), ([0, 1], "blocks 0 and 1"), ([0, 1, 2, 3], "blocks 0 to 3"),
    ([9, 2, 4], "blocks 9, 2 and 4"), ([9, 2, 4, 7, 1], "5 blocks (9, 2, 4 …)")])
def test_block_ids_in_words(ids, words):
    assert ids_words(ids) == words


OPEN = opened("Two sides")
