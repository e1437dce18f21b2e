"""What the README shows runs as it stands: its Python, in one go, and its command lines."""

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvlayout.cli.app import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [line.split("#")[0] for line in re.findall(r"^python -m kvlayout (.*)$", README, re.MULTILINE)]


def test_its_python():
    pytest.importorskip("torch", reason="the README's code allocates a cache, which needs torch")
    pytest.importorskip("ipywidgets", reason="the README's code opens an explorer")
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec("\n".join(blocks), {})
    assert len(blocks) >= 2 and "68681728" in said.getvalue() and "1.0 3584" in said.getvalue()


@pytest.mark.parametrize("line", COMMANDS)
def test_its_command_lines(line, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "notebooks" / "data", tmp_path / "notebooks" / "data")
    shutil.copy(ROOT / "notebooks" / "data" / "cases" / "vllm-54465.log", tmp_path / "pasted.log")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(line))
    # 1 says that something was found; 2 would be bad input.
    assert done.exit_code in (0, 1), done.output
    assert done.output.strip()
    remark = next(one for one in README.splitlines() if one.startswith(f"python -m kvlayout {line}"))
    share = re.search(r"\d+\.\d+%", remark)
    assert share is None or share[0] in done.output
