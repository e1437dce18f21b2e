"""The Transfer tab, two sides: its numbers are the library's, and what can't be is said beside the side at fault."""

import time
from html import unescape

import pytest

import kvlayout as kv
from kvlayout.clinic import mistaken
from kvlayout_widgets import Explorer
from kvlayout_widgets.block_ids import ids_words
from kvlayout_widgets.figures.exchange import FATES
from tests.unit.test_explorer_transfer import opened, refused, send


def set_all(row, **values):
    for name, value in values.items():
        row.controls[name].value = value


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


def test_the_stage_that_is_shown_receives_unless_another_is_typed():
    shown, panel = opened("Two sides", pp_size=4, pp_rank=3, tp_size=2)
    assert panel._answer.found.is_right and len(panel._answer.layers) == 7
    assert panel._answer.layers == shown.plan.address_map.layers
    panel.target.stages.value = "1"
    assert "has none of the layers that are moved" in refused(shown, panel)
    panel.target.stages.value, panel.target.pp_size.value = "", "1"
    assert panel._answer.found.is_right


def test_a_backend_of_ones_own():
    class Mine:
        @staticmethod
        def supported_kv_cache_layouts():
            return ["LBNHC"]

    shown, panel = opened("Two sides", backends=[Mine], backend="Mine")
    set_all(panel.source, tp_size="4")
    set_all(panel.target, tp_size="2", layout="BLHNC")
    assert refused(shown, panel) == "" and panel._answer.found.is_right


@pytest.mark.parametrize("dtype, reason", [("int8_per_token_head", ""), ("nvfp4", "slots that aren")])
def test_pages_with_scales(dtype, reason):
    shown, panel = opened("Two sides", kv_cache_dtype=dtype, backend="FLASHINFER" if reason else "TRITON_ATTN")
    panel.target.layout.value = "LBHNC"
    assert panel._answer.found.is_right and refused(shown, panel) == ""
    panel.source.tp_size.value = "4"  # K and V in slots of their own aren't one head each
    assert (reason in refused(shown, panel)) if reason else panel._answer.found.is_right


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


def test_source_blocks_behind_the_target_s_last_token_are_named():
    shown, panel = opened("Two sides")
    set_all(panel.source, blocks="1, 2, 3, 4")
    set_all(panel.target, blocks="0")
    assert "exactly once" in panel.text.value
    assert "3 blocks at the end of the source&#x27;s list move nothing" in panel.text.value
    set_all(panel.source, block_size="32", blocks="1, 2")
    set_all(panel.target, blocks="0, 1")
    assert "1 block at the end of the source&#x27;s list moves nothing" in panel.text.value
    panel.target.blocks.value = "0-2"
    assert panel._answer.idle_blocks == 0 and "move nothing" not in panel.text.value


@pytest.mark.parametrize("row, name, text, words", [
    ("source", "ranks", "x", "no rank. Write ranks such as"),
    ("target", "stages", "y", "no stage. Write stages such as"),
    ("source", "tp_size", "1,2", "Write one such as 64, or as here"),
    ("target", "blocks", "z", "no block id")])
def test_a_refusal_speaks_of_what_was_typed(row, name, text, words):
    shown, panel = opened("Two sides")
    set_all(getattr(panel, row), **{name: text})
    said = getattr(panel, row).message.value.replace("&#x27;", "'")
    assert words in said and "auto" not in said and ("block id" in said) == (name == "blocks")


def test_the_bytes_of_all_copies_stand_beside_their_sizes():
    _, panel = opened("Two sides")
    cells = panel.text.value.split("segments</td>")[1].split("</tr>")[0].split("<td")
    assert "in all" in cells[-2] and "in all" not in cells[-1]


@pytest.mark.parametrize("ids, words", [
    ([5], "block 5"), ([5, 9], "blocks 5 and 9"), ([0, 1], "blocks 0 and 1"), ([0, 1, 2, 3], "blocks 0 to 3"),
    ([9, 2, 4], "blocks 9, 2 and 4"), ([9, 2, 4, 7, 1], "5 blocks (9, 2, 4 …)")])
def test_block_ids_in_words(ids, words):
    assert ids_words(ids) == words


OPEN = opened("Two sides")


@pytest.mark.parametrize("name", ["LHNCB", "CHLNB", "NHCBL", "BNCHL", "CLNHB"])
def test_a_layout_that_scatters_bytes_is_worked_out_for_some_layers_in_bounded_time(name):
    shown, panel = opened("Two sides", layout=name)
    shown.select(next(iter(reversed(shown.plan.address_map.layers))), 0)
    started = time.process_time()
    panel.source.blocks.value = "3, 5"
    assert time.process_time() - started < 1
    assert panel._answer.layers == shown.plan.address_map.layers[-2:] and panel._answer.more_layers == 26
    assert panel._answer.found.is_right and panel._answer.found.target_bytes == 2 * 2 * 65_536
    text = unescape(panel.text.value)
    assert "Moved: 2 layers" in text and "The 26 layers that move alike aren't worked out" in text
    # What is kept of the layers is what the library says of them alone.
    panel.mistake.value, panel.taken_for.value = "target", "LBNHC"
    answer = panel._answer
    found = mistaken(answer.sources, answer.target, source_blocks=[3, 5], target_blocks=[0, 1],
                     assumed_layout="LBNHC")
    assert (found.wrong, found.stray, found.missing) == (answer.found.wrong, answer.found.stray, answer.found.missing)
    panel.target.blocks.value = "0-31"
    assert "at most 262,144 are worked out here" in refused(shown, panel)
