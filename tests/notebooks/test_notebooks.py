"""Every notebook runs from top to bottom, and is committed without outputs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from kvlayout.cli.app import app
from tests.notebooks import prototype_values
from tests.notebooks.clinic_values import COMMANDS_SAY, RIGHT_VALUES

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path.relative_to(ROOT) for path in (ROOT / "notebooks").rglob("*.ipynb")
                   if ".ipynb_checkpoints" not in path.parts)
CLINIC, PROTOTYPE = Path("notebooks/3_clinic.ipynb"), Path("notebooks/4_prototype.ipynb")
CELL_SECONDS = 300

# In a Python of its own: nbclient runs an event loop, and warnings of Jupyter's are not ours to turn into errors.
EXECUTE = """import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=int(sys.argv[2]), kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])"""


def code_cells(notebook) -> list:
    return code_cells_of(notebook.cells)


def code_cells_of(cells) -> list:
    return [cell for cell in cells if cell.cell_type == "code"]


def test_the_explorer_is_there():
    assert Path("notebooks/explorer.ipynb") in NOTEBOOKS, "`make lab` opens it"


def execute(path: Path, folder: Path):
    """Run a notebook in a copy of all of them in ``folder``; return it with its outputs."""
    # A copy of the whole folder, so that files beside a notebook are found and nothing in the repo changes.
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    copy = folder / path
    paths = [str(ROOT), str(ROOT / "widgets"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "IPYTHONDIR": str(folder / "ipython")}
    done = subprocess.run([sys.executable, "-c", EXECUTE, str(copy), str(CELL_SECONDS)], cwd=copy.parent,
                          env=environment, capture_output=True, text=True)
    # A traceback comes coloured, for a terminal.
    assert done.returncode == 0, re.sub(r"\x1b\[[0-9;]*m", "", done.stderr)[-3000:]
    return nbformat.read(copy, as_version=4)


def by_heading(notebook) -> dict[str, list]:
    """{heading of the second level: the cells from it to the next}."""
    found = {}
    for cell in notebook.cells:
        heading = re.match(r"## (.+)", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            found[heading[1]] = []
        if found:
            list(found.values())[-1].append(cell)
    return found


def said(cells) -> str:
    """What the outputs of cells say as text: printed, a table's or a number's text, a figure's alt text."""
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=str)
def test_it_runs(path, tmp_path):
    notebook = execute(path, tmp_path)
    cells = code_cells(notebook)
    assert all(cell.execution_count for cell in cells if cell.source.strip())
    complaints = [output.text for cell in cells for output in cell.outputs
                  if output.output_type == "stream" and output.name == "stderr"]
    assert not [text for text in complaints if "Warning" in text or "Traceback" in text]
    if path == CLINIC:
        cases = by_heading(notebook)
        assert list(cases) == list(RIGHT_VALUES)
        for heading, values in RIGHT_VALUES.items():
            text = said(cases[heading])
            assert not [value for value in values if value not in text], (heading, text)
            assert any("image/png" in output.get("data", {}) for cell in code_cells_of(cases[heading])
                       for output in cell.outputs), f"{heading} shows no picture"
    if path == PROTOTYPE:
        check_prototype(by_heading(notebook))


def check_prototype(parts: dict[str, list]) -> None:
    assert list(parts) == list(prototype_values.SAYS)
    for heading, values in prototype_values.SAYS.items():
        text, cells = said(parts[heading]), code_cells_of(parts[heading])
        assert not [value for value in values if value not in text], (heading, text)
        pictures = [output for cell in cells for output in cell.outputs if "image/png" in output.get("data", {})]
        assert len(pictures) == prototype_values.PICTURES.get(heading, 0), heading
        if heading in prototype_values.RUN_OR_RECORDED:
            packages, run, recorded = prototype_values.RUN_OR_RECORDED[heading]
            is_run = all(map(find_spec, packages))
            assert text.count("RECORDED on ") == (0 if is_run else 2) and text.count("run now with ") == 2 * is_run
            verdicts = re.findall(r"(?:Right in all|Wrong in) [\d of]+ shapes", text)
            assert tuple(verdicts) == (run if is_run else recorded)


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


@pytest.mark.parametrize("path", [CLINIC, PROTOTYPE], ids=str)
def test_the_contents_lead_to_each_heading(path):
    notebook = nbformat.read(ROOT / path, as_version=4)
    # JupyterLab's anchor of a heading: its text with hyphens for spaces.
    links = [link.replace("-", " ") for link in re.findall(r"\]\(#([^|]+?)\)(?: \||$)", notebook.cells[0].source,
                                                           re.MULTILINE)]
    assert links == list(by_heading(notebook))


@pytest.mark.parametrize("heading", COMMANDS_SAY)
def test_the_clinics_commands_say_the_same(heading, monkeypatch):
    monkeypatch.chdir(ROOT / "notebooks")
    cells = by_heading(nbformat.read(ROOT / CLINIC, as_version=4))[heading]
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert text.count("*In the explorer:*") == 1
    commands = re.findall(r"`python -m kvlayout ([^`]{8,})`", text)
    assert len(commands) == len(COMMANDS_SAY[heading])
    for command, says in zip(commands, COMMANDS_SAY[heading]):
        done = CliRunner().invoke(app, shlex.split(command))
        # Lines are broken to the terminal's width.
        assert done.exit_code in (0, 1) and says in " ".join(done.output.split()), (command, done.output)


@pytest.mark.parametrize("heading", RIGHT_VALUES)
def test_a_case_of_the_clinic_stands_alone(heading):
    """Every name that a case uses is made in the case: its cells compile to no other free names."""
    cells = by_heading(nbformat.read(ROOT / CLINIC, as_version=4))[heading]
    source = "\n".join(cell.source for cell in code_cells_of(cells))
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"],
                          input=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_clinics_files_are_those_that_the_package_writes(tmp_path):
    subprocess.run([sys.executable, "-m", "kvlayout_widgets.course.cases", str(tmp_path)], check=True,
                   env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "widgets")])})
    kept = ROOT / "notebooks" / "data" / "cases"
    assert {path.name: path.read_text() for path in kept.iterdir()} == {
        path.name: path.read_text() for path in tmp_path.iterdir()}
