"""Bench: panels for who designs a layout or a backend, one at a time."""

from __future__ import annotations

from kvlayout_widgets.panels.matrix import MatrixPanel
from kvlayout_widgets.panels.prototype import PrototypePanel
from kvlayout_widgets.panels.scores import ScoresPanel
from kvlayout_widgets.tabs.chooser import ChooserTab

PANELS = (ScoresPanel, MatrixPanel, PrototypePanel)


class BenchTab(ChooserTab):
    """What a layout would cost, what backends take, and what a new one would be handed."""

    title = "Bench"
    kinds = PANELS
