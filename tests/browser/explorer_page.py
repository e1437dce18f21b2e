"""The explorer in a notebook of a real browser, as tests handle it."""

import json
import re

MIDDLE = """([image, axes, x, y]) => {
  const box = image.getBoundingClientRect();
  const fx = axes.x0 + (axes.x1 - axes.x0) * (x - axes.xlim[0]) / (axes.xlim[1] - axes.xlim[0]);
  const fy = axes.y0 + (axes.y1 - axes.y0) * (y - axes.ylim[0]) / (axes.ylim[1] - axes.ylim[0]);
  return [box.left + fx * box.width, box.top + (1 - fy) * box.height];
}"""


class ExplorerPage:
    """The explorer in a notebook; ``explorer`` is its name in the kernel."""

    def __init__(self, lab, lab_page, code):
        lab.write("try.ipynb", ["from kvlayout_widgets import Explorer", f"explorer = {code}\nexplorer", ""])
        self.notebook = lab_page.open("try.ipynb")
        self.page = self.notebook.page
        self.page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
        self.notebook.run_all()
        self.root = self.page.locator(".kvl-explorer")
        self.picture.wait_for()

    @property
    def picture(self):
        return self.page.locator(".kvlayout-picture img:visible")

    @property
    def readout(self):
        return self.root.locator(".kvl-readout").inner_text()

    def tab(self, title):
        self.root.locator(".lm-TabBar-tabLabel", has_text=re.compile(f"^{title}$")).click()
        self.notebook.wait_idle()

    def control(self, label):
        return self.root.locator(".kvl-control", has=self.page.locator(f"label:text-is('{label}')"))

    def panel(self, title):
        self.root.locator(".widget-toggle-button:visible", has_text=re.compile(f"^{title}$")).click()
        self.notebook.wait_idle()

    def fill(self, label, text):
        """Type into the visible field with that label, and leave it."""
        row = self.root.locator(".jupyter-widgets:visible", has=self.page.locator(f"label:text-is('{label}')")).last
        field = row.locator("input, textarea").first
        field.fill(text)
        field.blur()
        self.notebook.wait_idle()

    def choose(self, label, value):
        self.control(label).locator("select").first.select_option(label=value)
        self.notebook.wait_idle()

    def ask(self, expression):
        """The value of a Python expression in the kernel."""
        reply = self.page.evaluate("""code => {
          const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
          const future = kernel.requestExecute({code: '', user_expressions: {value: code}, store_history: false});
          return future.done.then(reply => reply.content.user_expressions.value);
        }""", f"__import__('json').dumps({expression})")
        assert reply["status"] == "ok", reply
        return json.loads(reply["data"]["text/plain"][1:-1].encode().decode("unicode_escape"))

    def point(self, x, y):
        """Where a point of the first axes is on the page."""
        return self.ask_point("explorer.visible.picture.axes[0]", x, y)

    def ask_point(self, axes, x, y):
        """Where a point of the axes of that name in the kernel is on the page."""
        axes = self.ask(axes)
        return self.page.evaluate(MIDDLE, [self.picture.element_handle(), axes, x, y])
