"""A narrow page: text wraps, and what doesn't fit scrolls by itself instead of being cut off."""

import re

import pytest

from tests.browser.explorer_page import ExplorerPage

pytestmark = pytest.mark.browser

# Run in the page: what is wider than its place, other than what is meant to scroll (tables, code, lists,
# pictures whose words couldn't be read if they were smaller).
CUT_JS = """() => [...document.querySelectorAll('.kvl-explorer *')]
  .filter(one => one.offsetParent && one.clientWidth && one.scrollWidth > one.clientWidth + 2
    && getComputedStyle(one).overflowX !== 'visible'
    && !['SELECT', 'OPTION', 'INPUT', 'TEXTAREA', 'PRE'].includes(one.tagName)
    && !one.matches('.kvl-wide, .kvl-scroll, :has(> .kvlayout-picture)'))
  .map(one => `${one.tagName}.${one.className}: ${one.scrollWidth} of ${one.clientWidth} px`)"""


@pytest.mark.parametrize("width", [820, 1000])
def test_nothing_is_cut_off(lab, lab_page, width):
    explorer = ExplorerPage(lab, lab_page, "Explorer()")
    page = explorer.page
    page.set_viewport_size({"width": width, "height": 2200})
    titles = explorer.root.locator(".lm-TabBar-tabLabel").all_inner_texts()
    assert {"Offsets", "Transfer", "Clinic", "Bench", "Resolver"} <= set(titles)
    seen, cut = [], {}
    for title in titles:
        explorer.tab(title)
        panels = explorer.root.locator(".widget-toggle-buttons:visible .widget-toggle-button").all_inner_texts()
        for panel in panels or [None]:
            if panel is not None:
                explorer.panel(re.escape(panel))
            seen.append((title, panel))
            if found := page.evaluate(CUT_JS):
                cut[title, panel] = found
    assert len(seen) > 18, seen
    assert cut == {}


def test_pictures_stay_large_enough_to_be_read(lab, lab_page):
    explorer = ExplorerPage(lab, lab_page, "Explorer()")
    explorer.page.set_viewport_size({"width": 1000, "height": 1400})
    for tab, panel in (("Transfer", "Two sides"), ("Bench", "Layouts")):
        explorer.tab(tab)
        explorer.panel(panel)
        assert explorer.picture.bounding_box()["width"] >= 760
        place = explorer.picture.evaluate("image => image.closest(':has(> .kvlayout-picture)').clientWidth")
        assert place < 760  # it scrolls there
