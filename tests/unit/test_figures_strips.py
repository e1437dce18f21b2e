"""The strips of a block against the address map: what is drawn where, in every kind of cache."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.clinic.block_bytes import kernel_ratio
from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.figures.common import Coordinate, render_png
from kvlayout_widgets.figures.strips import DRAWN, StripsFigure, strips_figure
from tests.figure_maps import KINDS, hybrid, names, overlay, padded, planned, split
from tests.figure_reading import check_labels, owner_in, png_size
from tests.strategies import maps

MODELS = ["Qwen/Qwen3-0.6B", "google/gemma-3-27b-it", "Qwen/Qwen3-Next-80B-A3B-Instruct",
          "deepseek-ai/DeepSeek-V3.2-Exp", "nvidia/Nemotron-H-8B-Base-8K", "openai/whisper-large-v3"]


def check_pixels(drawing, address_map):
    """Each pixel is what the byte in its middle is to the row's group; a thin gap may lie over a layer."""
    width = drawing.codes.shape[1]
    for row in range(drawing.num_rows):
        wrong = 0
        for pixel in range(0, width, 7):
            x = min(pixel * drawing.size_bytes // width + drawing.size_bytes // (2 * width), drawing.size_bytes - 1)
            strip, offset = drawing.offset_at(x, row + 0.5)
            owner = owner_in(address_map, offset, strip.group)
            assert drawing.layers[row, pixel] == (-1 if owner is None else address_map.layer_index(owner.layer))
            is_gap = drawing.codes[row, pixel] >= drawing.padding_code
            wrong += is_gap != (owner is None)
            at = drawing.coordinate_at(x, row + 0.5)
            assert (at is None) == (owner is None)
            if at is not None:
                assert at.offset(address_map) == offset and address_map.region(at.layer).group == strip.group
                assert at.block // kernel_ratio(address_map, strip.group) == drawing.block
            else:
                assert f"group {strip.group}" in drawing.gap_words(x, row + 0.5)
        assert wrong <= 2 * drawing.thickened


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_their_owners(kind):
    drawing, address_map = StripsFigure(), KINDS[kind]()
    last = address_map.config.num_blocks - 1
    for block in {0, last // 2, last}:
        drawing.update(address_map, block)
        check_pixels(drawing, address_map)
        check_labels(drawing.figure)


@pytest.mark.parametrize("layout", KVCacheLayout.__members__)
def test_pixels_in_every_layout(layout):
    drawing, address_map = StripsFigure(), overlay(layout)
    drawing.update(address_map, 7)
    check_pixels(drawing, address_map)
    assert drawing.size_bytes == address_map.size_bytes // address_map.config.num_blocks


@given(maps(), st.data())
def test_the_byte_axis_is_the_blocks_own_bytes_in_order(address_map, data):
    drawing = FIGURE
    block = data.draw(st.integers(0, address_map.config.num_blocks - 1))
    drawing.update(address_map, block)
    strip = drawing.strips[0]
    assert drawing.size_bytes == strip.useful_bytes + strip.padding_bytes
    shown = [drawing.offset_at(x, 0.5)[1] for x in range(min(drawing.size_bytes, 300))]
    assert shown == sorted(set(shown))
    assert drawing.offset_at(drawing.size_bytes, 0.5) is None and drawing.offset_at(0, len(drawing.strips)) is None
    for row, one in enumerate(drawing.strips[:drawing.num_rows]):
        found = sum(drawing.coordinate_at(x, row + 0.5) is not None for x in range(min(drawing.size_bytes, 300)))
        if drawing.size_bytes <= 300:
            assert found == one.useful_bytes


FIGURE = StripsFigure()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_presets_are_drawn_with_labels_apart(model, theme):
    address_map = kv.make_plan(kv.Selection(model=model, num_blocks=64)).address_map
    at = Coordinate(address_map.layers[1], 37)
    drawing = StripsFigure(theme)
    drawing.update(address_map, 37, selected=at, title=model)
    check_labels(drawing.figure)
    assert png_size(drawing.figure) == (960, 460)
    assert drawing.alt_text().startswith("Strips of the bytes of one block")
    assert f"offset {at.offset(address_map):,} B" in drawing.footer
    assert ("nothing is shared" in drawing.subline) == (len(drawing.strips) == 1)


def test_qwen3_next_shows_padding_of_states_and_a_full_attention_page():
    address_map = kv.make_plan(kv.Selection(model=MODELS[2], num_blocks=4)).address_map
    drawing = StripsFigure()
    drawing.update(address_map, 2)
    assert drawing.size_bytes == 12 * 1_114_112 and drawing.kinds == ("Mamba", "full attention")
    gaps = (drawing.codes == drawing.padding_code).sum(axis=1)
    assert gaps[3] == 0 and all(gaps[:3] >= 2 * 12) and drawing.thickened == 3 * 12
    assert "thin gaps are drawn 2 pixels wide" in drawing.subline
    assert "1.47 % without content" in [label.text for label in drawing._names.labels]


def test_room_for_layers_that_a_group_does_not_have_is_another_look_than_padding():
    drawing = StripsFigure()
    drawing.update(overlay(), 3)
    assert (drawing.codes == drawing.unused_code).any() and not (drawing.codes == drawing.padding_code).any()
    drawing.update(padded(), 3)
    assert (drawing.codes == drawing.padding_code).any() and not (drawing.codes == drawing.unused_code).any()
    assert drawing._palette.looks[drawing.padding_code] != drawing._palette.looks[drawing.unused_code]
    assert drawing._legend.entries == ("MLA attention", "padding in the group's pages")


def test_more_groups_than_are_drawn():
    spec = kv.FullAttentionSpec(16, num_kv_heads=2, head_size=64, dtype="bfloat16")
    groups = [kv.KVCacheGroupSpec(names(2, 2 * index), spec) for index in range(20)]
    address_map = planned(groups, KVCacheLayout.BLHNC, 8)
    drawing = StripsFigure()
    drawing.update(address_map, 1, first_row=99)
    assert (drawing.first_row, drawing.num_rows, drawing.total_rows) == (20 - DRAWN, DRAWN, 20)
    assert drawing.offset_at(0, 0.5)[0].group == 8
    assert f"{DRAWN} of 20 groups are drawn" in drawing.subline
    check_labels(drawing.figure)


def test_a_kernel_block_is_part_of_its_block():
    address_map = split()
    at = Coordinate(address_map.layers[2], 4 * 5 + 3)
    drawing = StripsFigure()
    drawing.update(address_map, 5, selected=at)
    assert drawing.size_bytes == address_map.size_bytes // 16
    x = drawing._pin.get_xdata()[0]
    assert drawing.offset_at(x, 0.5)[1] == at.offset(address_map)
    drawing.update(address_map, 6, selected=at)
    assert not drawing._pin.get_visible()  # the selected byte isn't in this block


@pytest.mark.parametrize("layout", KVCacheLayout.__members__)
def test_it_costs_little_for_100_layers_of_100_000_blocks(layout):
    spec = kv.FullAttentionSpec(16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    address_map = planned([kv.KVCacheGroupSpec(names(100), spec)], KVCacheLayout[layout], 100_000)
    drawing = StripsFigure()
    drawing.update(address_map, 0)
    begin = time.process_time()
    drawing.update(address_map, 99_999)
    render_png(drawing.figure)
    assert time.process_time() - begin < 1


def test_a_block_that_is_not_there():
    for block in (200, -1, None):
        with pytest.raises(kv.LayoutError):
            strips_figure(overlay(), block)
    assert png_size(strips_figure(hybrid(), 39, theme="dark")) == (960, 460)
