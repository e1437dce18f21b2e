"""The Slots panel, by its own controls: slots in every group, context parallelism, and what a block table touches."""

import html
import json
import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout import captured
from kvlayout.errors import LayoutError
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout_widgets import Explorer
from kvlayout_widgets.panels.numbers import MOST_BLOCKS, block_table, whole
from kvlayout_widgets.panels.slots import SlotsPanel
from tests.strategies import maps


def opened(*args, **choices) -> tuple[Explorer, SlotsPanel]:
    shown = Explorer(*args, **choices)
    shown.show("Clinic")
    shown.tabs["Clinic"].show("Slots")
    return shown, shown.tabs["Clinic"].panels["Slots"]


def type_in(panel, **values) -> None:
    for name, value in values.items():
        getattr(panel, name).value = value


def said(question) -> str:
    """The words of an answer, or of its refusal."""
    return html.unescape(re.sub(r"<[^>]+>", " ", question.complaint.value + question.text.value))


def rows(question) -> dict[str, list[str]]:
    """Cells of the answer's table rows, by the first cell."""
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", question.text.value):
        cells = [html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<td>(.*?)</td>", row)]
        if cells:
            found.setdefault(cells[0], cells[1:])
    return found


def attention(block_size, heads, head_size=128, kind=kv.FullAttentionSpec, **fields):
    return kind(block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype="bfloat16", **fields)


def config(*groups, layout="LBNHC", num_blocks=8) -> kv.KVCacheConfig:
    made = [kv.KVCacheGroupSpec(*group) for group in groups]
    return get_kv_cache_config_from_groups(made, 0, layout, num_gpu_blocks_override=num_blocks)


def paste(text: str) -> tuple[Explorer, SlotsPanel]:
    """An explorer whose Model control was given pasted text."""
    shown, panel = opened(num_blocks=4)
    chosen, box = shown.controls.by_argument["model"].parts
    chosen.value = next(value for _, value in chosen.options if "config" in str(value).lower())
    box.value = text
    return shown, panel


def test_nothing_typed_says_what_to_type():
    _, panel = opened(num_blocks=64)
    assert "Type a slot" in said(panel.where) and "(64 − 1) × 16 = 1,008" in said(panel.where)
    assert "Type a token's position" in said(panel.parallel)
    assert "Type a request's block ids" in said(panel.sequence)
    assert panel.select.disabled
    hidden = (panel.kernel, panel.blocks, panel.size, panel.kernel_size, panel.tokens, panel.group)
    assert all(one.layout.display == "none" for one in hidden)


def test_vllm_47056_side_by_side_with_the_wrong_block_size():
    _, panel = opened(num_blocks=16_384, block_size=16)
    type_in(panel, slot="75,849", second="4")
    found = rows(panel.where)
    assert found["group 0: full attention, 28 layers"][:3] == ["16", "4,740", "9"]
    assert found["your block size"][:2] == ["4", "18,962"]
    assert found["your block size"][-1] == "✗ OUT of 16,384 blocks"
    assert "slot 75,849 = block 18,962 x 4 + row 1, OUT of the pool of 16,384 blocks" in said(panel.where)
    type_in(panel, second="")
    assert "your block size" not in rows(panel.where)


def test_any_block_size_without_a_plan_of_it():
    _, panel = opened(num_blocks=64)
    type_in(panel, slot="8448", second="528", kernel="16", blocks="2,699")
    assert rows(panel.where)["your block size"] == [
        "528", "16", "0", "528 (of 16 tokens)", "0", "✓ of 2,699 blocks, 89,067 kernel blocks"]
    assert "OUT of 64 blocks" in rows(panel.where)["group 0: full attention, 28 layers"][-1]


def test_kvcached_330_as_a_pasted_capture_with_its_kernel_blocks():
    made = config((["k"], attention(528, 4, 256)), num_blocks=2_699)
    shown, panel = paste(json.dumps({"kvlayout": 1, "kv_cache_config": kv.capture.config_to_dict(made),
                                     "kernel_block_sizes": [16]}))
    type_in(panel, slot="8448")
    assert rows(panel.where)["group 0: full attention, 1 layer"][:5] == ["528", "16", "0", "528 (of 16 tokens)", "0"]
    assert "33 kernel blocks a block" in said(panel.where)
    panel.select.click()
    at = shown.state.coordinate
    assert (at.layer, at.block, at.state, at.byte) == ("k", 528, 0, 0)
    assert at.offset(shown.plan.address_map) == 8_448 * 4_096


def test_vllm_28677_kernel_ids_10_and_11_of_a_pasted_config():
    made = config((["k"], attention(128, 8, 64)), num_blocks=1_818)
    shown, panel = paste(repr(made))
    assert shown.choose(kernel_block_size=64)
    for slot, kernel in (("640", "10 (of 64 tokens)"), ("704", "11 (of 64 tokens)")):
        type_in(panel, slot=slot)
        assert rows(panel.where)["group 0: full attention, 1 layer"][3] == kernel
    type_in(panel, slot="640")
    assert "= byte 1,310,720" in said(panel.where)


def test_vllm_54877_a_padded_page_that_cannot_be_split_as_a_pasted_capture():
    made = config((["k"], attention(128, 1, page_size_padded=81_920)), num_blocks=4)
    shown, _ = paste(json.dumps({"kvlayout": 1, "kv_cache_config": kv.capture.config_to_dict(made),
                                 "kernel_block_sizes": [64]}))
    assert "kernel blocks would need two different steps" in str(shown.state.problem)
    shown.tabs["Clinic"].show("Lints")
    finding = shown.tabs["Clinic"].panels["Lints"].found[0]
    assert (finding.rule, finding.severity) == ("padded-split", "error")
    assert [finding.numbers[name] for name in ("inside_step", "across_step", "asked_bytes")] == [
        32_768, 49_152, 606_208]
    assert "padded-split" in shown.tabs["Clinic"].panels["Lints"].text.value


def test_kvcached_398_the_null_block_and_ignored_tokens():
    _, panel = opened(num_blocks=10)
    type_in(panel, slot="5", table="[0, 7, 9]")
    assert rows(panel.where)["group 0: full attention, 28 layers"][:3] == ["16", "0", "5"]
    assert "Block 0 is vLLM's null block" in said(panel.where)
    assert "Usable tokens" in said(panel.where) and "(10 − 1) × 16 = 144" in said(panel.where)
    assert rows(panel.sequence)["all 28 layers"][0] == "2"
    assert "1 of the block table's entries is block 0, the null block" in said(panel.sequence)
    for slot in ("-1", "\u22121", "-9,223,372,036,854,775,807"):
        type_in(panel, slot=slot)
        assert "negative: vLLM ignores that token" in said(panel.where) and panel.select.disabled


@pytest.mark.parametrize("from_the_plan", [True, False])
def test_vllm_51031_decode_context_parallel(from_the_plan):
    choices = {"block_size": 128, "kernel_block_size": 64} if from_the_plan else {}
    _, panel = opened(num_blocks=64, **choices)
    type_in(panel, position="300", block_id="5", ranks="4", interleave="128")
    if not from_the_plan:
        type_in(panel, size="128", kernel_size="64")
    text = said(panel.parallel)
    assert "Rank 2, slot 684" in text
    assert "rank  = (300 mod 512) // 128 mod 4 = 300 // 128 mod 4 = 2" in text
    assert "row   = 300 // 512 x 128 + 300 mod 128 = 44" in text and "5 x 128 + 44 = 684" in text
    assert "kernel block 10, row 44" in text
    assert "64 in place of 128 would give rank 0, slot 364" in text


def test_replicated_groups_are_named():
    _, panel = opened(model="google/gemma-3-27b-it", num_blocks=4)
    type_in(panel, position="300", block_id="5", ranks="2")
    text = said(panel.parallel)
    assert "Replicated on every rank, so not transformed" in text and "group 0: sliding window, 9 layers" in text
    assert "group 6" not in text
    assert "✗ Block 5 lies beyond this cache's pool of 4 blocks" in text


def test_a_cache_of_replicated_groups_alone_says_so():
    _, panel = opened(model="mistralai/Mistral-7B-v0.1", num_blocks=8)
    type_in(panel, position="300", block_id="5", ranks="4")
    assert "No group of this cache is split among ranks" in said(panel.parallel)
    type_in(panel, size="16")
    assert "Rank 0, slot 91" in said(panel.parallel)  # 300 mod 64 = 44 = 11 turns of 4 ranks


def test_vllm_41657_equal_slots_are_no_equal_memory():
    made = config((["a.0", "a.1"], attention(16, 8)),
                  (["b.0", "b.1"], attention(32, 4, kind=kv.SlidingWindowSpec, sliding_window=64)), layout="BLHNC")
    shown, panel = paste(repr(made))
    shown.select("a.0", 2)
    type_in(panel, slot="32")
    assert rows(panel.where)["group 0: full attention, 2 layers"][1:3] == ["2", "0"]
    assert rows(panel.where)["group 1: sliding window, 2 layers"][1:3] == ["1", "0"]
    text = said(panel.where)
    assert "shares bytes with the equal block id, 2, alone, and 1 is another one, so they don't meet" in text
    assert "Equal slots by themselves share nothing" in text
    assert '<details class="kvl-fold" open><summary>Do other' in panel.where.text.value


def test_the_trap_is_closed_where_the_blocks_are_equal():
    _, panel = opened(model="google/gemma-3-27b-it", num_blocks=64)
    type_in(panel, slot="37")
    assert '<details class="kvl-fold"><summary>Do other' in panel.where.text.value
    assert "That is legal" in said(panel.where)


def test_a_state_layer_has_no_slots_but_its_block_is_named():
    _, panel = opened(model="Qwen/Qwen3-Next-80B-A3B-Instruct", num_blocks=64)
    type_in(panel, slot="1100")
    assert rows(panel.where)["group 0: Mamba, 12 layers"][-1] == "no slots here"
    assert "one recurrent state a block" in said(panel.where)
    assert "block 2 of layer 0 lies over this page of block 2" in said(panel.where)


def test_a_slot_beyond_the_pool_is_a_finding():
    _, panel = opened(num_blocks=4)
    type_in(panel, slot="64")
    assert "✗ OUT of 4 blocks" in said(panel.where) and "beyond the pool of 4 blocks" in said(panel.where)
    assert panel.where.complaint.value == "" and panel.select.disabled


def test_every_head_of_the_selected_layer_and_some_layers():
    shown, panel = opened(num_blocks=64, layout="LBHNC")
    type_in(panel, slot="37")
    address_map = shown.plan.address_map
    layer = shown.state.coordinate.layer
    text = said(panel.where)
    for head in range(8):
        assert f"head   {head}   {address_map.offset(layer, 2, head, 5):,} B" in text
    assert "23 more layers in between; each next layer: +4,194,304 B" in text
    shown.select(3, 1, 2)
    assert "Every head of model.layers.3" in said(panel.where)
    panel.select.click()
    at = shown.state.coordinate
    assert (at.layer, at.block, at.head, at.state) == (address_map.layers[3], 2, 2, 5)


def test_a_block_table_in_runs_sectors_lines_and_pages():
    _, panel = opened(num_blocks=64, layout="BLHNC")
    type_in(panel, table="5-6, 9", tokens="40")
    blocks, size, runs, each, sectors, lines, pages = rows(panel.sequence)["all 28 layers"]
    assert (blocks, runs, pages) == ("3", "225", "5")
    assert size.startswith(f"{40 * 28 * 8 * 512:,} B") and lines == f"{40 * 28 * 8 * 4:,}"
    assert sectors.startswith(f"{40 * 28 * 8 * 16:,} (100%") and each == "4,096 to 3,670,016"
    assert rows(panel.sequence)["layer 12"][2] == "10"


def test_the_block_table_of_another_group():
    _, panel = opened(model="google/gemma-3-27b-it", num_blocks=64)
    type_in(panel, table="3")
    assert panel.group.layout.display is None and len(panel.group.options) == 7
    assert "all 9 layers" in rows(panel.sequence)
    panel.group.value = 6
    assert "all 10 layers" in rows(panel.sequence)


def test_a_table_that_is_too_long_is_refused_in_time():
    _, panel = opened(model="meta-llama/Llama-3.3-70B-Instruct", num_blocks=100_000)
    begin = time.process_time()
    type_in(panel, table="1-99999")
    assert "99,999 blocks" in said(panel.sequence) and "✗" in said(panel.sequence)
    type_in(panel, table="1-9223372036854775807")
    assert "is longer than the 65,536" in said(panel.sequence)
    type_in(panel, table="1-65536")
    assert "more than 4,194,304 runs: not counted" in rows(panel.sequence)["all 80 layers"][0]
    assert rows(panel.sequence)["layer 34"][:1] == ["65,536"]
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(("name", "value", "question"), [
    ("slot", "abc", "where"), ("slot", "1.5", "where"), ("slot", "<b>x</b>", "where"), ("slot", "1" * 40, "where"),
    ("slot", "9999999999999999999", "where"), ("slot", "0x10", "where"), ("second", "0", "where"),
    ("second", "-4", "where"), ("second", "x", "where"), ("position", "-1", "parallel"), ("ranks", "0", "parallel"),
    ("interleave", "0", "parallel"), ("interleave", "3", "parallel"), ("block_id", "-2", "parallel"),
    ("size", "0", "parallel"), ("kernel_size", "3", "parallel"), ("table", "5, 64", "sequence"),
    ("table", "7-3", "sequence"), ("table", "a-b", "sequence"), ("table", "<i>", "sequence"),
    ("tokens", "17", "sequence"), ("tokens", "-1", "sequence")])
def test_what_cannot_be_is_refused_beside_its_question(name, value, question):
    shown, panel = opened(num_blocks=64)
    type_in(panel, slot="37", position="3", block_id="1", ranks="2", table="5")
    type_in(panel, **{name: value})
    answer = getattr(panel, question)
    assert "✗" in answer.complaint.value and answer.text.value == ""
    assert "<b>x" not in answer.complaint.value and "<i>" not in answer.complaint.value
    others = {"where", "parallel", "sequence"} - {question}
    assert all(getattr(panel, one).complaint.value == "" and getattr(panel, one).text.value for one in others)
    assert shown._status.value == "" or "kvl-status-bad" not in shown._status.value


def test_an_empty_pool():
    _, panel = opened(num_blocks=0)
    type_in(panel, slot="3", position="3", block_id="1", ranks="2", table="1")
    assert "has no blocks" in said(panel.where)
    assert "✗ Block 1 lies beyond" in said(panel.parallel)
    assert "✗" in panel.sequence.complaint.value


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 40)), max_size=8),
       st.sampled_from([", ", " ", ",", "; "]))
