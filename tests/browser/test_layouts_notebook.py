"""The course's first notebook in a real browser: all cells run, a token is followed, a prediction is revealed."""

import re

import pytest

from kvlayout_widgets.course import real_map, tiny_map

pytestmark = pytest.mark.browser


def test_the_layouts_notebook(lab_page):
    notebook = lab_page.open("1_layouts.ipynb")
    notebook.run_all()
    page = notebook.page
    cells = page.locator(".jp-Notebook-cell")
    # Every figure is on screen: stills from the cells, and the pictures of the two exercises once used.
    assert page.locator(".jp-OutputArea img[alt], .jp-OutputArea .jp-RenderedImage img").count() >= 9

    follow = cells.filter(has_text="slot 37 = block 37 // 16").last
    follow.get_by_role("button", name="BLNHC").click()
    notebook.wait_idle()
    expected = real_map("BLNHC").offset(0, 2, 0, 5)
    follow.get_by_text(f"{expected:,} B").first.wait_for()

    predict = cells.filter(has_text="At which byte begins").last
    said = predict.inner_text()
    layer, block, head, token = map(int, re.search(
        r"layer (\d), block (\d), head (\d), token (\d)", said).groups())
    layout = predict.locator(".kvl-chips").first.get_attribute("aria-label")
    truth = tiny_map(layout).offset(layer, block, head, token)
    predict.get_by_role("radio", name=str(truth), exact=True).check()
    predict.get_by_role("button", name="Reveal").click()
    notebook.wait_idle()
    predict.get_by_text("Right.").wait_for()
    page.set_viewport_size({"width": 1300, "height": 7600})
    page.wait_for_timeout(500)
    notebook.screenshot("1_layouts", page.locator(".jp-NotebookPanel-notebook"))
