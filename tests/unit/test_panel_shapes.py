"""The Shapes panel: the cases whose axes were guessed, as pasted; hostile text; and this cache's own views."""

import html
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout.clinic import own_views
from kvlayout.geometry import layer_views
from kvlayout_widgets import Explorer


def opened(**choices):
    shown = Explorer(**({"num_blocks": 100} | choices))
    shown.show("Clinic")
    shown.tabs["Clinic"].show("Shapes")
    return shown, shown.tabs["Clinic"].panels["Shapes"]


def words(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def said(panel) -> str:
    return words(panel.complaint.value + panel.text.value)


def readings(panel) -> list[list[str]]:
    """Cells of each reading: axes, layouts, what it holds, against this cache, and a slot's place."""
    rows = re.findall(r"<tr>(.*?)</tr>", panel.text.value)
    return [[words(cell) for cell in re.findall(r"<td>(.*?)</td>", row)] for row in rows if "<td>" in row]


def read(text: str, *, slot: str = "", itemsize: str = "", **choices):
    _, panel = opened(**choices)
    panel.slot.value, panel.itemsize.value, panel.pasted.value = slot, itemsize, text
    return panel


def test_nothing_pasted_says_what_to_paste():
    assert "such as torch.Size([100, 8, 16, 256])" in said(opened()[1])
    assert "tells of no shape" in said(read("hello (1, 2)"))


@pytest.mark.parametrize(("text", "axes"), [
    ("(100,64,576)", ["block 100, token 64, content 576"]),
    ("(2,100,16,8,128)", ["K/V 2, block 100, token 16, head 8, content 128"]),
    ("(100,2,16,8,128)", ["block 100, K/V 2, token 16, head 8, content 128"]),
    ("torch.Size([100, 8, 16, 256])", ["block 100, head 8, token 16, content 256"]),
    ("(2,2,16,2,128)", ["K/V 2, block 2, token 16, head 2, content 128",
                        "block 2, K/V 2, token 16, head 2, content 128"]),
    ("shape (2,2,16,2,128) strides (4096, 8192, 256, 128, 1)", ["K/V 2, block 2, token 16, head 2, content 128"]),
    ("(100,64,576) (2,100,16,8,128)", ["block 100, token 64, content 576",
                                       "K/V 2, block 100, token 16, head 8, content 128"]),
])
def test_shapes_whose_axes_were_guessed(text, axes):
    panel = read(text)
    assert [row[0] for row in readings(panel)] == axes
    ambiguous = "Ambiguous: 2 readings fit" in said(panel)
    assert ambiguous == (text == "(2,2,16,2,128)")
    assert ("One reading fits" in said(panel)) != ambiguous
    assert ('class="kvl-warn"' in panel.text.value) == ambiguous


@pytest.mark.parametrize("strides", ["", " strides (4096, 2048, 128, 1)"])
def test_lmcache_4463_heads_or_k_and_v(strides):
    panel = read(f"shape (1000, 2, 16, 128){strides}")
    assert [row[0] for row in readings(panel)] == ["block 1,000, head 2, token 16, content 128",
                                                   "block 1,000, K/V 2, token 16, content 128"]
    assert "? Ambiguous" in said(panel)


def test_vllm_17023_dim_0_is_blocks():
    panel = read("K cache (1591, 16, 4, 128)", slot="1,661")
    row, = readings(panel)
    assert row[0] == "block 1,591, token 16, head 4, content 128"
    assert row[-1] == "block 103, row 13, element 850,432"
    panel.slot.value = "25,456"
    assert readings(panel)[0][-1].startswith("✗ must be in one of the 1,591 blocks")


def test_kvcached_321_a_tma_descriptor():
    text = "TMA dims (128, 64, 1, 49408, 1) inner first, byte strides (2, 256, 256, 2064384, 0)"
    panel = read(text)
    for fact in ("page of 16,384 bytes, 2,064,384 bytes apart", "126 pages: 63 layers, if K and V lie apart",
                 "(95.0 GiB)", "passes 2^31 bytes from block 1,041 on", "passes 2^31 elements from block 2,081 on"):
        assert fact in said(panel)
    assert readings(panel)[0][0] == "block 49,408, token 64, content 128"


def test_a_descriptor_without_the_inner_stride_asks_for_the_item_size():
    text = "globalDim (128,64,8,100,1) globalStrides (256,32768,262144,0)"
    assert "✗ itemsize=None: isn't told by the strides" in said(read(text))
    panel = read(text, itemsize="2")
    assert "100 blocks of a page of 131,072 bytes" in said(panel) and "below 2^31 bytes" in said(panel)
    assert "must be multiples of 16" in said(read("dims (92, 16, 100) byte strides (2, 184, 2944)"))


def test_vllm_54877_a_bounds_check():
    panel = read("RuntimeError: setStorage: sizes [8, 1, 64, 256], strides [40960, 16384, 256, 1], storage offset 0, "
                 "and itemsize 2 requiring a storage size of 606208 are out of bounds for storage of size 327680")
    assert "✗ It needs 606,208 bytes of a storage of 327,680: 278,528 too many." in said(panel)
    assert readings(panel)[0][0] == "block 8, head 1, token 64, content 256"


def test_a_connectors_registration_line():
    panel = read("(EngineCore pid=1) INFO 03-07 08:18:10 [file.py:1314] Registering KV_Caches: use_mla: False, "
                 "num_blocks: 111680, block_shape: torch.Size([16, 1, 128]), per_layer_kv_cache_shape: "
                 "torch.Size([2, 111680, 16, 1, 128])")
    assert [row[0] for row in readings(panel)] == ["K/V 2, block 111,680, token 16, head 1, content 128"]


def test_a_list_of_layers_is_read_once():
    lines = [f'"layers.{i}": ((100, 8, 16, 256), (32768, 4096, 256, 1))' for i in range(80)]
    panel = read("{" + ",\n".join(lines) + "}")
    assert "80 tensors alike (layers.0 to layers.79)" in said(panel) and len(readings(panel)) == 1


def test_strides_that_no_cache_has():
    panel = read("shape (100, 8, 16, 256) strides (1, 100, 800, 12800)")
    assert "✗ No known cache has such a shape and such strides." in said(panel) and not readings(panel)
    assert "It's an unlikely one" in said(read("(3, 3, 3)"))


@pytest.mark.parametrize("choices", [
    {"layout": "LBHNC"}, {"layout": "BLNHC"}, {"layout": "LHBNC"}, {"model": "deepseek-ai/DeepSeek-V3"},
    {"model": "Qwen/Qwen3-Next-80B-A3B-Instruct"}, {"model": "deepseek-ai/DeepSeek-V3.2-Exp"},
    {"block_size": 64, "kernel_block_size": 16}])
def test_this_caches_own_views_are_known(choices):
    shown, panel = opened(**choices)
    address_map = shown.plan.address_map
    for view in own_views(address_map):
        region = address_map.region(view.layers[0])
        real = layer_views(region.geometry, region.tensor.layers, view.dtype, address_map.size_bytes)[0]
        panel.pasted.value = f"shape {real.shape} strides {real.stride_elements}"
        assert "✓ Shape and strides are this cache's view of" in said(panel)
        panel.pasted.value = f"shape {real.shape}"
        assert "✓ The shape is this cache's view of" in said(panel)
        moved = (real.stride_elements[0] + 1, *real.stride_elements[1:])
        panel.pasted.value = f"shape {real.shape} strides {moved}"
        assert "but the strides aren't" in said(panel)


def test_it_follows_the_plan_and_says_what_differs():
    shown, panel = opened(num_blocks=64)
    panel.pasted.value = "(100, 8, 16, 256)"
    assert readings(panel)[0][3] == "blocks 100, not 64" and "· Not a view of this cache" in said(panel)
    shown.choose(num_blocks=100)
    assert readings(panel)[0][3] == "the same counts"
    panel.itemsize.value = "1"
    assert "Its elements have 2 bytes, not 1" in said(panel)
    shown.choose(num_blocks=0)
    assert readings(panel)[0][3] == "blocks 100, not 0"


@pytest.mark.parametrize("text", [
    "<script>alert(1)</script> (100, 8, 16, 256)", '{"<img/onerror=x>.0": ((3, 4, 16, 64), (4096, 1024, 64, 1))}',
    "__import__('os').system('x') (1,2,3)", "(99999999999999999999, 1, 1)", "(0, 3, 16, 2)", "(1,1,1,1,1,1,1)",
    "(9223372036854775807, 9223372036854775807, 9223372036854775807)", "dims (1,2,3) byte strides (0,0,0)",
    "dims (9223372036854775807, 9223372036854775807, 2) byte strides (2, 4, 8)", "\x00(1,2,3)\ud800", "(" * 5000])
def test_hostile_text_is_read_or_refused_and_never_markup(text):
    panel = read(text)
    assert said(panel)
    assert "<script" not in panel.text.value and "<img" not in panel.text.value


def test_long_text_is_refused_in_time():
    begin = time.process_time()
    assert "is longer than 200,000" in said(read("(100, 8, 16, 256) " * 20_000))
    panel = read("\n".join(f"(100, {heads}, 16, 256)" for heads in range(1, 5_000)))
    assert "and 4,991 more kinds of tensor" in said(panel)
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(("name", "value"), [("slot", "x"), ("itemsize", "two"), ("itemsize", "0")])
def test_numbers_that_cannot_be(name, value):
    _, panel = opened()
    panel.pasted.value = "(100, 8, 16, 256)"
    getattr(panel, name).value = value
    assert "✗" in said(panel)


@pytest.fixture(scope="module")
def one_explorer():
    return opened()


@settings(max_examples=60)
@given(text=st.text(alphabet="()[]{},:= 0123456789\n'\"<shapetridTorch.Size", max_size=200))
def test_fuzzed_text_is_never_an_error(one_explorer, text):
    shown, panel = one_explorer
    panel.pasted.value = text
    assert panel.text.value or panel.complaint.value
    assert "kvl-status-bad" not in shown._status.value


@pytest.mark.parametrize(("strides", "reason"), [
    ("stride (1,2)", "have 2 entries, the shape 4"), ("strides=[32768, 256]", "have 2 entries, the shape 4"),
    ("stride (-1,2,3,4)", "must be whole numbers of at least 0"),
    ("stride (1.5, 2, 3, 4)", "must be whole numbers of at least 0"),
    ("with strides (1, 2, 3, 4, 5, 6, 7, 8, 9)", "must be whole numbers of at least 0")])
def test_strides_that_cannot_be_used_are_refused(strides, reason):
    assert reason in said(read(f"(64, 8, 16, 256) {strides}"))


def test_a_call_of_stride_is_no_list_of_strides():
    assert "One reading fits" in said(read("(64, 8, 16, 256), stride(0)=32768"))


def test_a_descriptors_plain_strides_are_bytes():
    assert "63 layers" in said(read("dims=(128, 64, 1, 49408, 1) strides=(2, 256, 256, 2064384, 0)"))


def test_a_permuted_view_of_this_cache_is_told():
    text = "torch.Size([64, 16, 8, 256]) stride (32768, 2048, 256, 1)"
    assert "This is this cache's view of 28 layers" in said(panel := read(text, num_blocks=64, layout="LBNHC"))
    assert "axes 1 and 2 swapped" in said(panel)
