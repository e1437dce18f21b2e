"""Formula: the user's own offset formula, or a classic mistake, against where the bytes really lie."""

from __future__ import annotations

from dataclasses import replace
from html import escape

import ipywidgets as widgets
import numpy as np

from kvlayout.address import AddressMap
from kvlayout.clinic import CLASSICS, NAMES, Divergence, Hit, compare_formula, formula_at, right_formula
from kvlayout.clinic.formula_call import Formula
from kvlayout.clinic.formula_names import item_bytes, layer_values
from kvlayout.errors import LayoutError
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.divergence import DivergenceFigure, percent
from kvlayout_widgets.figures.wording import coordinate_words
from kvlayout_widgets.html import code, paragraph, table
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, PictureTab

OWN, RIGHT = "", "right"
_EMPTY = ("Type the byte offset that your code computes for (layer, block, head, token, element), or pick a classic "
          "mistake. An example: layer_offset + slot * num_heads * content_bytes + head * content_bytes + element * "
          "element_stride. A length, such as block_stride, is how many bytes are touched from there on.")
_HINT = ("Click a page, then a cell of it, to select it in all tabs. A coordinate diverges where the formula doesn't "
         "give its own offset, or where what is touched from there on isn't its own.")
_SHOWN = 8


class FormulaPanel(PictureTab):
    """A formula and an optional length; the error map, the first divergence, and whose bytes are hit."""

    title = "Formula"
    asks = "Where does my own offset formula go wrong, and whose bytes does it hit instead?"

    def __init__(self, state: State, act: Act):
        self.classic = widgets.Dropdown(
            options=[("my own formula", OWN), ("the right formula", RIGHT),
                     *((one.title, slug) for slug, one in CLASSICS.items())], description="Formula",
            tooltip="A mistake that public reports show, ready to be compared", layout=widgets.Layout(width="330px"),
            style={"description_width": "56px"})
        self.cells_of = widgets.Dropdown(
            options=[("first page that diverges", "first"), ("selected page", "selected")], description="Cells of",
            tooltip="The page whose cells are drawn", layout=widgets.Layout(width="250px"),
            style={"description_width": "56px"})
        self.select = widgets.Button(description="Select the first", disabled=True,
                                     tooltip="Select the first coordinate that diverges in all tabs",
                                     layout=widgets.Layout(width="130px"))
        self.formula = _text("Offset", "Bytes from the allocation's start, by the names below; // divides", "98%")
        self.length = _text("Length", "Bytes that are touched from there on; empty: one element", "60%")
        self.length.placeholder = "one element"
        super().__init__(state, act, (self.classic, self.cells_of, self.select), _HINT)
        self.says, self.complaint, self.text, self.names = (widgets.HTML() for _ in range(4))
        # An accordion stays open while the values in it change.
        known = widgets.Accordion([self.names], titles=["Names that a formula may use, and the right formula"],
                                  selected_index=None)
        self._picture_box = widgets.VBox(self._below.children[1:])
        self._below.children = (self._below.children[0], self.says, self.formula, self.length, self.complaint,
                                self._picture_box, self.text, known)
        self.found: Divergence | None = None
        self.page: Divergence | None = None
        self._known: dict[tuple, Divergence] = {}
        self._is_setting = False
        self.classic.observe(lambda _: self._picked(), "value")
        for one in (self.formula, self.length):
            one.observe(lambda _: self._typed(), "value")
        self.cells_of.observe(lambda _: self.later(), "value")
        self.select.on_click(lambda _: self.act(self._select_first))

    def draw(self, theme: str) -> None:
        self.complaint.value = self.text.value = ""
        self.select.disabled, self.found, self.page = True, None, None
        self._fill()
        classic = CLASSICS.get(self.classic.value)
        self.says.value = paragraph(f"{classic.says} It does no harm on {classic.right_where}.", "note") if classic \
            else ""
        self.names.value = names_html(self.state)
        if self.formula.value.strip():
            try:
                super().draw(theme)
            except LayoutError as error:
                # The formula is at fault, not the explorer: the reason stands below it.
                self.complaint.value = paragraph(f"✗ {error}", "refused")
                self.found = None
        else:
            self.text.value = paragraph(_EMPTY, "note")
        if self.found is None:
            self._drawing = None
        self._picture_box.layout.display = "none" if self.found is None else None

    def make(self, theme: str) -> DivergenceFigure:
        return DivergenceFigure(theme)

    def update(self, drawing: DivergenceFigure) -> None:
        address_map, at = self.state.plan.address_map, self.state.coordinate
        self.found = found = self._compared()
        page_html = self._compare_page(at)
        page = cells = None
        if self.cells_of.value == "selected" and self.page is not None:
            page, cells = (at.layer, at.block), self.page.cells
        elif found.first is not None:
            page, cells = (found.first.layer, found.first.block), found.cells
        classic = CLASSICS.get(self.classic.value)
        drawing.update(found, address_map, page=page, cells=cells, selected=at, spelt=self._spelt(at),
                       title=classic.title if classic else "")
        self.select.disabled = found.first is None
        self.text.value = divergence_html(found) + page_html + victims_html(found)

    def coordinate_at(self, x: float, y: float, axes: int) -> Coordinate | None:
        return self._drawing.coordinate_at(x, y, axes)

    def clicked(self, x: float, y: float, axes: int) -> None:
        super().clicked(x, y, axes)
        if axes == 0 and self.coordinate_at(x, y, axes) is not None:
            self.cells_of.value = "selected"

    def hovered(self, x: float, y: float, axes: int) -> str:
        at = self.coordinate_at(x, y, axes)
        if at is None:
            return ""
        share = f"{percent(self._drawing.share_at(at, axes))} % diverges"
        words = coordinate_words(self.state.plan.address_map, at, "LB")
        return f"{self._spelt(at)}\n{share}" if axes == 1 else f"{words}\n{share}"

    def _compared(self, layer: str | None = None, block: int | None = None) -> Divergence:
        """Of all pages, or of one; remembered, since a mere click asks again."""
        address_map, length = self.state.plan.address_map, self.length.value.strip() or None
        key = (address_map, self.formula.value, length)
        if self._known.get("of") != key:
            self._known = {"of": key}
        if (layer, block) not in self._known:
            chosen = {} if layer is None else {"layers": layer, "blocks": block}
            self._known[layer, block] = compare_formula(self.formula.value, address_map, length=length, **chosen)
        return self._known[layer, block]

    def _spelt(self, at: Coordinate) -> str:
        """Where the formula puts a coordinate, and where it lies."""
        address_map, length = self.state.plan.address_map, self.length.value.strip()
        element = at.byte // item_bytes(address_map.region(at.layer))
        if length:  # what neither names is held at 0
            named = Formula("formula", self.formula.value).axes | Formula("length", length).axes
            element *= "element" in named
            at = replace(at, head=at.head * ("head" in named), state=at.state * ("token" in named), byte=0)
        lies, gives = formula_at(self.formula.value, address_map, at.layer, at.block, at.head, at.state, element)
        verdict = f"the formula gives {gives:,}" if lies != gives else "there the formula begins" if length else \
            "and so says the formula"
        return f"{coordinate_words(address_map, at, 'LBHN')} · element {element:,}:   lies at {lies:,}, {verdict}"

    def _compare_page(self, at: Coordinate) -> str:
        """Compare the selected page alone, and say what came of it."""
        words = f"Selected page, {coordinate_words(self.state.plan.address_map, at, 'LB')}:"
        try:
            self.page = self._compared(at.layer, at.block)
        except LayoutError as error:
            return paragraph(f"{words} {error}", "note")
        return paragraph(" ".join((words, *self.page.sentences())), "line")

    def _fill(self) -> None:
        """The right formula is this cache's: another plan may have another."""
        if self.classic.value == RIGHT:
            self._set(right_formula(self.state.plan.address_map), "")

    def _picked(self) -> None:
        if self._is_setting:
            return
        if self.classic.value in CLASSICS:
            one = CLASSICS[self.classic.value]
            self._set(one.formula, one.length or "")
        self.later()

    def _typed(self) -> None:
        if not self._is_setting:
            self._is_setting = True
            self.classic.value = OWN
            self._is_setting = False
            self.later()

    def _set(self, formula: str, length: str) -> None:
        self._is_setting = True
        self.formula.value, self.length.value = formula, length
        self._is_setting = False

    def _select_first(self) -> None:
        first = self.found.first
        item = item_bytes(self.state.plan.address_map.region(first.layer))
        self.state.select(*first[:4], first.element * item)