def test_block_tables_with_ranges(spans, joint):
    text = joint.join(f"{first}-{first + more}" if more else f"{first}" for first, more in spans)
    assert block_table(f"[{text}]") == [one for first, more in spans for one in range(first, first + more + 1)]


@given(st.text(max_size=80))
def test_any_text_is_numbers_or_refused(text):
    for read in (lambda: block_table(text), lambda: whole("slot", text, "3")):
        try:
            read()
        except LayoutError as error:
            assert len(str(error)) < 600


@pytest.fixture(scope="module")
def one_explorer():
    return opened(num_blocks=4)


@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(address_map=maps(), slot=st.integers(-2, 80), block=st.integers(0, 9))
def test_every_panel_answers_for_any_captured_config(one_explorer, address_map, slot, block):
    shown, panel = one_explorer
    model = {"kvlayout": 1, "kv_cache_config": kv.capture.config_to_dict(address_map.config)}
    choices = {**shown.state.choices, "model": model, "layout": address_map.layout.name}
    assert shown.choose(**captured.settled(choices)), shown.state.problem
    type_in(panel, slot=str(slot), second="3", position=str(abs(slot)), block_id="1", ranks="2", table=f"{block}, 1")
    clinic = shown.tabs["Clinic"]
    for title in ("Slots", "Shapes", "Groups"):
        clinic.show(title)
        assert shown._message == "" and clinic.panels[title].widget
    assert all(one.text.value or one.complaint.value for one in (panel.where, panel.parallel, panel.sequence))
    groups = clinic.panels["Groups"]
    assert groups.text.value or groups.complaint.value or shown.state.coordinate is None
    clinic.show("Slots")


def test_a_table_of_the_longest_length_is_read():
    assert len(block_table(f"0-{MOST_BLOCKS - 1}")) == MOST_BLOCKS
    assert block_table("12 - 15, 3\u20134") == [12, 13, 14, 15, 3, 4]


def test_a_cache_without_groups_has_no_block_table():
    _, panel = opened(model={"kvlayout": 1, "kv_cache_config": {"num_blocks": 100, "kv_cache_tensors": [],
                                                               "kv_cache_groups": []}})
    panel.slot.value, panel.table.value = "64", "1,2"
    assert "no group, so no block table" in panel.sequence.text.value
