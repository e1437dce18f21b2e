"""The Bench tab's Prototype panel: a backend of one's own, whole or broken, or of the catalogue."""

import html
import re

import pytest

import kvlayout as kv
from kvlayout.bench import PrototypeBackend, try_backend
from kvlayout.facts.backends import get_backend
from kvlayout_widgets import Explorer
from tests.hostile_backends import HOSTILE
from tests.unit.bench_tab import QWEN, is_fine, opened, plain, rows_of


class Mine(PrototypeBackend):
    layouts = ("BLHNC", "LBHNC")
    page_alignment = 100_000


def test_an_empty_bench_shows_the_ten_lines_to_copy():
    shown, panel = opened("Prototype")
    text = plain(panel.text.value)
    assert "class Mine(PrototypeBackend):" in text and "Explorer(backends=[Mine])" in text and panel.show.disabled
    names = {"Explorer": Explorer}
    code = re.search(r"<pre[^>]*>(.*?)</pre>", panel.text.value, re.DOTALL)[1]
    exec(html.unescape(code).replace("Explorer(", "shown = Explorer("), names)
    assert names["shown"].state.backends == (names["Mine"],) and is_fine(shown)


def test_my_own_backend_is_tried_at_once():
    shown, panel = opened("Prototype", [Mine])
    trial = try_backend(Mine, shown.selection)
    text = plain(panel.text.value)
    assert panel.backend.label == "Mine (yours)" and panel.trial.ok and panel.trial.pages == trial.pages
    assert "✓ A layout is resolved" in text and "100,000 B (97.66 KiB)" in text and "34,464 B" in text
    assert "page_size_padded: None → 100000" in text and "K 0" in text and "V 256" in text
    rows = rows_of(panel.text.value)
    assert [row[:3] for row in rows if row[0] == "Mine"] == [["Mine", "BLHNC, LBHNC", "✓ its first choice"]]
    assert "Alone, as no other backend is beside it" in text and "Together with" not in text


def test_together_with_others_who_loses():
    shown, panel = opened("Prototype", [Mine])
    panel.beside.value = ("CPU_ATTN", "FLASH_ATTN", "yours:0")
    rows = rows_of(panel.text.value)
    assert ["Mine", "BLHNC, LBHNC", "! its choice 2", "BLHNC is not supported by CPU_ATTN"] in rows
    assert ["CPU_ATTN", "LBHNC", "✓ its first choice", "nothing"] in rows
    assert ["FLASH_ATTN", "any", "· doesn't mind", "nothing"] in rows
    assert ["Mine", "BLHNC, LBHNC", "✓ its first choice", "nothing"] in rows  # alone
    assert "Together with the others" in plain(panel.text.value)
    assert "! Not its first choice: Mine" in plain(panel.text.value) and is_fine(shown)


def test_what_was_tried_is_what_all_tabs_show():
    shown, panel = opened("Prototype", [Mine])
    assert not panel.trial.forced and "as forced" not in plain(panel.text.value)
    panel.show.click()
    assert (shown.plan.layout.name, shown.selection.layout) == ("BLHNC", None)
    assert "All tabs show Mine in BLHNC now." in plain(panel.said.value)
    # No other tab knows of the backends beside it, so their common layout is forced.
    panel.beside.value = ("CPU_ATTN",)
    assert panel.trial.plan.layout.name == "LBHNC" and "as forced" not in plain(panel.text.value)
    panel.show.click()
    assert (shown.plan.layout.name, shown.selection.layout) == ("LBHNC", "LBHNC") and is_fine(shown)
    assert "All tabs show Mine in LBHNC now, forced." in plain(panel.said.value)
    assert panel.trial.forced and "in LBHNC, as forced" in plain(panel.text.value)


def test_nothing_in_common_is_said_and_the_page_shown_all_the_same():
    flat = type("<b>Flat", (PrototypeBackend,), {"layouts": ("BLNHC",)})
    shown, panel = opened("Prototype", [flat])
    panel.beside.value = ("CPU_ATTN",)
    assert not panel.trial.ok and "✗ No layout" in plain(panel.text.value) and "<b>Flat" not in panel.text.value
    assert "✗ none" in plain(panel.text.value) and "in BLNHC" in plain(panel.text.value)
    panel.show.click()
    assert (shown.selection.backend, shown.plan.layout.name) == ("<b>Flat", "BLNHC") and is_fine(shown)
    assert "✓" in panel.said.value and "<b>Flat" not in panel.said.value


