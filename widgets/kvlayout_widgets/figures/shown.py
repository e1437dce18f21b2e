"""A figure that a notebook shows as a picture with alt text, without pyplot and without a live kernel."""

from __future__ import annotations

import base64
import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A matplotlib Figure whose last line in a cell shows it; ``alt`` says the same in words."""

    alt = ""

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        file = io.BytesIO()
        self.savefig(file, format="png", facecolor=self.get_facecolor())
        shown = {"image/png": base64.b64encode(file.getvalue()).decode("ascii"), "text/plain": self.alt or repr(self)}
        return shown, {"image/png": {"alt": self.alt}}
