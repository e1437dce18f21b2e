"""The clinic's notebook in a real browser: all cells run, the contents lead to a case, and one case runs alone."""

import pytest

pytestmark = pytest.mark.browser
CASES = 19


def test_the_clinic_notebook(lab_page):
    notebook = lab_page.open("3_clinic.ipynb")
    notebook.run_all()
    panel = notebook.panel
    assert panel.locator("h2").count() == CASES
    assert panel.locator(".jp-OutputArea .jp-RenderedImage img").count() >= CASES
    links = panel.locator("table a[href^='#']")
    assert links.count() == CASES
    notebook.follow(links.filter(has_text="Misaligned address"), "Misaligned address")
    notebook.screenshot_sections("3_clinic", range(0, CASES, 4))


def test_a_case_runs_alone(lab_page):
    notebook = lab_page.open("3_clinic.ipynb")
    page = notebook.page
    case = notebook.panel.locator(".jp-CodeCell").filter(has_text="xpu-kernels-445.json").first
    case.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    case.locator(".jp-OutputArea-output").filter(has_text="-2,146,988,416").wait_for()
    notebook.wait_idle()
    assert notebook.state()["errors"] == []
