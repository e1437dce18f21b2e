"""Strides and resolver figures: the numbers and states they show are the library's."""

import numpy as np
import pytest

from kvlayout.candidates import common_layouts
from kvlayout.layout import AXES, KVCacheLayout
from kvlayout.resolve import resolve
from kvlayout.steps import ResolutionError
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.resolver import STATES, ResolverFigure, resolver_figure
from kvlayout_widgets.figures.strides import StridesFigure, strides_figure
from kvlayout_widgets.figures.theme import AXIS_COLOURS
from kvlayout_widgets.figures.wording import formula, jump
from tests.figure_maps import KINDS, dense, hybrid, indexer, overlay, padded, tiny
from tests.figure_reading import check_labels, middle, png_size

DECLARED = {"FLASH_ATTN": ["LBNHC", "BLNHC", "LBHNC", "BLHNC"], "FLASHINFER": ["LBHNC", "BLHNC", "LBNHC"],
            "MAMBA": None}


@pytest.fixture(scope="module")
def strides():
    return StridesFigure()


@pytest.mark.parametrize("kind", KINDS)
def test_bars_are_the_strides_in_physical_order(strides, kind):
    address_map = KINDS[kind]()
    for region in address_map.regions:
        layer = region.tensor.layers[-1]
        strides.update(address_map, layer, selected=middle(address_map, layer))
        assert "".join(strides.order) == address_map.layout.name
        assert strides.strides == tuple(region.geometry.strides[AXES.index(axis)] for axis in strides.order)
        ends = [path.vertices[:, 0].max() for path in strides._bars.get_paths()]
        for end, stride in zip(ends, strides.strides):
            assert end == pytest.approx(max(np.log2(max(stride, 1)), 0.004 * strides.axes.get_xlim()[1]))
        texts = " ".join(label.text for label in strides._glyphs.labels)
        assert all(f"{stride:,} B" in texts for stride in strides.strides)


@pytest.mark.parametrize("layout", [*KVCacheLayout.__members__, "BHCLN", "CLBHN"])
def test_the_worked_example_adds_up(strides, layout):
    address_map = tiny(layout)
    selected = Coordinate("layers.1", 2, 1, 1, 5)
    strides.update(address_map, "layers.1", selected=selected)
    terms, _, offset = strides.footer.split(":   ")[1].partition(" = ")
    assert sum(int(a) * int(b) for a, b in (term.replace(",", "").split("×") for term in terms.split(" + "))) == \
        selected.offset(address_map) == int(offset.split(" ")[0])


def test_a_tensor_that_starts_later_adds_its_start(strides):
    address_map = indexer()
    layer = address_map.layers[10]  # its page isn't state by state, so no sum is claimed
    strides.update(address_map, layer)
    assert "×" not in strides.footer
    assert "inside a page the backend's interior decides" in strides.subline
    config = overlay("LBNHC")
    strides.update(config, config.layers[18], selected=Coordinate(config.layers[18], 3))
    assert f"= {config.offset(config.layers[18], 3):,} B" in strides.footer


def test_reasons_are_exact():
    layer = dense().layers[0]
    assert formula(dense("BLNHC"), layer, "B") == "= 28 layers × 65,536 B"
    assert formula(dense("LBNHC"), layer, "L") == "= 64 blocks × 65,536 B"
    assert jump(dense("BLNHC"), layer, "B") == "one block jumps 1.75 MiB because 28 layers lie in between"
    assert jump(dense("LHBNC"), layer, "H") == "one head slot jumps 512 KiB because 64 blocks lie in between"
    assert jump(dense("BHLNC"), layer, "L") == "one layer jumps 8 KiB because 16 states lie in between"
    assert jump(dense("LBHNC"), layer, "N") == "one state jumps 512 B: C, the content of one state"
    assert formula(padded(), layer, "L") == "= one page, 37,376 B + 64 B padding"
    assert jump(padded(), layer, "L") == \
        "one layer jumps 36.56 KiB because one page, 36.5 KiB and 64 B of padding, lies in between"
    assert formula(indexer(), layer, "B") == "= 9 layers × 41,984 B + 4 layers × 8,448 B"
    assert jump(overlay(), overlay().layers[18], "B") == \
        "one block jumps 256 KiB because 3 layers and 64 KiB of padding or others lie in between"
    assert formula(dense(), layer, "C") == "side by side"
    assert jump(hybrid(), hybrid().layers[10], "H") == "there is no second head slot"


