"""The Bench tab, driven through its widgets: it shows what the library says, and refuses beside the control."""

import html

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlayout as kv
from kvlayout.bench import KEEPS, MEASURES, DecodeShape, backend_matrix, matrix_diff, ranked, score_layouts
from kvlayout_widgets.figures.scores import ScoresFigure, spread
from kvlayout_widgets.panels.matrix import SIGNS
from kvlayout_widgets.panels.scores import FILTERS
from kvlayout_widgets.tabs.bench import PANELS
from tests.unit.bench_tab import captured, is_fine, opened, plain, rows_of

TITLES = [panel.title for panel in PANELS]
SPEC = kv.FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
SIX = list(kv.KVCacheLayout.__members__)


def marked(panel) -> list[list[str]]:
    """Rows of the scores: the layout's cell is its name, and its marks come last."""
    return [[place, both[:5], *rest, both[5:]] for place, both, *rest in rows_of(panel.text.value)]


@pytest.mark.parametrize("choices", [
    *({"model": model, "num_blocks": 40} for model in kv.presets()), {"num_blocks": 0}, {"num_blocks": 1},
    {"model": "gemma3-hybrid-tiny", "num_blocks": 5, "layout": "BLHNC"}, {"layout": "CNHBL"},
    {"model": captured(), "num_blocks": None}], ids=lambda one: str(one)[:60])
def test_every_panel_opens_on_every_kind_of_cache(choices):
    shown, _ = opened(TITLES[0], **choices)
    bench = shown.tabs["Bench"]
    for title in TITLES:
        bench.show(title)
        assert is_fine(shown) and not bench.is_stale
    assert bench.panels["Backends"].text.value
    if choices.get("num_blocks") != 0:
        assert len(bench.panels["Layouts"].scores) == 120
    for layer in shown.plan.address_map.layers[:40] if shown.state.coordinate else []:
        shown.select(layer, 0)
        for title in TITLES[:2]:
            bench.show(title)
            assert is_fine(shown), layer


def test_the_scores_are_the_librarys_for_the_selected_layer():
    shown, panel = opened("Layouts")
    scores = score_layouts(SPEC, 64, 28)
    assert panel.scores == scores
    panel.measure.value, panel.filter.value = "token runs", "the six of vLLM"
    found = marked(panel)
    by_name = {one.layout.name: one.measures for one in scores}
    assert [row[1] for row in found] == ["LBNHC", "BLNHC", "LBHNC", "LHBNC", "BLHNC", "BHLNC"]
    assert [row[0] for row in found] == ["1", "1", "3", "3", "3", "3"]  # equal scores share a place
    for row in found:
        one = by_name[row[1]]
        assert row[2] == f"{one['token runs']:,}"
        assert row[3] == f"{one['block runs']:,} × {one['block run bytes']:,}"
        assert row[7] == f"{one['read sectors']:,} / {one['read lines']:,}" == "131,072 / 32,768"
        assert row[9] == "".join(letter if one[name] else "-" for letter, name in KEEPS.items())
        assert row[-1] == ("▶ vLLM" if row[1] == shown.plan.layout.name else "vLLM")
    assert DecodeShape(4096).sentence(SPEC, shown.plan.config.num_blocks) in plain(panel.text.value)
    assert list(KEEPS.values()) == [name for name, one in MEASURES.items() if one.unit == "yes/no"]
    assert "C contiguous page" in plain(panel.text.value) and "A head shard is 4 of the 8" in plain(panel.text.value)
    assert "token runs (runs)" in plain(panel.text.value) and "head shard: runs × bytes" in plain(panel.text.value)


@pytest.mark.parametrize("measure", MEASURES)
def test_any_measure_sorts_both_ways(measure):
    _, panel = PANEL_OF_LAYOUTS
    panel.filter.value, panel.measure.value = "all 120", measure
    sign = 1 if MEASURES[measure].better == "less" else -1
    for direction, way in (("best first", sign), ("worst first", -sign)):
        panel.direction.value = direction
        values = [one.measures[measure] for one in panel.listed]
        assert len(values) == 120 and values == sorted(values, key=lambda one: way * one)
        assert panel.drawing.order == panel.listed
        found = marked(panel)
        assert [row[1] for row in found] == [one.layout.name for one in panel.listed]
        assert panel.drawing.names == [one.layout.name for one in panel.listed if one.in_vllm]


