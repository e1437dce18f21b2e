"""Memory: the allocation in address order, from the whole pool to single bytes."""

from __future__ import annotations

import ipywidgets as widgets

from kvlayout.address import AddressMap
from kvlayout.clinic import parse_address
from kvlayout.errors import LayoutError
from kvlayout.layout import AXES
from kvlayout.plan import Plan
from kvlayout_widgets.control import parse_integer, parse_size
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.memory import MemoryFigure
from kvlayout_widgets.figures.theme import AXIS_COLOURS, AXIS_WORDS, format_bytes, ink_on
from kvlayout_widgets.figures.wording import group_words, physical_axes
from kvlayout_widgets.html import paragraph
from kvlayout_widgets.memory_window import Window, window_of
from kvlayout_widgets.readout import offset_lines
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, PictureTab
from kvlayout_widgets.tiny import BLOCKS, HEADS, LAYERS, STATES, tiny_map

_TINY = f"{LAYERS} layers · {BLOCKS} blocks · {HEADS} heads · {STATES} states"


class MemoryTab(PictureTab):
    """The ribbon with its window: where it starts, how long it is, and after how many bytes it is folded."""

    title = "Memory"
    depends_on = frozenset({"plan", "coordinate", "landing"})

    def __init__(self, state: State, act: Act):
        self.window: Window | None = None
        self._plan: Plan | None = None
        self._selected: Coordinate | None = None
        self._fold: int | None = None
        self._is_setting = False
        self.start = _text("Start", "First byte that is shown, an offset", "176px")
        self.length = _text("Length", "How many bytes are shown, such as 64 KiB or 512 B", "196px")
        self.fold = widgets.Combobox(
            value="auto", description="Fold at", tooltip="Bytes in one row; auto takes a stride of the layout",
            continuous_update=False, layout=widgets.Layout(width="180px"), style={"description_width": "58px"})
        self.group = widgets.Dropdown(description="As seen by", layout=widgets.Layout(width="330px", display="none"),
                                      tooltip="The KV cache group whose layers own the bytes; groups may overlay",
                                      style={"description_width": "74px"})
        self.tiny = widgets.ToggleButton(description="Tiny example", layout=widgets.Layout(width="116px"),
                                         tooltip=f"The same layout with {_TINY}, so that each cell can be seen")
        self.whole = widgets.Button(description="Whole pool", tooltip="Show all bytes of the allocation",
                                    layout=widgets.Layout(width="104px"))
        self.zooms = {axis: _axis_button(axis) for axis in AXES}
        self._buttons = widgets.HBox(layout=widgets.Layout(flex_flow="row wrap"))
        self._complaint = widgets.HTML()
        super().__init__(state, act, (self._buttons, self.start, self.length, self.fold, self.group, self._complaint),
                         "Drag over bytes to zoom in on them; a click selects the byte. Then the wheel or + and - "
                         "zoom, the arrow keys move, and Escape shows the whole pool.")
        self.picture.drags = self.picture.wheels = True
        self.whole.on_click(lambda _: self._go(lambda: Window.whole(self._map.size_bytes)))
        for axis, button in self.zooms.items():
            button.on_click(lambda _, axis=axis: self._go(
                lambda: window_of(state.plan.address_map, state.coordinate, axis)))
        for part in (self.start, self.length, self.fold, self.group, self.tiny):
            part.observe(self._typed, "value")

    @property
    def _map(self) -> AddressMap:
        return tiny_map(self.state.plan.layout) if self.tiny.value else self.state.plan.address_map

    def _go(self, make) -> None:
        def go() -> None:
            self.window, self.is_stale = make(), True
        self.act(go)

    def _typed(self, change) -> None:
        if self._is_setting:
            return
        if change["owner"] is self.tiny:
            self.window = None
        self._go(self._read)

    def _read(self) -> Window | None:
        """The window that the text boxes say; what can't be read is complained about, and changes nothing."""
        self._complaint.value = ""
        try:
            self._fold = parse_integer(self.fold.value, "fold")
            length = parse_size(self.length.value, "length", "B")
            return self.window and Window.at(parse_address(self.start.value), length, self._map.size_bytes)
        except LayoutError as error:
            self._complaint.value = paragraph(f"✗ {error}", "refused")
            return self.window

    def make(self, theme: str) -> MemoryFigure:
        return MemoryFigure(theme)

    def update(self, drawing: MemoryFigure) -> None:
        plan, selected, address_map = self.state.plan, self.state.coordinate, self._map
        if self.window is None or self.window.size != address_map.size_bytes:
            self.window = Window.whole(address_map.size_bytes)
        self._offer(plan, selected)
        window = {"start": self.window.start, "length": self.window.length, "fold": self._fold}
        if self.tiny.value:
            drawing.update(address_map, **window, title=_TINY)
        else:
            drawing.update(address_map, **window, group=self.group.value, selected=selected, title=plan.model.title,
                           landing=self.state.landing)
        self._plan, self._selected = plan, selected

    def _offer(self, plan: Plan, selected: Coordinate) -> None:
        """Bring the controls up to the plan, the selection and the window."""
        address_map, groups = plan.address_map, len(plan.groups)
        self._is_setting = True
        try:
            if not self._complaint.value:
                self.start.value = f"{self.window.start:#x}"
                self.length.value = f"{self.window.length:,} B"
            if plan is not self._plan:
                self.group.options = [(group_words(address_map, index), index) for index in range(groups)]
                strides = address_map.region(selected.layer).geometry.strides[:4]
                self.fold.options = ["auto", *(str(stride) for stride in sorted(set(strides)))]
                order = physical_axes(address_map)
                self._buttons.children = (self.tiny, self.whole, *(self.zooms[axis] for axis in order))
            if selected != self._selected or plan is not self._plan:
                self.group.value = address_map.region(selected.layer).group
            self.group.layout.display = None if groups > 1 and not self.tiny.value else "none"
            for axis, button in self.zooms.items():
                button.disabled = self.tiny.value
                size = window_of(address_map, selected, axis).length
                button.tooltip = f"Show the selected {AXIS_WORDS[axis][0]}: {format_bytes(size)}"
        finally:
            self._is_setting = False

    def coordinate_at(self, x: float, y: float, axes: int) -> Coordinate | None:
        offset = self._drawing.offset_at(x, y) if axes == 0 and not self.tiny.value else None
        if offset is None:
            return None
        owners = self._map.owners(offset)
        mine = next((one for one in owners if one.group == self.group.value), None)
        return mine and Coordinate(mine.layer, mine.block, mine.head, mine.state, mine.byte)

    def hovered(self, x: float, y: float, axes: int) -> str:
        offset = self._drawing.offset_at(x, y) if axes == 0 else None
        return "" if offset is None else "\n".join(offset_lines(self._map, offset))

    def wheeled(self, x: float, y: float, axes: int, delta: int) -> None:
        at = self._drawing.offset_at(x, y) if axes == 0 else None
        if at is not None:
            self._set(self.window.zoomed(at, 1.6 if delta > 0 else 1 / 1.6))

    def dragged(self, x0: float, y0: float, x1: float, y1: float, axes: int) -> None:
        ends = [self._drawing.offset_at(x, y) for x, y in ((x0, y0), (x1, y1))] if axes == 0 else [None]
        if None not in ends:
            self._set(Window.between(*ends, self._map.size_bytes))

    def pressed(self, key: str, shift: bool) -> None:
        middle = self.window.start + self.window.length // 2
        moved = {"ArrowLeft": lambda: self.window.moved(-0.25), "ArrowRight": lambda: self.window.moved(0.25),
                 "+": lambda: self.window.zoomed(middle, 0.5), "-": lambda: self.window.zoomed(middle, 2),
                 "Escape": lambda: Window.whole(self._map.size_bytes)}.get(key)
        if moved is not None:
            self._set(moved())

    def _set(self, window: Window) -> None:
        self.window, self.is_stale, self._complaint.value = window, True, ""


def _text(label: str, tooltip: str, width: str) -> widgets.Text:
    return widgets.Text(description=label, tooltip=tooltip, continuous_update=False,
                        layout=widgets.Layout(width=width), style={"description_width": "54px"})


def _axis_button(axis: str) -> widgets.Button:
    colour = AXIS_COLOURS[axis]
    words = "bytes" if axis == "C" else AXIS_WORDS[axis][0]
    return widgets.Button(description=f"{axis} {words}", layout=widgets.Layout(width="108px"),
                          style={"button_color": colour, "text_color": ink_on(colour)})
