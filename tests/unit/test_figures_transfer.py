"""The figures of a transfer: bars stand where the numbers say, and nothing is cut off or lies over another text."""

import math

import numpy as np
import pytest

from kvlayout.clinic import Fates, Side, Transfer, exchange, mistaken
from kvlayout.errors import LayoutError
from kvlayout_widgets.figures import exchange_figure, transfer_figure
from kvlayout_widgets.figures.exchange import _PAGES, FATES, ExchangeFigure, fate_words
from kvlayout_widgets.figures.transfer import TransferFigure, below_words, percent
from tests.clinic.test_exchange import qwen
from tests.figure_reading import check_labels, png_size

SCATTERED = Transfer({length * 65536: 5000 // length**2 + 1 for length in range(1, 60)})
CASES = {
    "plain": {"LBNHC": Transfer({65536: 28}), "BLNHC": Transfer({1835008: 1}), "LHBNC": Transfer({8192: 224})},
    "many lengths": {"LBNHC": SCATTERED, "BLNHC": Transfer({one * 28: n for one, n in SCATTERED.run_bytes.items()})},
    "refused": {"LBNHC": Transfer({8448: 61, 73728: 61}), "LHBNC": "can't express mixed page sizes [8448, 73728] "
                "bytes, and says so in many words that never seem to end " * 3},
    "nothing": {"LBNHC": Transfer()},
    "far apart": {"LBNHC": Transfer({1: 10**9, 2**46: 1})},
    "none at all": {},
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("threshold", [0, 1, 65536, 1 << 20, 1 << 50])
def test_nothing_is_cut_off_or_overlaps(case, theme, threshold):
    drawing = TransferFigure(theme)
    drawing.update(CASES[case], chosen="LBNHC", threshold_bytes=threshold, what="Block 5 of 28 layers", title="Model")
    check_labels(drawing.figure)
    assert png_size(drawing.figure) == (960, 460)


def test_bars_hold_all_runs_and_never_cross_the_threshold():
    drawing = TransferFigure()
    for threshold in (0, 65536, 1 << 20, 3 << 20):
        drawing.update(CASES["many lengths"], threshold_bytes=threshold)
        for name, one in CASES["many lengths"].items():
            bars = [bar for bar in drawing.bars if bar.layout == name]
            assert sum(bar.count for bar in bars) == one.num_runs
            assert all(bar.longest < threshold or bar.shortest >= threshold for bar in bars)
            at = [bar.at for bar in bars]
            assert at == sorted(at) and len(bars) < len(one.run_bytes)
    drawing.update(CASES["plain"], threshold_bytes=65536)
    assert [(bar.layout, bar.count, bar.shortest, bar.at) for bar in drawing.bars] == [
        ("LBNHC", 28, 65536, 16), ("BLNHC", 1, 1835008, math.log2(1835008)), ("LHBNC", 224, 8192, 13)]
    assert drawing.words_at(0, 2) == "LHBNC: 224 × 8 KiB, 1.75 MiB in all"
    assert drawing.words_at(0, 3) == drawing.words_at(0, -1) == ""


@pytest.mark.parametrize("threshold", [-1, 1 << 51, 10**400, 0.5, None, "64 KiB", True])
def test_a_bad_threshold(threshold):
    with pytest.raises(LayoutError) as error:
        transfer_figure(CASES["plain"], threshold_bytes=threshold)
    assert error.value.argument == "threshold_bytes"


def test_shares_in_words():
    assert below_words(Transfer({512: 3, 4096: 1}), 4096) == "3 of 4 below, 27.27 % of bytes"
    assert [percent(share) for share in (0, 1, 1e-9, 1 - 1e-9, 0.5)] == ["0", "100", "0.01", "99.99", "50"]
    assert fate_words(np.array([0, 0, 0, 0])) == "no bytes"
    assert fate_words(np.array([3, 0, 0, 1])) == "75 % wrong, 25 % right"


def drawn(theme="light", layout="LBHNC", side="source", blocks=(0, 1), **options):
    one = Side(qwen(1, "LBNHC"), 0, 1, 8)
    request = dict(source_blocks=list(blocks), target_blocks=list(blocks))
    meant = exchange([one], one, **request)
    found = mistaken([one], one, assumed_layout=layout, side=side, **request)
    drawing = ExchangeFigure(theme)
    drawing.update(Fates(found, meant, [one], one), one, blocks, layer=one.layers[3], elsewhere_bytes=found.stray,
                   **options)
    return drawing


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("layout", ["LBHNC", "BLNHC", "BHLNC"])
def test_the_two_heatmaps(theme, layout):
    drawing = drawn(theme, layout, "target", column=1, cell=(1, 0), headline="from here to there", footer="first",
                    sentence="✗ something is wrong")
    check_labels(drawing.figure)
    assert drawing.page == (drawing._layers[3], 1)
    assert drawing.pages.sum() == 2 * 28 * 65536 and drawing.cells.sum() == 65536
    assert drawing.callouts[0].lines == () and drawing.callouts[1]._outline[0].get_visible()
    assert drawing.page_at(1.2, 3.9) == (drawing._layers[3], 1) and drawing.page_at(2.1, 0) is None
    assert drawing.cell_at(15.5, 7.5).state == 15 and drawing.cell_at(-0.5, 0) is None


def test_each_page_is_painted_in_its_shares():
    drawing = drawn()
    codes, wide = drawing._rasters[0].codes, (_PAGES[2] - _PAGES[0]) // 2
    row = codes[codes.shape[0] // 56]
    names = list(FATES)
    # 126 of 128 cells are wrong, from the left; what is right is at the right edge.
    wrong = int((row[:wide] == names.index("wrong")).sum())
    assert wrong == pytest.approx(wide * 126 / 128, abs=2) and row[0] == names.index("wrong")
    assert set(row[wrong + 1:wide - 1].tolist()) == {names.index("right")}
    cells = drawing._rasters[1].codes
    assert cells[3, 3] == names.index("right") and cells[3, 40] == names.index("wrong")


def test_a_small_share_is_still_seen():
    drawing = drawn("light", "BHLNC", "target", blocks=tuple(range(15)))
    names, codes = list(FATES), drawing._rasters[0].codes
    for name, counts in zip(names, drawing.pages):
        if counts.any() and name in ("wrong", "missing"):
            assert (codes == names.index(name)).any(), name


def test_more_than_is_drawn_is_said_and_the_page_is_among_them():
    one = Side(qwen(1, "LBNHC", 200), 0, 1, 8)
    blocks = list(range(150))
    done = exchange([one], one, source_blocks=blocks, target_blocks=blocks)
    drawing = ExchangeFigure()
    drawing.update(Fates(done, done, [one], one), one, blocks, layer=27, column=149)
    assert drawing.pages.shape == (4, 28, 64) and drawing.first_column == 86
    assert drawing.rulers[0][1].title == "the target's blocks, in token order  B   (64 of 150)"
    assert drawing.page_at(63.5, 27.5) == (one.layers[27], 149)
    check_labels(drawing.figure)


def test_bad_arguments_and_the_function():
    one = Side(qwen(1, "LBNHC"), 0, 1, 8)
    done = exchange([one], one, source_blocks=[1], target_blocks=[2])
    fates = Fates(done, done, [one], one)
    assert exchange_figure(fates, one, [2], layer=0, theme="dark").alt
    for wrong in (dict(layer="no"), dict(layer=0, column=-1), dict(layer=0, column=None)):
        with pytest.raises(LayoutError):
            exchange_figure(fates, one, [2], **wrong)