PANEL_OF_LAYOUTS = opened("Layouts")


def test_filters_show_what_they_say():
    shown, panel = PANEL_OF_LAYOUTS
    panel.measure.value, panel.direction.value = "head shard runs", "best first"
    for name, keeps in FILTERS.items():
        panel.filter.value = name
        assert panel.listed == ranked([one for one in panel.scores if keeps(one)], "head shard runs")
        assert list(panel.row.options) == [one.layout.name for one in panel.listed] and is_fine(shown)
    panel.filter.value = "views exist"
    assert {one.layout.name[-1] for one in panel.listed} == {"C"} and len(panel.listed) == 24
    assert "96 of 120 are left out by the filter" in plain(panel.text.value)
    panel.filter.value = "all 120"


def test_context_and_shards_count():
    _, panel = opened("Layouts")
    panel.context.value, panel.shards.value = "100", "8"
    assert panel.scores == score_layouts(SPEC, 64, 28, shards=8, decode=DecodeShape(100))
    assert "at 100 tokens" in plain(panel.text.value)
    panel.shards.value = "999,999"
    assert "8 heads can't be dealt out evenly to 999,999 shards" in plain(panel.text.value)
    assert "No head shard is counted" in panel.drawing.alt_text() and panel.drawing.order == []
    assert {row[5] for row in marked(panel)} == {"–"} and panel.complaint.value == ""
    panel.shards.value = "8"
    for field in (panel.context, panel.shards):
        good = field.value
        for bad in ("", "x", "0", "-1", "1.5", "<b>2</b>", "9" * 30, "٣x"):
            field.value = bad
            assert field.description in panel.complaint.value and "at least 1" in panel.complaint.value
            assert panel.text.value == "" and "<b>2" not in panel.complaint.value
        field.value = good
        assert panel.complaint.value == "" and panel.text.value


def test_a_mixed_models_scores_are_of_the_selected_layers_kind():
    shown, panel = opened("Layouts", model="Qwen/Qwen3-Next-80B-A3B-Instruct", num_blocks=8)
    for layer, spec in list(shown.plan.config.layer_specs.items())[:4]:
        shown.select(layer, 1)
        group = next(one for one in shown.plan.config.kv_cache_groups if layer in one.layer_names)
        assert panel.scores == score_layouts(spec, 8, len(group.layer_names))
    refused = [one for one in panel.scores if one.refused]
    assert refused and f"{len(refused)} layouts can't hold these pages" in panel.drawing.footer


def test_a_layout_is_forced_on_the_whole_explorer():
    shown, panel = opened("Layouts")
    panel.row.value = "HBLNC"
    panel.force.click()
    assert shown.selection.layout == "HBLNC" == shown.plan.layout.name and is_fine(shown)
    assert "✓" in plain(panel.said.value) and [row[1] for row in marked(panel) if "▶" in row[-1]] == ["HBLNC"]
    assert panel.drawing.names[-1] == "HBLNC" or "HBLNC" in panel.drawing.names
    shown.choose(num_blocks=9)
    assert panel.said.value == "" and panel.row.value == "HBLNC"


def test_what_cannot_be_planned_leaves_the_cache_as_it_was():
    shown, panel = opened("Layouts", model="Qwen/Qwen3-Next-80B-A3B-Instruct", num_blocks=8)
    before = shown.plan
    panel.row.value = next(one.layout.name for one in panel.scores if one.refused)
    panel.force.click()
    assert "✗" in panel.said.value and "layout" in panel.said.value and is_fine(shown)
    assert shown.plan is before and shown.state.choices["layout"] is None and shown.state.problem is None
    panel.row.value = "BLHNC"
    assert panel.said.value == ""


