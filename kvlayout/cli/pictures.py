"""Figures into files, for --out; the package that draws is imported only then."""

from __future__ import annotations

from pathlib import Path

from kvlayout.cli.show import fail
from kvlayout.errors import LayoutError


def draw(out: str, figure_name: str, *arguments: object, **options: object) -> None:
    """Draw a function of ``kvlayout_widgets.figures`` into the file ``out``, a .png or .svg.

    LayoutError for another ending and a file that can't be written; ends with status 2 where matplotlib is missing.
    """
    if Path(out).suffix.lower() not in (".png", ".svg"):
        raise LayoutError("out", out, "must end in .png or .svg")
    try:
        from kvlayout_widgets import figures
        make = getattr(figures, figure_name)
    except ModuleNotFoundError as error:
        fail(f"--out needs {error.name}: pip install 'kvlayout[lab]'")
    figure = make(*arguments, **options)
    try:
        figure.savefig(out, facecolor=figure.get_facecolor())
    except (OSError, ValueError) as error:
        raise LayoutError("out", out, f"can't be written: {getattr(error, 'strerror', None) or error}") from error
