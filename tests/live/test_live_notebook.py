"""The notebook of the live engine, executed with a real one in its kernel."""

from pathlib import Path

import nbformat
import pytest

from tests.notebooks.test_notebooks import code_cells_of, execute

pytestmark = pytest.mark.live


def test_the_engine_in_the_notebook_is_where_we_say(tmp_path):
    cells = code_cells_of(execute(Path("notebooks/2_live_engine.ipynb"), tmp_path).cells)
    said = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert "A real engine is running in this kernel." in said
    assert "✓ every view is where our plan says" in said
    assert "509 slots were written" in said and "48 changed: 0 missing, 0 unexpected" in said
    assert "✓ the bytes that changed are those that the slots predict" in said
    assert "4 views contradict it" in said
    shown = [output for cell in cells for output in cell.outputs if output.output_type in ("display_data",
                                                                                          "execute_result")]
    assert any("application/vnd.jupyter.widget-view+json" in output.data for output in shown)
    assert isinstance(cells[0], nbformat.NotebookNode)