def test_a_captured_config_is_scored_but_not_planned_anew():
    shown, panel = opened("Layouts", model=captured(), num_blocks=None)
    assert panel.scores == score_layouts(SPEC, 64, 28)
    panel.force.click()
    assert "captured config" in panel.said.value and "planned elsewhere" in panel.said.value and is_fine(shown)
    assert shown.plan.layout.name == "LBNHC"
    shown.tabs["Bench"].show("Prototype")
    prototype = shown.tabs["Bench"].panels["Prototype"]
    prototype.backend.value = "FLASH_ATTN"
    assert "captured config" in prototype.complaint.value and prototype.show.disabled and is_fine(shown)


def test_a_dot_says_and_chooses_its_layout():
    shown, panel = opened("Layouts")
    worst = panel.listed[-1]
    assert panel.hovered(120.2, 3.0, 0) == f"{worst.layout.name}\nhead shard runs: 917,504 runs"
    assert panel.hovered(500.0, 3.0, 0) == "" == panel.hovered(3.0, 3.0, 1)
    panel.picture.set_state({"click": {"x": 120.0, "y": 1.0, "axes": 0, "n": 1}})
    assert panel.row.value == worst.layout.name and is_fine(shown)
    assert "vLLM's six: BHLNC: 1 run; LBHNC: 28 runs" in panel.drawing.alt_text()


def test_a_redraw_costs_the_same_for_any_pool():
    _, small = opened("Layouts", num_blocks=1)
    _, large = opened("Layouts", num_blocks=10_000_000)
    assert len(rows_of(small.text.value)) == len(rows_of(large.text.value)) == 120


@given(st.lists(st.tuples(st.floats(0, 900), st.floats(1, 60)), max_size=8))
@settings(deadline=None)
def test_names_keep_apart_and_in_order(given_names):
    given_names.sort()
    widths = [width for _, width in given_names]
    centres = spread([at for at, _ in given_names], widths, 8, 900)
    for index in range(len(centres) - 1):
        assert centres[index + 1] - centres[index] >= (widths[index] + widths[index + 1]) / 2 + 8 - 1e-6
    assert all(at - width / 2 >= -1e-6 and at + width / 2 <= 900 + 1e-6 for at, width in zip(centres, widths))


def test_a_figure_of_what_no_layout_holds():
    nothing = kv.FullAttentionSpec(block_size=1, num_kv_heads=1, head_size=1, dtype="int8", tokens_per_state=2)
    drawing = ScoresFigure("dark")
    drawing.update(score_layouts(nothing, 4, 2), "token runs", chosen="LBNHC")
    assert drawing.order == [] and "120 layouts can't hold these pages" in drawing.footer
    with pytest.raises(kv.LayoutError, match="measure"):
        drawing.update([], "speed")


def test_the_matrix_is_the_librarys():
    shown, panel = opened("Backends")
    matrix = backend_matrix(shown.selection.vllm_version)
    found = rows_of(panel.text.value)
    assert len(found) == len(matrix) > 90
    for row, shown_row in zip(matrix, found):
        assert shown_row[0].removeprefix("▶ ").startswith(row.backend)
        assert shown_row[1:7] == [SIGNS[row.cells[name].state][0] for name in SIX]
    assert "▶ " + next(iter(shown.plan.backends.values())).name in plain(panel.text.value)
    why = html.escape(matrix.row("FLASHINFER").cells["LBNHC"].why)
    assert f'title="{why}"' in panel.text.value


