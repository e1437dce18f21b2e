"""A real JupyterLab and a page of it in chromium, for tests. The fixtures are in ``conftest.py`` beside this file.

In a test:

    def test_it(lab, lab_page):                            # the server; a new page of a chromium
        lab.write("tiny.ipynb", ["1 + 1"])                 # or a notebook of the repo, which is there already
        notebook = lab_page.open("explorer.ipynb")         # waits until its kernel is ready
        notebook.run_all()                                 # as Run > Run All Cells; fails on a cell's error
        notebook.page.get_by_role("button", name="Verify").click()
        notebook.wait_idle()                               # until the kernel has done what the click asked
        notebook.screenshot("explorer")                    # tests/browser/out/explorer.png

``notebook.page`` is playwright's own Page. At the end of each test its kernels end, and the test fails if the page
threw an error of its own.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import nbformat
from playwright.sync_api import Locator, Page

ROOT = Path(__file__).parents[2]
SHOTS = Path(__file__).parent / "out"
START_SECONDS = 90
RUN_SECONDS = 180

# Headless, without the requests that chromium makes for itself.
CHROMIUM_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
                 "--disable-background-networking", "--disable-component-update"]
# No question about news, and every cell in the page even where it's scrolled out of sight.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}
DISABLED = {"@jupyterlab/apputils-extension:announcements": True}

# Run in the page: what the notebook in front and its kernel are doing.
STATE_JS = """() => {
  const panel = window.jupyterapp.shell.currentWidget;
  const kernel = panel?.sessionContext?.session?.kernel;
  const cells = [...(panel?.content?.model?.cells ?? [])].filter(cell => cell.type === 'code');
  const errors = cells.flatMap(cell => cell.outputs.toJSON()).filter(output => output.output_type === 'error');
  return {
    idle: kernel?.status === 'idle' && kernel?.connectionStatus === 'connected' && !panel.sessionContext.hasNoKernel,
    running: cells.some(cell => cell.executionState === 'running'),
    unrun: cells.filter(cell => cell.sharedModel.source.trim() && !cell.executionCount).length,
    errors: errors.map(output => output.traceback.join('\\n') || `${output.ename}: ${output.evalue}`),
  };
}"""


class Lab:
    """A JupyterLab server on this machine, over a copy of the repo's notebooks in ``folder``."""

    def __init__(self, folder: Path):
        self.folder = folder / "notebooks"
        if (ROOT / "notebooks").is_dir():
            shutil.copytree(ROOT / "notebooks", self.folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
        self.folder.mkdir(exist_ok=True)
        self.token = secrets.token_hex(16)
        self.log = folder / "jupyterlab.log"
        self._home = folder / "jupyter"
        config = self._home / "config" / "labconfig"
        config.mkdir(parents=True)
        (config / "default_setting_overrides.json").write_text(json.dumps(SETTINGS))
        (config / "page_config.json").write_text(json.dumps({"disabledExtensions": DISABLED}))
        self._process = None

    def start(self) -> None:
        """Start the server and wait until it answers; its log is in the error if it doesn't."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
                   f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--expose-app-in-browser",
                   f"--ServerApp.root_dir={self.folder}", f"--IdentityProvider.token={self.token}"]
        paths = [str(ROOT), str(ROOT / "widgets"), *filter(None, [os.environ.get("PYTHONPATH")])]
        # Folders of its own: no setting, kernel or history of the person who runs the tests takes part.
        own = {f"JUPYTER_{name.upper()}_DIR": str(self._home / name) for name in ("config", "data", "runtime")}
        own |= {"IPYTHONDIR": str(self._home / "ipython"), "PYTHONPATH": os.pathsep.join(paths)}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"JupyterLab didn't start in {START_SECONDS} s:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            self._ask("status")
        except OSError:
            return False
        return True

    def _ask(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(f"{self.url}/api/{path}?token={self.token}", method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()

    def end_kernels(self) -> None:
        """End every kernel, and so give its memory back."""
        for kernel in json.loads(self._ask("kernels")):
            self._ask(f"kernels/{kernel['id']}", "DELETE")

    def stop(self) -> None:
        """End the server and its kernels."""
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def write(self, name: str, cells: list[str]) -> Path:
        """Write a notebook of these code cells, for :meth:`LabPage.open`."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        # Without a kernel's name JupyterLab stops to ask for one.
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path = self.folder / name
        nbformat.write(notebook, path)
        return path


class LabPage:
    """One page of the browser; ``errors`` are the exceptions that its own scripts threw."""

    def __init__(self, lab: Lab, page: Page):
        self.lab, self.page = lab, page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, name: str) -> Notebook:
        """Open a notebook of the lab's folder, wait until its kernel is ready, and return it."""
        # A fresh workspace: nothing that another test opened.
        self.page.goto(f"{self.lab.url}/lab/tree/{name}?reset&token={self.lab.token}")
        notebook = Notebook(self.page)
        notebook.wait_idle(START_SECONDS)
        return notebook


