"""The page figure against the address map: each pixel's colour is that of the byte's owner."""

import numpy as np
import pytest

from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.page import MOST_STATES, PageFigure, page_figure
from kvlayout_widgets.figures.page_bytes import page_bytes
from kvlayout_widgets.figures.raster import blank_look, field_look
from kvlayout_widgets.figures.theme import rgb
from tests.figure_maps import KINDS, dense, hybrid, indexer, mla, nvfp4, padded, tiny, transposed
from tests.figure_reading import check_labels, middle, owner_in, png_size


@pytest.fixture(scope="module")
def drawing():
    return PageFigure()


def layers_of_each_kind(address_map):
    return [region.tensor.layers[0] for region in address_map.regions]


def colours(name, theme):
    face, ink, hatch = field_look(name, theme)
    return {rgb(face), rgb(ink)} if hatch else {rgb(face)}


@pytest.mark.parametrize("kind", KINDS)
def test_grid_pixels_have_the_colour_of_the_owner(drawing, kind):
    address_map = KINDS[kind]()
    rng = np.random.default_rng(1)
    for layer in layers_of_each_kind(address_map):
        drawing.update(address_map, layer, 1)
        image, blank = drawing.grid.rgba, rgb(blank_look(drawing.theme)[0])
        height, width = image.shape[:2]
        seen = set()
        for _ in range(150):
            row, column = int(rng.integers(height)), int(rng.integers(width))
            x = drawing.first_state - 0.5 + (column + 0.5) / width * drawing.num_states
            y = drawing.first_head - 0.5 + (row + 0.5) / height * drawing.num_heads
            found, colour = drawing.coordinate_at(x, y), tuple(int(part) for part in image[row, column, :3])
            if colour == blank:
                continue
            owner = owner_in(address_map, found.offset(address_map), address_map.region(layer).group)
            assert (owner.layer, owner.block, owner.head, owner.state) == (layer, 1, found.head, found.state)
            # A pixel at the edge of a field may belong to either side of it.
            near = {field.name for _, field in address_map.region(layer).interior.slot_fields(found.head)}
            assert colour in set().union(*(colours(name, drawing.theme) for name in near))
            if colour in colours(owner.field, drawing.theme):
                seen.add(owner.field)
        assert seen


@pytest.mark.parametrize("kind", KINDS)
def test_the_middle_of_each_field_has_its_colour(drawing, kind):
    address_map = KINDS[kind]()
    layer = address_map.layers[-1]
    drawing.update(address_map, layer, 0)
    image = drawing.grid.rgba
    height, width = image.shape[:2]
    for head in {drawing.first_head, drawing.first_head + drawing.num_heads - 1}:
        left = 0
        cell = width // drawing.num_states - 2
        edges, fields = drawing._cell_columns(head, cell)
        row = int((head - drawing.first_head + 0.3) / drawing.num_heads * height)
        for (begin, field), start, end in zip(fields, edges, edges[1:]):
            pixel = image[row, left + int((start + end) / 2), :3]
            offset = address_map.offset(layer, 0, head, drawing.first_state, begin)
            owner = owner_in(address_map, offset, address_map.region(layer).group)
            assert owner.field == field.name
            assert tuple(int(part) for part in pixel) in colours(owner.field, drawing.theme)


@pytest.mark.parametrize("layout", KVCacheLayout.__members__)
def test_the_strip_of_a_scattered_page(drawing, layout):
    check_strip(drawing, dense(layout), dense(layout).layers[5], 7)


@pytest.mark.parametrize("kind", KINDS)
def test_strip_pixels_have_the_colour_of_the_owner(drawing, kind):
    address_map = KINDS[kind]()
    for layer in layers_of_each_kind(address_map):
        check_strip(drawing, address_map, layer, 1)