def divergence_html(found: Divergence) -> str:
    """Return the first divergence spelt out."""
    first, *rest = found.sentences()
    is_wrong = found.first is not None
    kind = "good" if found.is_right else "bad" if is_wrong else "note"
    sign = "✓ " if found.is_right else "✗ " if is_wrong else ""
    return paragraph(f"{sign}{first}", kind) + "".join(paragraph(one, "line") for one in rest)


def victims_html(found: Divergence) -> str:
    """Return whose bytes are hit, largest first."""
    if not found.victims:
        return ""
    rows = [tuple(map(escape, _victim(found, hit))) for hit in found.victims[:_SHOWN]]
    more = found.num_victims - len(rows)
    hit = "bytes hit by the sample" if found.sampled else "bytes hit"
    return table(("group", "layer", hit, "the first of them", "at byte", "by"), rows,
                 "Whose bytes are hit (one that several coordinates hit counts for each)") + (
        paragraph(f"and {more:,} more", "note") if more else "")


def _victim(found: Divergence, hit: Hit) -> tuple[str, ...]:
    one, (layer, block, head, token, element) = hit.example, hit.by
    by = f"{layer}, {found.block_words(layer, block)}, head {head}, token {token}, element {element:,}"
    if hit.layer is not None:
        at = found.block_words(one.layer, one.block) if one else ""
        where = f"{at}, head {one.head}, token {one.state}, {one.field}" if one else ""
        return str(hit.group), hit.layer, f"{hit.bytes:,}", where, f"{hit.offset:,}", by
    where = "no byte of this group's layers" if one is None or one.layer is None else \
        f"padding behind {one.layer}, {found.block_words(one.layer, one.block)}"
    return str(hit.group), "nobody's", f"{hit.bytes:,}", where, f"{hit.offset:,}", by