class Notebook:
    """The notebook in front of a page."""

    def __init__(self, page: Page):
        self.page = page

    @property
    def output(self) -> Locator:
        """Each output of the notebook, in order."""
        return self.page.locator(".jp-NotebookPanel:visible .jp-OutputArea-output")

    @property
    def panel(self) -> Locator:
        """The notebook itself, without the lab around it."""
        return self.page.locator(".jp-NotebookPanel-notebook")

    def heading(self, text: str) -> Locator:
        """The section's heading that has this text."""
        return self.panel.locator("h2").filter(has_text=text)

    def follow(self, link: Locator, heading: str) -> None:
        """Click a link of the contents; it brings its section's heading into view."""
        link.click()
        self.page.wait_for_timeout(500)
        assert 0 <= self.heading(heading).bounding_box()["y"] < 900

    def screenshot_sections(self, name: str, numbers: Sequence[int]) -> None:
        """Write a picture of each of these sections (counted from 0), in the lab's light and dark theme."""
        self.page.set_viewport_size({"width": 1250, "height": 2300})
        for theme in ("Light", "Dark"):
            self.page.evaluate("name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})",
                               f"JupyterLab {theme}")
            self.page.wait_for_timeout(1_000)
            for number in numbers:
                self.panel.locator("h2").nth(number).evaluate("heading => heading.scrollIntoView({block: 'start'})")
                self.page.wait_for_timeout(150)
                self.screenshot(f"{name}-{theme.lower()}-{number:02}")

    def state(self) -> dict:
        """Return what it does: idle, running, unrun (code cells without a result), errors (tracebacks)."""
        return self.page.evaluate(STATE_JS)

    def run_all(self, seconds: float = RUN_SECONDS) -> None:
        """Run all cells by the menu and wait until the kernel is done; a cell's error fails with its traceback."""
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        self._wait(lambda state: state["errors"] or (state["idle"] and not state["unrun"] and not state["running"]),
                   seconds, "run all its cells")
        errors = self.state()["errors"]
        assert not errors, "a cell failed:\n" + "\n".join(errors)

    def wait_idle(self, seconds: float = RUN_SECONDS) -> None:
        """Wait until the kernel has nothing to do, and still has nothing a moment later."""
        self._wait(lambda state: state["idle"], seconds, "become idle")
        self.page.wait_for_timeout(200)
        self._wait(lambda state: state["idle"], seconds, "become idle")

    def _wait(self, done, seconds: float, what: str) -> None:
        self.page.wait_for_function("() => window.jupyterapp?.shell", timeout=START_SECONDS * 1000)
        end = time.monotonic() + seconds
        while not done(state := self.state()):
            if time.monotonic() > end:
                shot = self.screenshot("failed")
                raise AssertionError(f"the notebook didn't {what} in {seconds} s: {state}; see {shot.name}")
            self.page.wait_for_timeout(100)

    def screenshot(self, name: str, of: Locator | None = None) -> Path:
        """Write tests/browser/out/NAME.png of the page, or of one part of it, and return its path."""
        SHOTS.mkdir(exist_ok=True)
        path = SHOTS / f"{name}.png"
        (of or self.page).screenshot(path=path)
        return path