def check_strip(drawing, address_map, layer, block):
    drawing.update(address_map, layer, block)
    offsets, image = drawing.strip_offsets, drawing.strip.rgba
    rows, width = offsets.shape
    high, group = image.shape[0] // rows, address_map.region(layer).group
    rng = np.random.default_rng(2)
    for _ in range(150):
        row, column = int(rng.integers(rows)), int(rng.integers(width))
        if row * drawing.bytes.fold + (column + 0.5) * drawing.bytes.fold / width >= drawing.bytes.num_bytes:
            continue
        owner = owner_in(address_map, offsets[row, column], group)
        name = "padding" if owner is None else owner.field
        if owner is not None:
            assert (owner.layer, owner.block) == (layer, block)
        pixel = tuple(int(part) for part in image[row * high + high // 3, column, :3])
        assert pixel in colours(name, drawing.theme)


@pytest.mark.parametrize("kind", KINDS)
def test_page_bytes_are_the_pages_own_bytes_in_order(kind):
    address_map = KINDS[kind]()
    layer = address_map.layers[-1]
    region = address_map.region(layer)
    page = page_bytes(address_map, layer, 1)
    positions = np.unique(np.linspace(0, page.num_bytes - 1, 3000).astype(np.int64))
    offsets = page.offsets(positions)
    assert np.all(np.diff(offsets) > 0)
    assert page.positions(offsets).tolist() == positions.tolist()
    starts, lengths = address_map.run_arrays(layer, 1)
    owned = ((offsets[:, None] >= starts) & (offsets[:, None] < starts + lengths)).any(axis=1)
    unpadded = int(np.prod(region.geometry.shape[2:]))
    assert owned.tolist() == (positions < unpadded).tolist()  # padding comes last
    assert page.num_bytes == (region.page_size_bytes if address_map.layout.is_block_compact else unpadded)


def test_the_titles_say_steps_and_order(drawing):
    address_map = dense("LBNHC")
    drawing.update(address_map, 12, 37, title="Qwen3-0.6B")
    assert drawing.headline == "LBNHC · Qwen3-0.6B · one page of layer 12, block 37: 64 KiB"
    assert drawing.subline == "state +4,096 B · head slot +512 B · K 256 B then V 256 B"
    drawing.update(dense("BHLNC"), 12, 37)
    assert drawing.subline == "head slot +229,376 B · state +512 B · K 256 B then V 256 B · " \
        "8 runs of 8,192 B, 229,376 B apart"
    assert len(drawing.strip_offsets) == 8


def test_interiors_are_told_as_they_are(drawing):
    drawing.update(nvfp4(), 3)
    assert "slots 0–3: K 64 B then K scale 8 B · slots 4–7: V 64 B then V scale 8 B" in drawing.subline
    drawing.update(indexer(), 11)
    assert drawing.subline == "K from byte 0, state +128 B, K scale from byte 8,192, state +4 B of the page"
    drawing.update(transposed(), 1)
    assert "K from byte 0, state +2 B, element +64 B, V from byte 4,096, state +128 B of the cell" in drawing.subline
    drawing.update(mla(), 1)
    assert "latent 1 KiB then rope 128 B" in drawing.subline


def test_padding_is_drawn_and_named(drawing):
    drawing.update(padded(), 2, 5)
    assert "64 B of padding at its end" in drawing.subline
    assert drawing._legend.entries == ("latent 584 B", "page padding 64 B")
    assert (drawing.strip.codes == drawing.padding).any()
    drawing.update(hybrid(), 10, 9)
    assert drawing._legend.entries == ("state 0: 48 KiB", "state 1: 1 MiB", "page padding 976 KiB")


def test_a_large_page_says_its_budget_and_shows_the_selection(drawing):
    address_map = hybrid()
    selected = Coordinate(address_map.layers[1], 9, 1, 777)
    drawing.update(address_map, selected.layer, 9, selected=selected)
    assert drawing.num_states == MOST_STATES
    assert drawing.first_state <= 777 < drawing.first_state + MOST_STATES
    assert drawing.rulers["N"].title == "token state  N   (64 of 1,024 drawn)"
    assert "one pixel shows one byte of" in drawing.rulers["byte"].title


def test_the_selection_is_marked_where_its_bytes_are(drawing):
    address_map = transposed()
    selected = Coordinate(address_map.layers[3], 9, 1, 3)
    drawing.update(address_map, selected.layer, 9, selected=selected)
    marks = drawing._marks[1][1].get_segments()
    starts, lengths = address_map.run_arrays(selected.layer, 9, 1, 3)
    assert len(marks) == len(starts) == 65  # 64 single elements of K, and V in one run
    places = sorted(float(np.mean(mark[:, 0])) + 8192 * int(mark[0, 1]) for mark in marks)
    page = address_map.offset(selected.layer, 9)
    expected = sorted(float(start + length / 2 - page) for start, length in zip(starts, lengths))
    assert places == pytest.approx(expected, abs=130)  # an outlined run's mean counts a corner twice
    offset = selected.offset(address_map)
    assert drawing.footer.endswith(f"in element 0 of K:   offset {offset:,} B = {offset:#x}")


@pytest.mark.parametrize("kind", KINDS)
def test_points_of_the_strip_lead_to_coordinates(drawing, kind):
    address_map = KINDS[kind]()
    layer = address_map.layers[-1]
    drawing.update(address_map, layer, 1)
    for share in (0, 0.31, 0.77):
        position = int(share * drawing.bytes.num_bytes)
        row, column = divmod(position, drawing.bytes.fold)
        found = drawing.coordinate_at(column + 0.5, row + 0.5, axes=1)
        offset = int(drawing.bytes.offsets(np.array([position]))[0])
        assert (found is None) == (owner_in(address_map, offset, address_map.region(layer).group) is None)
        if found is not None:
            assert found.offset(address_map) == offset
    assert drawing.coordinate_at(-1, 0, axes=1) is None
    assert drawing.coordinate_at(0, drawing.first_head + drawing.num_heads) is None


def test_bad_arguments_are_named(drawing):
    for arguments, argument in (((tiny(), "nobody"), "layer"), ((tiny(), 0, 3), "block"), ((tiny(), 0, -1), "block")):
        with pytest.raises(LayoutError) as error:
            drawing.update(*arguments)
        assert error.value.argument == argument


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_cut_off_or_overlaps(kind, theme):
    address_map = KINDS[kind]()
    drawing = PageFigure(theme)
    for layer in layers_of_each_kind(address_map):
        selected = middle(address_map, layer)
        drawing.update(address_map, layer, selected.block, selected=selected, title="Model")
        check_labels(drawing.figure)
    assert png_size(drawing.figure) == (960, 460)


def test_the_alt_text_tells_the_facts():
    address_map = dense("LBNHC")
    drawing = PageFigure()
    drawing.update(address_map, 12, 37, selected=Coordinate(address_map.layers[12], 37, 2, 5))
    text = drawing.alt_text()
    for fact in ("LBNHC", "layer 12", "block 37", "64 KiB", "state +4,096 B", "8 of 8 head slots", "52,777,984"):
        assert fact in text
    assert page_figure(tiny(), 0).axes
