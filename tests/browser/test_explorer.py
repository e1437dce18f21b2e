"""The explorer in a real browser: a real model's cache is allocated, clicked at, and laid out another way."""

from pathlib import Path

import pytest

from kvlayout import KVCacheLayout, Selection, make_plan
from tests.browser.explorer_page import ExplorerPage

pytestmark = pytest.mark.browser

BLOCKS = 64
@pytest.fixture
def explorer(lab, lab_page):
    return ExplorerPage(lab, lab_page, f"Explorer(num_blocks={BLOCKS})")


def test_a_real_cache_clicked_at_and_laid_out_another_way(explorer):
    plan = make_plan(Selection(num_blocks=BLOCKS))
    assert explorer.picture.get_attribute("alt").startswith("Heatmap of byte offsets in layout LBNHC")
    explorer.root.get_by_role("button", name="Allocate").click()
    size = plan.config.size_bytes
    explorer.root.get_by_text(f"KVCache(LBNHC, {BLOCKS} blocks, 28 layers, {size:,} bytes on cpu)").wait_for()
    explorer.notebook.wait_idle()

    explorer.page.mouse.click(*explorer.point(50, 20))
    explorer.notebook.wait_idle()
    layer = plan.address_map.layers[20]
    offset = plan.address_map.offset(layer, 50)
    assert f"offset {offset:,} B = {offset:#x}" in explorer.readout
    assert "layer 20 · block 50" in explorer.readout

    explorer.root.get_by_role("button", name="Write and read back").click()
    explorer.root.get_by_text(f"at {offset:,} B").wait_for()

    before = explorer.picture.get_attribute("src")
    explorer.choose("Layout", "BLNHC")
    explorer.page.wait_for_function("([image, old]) => image.src !== old",
                                    arg=[explorer.picture.element_handle(), before])
    other = make_plan(Selection(num_blocks=BLOCKS, layout="BLNHC"))
    moved = other.address_map.offset(layer, 50)
    assert moved != offset
    assert f"offset {moved:,} B = {moved:#x}" in explorer.readout
    assert explorer.picture.get_attribute("alt").startswith("Heatmap of byte offsets in layout BLNHC")
    explorer.root.get_by_text("The picture shows another plan than the allocated one").wait_for()
    explorer.root.get_by_role("button", name="Allocate").click()
    explorer.root.get_by_text("KVCache(BLNHC").wait_for()
    explorer.notebook.wait_idle()
    explorer.page.mouse.click(*explorer.point(37, 12))
    explorer.notebook.wait_idle()
    assert "offset 68,681,728 B = 0x4180000" in explorer.readout
    explorer.page.mouse.move(5, 5)
    explorer.notebook.wait_idle()
    # docs/explorer.png, the picture of the README, is a copy of this one.
    shot = explorer.notebook.screenshot("explorer", of=explorer.root)
    assert shot.stat().st_size > 50_000
    explorer.root.get_by_role("button", name="Free").click()
    explorer.root.get_by_text("Nothing is allocated.").wait_for()


def test_the_proof_by_memory_and_the_wrong_reader(explorer):
    explorer.choose("Layout", "LBNHC")
    explorer.root.get_by_role("button", name="Allocate").click()
    explorer.root.get_by_text("KVCache(LBNHC").wait_for()
    explorer.root.get_by_role("button", name="Verify").click()
    explorer.root.get_by_text("✓ All 117,440,512 bytes that were written through the views").wait_for()
    explorer.notebook.wait_idle()

    explorer.tab("Compare")
    assert "written LBNHC, read LBHNC" in explorer.picture.get_attribute("alt")
    explorer.page.mouse.click(*explorer.point(50, 20))
    explorer.notebook.wait_idle()
    assert "layer 20 · block 50" in explorer.readout
    explorer.root.get_by_role("button", name="Confirm on real memory").click()
    explorer.root.get_by_text("✓ Real memory says the same: 126 of 128 cells").wait_for()
    explorer.page.mouse.move(5, 5)
    explorer.notebook.wait_idle()
    assert explorer.notebook.screenshot("compare", of=explorer.root).stat().st_size > 50_000

    # A view with the strides of heads and states exchanged.
    explorer.ask("""(lambda views, name: views.update({name: views[name].as_strided(views[name].shape, (
        views[name].stride(0), 4096, 256, 1), views[name].storage_offset())}))(
        explorer.state.cache.views, 'model.layers.5.self_attn.attn')""")
    explorer.root.get_by_role("button", name="Verify").click()
    explorer.root.get_by_text("bytes differ, of 117,440,512").wait_for()
    explorer.root.locator(".kvl-right .widget-image:visible").wait_for()
    assert explorer.notebook.screenshot("mismatch", of=explorer.root).stat().st_size > 50_000


