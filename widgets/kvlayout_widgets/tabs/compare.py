"""Compare: what a reader gets that takes another layout for this cache's."""

from __future__ import annotations

import ipywidgets as widgets
import numpy as np

from kvlayout.address import AddressMap
from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout
from kvlayout.memory.readback import read_as
from kvlayout.readers import WrongReader, compare_readers
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.compare import DRAWN, CompareFigure, owner_words
from kvlayout_widgets.figures.wording import coordinate_words
from kvlayout_widgets.html import paragraph
from kvlayout_widgets.slider import WindowSlider
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, PictureTab

# Whom a layout is most easily mistaken for: the one with heads and states the other way round.
_COUNTERPART = {"LBHNC": "LBNHC", "LBNHC": "LBHNC", "BLHNC": "BLNHC", "BLNHC": "BLHNC", "BHLNC": "BLHNC",
                "LHBNC": "LBHNC"}
_SWAPPED = str.maketrans("HN", "NH")


class CompareTab(PictureTab):
    """Pages and cells that are read wrongly, for a reader's layout that is chosen here."""

    title = "Compare"
    depends_on = frozenset({"plan", "coordinate", "cache"})

    def __init__(self, state: State, act: Act):
        self.reads = widgets.Dropdown(
            options=["counterpart", *KVCacheLayout.__members__], description="Read as",
            tooltip="The layout that the reader takes this cache for; counterpart swaps heads and states",
            layout=widgets.Layout(width="220px"), style={"description_width": "62px"})
        self.first_row = WindowSlider("First row", "The first layer that is drawn", self.later)
        self.first_column = WindowSlider("First column", "The first block that is drawn", self.later)
        self.confirm = widgets.Button(
            description="Confirm on real memory", layout=widgets.Layout(width="190px"),
            tooltip="Write the selected page of the allocated cache through its view; read it as the reader would")
        self._said = widgets.HTML()
        self._complaint = widgets.HTML()
        super().__init__(state, act, (self.reads, self.first_column.widget, self.first_row.widget, self.confirm,
                                      self._said), "Click a page, then a cell of it: below stands whose byte the "
                         "reader takes. Orange is read wrongly.")
        self.widget = widgets.VBox([self._complaint, self.widget])
        self._reader: WrongReader | None = None
        self._read_key: tuple | None = None
        self._shown: Coordinate | None = None
        self.reads.observe(lambda _: self.later(), "value")
        self.confirm.on_click(lambda _: self.act(self._confirm, redraw=False))
        state.observe(lambda _: self._show_confirm(), "cache")

    @property
    def reader(self) -> WrongReader:
        """The plan's cache, read as the chosen layout; LayoutError where that can't express it."""
        plan = self.state.plan
        name = self.reads.value
        if name == "counterpart":
            name = _COUNTERPART.get(plan.layout.name) or plan.layout.name.translate(_SWAPPED)
        if self._read_key is None or self._read_key[0] is not plan or self._read_key[1] != name:
            self._reader = compare_readers(plan, name)
            self._read_key = plan, name
        return self._reader

    def draw(self, theme: str) -> None:
        self._said.value = self._complaint.value = ""
        self.picture.layout.display = None
        try:
            super().draw(theme)
        except LayoutError as error:
            # The choice is at fault, not the explorer: the reason stands where the choice is.
            self._complaint.value = paragraph(f"✗ {error}", "refused")
            self.picture.layout.display = "none"
            self._drawing = None
        self._show_confirm()

    def _show_confirm(self) -> None:
        """Offer it for a cache of this plan; what an earlier one said doesn't hold for another."""
        self._said.value = ""
        cache, plan = self.state.cache, self.state.plan
        self.confirm.disabled = (cache is None or self.state.cache_is_stale or self._drawing is None
                                 or self._reader is None or self._reader.writer is not plan.address_map
                                 or cache.device.type == "meta")

    def make(self, theme: str) -> CompareFigure:
        return CompareFigure(theme)

    def update(self, drawing: CompareFigure) -> None:
        reader = self.reader
        selected = _moved(self.state.coordinate, self.state.plan.address_map, reader.writer)
        if selected != self._shown and selected is not None:
            self.first_row.reach(reader.writer.layer_index(selected.layer), DRAWN["L"])
            self.first_column.reach(selected.block, DRAWN["B"])
        self._shown = selected
        drawing.update(reader, selected=selected, first_row=self.first_row.value,
                       first_column=self.first_column.value, title=self.state.plan.model.title)
        self.first_row.set(drawing.first_row, drawing.total_rows - drawing.num_rows)
        self.first_column.set(drawing.first_column, drawing.total_columns - drawing.num_columns)

    def coordinate_at(self, x: float, y: float, axes: int) -> Coordinate | None:
        at = self._drawing.coordinate_at(x, y, axes)
        return _moved(at, self._reader.writer, self.state.plan.address_map)

    def hovered(self, x: float, y: float, axes: int) -> str:
        at = self._drawing.coordinate_at(x, y, axes)
        if at is None:
            return ""
        axes_shown = "LB" if axes == 0 else "LBHN"
        if axes == 0:
            share = self._reader.shares([self._reader.writer.layer_index(at.layer)], [at.block])[0, 0]
            return f"{coordinate_words(self._reader.writer, at, axes_shown)}\n{100 * share:.4g} % is read wrongly"
        return (f"{coordinate_words(self._reader.writer, at, axes_shown)}\n"
                f"the reader takes {owner_words(self._reader, at)}")

    def _confirm(self) -> None:
        try:
            self._said.value = self._confirmed()
        except LayoutError as error:
            self._said.value = paragraph(f"✗ {error}", "refused")

    def _confirmed(self) -> str:
        at, cache = self.state.coordinate, self.state.cache
        if at is None:
            raise LayoutError("coordinate", None, "is not selected", "Click a page")
        found = read_as(cache, self.reader, at.layer, at.block)
        expected = self.reader.cells(at.layer, at.block)
        wrong, cells = int(np.count_nonzero(found)), found.size
        if np.allclose(found, expected, atol=1e-6):
            return paragraph(f"✓ Real memory says the same: {wrong:,} of {cells:,} cells of this page are read "
                             "wrongly.", "good")
        where = tuple(int(i) for i in np.argwhere(~np.isclose(found, expected, atol=1e-6))[0])
        return paragraph(
            f"✗ Real memory disagrees at head {where[0]}, state {where[1]}: {found[where]:.4f} of the cell is wrong "
            f"there, {expected[where]:.4f} by the maps.", "refused")


def _moved(at: Coordinate | None, source: AddressMap, target: AddressMap) -> Coordinate | None:
    """The coordinate of the same byte in another map of the same tensors (with other kernel blocks)."""
    if at is None or source is target:
        return at
    group = source.region(at.layer).group
    owner = next((one for one in target.owners(at.offset(source)) if one.group == group), None)
    return owner and Coordinate(owner.layer, owner.block, owner.head, owner.state, owner.byte)
