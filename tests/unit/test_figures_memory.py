"""The memory figure against the address map: boxes, brackets, and every sampled pixel."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.layout import AXES, KVCacheLayout
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.fields import field_table
from kvlayout_widgets.figures.memory import MemoryFigure, memory_figure
from kvlayout_widgets.figures.pieces import cut
from kvlayout_widgets.figures.theme import AXIS_TITLES, rgb
from tests.figure_maps import KINDS, dense, huge, hybrid, indexer, overlay, padded, planned, tiny
from tests.figure_reading import check_labels, middle, owner_in, png_size

MAPS = {kind: make() for kind, make in KINDS.items()}
PROTOTYPES = ["".join(order) for order in itertools.permutations(AXES)]


@pytest.fixture(scope="module")
def drawing():
    return MemoryFigure()


def key_of(owner, address_map):
    return {"L": address_map.layer_index(owner.layer), "B": owner.block, "H": owner.head, "N": owner.state,
            "C": owner.byte}


@pytest.mark.parametrize("layout", [*KVCacheLayout.__members__, *PROTOTYPES[::7]])
def test_the_brackets_spell_the_layout(drawing, layout):
    address_map = tiny(layout)
    drawing.update(address_map)
    assert drawing.mode == "tiny"
    assert drawing.ribbon.spelt == layout
    # The same, read from the labels beside the first line of boxes, from the top down.
    titles = {title: axis for axis, title in AXIS_TITLES.items()}
    beside = sorted((-label.y, titles[label.text]) for label in drawing.ribbon.glyphs.labels if label.text in titles)
    depth = 4 if layout.endswith("C") else 5
    assert "".join(axis for _, axis in beside[:depth]) == layout[:depth]
    assert drawing.subline == f"the brackets, read from the outside in, spell the layout: {' · '.join(layout)}"


@pytest.mark.parametrize("layout", [*KVCacheLayout.__members__, "HBLNC", "NLBHC", "BHCLN", "CLBHN"])
def test_brackets_hold_the_boxes_that_have_their_index(drawing, layout):
    address_map = tiny(layout)
    drawing.update(address_map)
    ribbon = drawing.ribbon
    nested = {}
    for bracket in ribbon.brackets:
        for piece in range(bracket.first, bracket.end):
            owner = owner_in(address_map, ribbon.pieces.offset[piece], 0)
            assert key_of(owner, address_map)[bracket.axis] == bracket.index
            nested.setdefault(piece, []).append(bracket.axis)
    # Each box stands under one bracket of each level.
    levels = set(layout) - ({"C"} if layout.endswith("C") else set())
    assert all(set(axes) == levels and len(axes) == len(levels) for axes in nested.values())
    assert len(nested) == len(ribbon.pieces)


def test_gaps_grow_with_the_level(drawing):
    drawing.update(tiny("BLNHC"))
    ribbon = drawing.ribbon
    gaps = {}
    for piece, level in enumerate(ribbon._levels.tolist()):
        if ribbon.row[piece] == ribbon.row[piece + 1]:
            gaps.setdefault(level, set()).add(int(ribbon.left[piece + 1] - ribbon.right[piece]))
    assert all(len(found) == 1 for found in gaps.values())
    widths = [gaps[level].pop() for level in sorted(gaps)]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 5  # four levels, and none between K and V


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(data=st.data())
def test_pieces_are_exact(kind, data):
    address_map = MAPS[kind]
    group = data.draw(st.integers(0, len(address_map.config.kv_cache_groups) - 1))
    start = data.draw(st.integers(0, address_map.size_bytes - 1))
    length = data.draw(st.integers(1, min(address_map.size_bytes - start, 1 << 15)))
    pieces = cut(address_map, start, length, group, most=192)
    if pieces is None:
        return
    ends = pieces.offset + pieces.length
    assert (pieces.offset[0], ends[-1]) == (start, start + length)
    assert pieces.offset[1:].tolist() == ends[:-1].tolist()
    names, before = field_table(address_map).names, None
    for index in range(len(pieces)):
        ends_of_piece = [owner_in(address_map, at, group) for at in (pieces.offset[index], ends[index] - 1)]
        for owner in ends_of_piece:
            if owner is None:
                assert pieces.layer[index] == pieces.field[index] == -1
            else:
                assert names[pieces.field[index]] == owner.field
                assert {axis: keys[index] for axis, keys in pieces.keys.items() if axis != "C"} == {
                    axis: key for axis, key in key_of(owner, address_map).items() if axis != "C"}
        what = (pieces.field[index], *(pieces.keys[axis][index] for axis in "LBHN"))
        assert what != before  # maximal
        before = what


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_pixels_have_the_look_of_the_bytes_owner(drawing, kind, data):
    address_map = MAPS[kind]
    group = data.draw(st.integers(0, len(address_map.config.kv_cache_groups) - 1))
    start = data.draw(st.integers(0, address_map.size_bytes // 2))
    length = data.draw(st.sampled_from([None, 5000, 1 << 17, 1 << 22]))
    fold = data.draw(st.sampled_from([1000, 4096, 65536]) if length == 5000 else st.none())
    drawing.update(address_map, start=start, length=length, group=group, fold=fold)
    if drawing.mode == "tiny":
        return
    view, codes, image = drawing.folded, drawing.codes, drawing.strip.raster.rgba
    rows, width = view.offsets.shape
    tops = np.linspace(0, image.shape[0], rows + 1).round().astype(int)
    blank, told = drawing.palette.colours_of(codes["blank"]), 0
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for row, column in zip(rng.integers(rows, size=25).tolist(), rng.integers(width, size=25).tolist()):
        pixel = tuple(int(part) for part in image[(tops[row] + tops[row + 1]) // 2, column, :3])
        if pixel in blank and codes["blank"] != codes["padding"]:
            continue  # a break, or behind the end
        owner = owner_in(address_map, view.offsets[row, column], group)
        if owner is None:
            expected = codes["padding"]
        elif view.colour == "field":
            expected = codes[owner.field]
        else:
            index, extent = key_of(owner, address_map)[view.colour], view.extent(view.colour)
            expected = codes["ramp"] + 2 * (index * 23 // max(1, extent - 1)) + (index % 2 if view.alternates else 0)
        assert pixel in drawing.palette.colours_of(expected)
        told += 1
    assert told or view.offsets.size < 25 or rows > 1


@pytest.mark.parametrize("kind", KINDS)
def test_points_lead_to_the_bytes_under_them(drawing, kind):
    address_map = MAPS[kind]
    group = address_map.region(0).group
    drawing.update(address_map, fold=max(1, address_map.size_bytes // 7), group=group)
    view = drawing.folded
    for row, column in ((0, 0), (3, 400), (5, 759)):
        x = (column + 0.5) * view.fold / view.offsets.shape[1]
        assert drawing.offset_at(x, row + 0.5) == view.offsets[row, column]
    assert drawing.offset_at(-1, 0) is None
    assert drawing.offset_at(0, 100) is None
    drawing.update(address_map, start=0, length=min(address_map.size_bytes, 4 * address_map.shape(0)[3]), group=group)
    if kind == "transposed":  # single elements of K: too many boxes
        assert drawing.mode == "real"
        return
    ribbon = drawing.ribbon
    for piece in range(len(ribbon.pieces)):
        y = ribbon._base(ribbon.row[piece]) + 3
        assert drawing.offset_at(ribbon.left[piece], y) == ribbon.pieces.offset[piece]
        last = drawing.offset_at(ribbon.right[piece] - 1e-9, y)
        assert last == ribbon.pieces.offset[piece] + ribbon.pieces.length[piece] - 1
    assert drawing.offset_at(1, 1) is None


def test_from_the_whole_pool_down_to_one_byte(drawing):
    address_map = huge()
    selected = Coordinate(address_map.layers[12], 50000, 2, 5, 259)
    at = selected.offset(address_map)
    for length, mode in ((None, "real"), (1 << 30, "real"), (1 << 21, "real"), (1 << 16, "real"), (8192, "tiny"),
                         (512, "tiny"), (16, "tiny"), (1, "tiny")):
        drawing.update(address_map, start=0 if length is None else at, length=length, selected=selected)
        assert drawing.mode == mode
        assert f"offset {at:,} B = {at:#x}" in drawing.footer
    assert drawing.ribbon.pieces.offset.tolist() == [at]
    assert drawing.ribbon.pieces.byte.tolist() == [259]
    assert drawing.ribbon.spelt == "BLNHC"
    face, *_ = drawing.ribbon.raster.rgba[drawing.ribbon.raster.codes == drawing.codes["V"]]
    assert tuple(int(part) for part in face[:3]) in drawing.palette.colours_of(drawing.codes["V"])


def test_the_real_view_names_rows_bands_and_its_fold(drawing):
    address_map = dense("BLNHC")
    drawing.update(address_map, title="Qwen3-0.6B", selected=Coordinate(address_map.layers[12], 37))
    assert drawing.headline == "BLNHC · Qwen3-0.6B · all 117,440,512 B (112 MiB)"
    assert drawing.strip.rulers["byte"].title == (
        "byte within a row [KiB]   (one row: 1 block, 1,835,008 B (1.75 MiB))")
    names = [label.text for label in drawing.strip.glyphs.labels]
    assert names[:2] == ["B0", "B10"]
    assert names[-28:] == [f"L{layer}" for layer in range(28)]
    addresses = drawing.strip.rulers["row"].labels
    assert addresses[:2] == ("0x0", f"{10 * 1835008:#x}")
    column, row = (float(part[0]) for part in drawing.strip._pin.get_data())
    assert (column, int(row)) == (12 * 65536, 37)


def test_folding_is_never_silent(drawing):
    address_map = dense("LBHNC", num_blocks=11632)
    drawing.update(address_map, fold=65536)
    assert "64 of 325,696 rows drawn" in drawing.strip.rulers["byte"].title
    assert "64 of 325,696 rows are drawn" in drawing.alt_text()
    drawing.update(address_map)
    assert "one row: 1 layer" in drawing.strip.rulers["byte"].title
    assert "one pixel shows the owner of one byte in 1,003,046" in drawing.subline


def test_overlaid_groups_are_told_and_drawn_apart(drawing):
    address_map = overlay()
    drawing.update(address_map, group=2)
    assert drawing.subline.startswith("group 2: sliding window, 4 layers (5 groups overlay these bytes)")
    assert set(np.unique(drawing.folded.located.layer)) == {8, 9, 10, 11}
    drawing.update(address_map, group=4)  # three layers in a block of four: the last quarter is nobody's
    assert (drawing.folded.located.layer < 0).mean() == pytest.approx(0.25, abs=0.02)
    assert "padding behind a block" in drawing._legend.entries


def test_padding_is_named_by_its_kind(drawing):
    address_map = padded()
    page = address_map.offset(address_map.layers[3], 9)
    drawing.update(address_map, start=page + 37376 - 584, length=584 + 64 + 584)
    assert drawing._legend.entries == ("latent", "page padding")
    assert drawing.ribbon.pieces.length.tolist() == [584, 64, 584]
    assert drawing.ribbon.pieces.keys["L"].tolist() == [3, 3, 0]  # the padding belongs to layer 3's page
    drawing.update(hybrid(), group=1)
    assert drawing._legend.entries == ("state 0", "state 1", "page padding")


def test_a_group_without_layers_on_this_rank_owns_nothing(drawing):
    groups = overlay().config.kv_cache_groups
    address_map = planned([groups[0], KVCacheGroupSpec((), groups[1].kv_cache_spec)], KVCacheLayout.BLNHC, 200)
    drawing.update(address_map, group=1)
    assert drawing.subline.startswith("group 1: sliding window, 0 layers (2 groups overlay these bytes)")
    assert drawing._legend.entries == ("not this group's",)
    drawing.update(address_map, group=1, fold=1 << 20)
    assert drawing.mode == "real"
    assert not drawing.folded.owned.any()
    check_labels(drawing.figure)


def test_irregular_rows_are_named_inside(drawing):
    address_map = indexer()
    drawing.update(address_map, start=address_map.offset(address_map.layers[11], 63) - 2 * 41984, length=4 * 41984)
    assert [label.text for label in drawing.strip.glyphs.labels] == [
        "B63 L7", "B63 L8", "B63 L8", "B63 L1", "B63 L3", "B63 L5", "B63 L7", "B64 L0", "B64 L0", "B64 L1"]


def test_padding_and_nothing_have_other_looks_than_content(drawing):
    drawing.update(hybrid(), group=1)
    looks = [drawing.palette.looks[drawing.codes[name]] for name in ("state 0", "state 1", "padding", "blank")]
    assert len({(rgb(face), hatch) for face, _, hatch in looks}) == 4


@pytest.mark.parametrize("options, argument", [
    ({"start": 192}, "start"), ({"start": -1}, "start"), ({"length": 0}, "length"), ({"fold": 0}, "fold"),
    ({"group": 1}, "group")])
def test_bad_windows_are_named(drawing, options, argument):
    with pytest.raises(LayoutError) as error:
        drawing.update(tiny(), **options)
    assert error.value.argument == argument


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_cut_off_or_overlaps(kind, theme):
    address_map = MAPS[kind]
    drawing = MemoryFigure(theme)
    selected = middle(address_map)
    group, page = address_map.region(selected.layer).group, address_map.region(selected.layer).page_size_bytes
    at = address_map.offset(selected.layer, selected.block)
    for options in ({}, {"start": max(0, at - page), "length": 4 * page}, {"start": at, "length": page},
                    {"start": at, "length": 40}, {"start": at, "length": 12 * address_map.shape(selected.layer)[3]}):
        drawing.update(address_map, group=group, selected=selected, title="Model", **options)
        check_labels(drawing.figure)
    assert png_size(drawing.figure) == (960, 460)


def test_the_alt_text_tells_the_facts():
    figure = memory_figure(tiny(), theme="dark")
    assert [axes.get_visible() for axes in figure.axes][:2] == [False, True]
    drawing = MemoryFigure()
    drawing.update(tiny(), selected=Coordinate("layers.1", 2, 1, 1, 4))
    for fact in ("BLNHC", "192 B", "48 boxes", "B · L · N · H · C", "Legend: K, V", "188 B = 0xbc"):
        assert fact in drawing.alt_text()
