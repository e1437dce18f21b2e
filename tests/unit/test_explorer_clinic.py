"""The Clinic tab: its chooser, and the panels of lints, addresses, names and logs, driven as a user would."""

import html
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.capture.config_json import config_to_dict
from kvlayout.clinic import explain_address, fingerprint, lint, names
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout_widgets import Explorer
from kvlayout_widgets.tabs.clinic import PANELS

TITLES = [panel.title for panel in PANELS]
QWEN = {"model": "Qwen/Qwen3-0.6B", "num_blocks": 64}


def opened(panel: str, **choices):
    shown = Explorer(**(QWEN | choices))
    shown.show("Clinic")
    clinic = shown.tabs["Clinic"]
    clinic.show(panel)
    return shown, clinic.panels[panel]


def text_of(panel) -> str:
    """What stands in a text panel."""
    return html.unescape(re.sub(r"<[^>]*>", "\n", panel.text.value))


def cells(panel) -> list[str]:
    return [html.unescape(re.sub(r"<[^>]*>", "", one)) for one in re.findall(r"<td>(.*?)</td>", panel.text.value)]


def captured(config: kv.KVCacheConfig) -> dict:
    return {"kvlayout": 1, "kv_cache_config": config_to_dict(config)}


def mla(layers: int, num_blocks: int, layout: str, content: int, **fields) -> kv.KVCacheConfig:
    spec = kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=content, dtype="uint8", **fields)
    group = kv.KVCacheGroupSpec([f"layers.{i}.attn" for i in range(layers)], spec)
    return get_kv_cache_config_from_groups([group], 0, kv.KVCacheLayout[layout], num_gpu_blocks_override=num_blocks)


@pytest.mark.parametrize("choices", [
    *({"model": model, "num_blocks": 40} for model in kv.presets()),
    {"model": "gemma3-hybrid-tiny", "num_blocks": 5, "layout": "BHLNC"}, {"model": "llama-tiny", "num_blocks": 0},
    {"model": "llama-tiny", "num_blocks": 7, "layout": "LHBNC"}], ids=str)
def test_every_panel_opens_on_every_kind_of_model(choices):
    shown, _ = opened(TITLES[0], **choices)
    for title in TITLES:
        shown.tabs["Clinic"].show(title)
        assert shown._status.value == "" or "kvl-status-bad" not in shown._status.value
        assert not shown.tabs["Clinic"].is_stale


def test_only_the_panel_in_front_is_drawn():
    shown, lints = opened("Lints")
    address = shown.tabs["Clinic"].panels["Address"]
    assert not lints.is_stale and address.is_stale and address.text.value == ""
    shown.tabs["Clinic"].show("Address")
    assert not address.is_stale and "Type a byte offset" in text_of(address)
    shown.choose(num_blocks=65)
    assert not address.is_stale and lints.is_stale


def test_lints_are_the_librarys_and_follow_the_plan():
    shown, panel = opened("Lints", layout="BLNHC", num_blocks=2_342)
    assert panel.found == lint(shown.plan)
    assert "0 errors, 3 warnings" in text_of(panel)
    assert "2,341" in cells(panel) and "✗ the pool has it" in cells(panel)
    shown.choose(layout="LBNHC")
    assert "65,536" in cells(panel) and "✗ the pool has it" not in cells(panel)
    panel.least.value = "error"
    assert panel._listed == [] and panel.found != []


def test_a_findings_coordinate_is_selected():
    shown, panel = opened("Lints", layout="BLNHC", num_blocks=2_342)
    at = next(i for i, one in enumerate(panel._listed, 1) if one.numbers.get("unit") == "elements")
    panel.go_to.value = at
    assert (shown.state.coordinate.block, shown.state.coordinate.layer) == (2_341, "model.layers.0.self_attn.attn")


def test_the_allocated_tensors_are_checked_when_there_are_any():
    shown, panel = opened("Lints")
    panel.subject.value = "cache"
    assert "no cache is allocated" in html.unescape(panel.complaint.value) and panel.text.value == ""
    shown.act(shown.state.allocate)
    try:
        assert panel.complaint.value == "" and panel.found == lint(shown.state.cache)
        shown.choose(num_blocks=9)
        assert "the choices have changed since" in text_of(panel)
    finally:
        shown.state.free()


def test_a_pasted_config_that_contradicts_itself_is_linted_all_the_same():
    config = config_to_dict(mla(2, 5, "LBNHC", 584))
    config["kv_cache_tensors"][0]["block_stride"] = 0
    shown, panel = opened("Lints")
    assert not shown.choose(model={"kvlayout": 1, "kv_cache_config": config})
    assert "Of the pasted config" in text_of(panel) and "✗ error" in cells(panel)
    assert shown.choose(model="llama-tiny") and "Of the pasted config" not in text_of(panel)


def test_vllm_55431_rows_and_the_padding_that_cures_them():
    main = kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=656, dtype="uint8")
    indexer = kv.MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=132, dtype="uint8")
    specs = {f"l.{i}.attn": main for i in range(78)} | {f"l.{i}.idx": indexer for i in range(23)}
    group = kv.KVCacheGroupSpec(list(specs), kv.UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs=specs))
    config = get_kv_cache_config_from_groups([group], 0, kv.KVCacheLayout.BLHNC, num_gpu_blocks_override=20)
    _, panel = opened("Lints", model=captured(config), num_blocks=None)
    shown = cells(panel)
    row = next(i for i in range(len(shown)) if shown[i:i + 2] == ["3,469,056", "656"])
    assert shown[row:row + 4] == ["3,469,056", "656", "128", "528"]