@pytest.mark.parametrize("axis", "LBHN")
@pytest.mark.parametrize("kind", KINDS)
def test_formulas_add_up(kind, axis):
    address_map = KINDS[kind]()
    for region in address_map.regions:
        if region.geometry.shape[AXES.index(axis)] < 2:
            continue
        text = formula(address_map, region.tensor.layers[0], axis)
        text = text.removeprefix("= ").removesuffix(" of padding or others")
        total = 0
        for term in text.replace("one page, ", "").replace("C, ", "").replace(" padding", "").split(" + "):
            numbers = [int(word.replace(",", "")) for word in term.split("(")[0].split() if word[0].isdigit()]
            total += int(np.prod(numbers)) if numbers else region.page_size_bytes
        assert total == region.geometry.strides[AXES.index(axis)]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_label_of_the_strides_is_cut_off_or_overlaps(kind, theme):
    address_map = KINDS[kind]()
    drawing = StridesFigure(theme)
    for region in address_map.regions:
        drawing.update(address_map, region.tensor.layers[0], title="Model")
        check_labels(drawing.figure)
    assert png_size(drawing.figure) == (960, 460)
    assert len(strides_figure(address_map, 0, theme=theme).axes) == 1


def all_steps(**options):
    common = common_layouts(DECLARED)
    supported = [[layout.name for layout in common.layouts]] * 2
    specs = list(indexer().config.kv_cache_groups[0].layer_specs.values())
    try:
        return common.steps + resolve(supported, specs, **options).steps
    except ResolutionError as error:
        return common.steps + error.steps


@pytest.mark.parametrize("options, chosen", [
    ({}, "LBHNC"), ({"connector": "BLHNC"}, "BLHNC"), ({"connector": "LHBNC"}, "LBHNC"),
    ({"requested": "LBNHC"}, "LBNHC"), ({"pinned": "BHLNC"}, "BHLNC"), ({"requested": "BHLNC"}, None)])
def test_each_cell_says_what_became_of_the_layout(options, chosen):
    steps = all_steps(**options)
    drawing = ResolverFigure()
    drawing.update(steps)
    assert drawing.columns == tuple(KVCacheLayout.__members__)
    for number, (step, row) in enumerate(zip(steps, drawing.states)):
        for name, state in zip(drawing.columns, row):
            if name in step.after:
                decided = number == len(steps) - 1 and name == chosen
                assert state == ("chosen" if decided else "kept")
            elif number == len(steps) - 1 and chosen:
                assert state == ("passed" if name in step.before or name in step.dropped else "gone")
            else:
                assert state == ("dropped" if name in step.before or name in step.dropped else "gone")
    assert drawing.headline == (f"{chosen} is chosen" if chosen else "No layout is left")
    glyphs = [label.text for label in drawing.glyphs.labels]
    for state in ("kept", "dropped", "chosen", "passed", "gone"):
        # One glyph a cell; the reasons begin with the glyph of "dropped", but are longer.
        assert glyphs.count(STATES[state][2]) == sum(row.count(state) for row in drawing.states)
    check_labels(drawing.figure)


def test_reasons_are_listed_where_layouts_are_dropped():
    drawing = ResolverFigure("dark")
    drawing.update(all_steps(connector="LHBNC"))
    texts = [label.text for label in drawing.glyphs.labels]
    assert "✗ BLNHC: not supported by FLASHINFER" in texts
    assert "✗ LHBNC, BHLNC: not supported by FLASH_ATTN, FLASHINFER" in texts
    assert any(text.startswith("The connector wishes for LHBNC") for text in texts)
    assert [text for text in texts if text in ("backends-support", "mixed-specs", "default")] == [
        "backends-support", "mixed-specs", "default"]
    for fact in ("LBHNC is chosen", "not supported by FLASHINFER", "VLLM_KV_CACHE_LAYOUT is not set"):
        assert fact in drawing.alt_text()


def test_a_prototype_gets_a_column_and_candidates_are_no_choice():
    steps = resolve([["LBHNC", "LBNHC"]], [], pinned="LBHNC").steps
    assert len(resolver_figure(steps).axes) == 1
    drawing = ResolverFigure()
    drawing.update(common_layouts(DECLARED).steps)
    assert drawing.headline == "Candidates, most preferred first: LBHNC, LBNHC, BLHNC"
    assert not any("chosen" in row for row in drawing.states)


def test_axes_keep_their_colours(strides):
    strides.update(dense("BHLNC"), 0)
    faces = (strides._bars.get_facecolor()[:, :3] * 255).round().astype(int)
    expected = [[int(AXIS_COLOURS[axis][i:i + 2], 16) for i in (1, 3, 5)] for axis in "BHLNC"]
    assert faces.tolist() == expected
