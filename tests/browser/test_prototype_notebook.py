"""The prototype's notebook in a real browser: all cells run, the contents lead on, the explorer has the backend."""

import pytest

pytestmark = pytest.mark.browser
SECTIONS = 9


def test_the_prototype_notebook(lab_page):
    notebook = lab_page.open("4_prototype.ipynb")
    notebook.run_all()
    page = notebook.page
    panel = page.locator(".jp-NotebookPanel-notebook")
    assert panel.locator("h2").count() == SECTIONS
    assert panel.locator(".jp-OutputArea .jp-RenderedImage img").count() == 3
    panel.locator("li a[href='#The-same-with-a-classic-bug']").click()
    page.wait_for_timeout(500)
    assert 0 <= panel.locator("h2").filter(has_text="The same with a classic bug").bounding_box()["y"] < 900
    # Every verdict says whether it was made now.
    for name in ("triton_writer", "triton_flat_writer", "reshape_and_cache_flash", "reshape_and_cache_flash_diffkv"):
        line = panel.locator(".jp-OutputArea .kvl-line").filter(has_text=f"{name} · ").first.inner_text()
        assert line.startswith((f"{name} · RECORDED on ", f"{name} · run now with "))
    explorer = panel.locator(".kvl-explorer").last
    assert "HeadFirst" in explorer.inner_text()
    page.set_viewport_size({"width": 1250, "height": 2300})
    for theme in ("Light", "Dark"):
        page.evaluate("name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})",
                      f"JupyterLab {theme}")
        page.wait_for_timeout(1_000)
        for number in range(SECTIONS):
            panel.locator("h2").nth(number).evaluate("heading => heading.scrollIntoView({block: 'start'})")
            page.wait_for_timeout(150)
            notebook.screenshot(f"4_prototype-{theme.lower()}-{number + 1}")
