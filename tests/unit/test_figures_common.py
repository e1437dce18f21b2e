"""What all figures share: number formats, readable colours, cheap redraws, and no global state."""

import subprocess
import sys
import time

import numpy as np
import pytest

from kvlayout.errors import LayoutError
from kvlayout_widgets.figures.common import Coordinate, render_png
from kvlayout_widgets.figures.fields import UNOWNED, field_table
from kvlayout_widgets.figures.glyphs import fit, text_width, wrap
from kvlayout_widgets.figures.memory import MemoryFigure
from kvlayout_widgets.figures.offsets import OffsetsFigure
from kvlayout_widgets.figures.page import PageFigure
from kvlayout_widgets.figures.raster import HATCHES, Palette, field_look
from kvlayout_widgets.figures.rulers import index_ticks
from kvlayout_widgets.figures.strides import StridesFigure
from kvlayout_widgets.figures.theme import (
    AXIS_COLOURS,
    DARK,
    FIELD_STYLES,
    LIGHT,
    as_theme,
    exact_address,
    exact_bytes,
    field_style,
    format_bytes,
    ink_on,
    rgb,
)
from kvlayout_widgets.figures.wording import coordinate_words, kind_words, layer_number
from tests.figure_maps import KINDS, huge, hybrid, indexer, small, tiny
from tests.figure_reading import middle, owner_in


@pytest.mark.parametrize("count, text", [
    (0, "0 B"), (512, "512 B"), (1023, "1,023 B"), (1024, "1 KiB"), (37440, "36.56 KiB"), (1835008, "1.75 MiB"),
    (1048570, "1,023.99 KiB"), (1048575, "1 MiB"), (140 << 30, "140 GiB"), (762314752, "727 MiB"),
    (3 << 40, "3 TiB")])
def test_bytes_for_reading(count, text):
    assert format_bytes(count) == text


def test_exact_numbers_are_exact():
    assert exact_address(68681728) == "68,681,728 B = 0x4180000"
    assert exact_bytes(65536) == "65,536 B (64 KiB)"
    assert exact_bytes(512) == "512 B"


@pytest.mark.parametrize("name, number", [
    ("model.layers.12.self_attn.attn", "12"), ("model.language_model.layers.3.attn", "3"), ("layer7", "7"),
    ("h.5.attn", "5"), ("encoder", "encoder"), ("draft_2.model.layers.41.attn", "41")])
def test_a_layers_number_is_read_from_its_name(name, number):
    assert layer_number(name) == number


def test_layers_of_one_number_are_told_by_name():
    address_map = indexer()
    words = coordinate_words(address_map, Coordinate(address_map.layers[10], 2))
    assert words.startswith("layer 3 (model.layers.3.self_attn.indexer.k_cache) · block 2")
    assert coordinate_words(hybrid(), middle(hybrid()), "LB").startswith("layer 1 · block ")
    assert [kind_words(spec) for spec in (address_map.region(0).spec, hybrid().region(10).spec)] == [
        "MLA attention", "Mamba"]


def contrast(a, b):
    def luminance(colour):
        parts = np.array(rgb(colour)) / 255
        parts = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return parts @ (0.2126, 0.7152, 0.0722)
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_can_be_read(theme):
    for ink in (theme.ink, theme.soft, *theme.axis_ink.values()):
        assert contrast(ink, theme.background) >= 4.5
    for name in FIELD_STYLES:
        face, ink, hatch = field_look(name, theme)
        assert contrast(ink_on(face), face) >= 3.2
        assert not hatch or contrast(ink, face) > 1.4


def test_content_is_told_by_more_than_hue():
    # Of what can stand in one page, any two differ in colour, and in hatch or letter.
    pages = [("K", "V", "padding"), ("K", "K scale", "V", "V scale", "V zero", "padding"), ("K", "K norm", "V"),
             ("latent", "rope", "K scale", "padding"), ("state 0", "state 1", "state 2", "state 3", "padding")]
    for page in pages:
        looks = [field_style(name) for name in page]
        assert len({look.face if "scale" not in name else (look.face, look.hatch)
                    for name, look in zip(page, looks)}) == len(page)
        assert len({(look.hatch, look.letter) for look in looks}) == len(page)
    assert all(style.hatch in HATCHES for style in FIELD_STYLES.values())
    assert field_style("latent scale") == field_style("scale")
    assert field_style("K nope") == field_style("K")
    assert field_style("something new") == field_style("something new")
    assert len(set(AXIS_COLOURS.values())) == 5


def test_an_unknown_theme_is_named():
    with pytest.raises(LayoutError, match="light, dark"):
        as_theme("blue")


