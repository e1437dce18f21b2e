"""The Code tab in a browser: lines stay whole and scroll sideways, and no line is broken inside a word."""

import pytest

from tests.browser.explorer_page import ExplorerPage

pytestmark = pytest.mark.browser
THEMES = ("Light", "Dark")


@pytest.fixture
def explorer(lab, lab_page):
    return ExplorerPage(lab, lab_page, 'Explorer(model="Qwen/Qwen3-0.6B", num_blocks=64)')


@pytest.mark.parametrize("width", [1400, 1000])
def test_lines_of_code_are_not_broken(explorer, width):
    explorer.page.set_viewport_size({"width": width, "height": 1500})
    explorer.tab("Code")
    blocks = explorer.root.locator("pre.kvl-code:visible")
    assert blocks.count() == 3
    overflows = []
    for index in range(3):
        lines, height, line, overflow = blocks.nth(index).evaluate("""one => {
          const style = getComputedStyle(one), pad = parseFloat(style.paddingTop) + parseFloat(style.paddingBottom);
          const text = one.textContent.replace(/\\n$/, '');
          return [text.split('\\n').length, one.scrollHeight - pad, parseFloat(style.lineHeight),
                  one.scrollWidth - one.clientWidth];
        }""")
        overflows.append(overflow)
        assert abs(height - lines * line) < line / 2, index  # a line of text takes one line
    assert max(overflows) > 0 or width > 1000  # else nothing was tried here
    for theme in THEMES:
        explorer.page.evaluate("name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})",
                               f"JupyterLab {theme}")
        explorer.notebook.wait_idle()
        explorer.notebook.screenshot(f"code-{theme.lower()}-{width}", of=explorer.root)
