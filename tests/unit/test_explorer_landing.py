"""Pages where tokens landed are lit in Offsets and Memory, each cell by its kind, until another plan is shown."""

import numpy as np
import pytest

import kvlayout as kv
from kvlayout.landing import land
from kvlayout.memory.snapshot import take_snapshot
from kvlayout.slot_mapping import predict
from kvlayout.snapshot import changed
from kvlayout_widgets import Explorer
from kvlayout_widgets.figures.common import render_png


@pytest.fixture(scope="module", params=["BLNHC", "LBHNC"])
def landed(request):
    """An explorer, and a landing in its cache: tokens of blocks 5 to 7; two layers left out, one page too many."""
    shown = Explorer(model="Qwen/Qwen3-0.6B", num_blocks=64, layout=request.param)
    shown.state.allocate()
    cache, address_map = shown.state.cache, shown.plan.address_map
    before = take_snapshot(cache.buffer)
    for name in address_map.layers[:26]:
        cache.views[name][5:8, :, :5] = 1.5
    cache.views[address_map.layers[3]][20, 2, 4] = 2
    slots = [block * 16 + row for block in (5, 6, 7) for row in range(5)]
    landing = land(address_map, changed(before, take_snapshot(cache.buffer)), [predict(address_map, 0, slots)])
    shown.state.free()
    return shown, landing


def marked(lit) -> list[int]:
    return [len(marks.get_xdata()) for marks in lit._marks]


def test_offsets_light_each_cell_by_its_kind(landed):
    shown, landing = landed
    shown.show("Offsets")
    shown.light(landing)
    tab = shown.tabs["Offsets"]
    assert marked(tab.drawing.lit) == [26 * 3 * 8, 2 * 3 * 8, 1]
    veil = tab.drawing.lit._veil.get_array()[..., 3] == 0
    lit = np.zeros((28, 64), dtype=bool)
    lit[:, 5:8] = lit[3, 20] = True
    assert (veil == lit).all()
    tab.rows.value = "H"
    shown.select(3, 20)
    # Heads by blocks, at layer 3.
    assert marked(tab.drawing.lit) == [3 * 8, 0, 1]
    tab.rows.value = "N"
    assert marked(tab.drawing.lit) == [0, 0, 0] and not tab.drawing.lit._veil.get_visible()
    tab.rows.value = "L"
    for theme in ("light", "dark"):
        tab.draw(theme)
        assert len(render_png(tab.drawing.figure)) > 5000


def test_memory_lights_the_same_cells_at_their_addresses(landed):
    shown, landing = landed
    shown.show("Memory")
    shown.light(landing)
    tab, address_map = shown.tabs["Memory"], shown.plan.address_map
    assert tab.drawing.mode == "real" and marked(tab.drawing.lit) == [26 * 3 * 8, 2 * 3 * 8, 1]
    cross = tab.drawing.lit._marks[2]
    at = address_map.offset(3, 20, 2)
    pixel = tab.drawing.folded.fold / 760
    assert abs(tab.drawing.offset_at(cross.get_xdata()[0], cross.get_ydata()[0]) - at) <= pixel
    view = tab.drawing.folded
    lit = (tab.drawing.lit._veil.get_array()[..., 3] == 0) & view.inside
    assert set(np.unique(view.located.block[lit])) <= {5, 6, 7, 20}
    shown.select(3, 20, 2)
    tab.zooms["N"].click()
    assert tab.drawing.mode == "tiny" and marked(tab.drawing.lit)[2] >= 1
    assert "Lit: ● landed as predicted (624)" in tab.drawing.alt_text()


def test_the_words_say_what_contradicts_and_the_light_can_be_put_out(landed):
    shown, landing = landed
    shown.light(landing)
    text = shown.landing_bar.text.value
    assert "✗ Tokens landed: 672 cells" in text and "error: 48 cells" in text and "error: 1 cells" in text
    shown.landing_bar.dark.click()
    assert shown.state.landing is None and shown.landing_bar.widget.layout.display == "none"
    shown.light(landing)
    shown.choose(num_blocks=65)
    assert shown.state.landing is None
    shown.choose(num_blocks=64)


def test_a_landing_of_another_cache_is_refused(landed):
    shown, landing = landed
    for other in (Explorer(model="llama-tiny", num_blocks=8), Explorer(model="Qwen/Qwen3-0.6B", num_blocks=7)):
        with pytest.raises(kv.LayoutError):
            other.light(landing)
        assert other.state.landing is None
