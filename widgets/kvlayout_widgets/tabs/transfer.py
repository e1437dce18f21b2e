"""Transfer: in how many pieces a cache is moved, and what two engines make of each other's bytes."""

from __future__ import annotations

from kvlayout_widgets.panels.transfer_one import OneSidePanel
from kvlayout_widgets.panels.transfer_two import TwoSidesPanel
from kvlayout_widgets.tabs.chooser import ChooserTab


class TransferTab(ChooserTab):
    """One side of a transfer, and two."""

    title = "Transfer"
    kinds = (OneSidePanel, TwoSidesPanel)
    says_guess = True