def test_pages_where_tokens_landed_are_lit(explorer):
    explorer.root.get_by_role("button", name="Allocate").click()
    explorer.root.get_by_text("KVCache(LBNHC").wait_for()
    explorer.notebook.wait_idle()
    explorer.ask("""[globals().update(m=explorer.plan.address_map, c=explorer.state.cache),
        [__import__(name) for name in ('kvlayout.landing', 'kvlayout.slot_mapping', 'kvlayout.memory.snapshot')],
        globals().update(k=__import__('kvlayout'), before=__import__('sys').modules[
            'kvlayout.memory.snapshot'].take_snapshot(c.buffer)),
        [c.views[name][5:8].fill_(1.5) for name in m.layers] and None,
        globals().update(after=k.memory.snapshot.take_snapshot(c.buffer)),
        explorer.light(k.landing.land(m, k.snapshot.changed(before, after), [
            k.slot_mapping.predict(m, 0, list(range(5 * 16, 8 * 16)))]))][-1]""")
    explorer.root.get_by_text("✓ Tokens landed: 672 cells").wait_for()
    explorer.notebook.wait_idle()
    assert explorer.notebook.screenshot("landed", of=explorer.root).stat().st_size > 50_000
    explorer.root.get_by_role("button", name="Lights out").click()
    explorer.root.get_by_text("✓ Tokens landed").wait_for(state="hidden")


def test_hover_keys_and_the_other_tabs(explorer):
    x, y = explorer.point(10, 3)
    explorer.page.mouse.move(x, y)
    tip = explorer.page.locator(".kvlayout-tip:visible")
    tip.wait_for()
    plan = make_plan(Selection(num_blocks=BLOCKS))
    offset = plan.address_map.offset(plan.address_map.layers[3], 10)
    assert f"{offset:,} B = {offset:#x}" in tip.inner_text()
    explorer.page.mouse.click(x, y)
    explorer.notebook.wait_idle()
    explorer.page.keyboard.press("ArrowRight")
    explorer.notebook.wait_idle()
    assert "layer 3 · block 11" in explorer.readout
    for title in ("Page", "Memory", "Resolver", "Strides", "Code"):
        explorer.tab(title)
        explorer.notebook.screenshot(f"explorer-{title.lower()}")
        assert explorer.root.locator(".kvl-status-bad").count() == 0
    assert "make_plan(selection)" in explorer.root.locator("pre.kvl-code:visible").first.inner_text()


def test_the_memory_tab_is_dragged_and_wheeled(explorer):
    explorer.tab("Memory")
    whole = explorer.ask("explorer.tabs['Memory'].window.length")
    (x0, y0), (x1, _) = explorer.point(1 << 20, 2.5), explorer.point(2 << 20, 2.5)
    explorer.page.mouse.move(x0, y0)
    explorer.page.mouse.down()
    explorer.page.mouse.move((x0 + x1) / 2, y0, steps=4)
    explorer.page.mouse.move(x1, y0, steps=4)
    explorer.page.mouse.up()
    explorer.notebook.wait_idle()
    zoomed = explorer.ask("explorer.tabs['Memory'].window.length")
    assert 0.8 * (1 << 20) < zoomed < 1.2 * (1 << 20) < whole
    explorer.page.mouse.wheel(0, -100)
    explorer.notebook.wait_idle()
    assert explorer.ask("explorer.tabs['Memory'].window.length") == round(zoomed / 1.6)
    explorer.page.keyboard.press("Escape")
    explorer.notebook.wait_idle()
    assert explorer.ask("explorer.tabs['Memory'].window.length") == whole


def test_a_wrong_choice_is_explained_beside_its_control(explorer):
    before = explorer.picture.get_attribute("alt")
    box = explorer.control("TP size").locator("input")
    box.fill("3")
    box.press("Enter")
    reason = explorer.control("TP size").locator(".kvl-refused")
    reason.wait_for()
    assert "doesn't divide" in reason.inner_text()
    assert explorer.picture.get_attribute("alt") == before
    explorer.notebook.screenshot("explorer-refused")
    box.fill("2")
    box.press("Enter")
    reason.wait_for(state="detached")


def test_pictures_follow_the_dark_theme(explorer):
    explorer.page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    explorer.page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    explorer.notebook.wait_idle()
    assert explorer.ask("explorer.visible.drawing.theme.name") == "dark"
    explorer.notebook.screenshot("explorer-dark")


def test_files_are_saved_by_the_browser(explorer):
    for kind in ("JSON", "CSV", "PNG"):
        with explorer.page.expect_download() as saved:
            explorer.root.get_by_role("button", name=kind, exact=True).click()
        assert saved.value.suggested_filename.endswith(kind.lower())
        data = Path(saved.value.path()).read_bytes()
        if kind == "JSON":
            assert Selection.from_json(data) == Selection(num_blocks=BLOCKS)
        assert data


def test_the_notebook_of_the_repo_opens_on_the_explorer(lab_page):
    notebook = lab_page.open("explorer.ipynb")
    notebook.run_all()
    notebook.page.locator(".kvlayout-picture img:visible").wait_for()
    assert KVCacheLayout.LBNHC.name in notebook.page.locator(".kvlayout-picture img:visible").get_attribute("alt")


def test_tab_titles_are_never_cut(explorer):
    for width in (1500, 1000, 820):
        explorer.page.set_viewport_size({"width": width, "height": 1000})
        explorer.notebook.wait_idle()
        cut = explorer.page.evaluate("""() => [...document.querySelectorAll('.kvl-explorer .lm-TabBar-tab')]
          .filter(tab => tab.scrollWidth > tab.clientWidth + 1).map(tab => tab.textContent)""")
        assert cut == [], width
