"""Clinic: panels that look for an offset bug, one at a time."""

from __future__ import annotations

from kvlayout_widgets.panels.address import AddressPanel
from kvlayout_widgets.panels.formula import FormulaPanel
from kvlayout_widgets.panels.groups import GroupsPanel
from kvlayout_widgets.panels.lints import LintsPanel
from kvlayout_widgets.panels.log import LogPanel
from kvlayout_widgets.panels.names import NamesPanel
from kvlayout_widgets.panels.shapes import ShapesPanel
from kvlayout_widgets.panels.slots import SlotsPanel
from kvlayout_widgets.tabs.chooser import ChooserTab

PANELS = (LintsPanel, AddressPanel, SlotsPanel, ShapesPanel, FormulaPanel, GroupsPanel, NamesPanel, LogPanel)


class ClinicTab(ChooserTab):
    """What is wrong with this cache, or with what is thought of it."""

    title = "Clinic"
    kinds = PANELS
    says_guess = True