def test_what_can_i_run():
    shown, panel = opened("Backends", block_size=64)
    panel.mine.click()
    wanted = dict(platform="cpu", dtype="bfloat16", kv_cache_dtype="auto", mla=False, head_size=128,
                  block_size=64)
    assert panel.matrix == backend_matrix(**wanted) and panel.matrix.row("CPU_ATTN") and is_fine(shown)
    assert f"{len(panel.matrix.excluded)} that can't, and why" in plain(panel.text.value)
    shown.choose(block_size=None)  # vLLM takes a block size that the backend likes
    panel.mine.click()
    assert panel.block_size.value == "" and panel.matrix.row("CPU_ATTN")
    shown.choose(block_size=64)
    panel.mine.click()
    panel.platform.value, panel.mla.value, panel.head_size.value = "cuda", "yes", "576"
    assert panel.matrix == backend_matrix(**{**wanted, "platform": "cuda", "mla": True, "head_size": 576})
    panel.name.value = "flashmla"
    assert [row[0] for row in rows_of(panel.text.value) if "FLASHMLA" in row[0]] and "TRITON_MLA" not in plain(
        panel.text.value)
    panel.clear.click()
    assert panel.matrix == backend_matrix() and not panel.matrix.excluded
    shown.choose(model="deepseek-ai/DeepSeek-V3", block_size=64)
    panel.mine.click()
    assert (panel.mla.value, panel.head_size.value) == ("yes", "576")


def test_another_release_and_the_difference():
    shown, panel = opened("Backends")
    panel.version.value = "0.32.0"
    assert panel.matrix == backend_matrix("0.32.0")
    panel.other.value = "0.31.0"
    assert panel.diff == matrix_diff("0.31.0", "0.32.0") and "vLLM 0.31.0 to 0.32.0" in plain(panel.text.value)
    rows = [row for row in rows_of(panel.text.value) if row[:2] == ["FLASHINFER_MLA_SPARSE_SM90", "LBNHC"]]
    assert rows == [["FLASHINFER_MLA_SPARSE_SM90", "LBNHC", "✗ no", "★ first choice"]]
    panel.other.value = "0.33.0"  # the older release is always told first
    assert panel.diff == matrix_diff("0.32.0", "0.33.0")
    panel.platform.value = "cpu"
    old, new = (backend_matrix(version, platform="cpu") for version in ("0.32.0", "0.33.0"))
    assert panel.diff == matrix_diff(old, new)
    panel.other.value = "0.32.0"
    assert "Nothing changed" in plain(panel.text.value)
    panel.version.value = "as chosen"
    shown.choose(vllm_version="0.29.0")
    assert panel.matrix.version == "0.29.0" and is_fine(shown)


@pytest.mark.parametrize(("part", "value", "said"), [
    ("head_size", "x", "head_size"), ("head_size", "0", "at least 1"), ("block_size", "-16", "at least 1"),
    ("block_size", "<i>", "block_size")])
def test_filters_that_mean_nothing_are_refused_beside_them(part, value, said):
    shown, panel = PANEL_OF_BACKENDS
    panel.clear.click()
    getattr(panel, part).value = value
    assert said in panel.complaint.value and panel.text.value == "" and is_fine(shown)
    assert "<i>" not in panel.complaint.value
    getattr(panel, part).value = ""
    assert panel.complaint.value == "" and panel.text.value


PANEL_OF_BACKENDS = opened("Backends")


def test_nothing_does_all_that():
    _, panel = PANEL_OF_BACKENDS
    panel.clear.click()
    panel.name.value = "<script>"
    assert "No backend" in panel.text.value and "<script" not in panel.text.value
    panel.clear.click()
    shown, panel = opened("Backends", num_blocks=0)
    panel.mine.click()
    assert "no layer" in panel.complaint.value and is_fine(shown)
    shown, panel = opened("Backends", model="Qwen/Qwen3-Next-80B-A3B-Instruct", num_blocks=8)
    shown.select(next(name for name, one in shown.plan.backends.items() if one.name == "GDN_ATTN"), 0)
    panel.mine.click()
    assert "recurrent state" in panel.complaint.value and is_fine(shown)


@pytest.mark.parametrize("box", ["head_size", "block_size"])
def test_a_box_names_its_own_empty_word_and_takes_it(box):
    shown, panel = opened("Backends")
    field = getattr(panel, box)
    everything = len(panel.matrix)
    field.value = "abc"
    assert f"Write one such as 64, or {field.placeholder}." in plain(panel.complaint.value)
    field.value = field.placeholder.upper()
    assert panel.complaint.value == "" and len(panel.matrix) == everything and is_fine(shown)
