"""The clinic's notebook in a real browser: all cells run, the contents lead to a case, and one case runs alone."""

import pytest

pytestmark = pytest.mark.browser
CASES = 19


def test_the_clinic_notebook(lab_page):
    notebook = lab_page.open("3_clinic.ipynb")
    notebook.run_all()
    page = notebook.page
    panel = page.locator(".jp-NotebookPanel-notebook")
    assert panel.locator("h2").count() == CASES
    assert panel.locator(".jp-OutputArea .jp-RenderedImage img").count() >= CASES
    links = panel.locator("table a[href^='#']")
    assert links.count() == CASES
    # A link of the contents brings its case into view.
    links.filter(has_text="Misaligned address").click()
    page.wait_for_timeout(500)
    assert 0 <= panel.locator("h2").filter(has_text="Misaligned address").bounding_box()["y"] < 900
    page.set_viewport_size({"width": 1250, "height": 2300})
    for theme in ("Light", "Dark"):
        page.evaluate("name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})",
                      f"JupyterLab {theme}")
        page.wait_for_timeout(1_000)
        for number in range(0, CASES, 4):
            panel.locator("h2").nth(number).evaluate("heading => heading.scrollIntoView({block: 'start'})")
            page.wait_for_timeout(150)
            notebook.screenshot(f"3_clinic-{theme.lower()}-{number:02}")


def test_a_case_runs_alone(lab_page):
    notebook = lab_page.open("3_clinic.ipynb")
    page = notebook.page
    case = page.locator(".jp-NotebookPanel-notebook .jp-CodeCell").filter(has_text="xpu-kernels-445.json").first
    case.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    case.locator(".jp-OutputArea-output").filter(has_text="-2,146,988,416").wait_for()
    notebook.wait_idle()
    assert notebook.state()["errors"] == []