@pytest.mark.parametrize("kind", KINDS)
def test_field_codes_are_those_of_owners(kind):
    address_map = KINDS[kind]()
    table, rng = field_table(address_map), np.random.default_rng(3)
    for group in range(len(address_map.config.kv_cache_groups)):
        offsets = rng.integers(address_map.size_bytes, size=200)
        codes = table.codes(address_map.locate(offsets, group))
        for offset, code in zip(offsets.tolist(), codes.tolist()):
            owner = owner_in(address_map, offset, group)
            assert (owner is None and code == UNOWNED) or table.names[code] == owner.field


def test_a_palette_paints_faces_and_hatches():
    palette = Palette([("#102030", "#FFFFFF", ""), ("#D55E00", "#000000", "/")])
    image = palette.paint(np.array([[0] * 12, [1] * 12, [1] * 12]))
    assert {tuple(pixel) for pixel in image[0].tolist()} == {(16, 32, 48, 255)}
    assert {tuple(pixel) for pixel in image[1:].reshape(-1, 4).tolist()} == {(213, 94, 0, 255), (0, 0, 0, 255)}


def test_text_is_measured_cut_and_wrapped():
    assert text_width("WWW", 9) > text_width("iii", 9) > 0
    assert text_width("block", 18) == pytest.approx(2 * text_width("block", 9))
    assert fit("short", 1000, 9) == "short"
    cut = fit("a long line of text", 60, 9)
    assert cut.endswith("…")
    assert text_width(cut, 9) <= 60
    lines = wrap("one two three four five six", 60, 9)
    assert " ".join(lines) == "one two three four five six"
    assert all(text_width(line, 9) <= 60 for line in lines)


@pytest.mark.parametrize("first, count, most", [(0, 1, 8), (3, 28, 8), (9000, 64, 12), (0, 11632, 4), (5, 0, 8)])
def test_ticks_are_few_and_inside(first, count, most):
    ticks = index_ticks(first, count, most)
    assert len(ticks) <= most + 1
    assert all(first <= tick < first + count for tick in ticks)
    assert count < 2 or len(ticks) > 1 or count < 5


def redraws():
    """For each figure: how to redraw it for the i-th selection of a map."""
    def selected(address_map, i):
        return Coordinate(address_map.layers[i % 4], i % 3, i % 8, i % 16)

    def offsets(drawing, address_map, i):
        drawing.update(address_map, selected=selected(address_map, i), title="Model")

    def page(drawing, address_map, i):
        drawing.update(address_map, i % 4, i % 3, selected=selected(address_map, i))

    def memory(drawing, address_map, i):
        drawing.update(address_map, selected=selected(address_map, i))

    def tiny_memory(drawing, address_map, i):
        drawing.update(address_map, start=4096 * i, length=24576, selected=selected(address_map, i))

    def strides(drawing, address_map, i):
        drawing.update(address_map, i % 4)

    return {"offsets": (OffsetsFigure, offsets), "page": (PageFigure, page), "memory": (MemoryFigure, memory),
            "tiny memory": (MemoryFigure, tiny_memory), "strides": (StridesFigure, strides)}


@pytest.mark.parametrize("name", redraws())
def test_a_redraw_costs_the_same_for_1_mib_and_140_gib(name):
    kind, redraw = redraws()[name]
    seconds = {}
    # Turn by turn, so that a busy machine slows both alike; the best time of each counts.
    drawings = {make: (kind(), make("BLNHC")) for make in (small, huge)}
    for i in range(9):
        for make, (drawing, address_map) in drawings.items():
            start = time.process_time()
            redraw(drawing, address_map, i)
            render_png(drawing.figure)
            seconds.setdefault(make, []).append(time.process_time() - start)
    assert min(seconds[huge]) < 1.6 * min(seconds[small])


@pytest.mark.parametrize("name", redraws())
def test_redrawing_makes_no_new_artists(name):
    kind, redraw = redraws()[name]
    drawing, counts = kind(), set()
    for make in (small, huge, small, huge):
        redraw(drawing, make("BLNHC"), 1)
        counts.add(len(drawing.figure.findobj()))
    assert len(counts) == 1


def test_a_notebooks_settings_do_not_crop_or_distort():
    import matplotlib

    drawing = OffsetsFigure()
    drawing.update(tiny())
    plain = render_png(drawing.figure)
    with matplotlib.rc_context({"savefig.bbox": "tight", "figure.dpi": 200, "font.size": 30, "text.usetex": False}):
        again = OffsetsFigure()
        again.update(tiny())
        assert render_png(again.figure) == plain


def test_figures_need_no_pyplot_and_no_widgets():
    names = ["common", "memory", "offsets", "page", "resolver", "strides"]
    unwanted = ("matplotlib.pyplot", "ipywidgets", "anywidget", "torch", "vllm")
    code = (f"import sys\nfor name in {names!r}: __import__('kvlayout_widgets.figures.' + name)\n"
            f"print([name for name in {unwanted!r} if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": ":".join(path for path in sys.path if path), "HOME": "/nonexistent"})
    assert done.stdout.strip() == "[]"