def test_a_layout_that_only_the_prototype_has_is_forced_to_be_shown():
    only = type("Only", (PrototypeBackend,), {"layouts": ("HBLNC",)})
    shown, panel = opened("Prototype", [only])
    assert panel.trial.plan.layout.name == "HBLNC" and not panel.trial.ok
    panel.show.click()
    assert (shown.selection.backend, shown.selection.layout) == ("Only", "HBLNC")
    shown.choose(layout=None)
    assert shown.state.problem is not None  # what can't be planned is tried as it stands
    assert panel.trial is not None and "no-layout-alone" in plain(panel.text.value)


def test_a_backend_of_the_catalogue():
    shown, panel = opened("Prototype")
    panel.backend.value = "FLASHINFER"
    trial = try_backend(get_backend("FLASHINFER"), shown.selection)
    assert panel.trial.pages == trial.pages and panel.trial.alone.layout == trial.alone.layout == "LBNHC"
    panel.show.click()
    assert shown.selection.backend == "FLASHINFER" and is_fine(shown)
    shown.choose(vllm_version="0.29.0")
    assert panel.trial.backend.vllm_version == "0.29.0"


@pytest.mark.parametrize("methods", [
    dict(customize_spec=classmethod(lambda cls, spec: spec.nothing)),
    dict(get_supported_kernel_block_sizes=classmethod(lambda cls, spec=None: ["<script>"])),
    dict(customize_spec=classmethod(lambda cls, spec: 1 / 0)), dict(kernel_block_sizes=(48,)),
    dict(interior=classmethod(lambda cls, spec: "<script>alert(1)</script>"))])
def test_a_broken_backend_is_a_finding_not_a_traceback(methods):
    shown, panel = opened("Prototype", [type("Odd", (Mine,), methods)], block_size=16)
    assert not panel.trial.ok and "✗ error" in plain(panel.text.value) and is_fine(shown)
    assert "<script" not in panel.text.value and "Traceback" not in panel.text.value


@pytest.mark.parametrize("odd", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_object_is_a_finding_and_the_explorer_opens(odd):
    shown, panel = opened("Prototype", [odd, Mine])
    assert is_fine(shown)
    panel.backend.value = next(value for text, value in panel.backend.options
                               if "(yours" in text and not text.startswith("Mine"))
    assert not panel.trial.ok and "✗ error" in plain(panel.text.value) and panel.complaint.value == ""
    assert is_fine(shown) and "Traceback" not in panel.text.value


def test_block_sizes_that_raise_for_a_spec_are_told_and_the_page_shown():
    def ask(cls, spec=None):
        if spec is not None:
            raise RuntimeError("<b>no")
        return [16]
    odd = type("Odd", (Mine,), {"get_supported_kernel_block_sizes": classmethod(ask)})
    shown, panel = opened("Prototype", [odd])
    assert "RuntimeError: <b>no" in plain(panel.text.value) and "<b>no" not in panel.text.value
    assert panel.trial.pages and panel.complaint.value == "" and is_fine(shown)


def test_what_is_no_backend_yet_opens_beside_one_that_is():
    empty = type("<b>Empty", (), {})
    shown = Explorer(kv.Selection(**QWEN), backends=[empty, Mine])
    assert "Not offered" in shown._status.value and "<b>Empty" not in shown._status.value
    shown.show("Bench")
    shown.tabs["Bench"].show("Prototype")
    panel = shown.tabs["Bench"].panels["Prototype"]
    assert panel.backend.label == "<b>Empty (yours, ✗)" and panel.show.disabled
    assert "has no supported_kv_cache_layouts()" in plain(panel.text.value) and "<b>Empty" not in panel.text.value
    panel.backend.value = "yours:0"
    assert panel.trial.ok and panel.trial.backend.name == "Mine"
    with pytest.raises(kv.LayoutError, match="declares no layouts|supported_kv_cache_layouts"):
        Explorer(kv.Selection(**QWEN, backend="<b>Empty"), backends=[empty])


def test_my_own_backend_is_listed_among_the_backends():
    class Listed(PrototypeBackend):
        layouts = ("LBHNC", "BLHNC")

    shown, panel = opened("Backends", [Listed], backend="Listed")
    first = rows_of(panel.text.value)[0]
    assert first[0].startswith("▶ Listed") and first[1] == "★ first choice" and is_fine(shown)
    panel.other.value = "0.29.0"
    assert is_fine(shown) and not panel.complaint.value and "Listed" in panel.matrix.rows[0].backend


def test_a_copy_of_vllms_under_its_name_stands_for_it_there():
    copied = type("FLASH_ATTN", (PrototypeBackend,), {"layouts": ("LBNHC",)})
    shown, panel = opened("Backends", [copied])
    assert is_fine(shown) and not panel.complaint.value
    assert [row.backend for row in panel.matrix].count("FLASH_ATTN") == 1
