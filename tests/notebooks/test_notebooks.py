"""Every notebook runs from top to bottom, and is committed without outputs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path.relative_to(ROOT) for path in (ROOT / "notebooks").rglob("*.ipynb")
                   if ".ipynb_checkpoints" not in path.parts)
CELL_SECONDS = 300

# In a Python of its own: nbclient runs an event loop, and warnings of Jupyter's are not ours to turn into errors.
EXECUTE = """import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=int(sys.argv[2]), kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])"""


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_explorer_is_there():
    assert Path("notebooks/explorer.ipynb") in NOTEBOOKS, "`make lab` opens it"


def execute(path: Path, folder: Path) -> list:
    """Run a notebook in a copy of all of them in ``folder``; return its code cells with their outputs."""
    # A copy of the whole folder, so that files beside a notebook are found and nothing in the repo changes.
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    copy = folder / path
    paths = [str(ROOT), str(ROOT / "widgets"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "IPYTHONDIR": str(folder / "ipython")}
    done = subprocess.run([sys.executable, "-c", EXECUTE, str(copy), str(CELL_SECONDS)], cwd=copy.parent,
                          env=environment, capture_output=True, text=True)
    # A traceback comes coloured, for a terminal.
    assert done.returncode == 0, re.sub(r"\x1b\[[0-9;]*m", "", done.stderr)[-3000:]
    return code_cells(nbformat.read(copy, as_version=4))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=str)
def test_it_runs(path, tmp_path):
    cells = execute(path, tmp_path)
    assert all(cell.execution_count for cell in cells if cell.source.strip())
    complaints = [output.text for cell in cells for output in cell.outputs
                  if output.output_type == "stream" and output.name == "stderr"]
    assert not [text for text in complaints if "Warning" in text or "Traceback" in text]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=str)
def test_it_is_stripped(path):
    done = subprocess.run([sys.executable, "-m", "nbstripout", "--verify", str(ROOT / path)],
                          capture_output=True, text=True)
    assert done.returncode == 0, f"run: nbstripout {path}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=str)
def test_it_says_what_it_is_and_opens_without_a_question(path):
    notebook = nbformat.read(ROOT / path, as_version=4)
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    # Without a kernel's name JupyterLab stops to ask for one.
    assert notebook.metadata.get("kernelspec", {}).get("name") == "python3"
    # Logic belongs into the package.
    assert max((len(cell.source.splitlines()) for cell in code_cells(notebook)), default=0) <= 20