def names_html(state: State) -> str:
    """Return the right formula, and all names with their values in the selected layer."""
    address_map, at = state.plan.address_map, state.coordinate
    if at is None:
        return ""
    values = _values(address_map, at)
    rows = [(f"<code>{escape(name)}</code>", escape(unit), values.get(name, ""), escape(what))
            for name, (unit, what) in NAMES.items()]
    words = escape(coordinate_words(address_map, at, "LBHN"))
    return (f"{paragraph('Right for all layers of this cache:', 'note')}{code(right_formula(address_map))}"
            f"{table(('name', 'unit', f'at {words}', 'what it is'), rows)}"
            f"{classics_html()}")


def _values(address_map: AddressMap, at: Coordinate) -> dict[str, str]:
    element = at.byte // item_bytes(address_map.region(at.layer))
    axes = tuple(np.array([index]) for index in (at.block, at.head, at.state, element))
    values = layer_values(address_map, address_map.layer_index(at.layer), axes, NAMES)
    return {name: f"{int(np.asarray(value).ravel()[0]):,}" for name, value in values.items()}


def classics_html() -> str:
    """Return the classic mistakes, what each is, and where it does no harm."""
    rows = [(escape(one.title), escape(one.says), escape(one.right_where)) for one in CLASSICS.values()]
    return table(("classic", "what it is", "does no harm on"), rows)


def _text(description: str, tooltip: str, width: str) -> widgets.Text:
    return widgets.Text(description=description, tooltip=tooltip, continuous_update=False,
                        layout=widgets.Layout(width=width), style={"description_width": "56px"})
