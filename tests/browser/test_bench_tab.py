"""The Bench tab in a real browser: layouts are ranked and forced, backends filtered, a prototype tried."""

import re

import pytest

from tests.browser.explorer_page import ExplorerPage

pytestmark = pytest.mark.browser

MINE = """type("Mine", (__import__("kvlayout.bench").bench.PrototypeBackend,),
    {"layouts": ("HBLNC", "BLHNC", "LBHNC"), "page_alignment": 4096})"""


def select(explorer, label, option):
    of_label = explorer.page.locator(f"label:text-is('{label}')")
    row = explorer.root.locator(".jupyter-widgets:visible", has=of_label).last
    row.locator("select").select_option(label=option)
    explorer.notebook.wait_idle()


def press(explorer, name):
    explorer.root.get_by_role("button", name=name, exact=True).click()
    explorer.notebook.wait_idle()


def test_the_panels(lab, lab_page):
    explorer = ExplorerPage(lab, lab_page, f"Explorer(num_blocks=64, backends=[{MINE}])")
    explorer.page.set_viewport_size({"width": 1600, "height": 1900})
    explorer.tab("Bench")
    explorer.picture.wait_for()
    assert "Dot plot of 120 layouts" in explorer.picture.get_attribute("alt")
    explorer.notebook.screenshot("bench-layouts", of=explorer.root)
    explorer.page.mouse.click(*explorer.ask_point("explorer.visible.visible.picture.axes[0]", 2, 1))
    explorer.notebook.wait_idle()
    assert explorer.ask("explorer.visible.visible.row.value") == "BHLCN"
    select(explorer, "Layout", "HBLNC")
    press(explorer, "Force this layout")
    explorer.root.get_by_text("The cache is planned in HBLNC now").wait_for()
    select(explorer, "Sort by", "read sectors (sectors)")
    select(explorer, "Show", "C isn't innermost")
    explorer.root.get_by_text("are left out by the filter").wait_for()
    explorer.fill("Context", "many")
    explorer.root.get_by_text("must be a whole number of at least 1").wait_for()
    explorer.fill("Context", "4096")
    explorer.notebook.screenshot("bench-layouts-forced", of=explorer.root)

    explorer.panel("Backends")
    explorer.root.get_by_text("96 of 96 backends of vLLM 0.33.0 and of your own").wait_for()
    explorer.notebook.screenshot("bench-backends-all", of=explorer.root)
    press(explorer, "What can I run?")
    select(explorer, "Platform", "cuda")
    select(explorer, "Compare with", "0.31.0")
    explorer.root.get_by_role("cell", name=re.compile("^▶ FLASH_ATTN")).first.wait_for()
    explorer.notebook.screenshot("bench-backends", of=explorer.root)

    explorer.panel("Prototype")
    explorer.root.get_by_text("A layout is resolved, and a cache can be planned").wait_for()
    select(explorer, "Together with", "CPU_ATTN (cpu)")
    explorer.root.get_by_text("is not supported by CPU_ATTN").wait_for()
    explorer.notebook.screenshot("bench-prototype", of=explorer.root)
    explorer.page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    explorer.page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    explorer.notebook.wait_idle()
    for panel in ("Prototype", "Backends", "Layouts"):
        explorer.panel(panel)
        explorer.notebook.screenshot(f"bench-{panel.lower()}-dark", of=explorer.root)
    assert explorer.ask("explorer.visible.drawing.theme.name") == "dark"
    explorer.panel("Prototype")
    press(explorer, "Show it in all tabs")
    explorer.root.get_by_text("All tabs show Mine in HBLNC now").wait_for()
    select(explorer, "Try", "a backend …")
    explorer.root.get_by_text("Choose a backend to try.").wait_for()
    assert "PrototypeBackend" in explorer.root.locator("pre.kvl-code:visible").inner_text()
    assert explorer.root.locator(".kvl-status-bad").count() == 0
