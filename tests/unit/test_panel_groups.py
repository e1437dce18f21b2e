"""The Groups panel: strips that are clicked at, the same in numbers, and what equal page sizes cost."""

import html
import itertools
import re
from dataclasses import replace

import pytest

import kvlayout as kv
from kvlayout.placement import get_kv_cache_config_from_groups
from kvlayout_widgets import Explorer
from kvlayout_widgets.panels.groups import cost_sentences
from tests.figure_maps import KINDS, names

NUMBERS = itertools.count(1)


def opened(*args, **choices):
    shown = Explorer(*args, **({} if args else {"num_blocks": 64} | choices))
    shown.show("Clinic")
    shown.tabs["Clinic"].show("Groups")
    return shown, shown.tabs["Clinic"].panels["Groups"]


def send(panel, name, **values):
    panel.picture.set_state({name: {**values, "n": next(NUMBERS)}})


def words(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def rows(panel) -> list[list[str]]:
    found = re.findall(r"<tr>(.*?)</tr>", panel.text.value)
    return [[words(cell) for cell in re.findall(r"<td>(.*?)</td>", row)] for row in found if "<td>" in row]


def test_one_group_is_a_single_strip():
    shown, panel = opened()
    assert rows(panel) == [["group 0: full attention, 28 layers", "0 to 27", "16", "1,835,008 B (1.75 MiB)",
                            "0", "0", "0 %", "none"]]
    text = words(panel.text.value)
    assert "Who owns block 37" in text and "One group owns every block: nothing is shared." in text
    assert "equal page sizes cost nothing" in text
    assert panel.first_row.widget.layout.display == "none"
    assert shown.tabs["Clinic"].drawing is panel.drawing
    assert shown._export("PNG")[1].startswith(b"\x89PNG")


def test_gemma_3_leaves_room_in_groups_with_fewer_layers():
    _, panel = opened(model="google/gemma-3-27b-it")
    found = rows(panel)
    assert [row[5] for row in found] == ["131,072"] * 4 + ["262,144"] * 2 + ["0"]
    assert [row[6] for row in found] == ["10 %"] * 4 + ["20 %"] * 2 + ["0 %"]
    assert found[6][1] == "5, 11, 17, 23, 29, 35, 41, 47, 53, 59" and found[6][-1] == "0, 1, 2, 3, 4, 5"


def test_an_attention_block_inflated_to_a_mamba_page():
    _, panel = opened(model="Qwen/Qwen3-Next-80B-A3B-Instruct")
    found = rows(panel)
    assert [row[2] for row in found] == ["544"] * 4
    assert [row[4] for row in found] == ["196,608 (1.47 % of its pages)"] * 3 + ["0"]
    text = words(panel.text.value)
    assert "1.1 % of the pages is lost to equal page sizes: 589,824 of 53,477,376 bytes" in text
    assert ("An attention block has 544 tokens of 2,048 bytes a layer, so that its page of 1,114,112 bytes is as "
            "large as that of a recurrent state, whose content is 1,097,728 bytes.") in text


def test_layers_of_two_kinds_in_one_group():
    _, panel = opened(model="deepseek-ai/DeepSeek-V3.2-Exp")
    assert panel.drawing.kinds == ("MLA attention, indexer", "MLA attention")
    assert "nothing is shared" in words(panel.text.value) and len(rows(panel)) == 1


def test_a_click_selects_the_byte_in_that_rows_group():
    shown, panel = opened(model="google/gemma-3-27b-it")
    address_map = shown.plan.address_map
    send(panel, "click", axes=0, x=131_072 + 5, y=6.5)
    at = shown.state.coordinate
    assert at.layer == address_map.config.kv_cache_groups[6].layer_names[1] and (at.block, at.byte) == (37, 5)
    assert panel.drawing.coordinate_at(131_077, 6.5) == at and panel.drawing._pin.get_ydata()[0] == 6.5
    send(panel, "click", axes=0, x=131_072 + 5, y=0.5)
    other = shown.state.coordinate
    assert other.offset(address_map) == at.offset(address_map) and address_map.region(other.layer).group == 0
    send(panel, "click", axes=0, x=1_250_000, y=0.5)  # nothing of group 0 lies there
    assert shown.state.coordinate == other
    send(panel, "hover", axes=0, x=1_250_000, y=0.5)
    assert "group 0: sliding window, 9 layers: not used by it" in panel.picture.readout
    send(panel, "hover", axes=0, x=5, y=2.5)
    assert "layer 2 · block 37" in panel.picture.readout
    send(panel, "hover", axes=1, x=5, y=2.5)
    assert panel.picture.readout == ""


def test_padding_is_named_and_the_block_follows_the_selection():
    shown, panel = opened(model="Qwen/Qwen3-Next-80B-A3B-Instruct")
    send(panel, "hover", axes=0, x=1_114_000, y=1.5)
    assert "group 1: Mamba, 12 layers: padding of its pages" in panel.picture.readout
    shown.select(0, 2)
    assert panel.drawing.block == 2 and "Who owns block 2" in words(panel.text.value)


def test_kernel_blocks_are_shown_as_their_block():
    shown, panel = opened(block_size=64, kernel_block_size=16)
    shown.select(0, 4 * 9 + 3)
    assert panel.drawing.block == 9 and "Who owns block 9" in words(panel.text.value)


def test_a_pasted_hybrid_config():
    attention = kv.FullAttentionSpec(512, num_kv_heads=2, head_size=256, dtype="bfloat16")
    state = kv.MambaSpec(512, shapes=((3, 8192), (64, 64, 64)), dtypes=("bfloat16", "bfloat16"),
                         page_size_padded=attention.page_size_bytes)
    groups = [kv.KVCacheGroupSpec(names(2), attention), kv.KVCacheGroupSpec(names(2, 8, 1, "mixer"), state)]
    config = get_kv_cache_config_from_groups(groups, 0, kv.KVCacheLayout.LBNHC, num_gpu_blocks_override=4)
    _, panel = opened(config)
    assert [row[4] for row in rows(panel)] == ["0", "950,272 (45.3 % of its pages)"]
    assert "22.7 % of the pages is lost to equal page sizes" in words(panel.text.value)


def test_no_blocks_is_said_and_dark_is_drawn():
    shown, panel = opened(num_blocks=0)
    assert panel._empty.layout.display is None and panel.text.value == "" and panel.drawing is None
    shown.choose(num_blocks=3)
    assert panel._empty.layout.display == "none" and len(rows(panel)) == 1
    panel.draw("dark")
    assert panel.drawing.theme.name == "dark"


@pytest.mark.parametrize("kind", KINDS)
def test_sentences_for_every_kind_of_cache(kind):
    text = cost_sentences(KINDS[kind]())
    assert len(text) >= 2 and all(one.endswith((".", ")")) for one in text)
    if kind == "padded":
        assert "0.171 % of the pages is padding: 256 of 149,760 bytes" in text[1]


@pytest.mark.parametrize("step", [0, 1], ids=["own", "crossing"])
def test_whose_the_bytes_of_a_block_are_where_groups_cross(step):
    shared = KINDS["overlay"]("LBNHC").config
    # The last group's tensor moved by a block: its block b lies on the others' block b + 1.
    *rest, last = shared.kv_cache_tensors
    moved = replace(last, offset=last.offset + step * last.block_stride)
    config = replace(shared, kv_cache_tensors=[*rest, moved])
    text = cost_sentences(kv.AddressMap(config, "LBNHC"))[0]
    assert ("the others' pages over the same bytes are then nobody's" in text) == (not step)
    assert ("blocks of other ids hold some at the same time" in text) == bool(step)
