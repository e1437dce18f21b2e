"""Each report of the clinic's notebook, got from the explorer as its closing sentence says: by hand, without code."""

import html
import re
from pathlib import Path

import ipywidgets as widgets
import pytest

from kvlayout_widgets import Explorer
from kvlayout_widgets.catalogue import FROM_CONFIG

FILES = Path(__file__).parents[2] / "notebooks" / "data" / "cases"
CASES = [
    ("vllm-54465.log", "Address", {"address": "74816"}, ["padding", "model.layers.1.attn", "74,880"]),
    ("vllm-50276.json", "Lints", {}, ["block-span", "14,938,560", "14,975,936", "112,320 past the allocation"]),
    ("vllm-28677.json", "Slots", {"slot": "640"}, ["kernel block 10", "1,310,720"]),
    ("vllm-40991.json", "Address", {"address": "8196"}, ["0 0 1 128 K scale, element 0"]),
    ("vllm-51031.json", "Slots", {"position": "300", "block_id": "5", "ranks": "4", "interleave": "128"},
     ["Rank 2, slot 684", "kernel block 10, row 44"]),
    ("xpu-kernels-445.json", "Address", {"address": "-2146988416"}, ["Block 2,066", "int32"]),
    ("kvcached-330.json", "Slots", {"slot": "8448"}, ["block 16", "kernel block 528"]),
    ("kvcached-330.json", "Lints", {}, ["89,067", "kernel-blocks"]),
    ("vllm-47056.json", "Slots", {"slot": "75,849", "second": "4"}, ["4,740", "18,962", "OUT of the pool"]),
    ("vllm-41257.json", "Lints", {}, ["V begins at 4 or 12 modulo 16"]),
    ("vllm-54877.json", "Lints", {}, ["padded-split", "606,208", "49,152"]),
    ("vllm-55431.json", "Lints", {}, ["3,469,056", "528 bytes of padding"]),
    ("vllm-17023.json", "Shapes", {"pasted": "(1591, 16, 4, 128)", "slot": "1661"}, ["103", "13", "850,432"]),
    (None, "Shapes", {"pasted": "(2, 2, 16, 2, 128)"}, ["Ambiguous"]),
    (None, "Shapes", {"pasted": "(1000, 2, 16, 128)"}, ["Ambiguous"]),
    (None, "Shapes", {"pasted": "dims (128, 64, 1, 49408, 1) inner first, byte strides (2, 256, 256, 2064384, 0)",
                      "itemsize": "2"}, ["16,384", "126 pages", "1,041", "2,081"]),
    ("vllm-41657.json", "Slots", {"slot": "32"}, ["block 2, row 0", "block 1, row 0", "share no byte"]),
    ("kvcached-398.json", "Slots", {"slot": "-1", "table": "0, 7, 9"}, ["ignores that token", "null block", "144"]),
    (None, "Names", {}, ["kvmap1-"]),
    ("vllm-54465.log", "Formula", {"formula": "layer_offset + slot * 584 + element"},
     ["diverge", "padding of model.layers.0.attn, block 0"]),
    ("vllm-50276.json", "Formula", {"classic": "block-stride-length"}, ["112,320 bytes that it touches lie outside"]),
    ("vllm-28677.json", "Formula", {"classic": "manager-id-kernel-stride"}, ["diverge"]),
    ("kvcached-330.json", "Formula", {"classic": "kernel-id-manager-stride"}, ["diverge", "outside"]),
    ("vllm-40991.json", "Formula", {"classic": "scales-beside"}, ["98.4%", "8,192"]),
]


@pytest.fixture(scope="module")
def explorer():
    return Explorer(model="llama-tiny", num_blocks=8)


def words(widget: widgets.Widget) -> str:
    """What stands in every piece of HTML below a widget."""
    found = [widget.value] if isinstance(widget, widgets.HTML) else []
    found += [words(child) for child in getattr(widget, "children", ())]
    return " ".join(html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", text, flags=re.S)) for text in found)


@pytest.mark.parametrize(("file", "panel", "typed", "says"), CASES, ids=lambda value: str(value)[:40])
def test_by_hand(explorer, file, panel, typed, says):
    chosen, box = explorer.controls.by_argument["model"].parts
    if file is None:
        chosen.value = "llama-tiny"
    else:
        chosen.value = FROM_CONFIG
        box.value = (FILES / file).read_text()
    explorer.show("Clinic")
    clinic = explorer.tabs["Clinic"]
    clinic.show(panel)
    for control, value in typed.items():
        getattr(clinic.visible, control).value = value
    text = " ".join(words(clinic.visible.widget).split())
    assert not [one for one in says if one not in text], text
