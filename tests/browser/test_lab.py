"""The harness itself: a notebook runs in a real browser, and a click reaches the kernel and comes back."""

import pytest

pytestmark = pytest.mark.browser

BUTTON = """import ipywidgets as widgets
import kvlayout
label, button = widgets.Label("waiting"), widgets.Button(description="Press me")
button.on_click(lambda _: setattr(label, "value", f"pressed, {kvlayout.__name__} is here"))
widgets.VBox([button, label])"""


def test_a_click_reaches_the_kernel_and_comes_back(lab, lab_page):
    lab.write("button.ipynb", ["1 + 1", BUTTON])
    notebook = lab_page.open("button.ipynb")
    notebook.run_all()
    assert notebook.output.first.inner_text().strip() == "2"
    notebook.page.get_by_text("waiting", exact=True).wait_for()
    notebook.page.get_by_role("button", name="Press me").click()
    notebook.page.get_by_text("pressed, kvlayout is here").wait_for()
    notebook.wait_idle()
    shot = notebook.screenshot("harness")
    assert shot.stat().st_size > 10_000


def test_a_failing_cell_fails_the_test(lab, lab_page):
    lab.write("failing.ipynb", ["1 + 1", "1 / 0", "2 + 2"])
    notebook = lab_page.open("failing.ipynb")
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        notebook.run_all()
