"""Fixtures: one JupyterLab and one chromium for all browser tests, a new page for each; see lab.py."""

import pytest
from playwright.sync_api import sync_playwright

from tests.browser.lab import CHROMIUM_ARGS, Lab, LabPage
from tests.conftest import CHROMIUM


@pytest.fixture(scope="package")
def lab(tmp_path_factory):
    """The running JupyterLab, a :class:`Lab`."""
    server = Lab(tmp_path_factory.mktemp("lab"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="package")
def chromium():
    # Playwright starts it headless, with a profile folder of its own that it deletes.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture
def lab_page(lab, chromium):
    """A new page, a :class:`LabPage`; the test fails if the page's scripts threw an error."""
    page = chromium.new_page(viewport={"width": 1500, "height": 1000})
    page.set_default_timeout(30_000)
    wrapped = LabPage(lab, page)
    yield wrapped
    page.close()
    lab.end_kernels()
    assert wrapped.errors == [], "the page's own scripts failed"
