"""Two sides: which bytes go where between two engines, and what lands wrongly if one mistakes the other's layout."""

from __future__ import annotations

import ipywidgets as widgets

from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.exchange import ExchangeFigure
from kvlayout_widgets.html import paragraph
from kvlayout_widgets.panels.exchange_words import (
    answer_html,
    first_wrong_line,
    owner_words,
    sides_words,
    verdict,
)
from kvlayout_widgets.panels.picture_panel import PicturePanel
from kvlayout_widgets.panels.side_row import SideRow
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act
from kvlayout_widgets.two_sides import Answer, SideChoice, Sides

_EMPTY = ("Type the block ids of the request on each side, in token order, such as 5, 9 or 0-3. Tokens are matched "
          "by their place in the request, heads by the model's head.")
_CAPTURED = ("A captured config was planned elsewhere, so it can't be planned for another TP size, stage, block size "
             "or block count: both sides are the capture itself, in its own layout or in another.")
_NOBODY, _SIDES = "nobody", ("target", "source")


class TwoSidesPanel(PicturePanel):
    """The layers that the selected one's group moves, from the ranks of one engine to a rank of another."""

    title = "Two sides"
    asks = "Is every byte of a request written exactly once and by its right owner, and what if a layout is mistaken?"

    def __init__(self, state: State, act: Act):
        self.source = SideRow("Source", "1, 2", self.later)
        self.target = SideRow("Target", "0, 1", self.later)
        self.mistake = widgets.Dropdown(
            options=[("no layout is mistaken", _NOBODY), *((f"the {one} is taken for", one) for one in _SIDES)],
            description="Mistake", tooltip="Whose layout is believed to be another one",
            layout=widgets.Layout(width="250px"), style={"description_width": "54px"})
        self.taken_for = widgets.Dropdown(options=list(KVCacheLayout.__members__), value="LBHNC",
                                          tooltip="The layout that it is believed to be in",
                                          layout=widgets.Layout(width="90px"))
        self.replicas = widgets.Dropdown(
            options=[("the first rank sends", "first"), ("all of them send", "all")], description="A head on several",
            tooltip="Who sends a KV head that several source ranks hold, as there are more ranks than heads",
            layout=widgets.Layout(width="310px"), style={"description_width": "128px"})
        self.note = widgets.HTML()
        super().__init__(state, act, (self.mistake, self.taken_for, self.replicas),
                         "Click a page to see its cells; point at a cell to see what lies there.",
                         rows=(self.source.widget, self.target.widget, self.note))
        self._sides: Sides | None = None
        self._answer: Answer | None = None
        self._asked: tuple | None = None
        self._page: tuple[str, int] | None = None
        self._choices: list[SideChoice] = []
        for one in (self.mistake, self.taken_for, self.replicas):
            one.observe(lambda _: self.later(), "value")

    @property
    def sides(self) -> Sides:
        """What makes the sides of the plan that is shown."""
        if self._sides is None or self._sides.plan is not self.state.plan:
            self._sides = Sides(self.state.plan, self.state.backends)
        return self._sides

    def draw(self, theme: str) -> None:
        self._show_controls()
        self._choices = []
        if self.state.coordinate is not None:
            if not (self.source.blocks.value.strip() and self.target.blocks.value.strip()):
                self.say(paragraph(_EMPTY, "note"))
                return
            self._read()
            if len(self._choices) < 2:
                self.say("")  # the reason stands in the row of the side
                return
        super().draw(theme)

    def make(self, theme: str) -> ExchangeFigure:
        return ExchangeFigure(theme)

    def update(self, drawing: ExchangeFigure) -> None:
        answer = self.answer()
        layer, column, cell = self._shown_page(answer)
        drawing.update(answer.fates, answer.target, answer.blocks, layer=layer, column=column, cell=cell,
                       elsewhere_bytes=answer.found.stray,
                       headline=" · ".join(part for part in (sides_words(answer, self._mistake),
                                                             self.state.plan.model.title) if part),
                       sentence=verdict(answer)[1], footer=first_wrong_line(answer))

    def html(self) -> str:
        return answer_html(self._answer, self._mistake)

    def answer(self) -> Answer:
        """Return the transfer that the controls ask for, worked out anew only where they ask for another one."""
        layer, sides = self.state.coordinate.layer, self.sides
        asked = (sides, layer, *self._choices, self._mistake, self.replicas.value)
        if asked != self._asked:
            self._asked = self._answer = self._page = None
            self._answer = sides.answer(*self._choices, layer, mistake=self._mistake, replicas=self.replicas.value)
            self._asked = asked
        return self._answer

    def hovered(self, x: float, y: float, axes: int) -> str:
        said = self._drawing.words_at(x, y, axes)
        at = self._drawing.cell_at(x, y) if axes == 1 else None
        if at is None:
            return said
        written = self._answer.fates.written(at.offset(self._answer.target.address_map))
        return said if written is None else f"{said}\nits first byte holds {owner_words(self._answer, *written)}"

    def clicked(self, x: float, y: float, axes: int) -> None:
        page = self._drawing.page_at(x, y) if axes == 0 else None
        if page is not None:
            self._page = page
            self.later()

    def coordinate_at(self, x: float, y: float, axes: int) -> Coordinate | None:
        return None  # the target's coordinates aren't those of the cache that is shown

    @property
    def _mistake(self) -> tuple[str, str] | None:
        return None if self.mistake.value == _NOBODY else (self.mistake.value, self.taken_for.value)

    def _read(self) -> None:
        """Take both sides' choices; why one can't be is said in its row."""
        for row in (self.source, self.target):
            try:
                choice = row.choice()
                self.sides.sides(choice, self.state.coordinate.layer)
                self._choices.append(choice)
            except LayoutError as error:
                row.say(error)

    def _show_controls(self) -> None:
        plan, is_captured = self.state.plan, self.sides.is_captured
        is_split = any(size != group.kv_cache_spec.block_size
                       for size, group in zip(plan.kernel_block_sizes, plan.groups))
        for row in (self.source, self.target):
            row.show(is_captured=is_captured, is_split=is_split, stage=plan.selection.pp_rank)
            row.say("")
        self.note.value = paragraph(_CAPTURED, "note") if is_captured else ""
        self.taken_for.layout.display = "none" if self._mistake is None else None

    def _shown_page(self, answer: Answer) -> tuple[str, int, tuple[int, int] | None]:
        """The page whose cells are shown, and a cell to outline: the clicked one, or where the first fault is."""
        first = answer.found.first_wrong
        owner = (first and first.right) or answer.found.first_missing or answer.found.first_twice
        at_fault = (owner.layer, answer.blocks.index(owner.block)) if owner and owner.block in answer.blocks else None
        page = self._page or at_fault
        if page is None:
            layer = self.state.coordinate.layer
            page = (layer if layer in answer.layers else answer.layers[0]), 0
        return *page, (owner.head, owner.state) if page == at_fault else None
