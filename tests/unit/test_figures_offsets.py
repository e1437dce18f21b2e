"""The offsets figure against the address map: every cell, the selection's words, and the drawn budget."""

import itertools

import numpy as np
import pytest

from kvlayout.config import KVCacheGroupSpec
from kvlayout.errors import LayoutError
from kvlayout.layout import AXES, KVCacheLayout
from kvlayout.spec import UniformTypeKVCacheSpecs
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.offsets import DRAWN, OffsetsFigure, offsets_figure
from tests.figure_maps import KINDS, dense, hybrid, indexer, overlay, planned, tiny
from tests.figure_reading import check_labels, middle, png_size

PAIRS = list(itertools.permutations(AXES, 2))
NAMES = dict(zip(AXES, ("layer", "block", "head", "state", "byte")))


@pytest.fixture(scope="module")
def drawing():
    return OffsetsFigure()


def expected_offset(address_map, at, drawn):
    """The offset of {axis: index}; a layer without an index that isn't ``drawn`` is taken at 0, else None."""
    extents = address_map.shape(at["L"])
    at = {axis: 0 if axis not in drawn + "L" and index >= extents["BHNC".index(axis)] else index
          for axis, index in at.items()}
    if any(at[axis] >= extent for axis, extent in zip("BHNC", extents)):
        return None
    return address_map.offset(**{NAMES[axis]: index for axis, index in at.items()})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows, columns", [("L", "B"), ("B", "L"), ("H", "N"), ("N", "C"), ("L", "N"), ("C", "H")])
def test_every_drawn_cell_is_the_maps_offset(drawing, kind, rows, columns):
    address_map = KINDS[kind]()
    selected = middle(address_map)
    drawing.update(address_map, rows=rows, columns=columns, selected=selected, first_row=3, first_column=7)
    values = drawing._image.get_array()
    assert values.shape == (drawing.num_rows, drawing.num_columns)
    fixed = {"L": address_map.layer_index(selected.layer), "B": selected.block, "H": selected.head,
             "N": selected.state, "C": selected.byte}
    rng = np.random.default_rng(0)
    cells = list(np.ndindex(values.shape))
    for row, column in rng.choice(cells, size=min(len(cells), 200), replace=False):
        at = {**fixed, rows: int(row) + drawing.first_row, columns: int(column) + drawing.first_column}
        expected = expected_offset(address_map, at, rows + columns)
        assert np.ma.getmaskarray(values)[row, column] == (expected is None)
        if expected is not None:
            assert int(values[row, column]) == expected


@pytest.mark.parametrize("rows, columns", PAIRS)
def test_any_two_axes_and_back_from_a_point_to_the_coordinate(drawing, rows, columns):
    address_map = indexer()
    drawing.update(address_map, rows=rows, columns=columns, fixed={"L": address_map.layers[10]})
    for row, column in itertools.product({0, drawing.num_rows - 1}, {0, drawing.num_columns - 1}):
        found = drawing.coordinate_at(column + 0.4, row - 0.4)
        if drawing.offsets.mask[row, column]:
            assert found is None
        else:
            assert found.offset(address_map) == drawing.offsets[row, column]
    assert drawing.coordinate_at(-1, 0) is None
    assert drawing.coordinate_at(0, drawing.num_rows) is None


def test_the_selection_is_spelt_out_with_exact_numbers(drawing):
    address_map = dense("BLNHC")
    drawing.update(address_map, selected=Coordinate(address_map.layers[12], 37), title="Qwen3-0.6B")
    assert drawing.callout.lines == ("layer 12 · block 37", "offset 68,681,728 B = 0x4180000",
                                     "next block +1,835,008 B · next layer +65,536 B")
    assert drawing.headline == "BLNHC · Qwen3-0.6B · page 64 KiB"
    assert drawing.subline.startswith("one block jumps 1.75 MiB because 28 layers lie in between")


@pytest.mark.parametrize("layout", KVCacheLayout.__members__)
def test_distances_are_those_to_the_neighbours(drawing, layout):
    address_map = dense(layout)
    selected = Coordinate(address_map.layers[3], 5, 2, 7, 9)
    drawing.update(address_map, rows="H", columns="N", selected=selected, fixed={"C": 9})
    start = selected.offset(address_map)
    state = address_map.offset(selected.layer, 5, 2, 8, 9) - start
    head = address_map.offset(selected.layer, 5, 3, 7, 9) - start
    # Where the cells hold numbers, the footer says it; a call-out would cover some.
    text = "\n".join((drawing.footer, *drawing.callout.lines))
    assert f"offset {start:,} B = {start:#x}" in text
    assert f"next state {state:+,} B · next head slot {head:+,} B" in text


def test_the_last_of_an_axis_has_no_next(drawing):
    address_map = tiny()
    drawing.update(address_map, selected=Coordinate("layers.1", 2))
    assert drawing.footer == "layer 1 · block 2:   offset 160 B = 0xa0   ·   last block · last layer"
    assert not drawing.callout.lines


