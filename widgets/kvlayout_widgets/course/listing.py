"""The source of a function as a notebook shows it: its lines stay whole, and nothing of it is imported."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path

from kvlayout.errors import LayoutError


@dataclass(frozen=True)
class Listing:
    """Program text."""

    text: str

    def _repr_html_(self) -> str:
        # Jupyter breaks the lines of a <pre>, even in the middle of a word; here they scroll.
        return ("<pre style='white-space:pre;word-break:normal;overflow-x:auto;font-size:12px;margin:0;padding:0' "
                f"tabindex='0'>{escape(self.text)}</pre>")

    def __repr__(self) -> str:
        return self.text


def listing(module: str, function: str) -> Listing:
    """Return the source of a module's function; the module itself, which may need triton, isn't run.

    LayoutError where there is none.
    """
    found = find_spec(module)
    if found is None or found.origin is None:
        raise LayoutError("module", module, "isn't there")
    lines = Path(found.origin).read_text().splitlines()
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            first = min((node.lineno, *(one.lineno for one in node.decorator_list)))
            return Listing("\n".join(lines[first - 1:node.end_lineno]))
    raise LayoutError("function", function, f"isn't a function of {module}")
