"""The figures of the bench: each cell of a kernel's map and each of the 120 layouts is drawn as what it is."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvlayout import FullAttentionSpec, MambaSpec, MLAAttentionSpec
from kvlayout.bench import check_reader, check_writer, score_layouts
from kvlayout.bench.examples import paged_decode, torch_writer
from kvlayout.bench.kernel_map import CHANGED, MISSING, RIGHT, SIGNS, STRAY, UNTOUCHED, WRONG
from kvlayout.errors import LayoutError
from kvlayout_widgets.figures import KernelMapFigure, TradeoffFigure, kernel_map_figure, tradeoff_figure
from kvlayout_widgets.figures.kernel_map import MOST_ROWS, MOST_STATES
from tests.figure_reading import check_labels, png_size

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=32, dtype="bfloat16")


def flat(key, value, kv_cache, slot_mapping):
    blocks, heads, block_size, content = kv_cache.shape
    rows = kv_cache.as_strided((blocks * block_size, heads, content), (heads * content, content, 1))
    kept = slot_mapping >= 0
    rows[slot_mapping[kept]] = torch.cat([key[:len(kept)][kept], value[:len(kept)][kept]], dim=-1)


def nothing(key, value, kv_cache, slot_mapping):
    pass


def everywhere(key, value, kv_cache, slot_mapping):
    kv_cache[:] = key[0, 0, 0]


def next_state(kv_cache, block_table, seq_lens):
    return paged_decode.gather(kv_cache.roll(-1, dims=2), block_table, seq_lens)


def clears(kv_cache, block_table, seq_lens):
    found = next_state(kv_cache, block_table, seq_lens)
    kv_cache[:, 0, 0] = 0
    return found


LARGE = FullAttentionSpec(block_size=256, num_kv_heads=32, head_size=16, dtype="float16")
LATENT = MLAAttentionSpec(64, num_kv_heads=1, head_size=96, dtype="bfloat16")
REPORTS = {
    "flat": lambda: check_writer(flat, SPEC, cases=12),
    "flat, many heads and states": lambda: check_writer(flat, LARGE, cases=6, vary=[], layouts=["BLHNC"]),
    "nothing is written": lambda: check_writer(nothing, SPEC, cases=6, vary=[]),
    "all of the layer is written": lambda: check_writer(everywhere, SPEC, cases=6, vary=[]),
    "latent": lambda: check_writer(nothing, LATENT, cases=6, vary=[]),
    "reader": lambda: check_reader(next_state, SPEC, cases=6, vary=[]),
    "reader that writes": lambda: check_reader(clears, SPEC, cases=6, vary=[]),
}


@pytest.fixture(scope="module", params=REPORTS)
def report(request):
    return REPORTS[request.param]()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_map_draws_each_cell_as_what_it_is(report, theme):
    drawing, found = KernelMapFigure(theme), report.map
    drawing.update(report, title="a kernel")
    check_labels(drawing.figure)
    assert png_size(drawing.figure) == (960, 460)
    assert len(drawing.rows) <= MOST_ROWS and drawing.cells.shape[1] <= MOST_STATES
    for (layer, block, head), cells in zip(drawing.rows, drawing.cells):
        states = slice(drawing.first_state, drawing.first_state + MOST_STATES)
        np.testing.assert_array_equal(cells, found.cells[layer, block, head, states])
    for side in (0, 1):
        codes, (rows, columns) = drawing._rasters[side].codes, drawing.cells.shape[:2]
        y, x = ((np.arange(count) * 2 + 1) * size // (2 * count) for count, size in
                ((rows, codes.shape[0]), (columns, codes.shape[1])))
        np.testing.assert_array_equal(codes[np.ix_(y, x)], drawing.cells[..., side])
    assert drawing.cells.max() > RIGHT  # something of what went wrong is always to be seen
    for mark in (RIGHT, MISSING, WRONG, STRAY, CHANGED):
        start = SIGNS[mark] if mark > RIGHT else "right"
        told = [entry for entry in drawing._legend.entries if entry.startswith(start)]
        assert told == ([] if not drawing.counts[mark] else told[:1]) and all(
            entry.endswith(f": {drawing.counts[mark]:,}") for entry in told)
    assert "a kernel" in drawing.alt_text() and report.first.message.rstrip(".") in drawing.alt_text()


def test_the_first_divergence_is_framed_and_all_kinds_are_counted():
    report = check_writer(flat, SPEC, cases=12)
    drawing = KernelMapFigure()
    drawing.update(report)
    # By hand: tokens 10 to 13 of block 2 of four heads; rows of 64 elements, four a slot, from state 8 of head 2 on.
    assert drawing.counts == {UNTOUCHED: 3 * 5 * 4 * 16 * 2 - 56, RIGHT: 2, MISSING: 24, WRONG: 6, STRAY: 24,
                              CHANGED: 0}
    assert drawing.footer.startswith("framed: token 0 (slot 42: block 2, state 10), K, head 0, element 0 belongs at")
    assert [tuple(row) for row in drawing.rows] == [(1, 2, head) for head in range(4)]
    assert drawing.rulers[0][0].labels[2] == "layer 1 · block 2 · head 2"
    assert "2 right, 24 not written, 6 wrong value, 24 written, and shouldn't be" in drawing.alt_text()


def test_a_report_without_a_map_is_refused():
    def raises(key, value, kv_cache, slot_mapping):
        raise ValueError("no")

    for writer in (torch_writer.write, raises):
        with pytest.raises(LayoutError, match="has no map"):
            kernel_map_figure(check_writer(writer, SPEC, cases=1, vary=[]))
    with pytest.raises(LayoutError):
        kernel_map_figure(SimpleNamespace(map=None))


LLAMA = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
MAMBA = MambaSpec(block_size=16, shapes=((4, 64), (8, 16)), dtypes=("bfloat16", "float32"))
SCORED = {"70B": (LLAMA, 26_000, 80), "latent": (LATENT, 1_000, 61), "one": (LLAMA, 1, 1), "mamba": (MAMBA, 100, 24)}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("case", SCORED)
@pytest.mark.parametrize("axes", [{}, dict(x="read sectors", y="token run bytes", shade="block run bytes")])
def test_every_layout_is_a_point(case, theme, axes):
    scores = score_layouts(*SCORED[case])
    drawing = TradeoffFigure(theme)
    drawing.update(scores, title="a model", **axes)
    boxes = drawing.figure
    assert png_size(boxes) == (960, 460)
    names = [name for those in drawing.points.values() for name in those]
    assert sorted([*names, *drawing.unscored]) == sorted(one.layout.name for one in scores)
    by_name = {one.layout.name: one.measures for one in scores}
    for (x, y), those in drawing.points.items():
        assert all((by_name[name][axes.get("x", "block runs")], by_name[name][axes.get("y", "head shard runs")])
                   == (x, y) for name in those)
    drawn = sum(len(mark.get_xdata()) for mark, _ in drawing._marks.values())
    assert drawn == len(drawing.points)


def test_the_six_of_a_70b_model_are_named_where_they_are():
    drawing = TradeoffFigure()
    drawing.update(score_layouts(*SCORED["70B"]))
    check_labels(drawing.figure)
    assert {name: at for at, names in drawing.points.items() for name in names if name in (
        "LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")} == {
        "LBHNC": (80, 80), "LBNHC": (80, 1280), "LHBNC": (640, 320), "BLHNC": (1, 80), "BLNHC": (1, 1280),
        "BHLNC": (1, 1)}
    assert [label.text for label in drawing._words.labels] == [
        "vLLM's: 6", "read lines as vLLM's best (131,072), or better: 24", "more: 90"]
    assert drawing.footer.startswith("better is lower left")
    assert "Best in both: BHLNC, BHLCN, BHNLC, BHNCL, BHCLN, BHCNL." in drawing.alt_text()


def test_measures_that_are_no_counts_are_refused():
    scores = score_layouts(*SCORED["70B"])
    for name in ("x", "y", "shade"):
        for bad in ("padding", "no such", None, ["block runs"]):
            with pytest.raises(LayoutError) as error:
                tradeoff_figure(scores, **{name: bad})
            assert error.value.argument == name
    with pytest.raises(LayoutError):
        tradeoff_figure([])
