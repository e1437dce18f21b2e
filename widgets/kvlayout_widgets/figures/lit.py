"""Lit cells: where tokens landed, drawn over another picture; what isn't lit is dimmed.

Three kinds, told apart by shape: a dot where bytes changed as predicted, a ring where a prediction found nothing
changed, a cross where bytes changed although no slot leads there.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from kvlayout.landing import Landing
from kvlayout_widgets.figures.theme import Theme

KINDS = ("landed", "missing", "unexpected")
_MARKS = ("o", "o", "X")
_FACES = ("#FFFFFF", "none", "#D55E00")
_DIM = 0.62


def kinds_of(landing: Landing) -> np.ndarray:
    """Return the kind of each of the landing's rows, an index into KINDS."""
    return np.where(landing.predicted & landing.changed, 0, np.where(landing.predicted, 1, 2))


def lit_words(landing: Landing) -> str:
    """Return the legend: what each shape means, and how many there are; only of the kinds that there are."""
    counts = np.bincount(kinds_of(landing), minlength=3)
    words = ("● landed as predicted", "○ predicted, not written", "✕ written, not predicted")
    return "   ".join(f"{word} ({count:,})" for word, count in zip(words, counts.tolist()) if count)


class Lit:
    """The marks and the dimming in one axes."""

    def __init__(self, axes: Axes, theme: Theme):
        self.axes, self._theme = axes, theme
        self._veil = axes.imshow(np.zeros((1, 1, 4)), aspect="auto", interpolation="nearest", zorder=2.5)
        self._veil.set_visible(False)
        self._marks = [axes.plot([], [], ls="none", marker=mark, ms=5.5, mfc=face, mec="#101418" if face != "none"
                                 else "#FFFFFF", mew=1.1, zorder=5.5)[0] for mark, face in zip(_MARKS, _FACES)]
        self.clear()

    def clear(self) -> None:
        """Show nothing."""
        self._veil.set_visible(False)
        self.count = 0
        for marks in self._marks:
            marks.set_data([], [])

    def show(self, x: np.ndarray, y: np.ndarray, kinds: np.ndarray, *, size: float = 5.5) -> None:
        """Put a mark of ``kinds`` at each point, data coordinates; ``size`` in points."""
        self.count = len(x)
        for kind, marks in enumerate(self._marks):
            here = kinds == kind
            marks.set_data(np.asarray(x)[here], np.asarray(y)[here])
            marks.set_markersize(size)

    def dim(self, lit: np.ndarray, extent: tuple[float, float, float, float]) -> None:
        """Dim where ``lit`` (bool, rows x columns over ``extent``) is False."""
        veil = np.empty((*lit.shape, 4))
        veil[:] = to_rgba(self._theme.background)
        veil[..., 3] = np.where(lit, 0.0, _DIM)
        self._veil.set_data(veil)
        self._veil.set_extent(extent)
        self._veil.set_visible(bool(lit.size))
