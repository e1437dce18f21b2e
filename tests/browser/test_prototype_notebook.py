"""The prototype's notebook in a real browser: all cells run, the contents lead on, the explorer has the backend."""

import pytest

pytestmark = pytest.mark.browser
SECTIONS = 9


def test_the_prototype_notebook(lab_page):
    notebook = lab_page.open("4_prototype.ipynb")
    notebook.run_all()
    panel = notebook.panel
    assert panel.locator("h2").count() == SECTIONS
    assert panel.locator(".jp-OutputArea .jp-RenderedImage img").count() == 3
    notebook.follow(panel.locator("li a[href='#The-same-with-a-classic-bug']"), "The same with a classic bug")
    # Every verdict says whether it was made now.
    for name in ("triton_writer", "triton_flat_writer", "reshape_and_cache_flash", "reshape_and_cache_flash_diffkv"):
        line = panel.locator(".jp-OutputArea .kvl-line").filter(has_text=f"{name} · ").first.inner_text()
        assert line.startswith((f"{name} · RECORDED on ", f"{name} · run now with "))
    explorer = panel.locator(".kvl-explorer").last
    assert "HeadFirst" in explorer.inner_text()
    notebook.screenshot_sections("4_prototype", range(SECTIONS))