def test_vllm_54465_the_wrong_address_is_padding_of_block_0_layer_1():
    shown, panel = opened("Address", model=captured(mla(4, 100, "BLNHC", 584, page_size_padded=37_440)),
                          num_blocks=None)
    panel.address.value = "74,816"
    assert "padding inside the page of layers.1.attn, block 0 (bytes 74,816 to 74,880)" in text_of(panel)
    assert panel.select.disabled
    panel.address.value = "187,200"
    assert cells(panel)[:4] == ["0", "layers.1.attn", "1", "0"]
    panel.select.click()
    assert (shown.state.coordinate.layer, shown.state.coordinate.block) == ("layers.1.attn", 1)


def test_an_address_of_an_error_with_its_base():
    shown, panel = opened("Address")
    base = 0x7F0000000000
    panel.base.value, panel.address.value = hex(base), hex(base + 65_536 * 100 + 512)
    owner = shown.plan.address_map.owners(65_536 * 100 + 512)[0]
    numbers = (owner.block, owner.head, owner.state, owner.byte)
    assert cells(panel)[:6] == ["0", owner.layer, *map(str, numbers)]
    panel.address.value = hex(base - 2**31)
    assert "lies 2,147,483,648 bytes before the base" in text_of(panel)
    panel.address.value = hex(base + shown.plan.config.size_bytes)
    assert "bytes past the end" in text_of(panel)


@pytest.mark.parametrize("address", ["z", "0x", "1.5", "--1", "1e9", "<b>1</b>", "9" * 40, "0x" + "f" * 30, "nan",
                                     "1" * 100_000, "٣"])
@pytest.mark.parametrize("field", ["address", "base"])
def test_what_is_no_address_is_refused_beside_the_control(field, address):
    shown, panel = opened("Address")
    panel.address.value = "5"
    getattr(panel, field).value = address
    assert "✗" in panel.complaint.value and field in panel.complaint.value and panel.text.value == ""
    assert "<b>" not in panel.complaint.value and panel.select.disabled and shown._status.value.count("bad") == 0


@given(st.integers(-2**40, 2**40))
@settings(max_examples=60, deadline=None)
def test_any_address_says_what_the_library_says(offset):
    shown, panel = PANEL_OF_GEMMA
    panel.address.value = str(offset)
    meaning = explain_address(offset, shown.plan.address_map)
    assert panel.complaint.value == "" and all(
        sentence in text_of(panel) for sentence in meaning.sentences()[len(meaning.owners) + 1:])
    assert len(cells(panel)) == 7 * len(meaning.owners)


PANEL_OF_GEMMA = opened("Address", model="gemma3-hybrid-tiny", num_blocks=12)


def test_names_and_fingerprint():
    shown, panel = opened("Names", layout="BLNHC")
    for layout in kv.KVCacheLayout.__members__:
        for word in names(layout).values():
            assert word is None or word in text_of(panel)
    assert "▶ BLNHC" in text_of(panel) and "▶ LBNHC" not in text_of(panel)
    ours = fingerprint(shown.plan.address_map)
    panel.other.value = f"  {ours} "
    assert "✓ Equal" in text_of(panel)
    shown.choose(layout="BLHNC")
    assert "✗ Not equal" in text_of(panel) and ours not in text_of(panel)


def test_the_selected_layers_view_begins_where_torch_says():
    shown, panel = opened("Names", model="gemma3-hybrid-tiny", num_blocks=5, layout="BLNHC")
    for index, layer in enumerate(shown.plan.address_map.layers):
        shown.select(index, 1)
        start = shown.plan.address_map.offset(layer, 0)
        assert f"{layer} as a plain strided view, from byte {start:,}" in text_of(panel)


def test_lines_of_a_log():
    shown, panel = opened("Log", num_blocks=76_268, block_size=32)
    assert "Paste lines" in text_of(panel)
    panel.log.value = "(EngineCore pid=1) INFO 03-07 08:18:10 [a.py:1] GPU KV cache size: 2,440,576 tokens\nnothing"
    assert "1 of 1 agree" in text_of(panel) and "✓ agrees" in cells(panel)
    shown.choose(num_blocks=76_267)
    assert "✗ differs" in cells(panel)
    panel.log.value = "hello"
    assert "state nothing of a KV cache" in text_of(panel)


@pytest.mark.parametrize("title", ["Address", "Names", "Log"])
@given(text=st.text(max_size=300) | st.sampled_from(["<script>alert(1)</script>", "[" * 5_000, "{" * 5_000,
                                                    json.dumps({"a": 1}), "GPU KV cache size: <b>9</b> tokens"]))
@settings(max_examples=25, deadline=None)
def test_any_text_is_answered_or_refused_beside_its_control(title, text):
    shown, panel = PANELS_OF_QWEN[title]
    part = {"Address": "address", "Names": "other", "Log": "log"}[title]
    getattr(panel, part).value = text
    assert "kvl-status-bad" not in shown._status.value
    assert "<script" not in panel.text.value + panel.complaint.value


PANELS_OF_QWEN = {title: opened(title) for title in ("Address", "Names", "Log")}