def test_tiny_cells_hold_their_numbers(drawing):
    drawing.update(tiny("LBHNC"))
    texts = [label.text for label in drawing._numbers.labels]
    assert [text for text in texts if not text.startswith("0x")] == ["0", "32", "64", "96", "128", "160"]
    assert "0xa0" in texts
    drawing.update(dense())
    assert drawing._numbers.labels == ()


def test_the_drawn_budget_is_stated_and_the_window_stays_inside(drawing):
    address_map = dense("LBHNC", num_blocks=11632)
    drawing.update(address_map, first_column=10 ** 9)
    assert drawing.num_columns == DRAWN["B"] == 64
    assert drawing.first_column == 11632 - 64
    assert drawing.rulers["columns"].title == "block  B   (64 of 11,632 drawn)"
    assert "64 of 11,632 blocks" in drawing.alt_text()
    assert drawing.offsets[27, 63] == address_map.offset(address_map.layers[27], 11631)


def test_a_selection_out_of_the_window_is_still_spelt(drawing):
    address_map = dense("LBHNC", num_blocks=11632)
    drawing.update(address_map, selected=Coordinate(address_map.layers[1], 9000))
    assert not drawing.callout.lines
    assert "block 9,000" in drawing.footer


def test_layers_of_all_groups_are_drawn_and_named(drawing):
    address_map = overlay()
    drawing.update(address_map)
    assert drawing.num_rows == len(address_map.layers) == 19
    assert [text.get_text() for text in drawing.bands.names] == [
        "group 0: full attention, 4 layers, page 64 KiB", *(
            f"group {group}: sliding window, {3 if group == 4 else 4} layers, page 64 KiB" for group in range(1, 5))]
    assert len(drawing.bands.lines.get_segments()) == 4
    assert "a block id belongs to one of them" in drawing.footer


def test_a_layer_without_that_head_is_hatched_not_invented(drawing):
    address_map = hybrid()
    drawing.update(address_map, columns="H")
    mask = np.ma.getmaskarray(drawing._image.get_array())
    assert mask[:, 1].sum() == 18  # the Mamba layers have one head slot
    assert "hatched: that layer has no such index" in drawing.footer
    assert drawing.axes.patch.get_hatch()


def test_layers_without_the_selections_state_are_taken_at_their_start(drawing):
    address_map = hybrid()
    selected = Coordinate(address_map.layers[1], 5, 1, 700)
    drawing.update(address_map, selected=selected)
    assert not np.ma.getmaskarray(drawing.offsets).any()
    assert drawing.offsets[1, 5] == selected.offset(address_map)
    assert drawing.offsets[10, 5] == address_map.offset(address_map.layers[10], 5)
    assert drawing.coordinate_at(5, 10) == Coordinate(address_map.layers[10], 5)
    assert "in layers without that index, at 0" in drawing.footer
    drawing.update(address_map, fixed={"N": 700})
    assert np.ma.getmaskarray(drawing.offsets).sum(axis=0)[0] == 18  # asked for: the Mamba layers have none


def test_layers_of_two_tensors_that_take_turns_stay_visible(drawing):
    specs = indexer().config.layer_specs
    order = sorted(specs, key=lambda name: int(name.split(".")[2]))
    group = KVCacheGroupSpec(order, UniformTypeKVCacheSpecs(64, {name: specs[name] for name in order}))
    address_map = planned([group], KVCacheLayout.LBNHC, 50)
    drawing.update(address_map)
    assert len(drawing.bands.lines.get_segments()) == 0
    assert drawing.bands.names == []


def test_group_and_fixed_choose_the_layer(drawing):
    address_map = hybrid()
    drawing.update(address_map, rows="B", columns="N", group=2)
    assert drawing.coordinate_at(0, 1).layer == address_map.config.kv_cache_groups[2].layer_names[0]
    drawing.update(address_map, rows="B", columns="N", fixed={"L": address_map.layers[4], "H": 1})
    assert drawing.coordinate_at(5, 1) == Coordinate(address_map.layers[4], 1, 1, 5)


@pytest.mark.parametrize("options, argument", [
    ({"rows": "L", "columns": "L"}, "rows, columns"), ({"rows": "X"}, "rows, columns"),
    ({"fixed": {"Q": 1}}, "fixed"), ({"fixed": {"H": -1}}, "fixed['H']"), ({"first_row": -1}, "first_row"),
    ({"fixed": {"L": "nobody"}}, "layer")])
def test_bad_arguments_are_named(drawing, options, argument):
    with pytest.raises(LayoutError) as error:
        drawing.update(tiny(), **options)
    assert error.value.argument == argument


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_cut_off_or_overlaps(kind, theme):
    address_map = KINDS[kind]()
    drawing = OffsetsFigure(theme)
    for rows, columns in (("L", "B"), ("H", "N")):
        drawing.update(address_map, rows=rows, columns=columns, selected=middle(address_map), title="Model")
        check_labels(drawing.figure)
    assert png_size(drawing.figure) == (960, 460)


def test_the_function_makes_the_same_figure():
    figure = offsets_figure(tiny(), rows="B", columns="L", theme="dark")
    assert figure.axes[0].images[0].get_array().tolist() == [[0, 32], [64, 96], [128, 160]]
