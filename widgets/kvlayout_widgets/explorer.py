"""Explorer: the whole of kvlayout in one cell. Choices on the left, what follows from them on the right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import ipywidgets as widgets

from kvlayout.captured import captured_selection, is_captured
from kvlayout.errors import LayoutError, raised
from kvlayout.facts.backends import own_backends
from kvlayout.landing import Landing
from kvlayout.plan import DEFAULT_NUM_BLOCKS, Plan
from kvlayout.selection import Selection
from kvlayout_widgets.allocation import AllocationPanel
from kvlayout_widgets.badge import Badge
from kvlayout_widgets.controls import Controls
from kvlayout_widgets.exports import Exports, picture_bytes
from kvlayout_widgets.figures.theme import as_theme
from kvlayout_widgets.header import header_html, status_html
from kvlayout_widgets.html import STYLE
from kvlayout_widgets.landing_bar import LandingBar
from kvlayout_widgets.selection_bar import SelectionBar
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import PictureTab, Tab
from kvlayout_widgets.tabs.bench import BenchTab
from kvlayout_widgets.tabs.clinic import ClinicTab
from kvlayout_widgets.tabs.code import CodeTab
from kvlayout_widgets.tabs.compare import CompareTab
from kvlayout_widgets.tabs.memory import MemoryTab
from kvlayout_widgets.tabs.offsets import OffsetsTab
from kvlayout_widgets.tabs.page import PageTab
from kvlayout_widgets.tabs.resolver import ResolverTab
from kvlayout_widgets.tabs.strides import StridesTab
from kvlayout_widgets.tabs.transfer import TransferTab

TABS = (OffsetsTab, PageTab, MemoryTab, CompareTab, TransferTab, ClinicTab, BenchTab, ResolverTab, StridesTab,
        CodeTab)


class Explorer:
    """Show a KV cache: which layout, where each byte lies, and the same in real memory.

    ``selection`` is a Selection, or a captured cache: a KVCacheConfig, or the path of a capture's JSON. Or give a
    Selection's arguments by name, for example ``Explorer(model="Qwen/Qwen3-0.6B")``.
    ``backends``: classes of your own, offered beside vLLM's; Bench, Prototype lists what one lacks. ``theme``:
    "light", "dark", or None to follow JupyterLab. Raises LayoutError for a selection that no plan follows from.

    Attributes:
        state: choices, plan, selected coordinate and cache (:class:`~kvlayout_widgets.state.State`)
        tabs: {title: tab}
        widget: all of it, as one ipywidget
    """

    def __init__(self, selection: object = None, *, backends: Iterable[type] = (), theme: str | None = None,
                 **choices):
        if selection is None:
            if not {"num_blocks", "available_memory"} & set(choices):
                choices["num_blocks"] = DEFAULT_NUM_BLOCKS
            selection = Selection.from_dict(choices)
        elif not isinstance(selection, Selection):
            selection = captured_selection(selection, **choices)
        elif choices:
            selection = replace(selection, **choices)
        self._theme = None if theme is None else as_theme(theme).name
        self.state = State(selection, own_backends(backends))
        if self.state.plan is None:
            raise self.state.problem
        self.controls = Controls(self.state, self._changed)
        self.selection_bar = SelectionBar(self.state, self.act)
        self.allocation = AllocationPanel(self.state, self.act, lambda: self.theme)
        self.exports = Exports(self._export, self.act)
        self.badge = Badge(self.state, self.exports.carrier.download)
        self.landing_bar = LandingBar(self.state, self.act)
        self.tabs: dict[str, Tab] = {tab.title: tab(self.state, self.act) for tab in TABS}
        self._header, self._status = widgets.HTML(), widgets.HTML()
        self._message, self._is_busy = "", False
        if self.state.broken:
            self._message = f"Not offered: {self.state.broken[0][1]} Bench, Prototype lists what is wrong."
        self._tabs = widgets.Tab([tab.widget for tab in self.tabs.values()], titles=list(self.tabs), selected_index=0)
        self.widget = self._build()
        self.state.observe(self._mark_stale, ["plan", "coordinate", "problem", "cache", "landing"])
        self.state.observe(lambda change: self.allocation.show(), "cache")
        self._tabs.observe(lambda change: self.act(lambda: None), "selected_index")
        for tab in self.tabs.values():
            for picture in tab.pictures:
                picture.observe(self._host_changed, ["is_dark", "pixel_ratio"])
        self.refresh()

    def _build(self) -> widgets.Widget:
        left = widgets.Box([*self.controls.sections, self.allocation.widget])
        left.add_class("kvl-left")
        right = widgets.VBox([self._header, self.badge.widget, self._status, self.landing_bar.widget,
                              self.allocation.verification.details, self.selection_bar.widget, self._tabs,
                              self.exports.widget])
        right.add_class("kvl-right")
        main = widgets.Box([left, right])
        main.add_class("kvl-main")
        root = widgets.VBox([widgets.HTML(f"<style>{STYLE}</style>"), main])
        root.add_class("kvl-explorer")
        return root

    @property
    def plan(self) -> Plan:
        """What follows from the last choices that could be planned."""
        return self.state.plan

    @property
    def selection(self) -> Selection:
        """The choices of :attr:`plan`."""
        return self.state.plan.selection

    @property
    def visible(self) -> Tab:
        """The tab in front."""
        return list(self.tabs.values())[self._tabs.selected_index]

    @property
    def theme(self) -> str:
        """The theme of the pictures: the one that was given, or JupyterLab's."""
        if self._theme is not None:
            return self._theme
        is_dark = any(picture.is_dark for tab in self.tabs.values() for picture in tab.pictures)
        return "dark" if is_dark else "light"

    def show(self, title: str) -> None:
        """Bring a tab to the front."""
        if title not in self.tabs:
            raise LayoutError("title", title, "is not a tab", f"Use one of {', '.join(self.tabs)}")
        self._tabs.selected_index = list(self.tabs).index(title)

    def choose(self, **choices) -> bool:
        """Change arguments of the selection, as the controls do; whether a plan follows from them."""
        self._message = ""  # of what was chosen before
        is_planned = self.state.try_change(**choices)
        self.refresh()
        return is_planned

    def select(self, layer: str | int, block: int, head: int = 0, state: int = 0, byte: int = 0) -> None:
        """Select a coordinate in all tabs; LayoutError naming the part that is out of range."""
        self.state.select(layer, block, head, state, byte)
        self.refresh()

    def to_json(self) -> str:
        """Return the selection as JSON."""
        return self.selection.to_json()

    @classmethod
    def from_json(cls, text: str | bytes, **options) -> Explorer:
        """Return an explorer of a selection that was saved as JSON."""
        return cls(Selection.from_json(text), **options)

    def act(self, change: Callable[[], None], *, redraw: bool = True) -> None:
        """Run a change that the user asked for, then show what became of it. No error leaves this method."""
        if self._is_busy:
            change()
            return
        self._is_busy, said = True, self._message
        try:
            self._message = ""
            change()
        except Exception as error:  # whatever it is, the user must see it, not only the log
            self._report(error)
        finally:
            self._is_busy = False
        if redraw:
            self.refresh()
        elif self._message:
            self._show_status()
        else:
            self._message = said

    def light(self, landing: Landing | None) -> None:
        """Light the pages where tokens landed in Offsets and Memory; None puts the light out."""
        self.state.light(landing)
        self.refresh()

    def refresh(self) -> None:
        """Show the state: the header, the controls, and the visible tab if it is out of date."""
        try:
            self._is_busy = True
            self.controls.show()
            self.selection_bar.show()
            self.allocation.show()
            self._header.value = header_html(self.state)
            tab = self.visible
            if tab.is_stale:
                tab.draw(self.theme)
                tab.is_stale = False
        except Exception as error:
            self._report(error)
        finally:
            self._is_busy = False
        self._show_status()

    def _changed(self, choices: dict, unreadable: LayoutError | None) -> None:
        def change() -> None:
            self.state.try_change(**choices)
            if unreadable is not None:
                self.state.refuse(unreadable)
        self.act(change)

    def _mark_stale(self, change) -> None:
        for tab in self.tabs.values():
            tab.is_stale = tab.is_stale or change["name"] in tab.depends_on

    def _host_changed(self, change) -> None:
        for tab in self.tabs.values():
            tab.is_stale = True
        self.act(lambda: None)

    def _report(self, error: Exception) -> None:
        self._message = str(error) if isinstance(error, LayoutError) else raised(error)
        if not isinstance(error, LayoutError):
            self.widget.log.error("the explorer failed", exc_info=error)

    def _show_status(self) -> None:
        problem, plan = self.state.problem, self.state.plan
        lines = [self._message]
        if problem is not None:
            but = " but the panel Lints" if is_captured(self.state.choices["model"]) else ""
            lines += [f"These choices can't be planned: all tabs{but} still show the last ones that can "
                      f"({plan.model.title}, {plan.layout.name}, {plan.config.num_blocks:,} blocks).", str(problem)]
        self._status.value = "".join(status_html(one, True) for one in lines if one)

    def _export(self, kind: str) -> tuple[str, bytes]:
        name = f"{self.plan.model.name.replace('/', '-')}-{self.plan.layout.name}"
        if kind == "JSON":
            return name, self.to_json().encode()
        if kind == "CSV":
            tab = self.tabs["Offsets"]
            if tab.drawing is None or tab.is_stale:
                tab.draw(self.theme)
                tab.is_stale = False
            return f"{name}-offsets", tab.csv().encode()
        drawing = self.visible.drawing
        if drawing is None:
            raise LayoutError("tab", self.visible.title, "has no picture to save", "Choose a tab with one")
        return f"{name}-{self.visible.title.lower()}", picture_bytes(drawing.figure, kind)

    def _repr_mimebundle_(self, **kwargs):
        data, metadata = self.widget._repr_mimebundle_(**kwargs), {}
        tab = self.visible
        if isinstance(tab, PictureTab):
            picture, metadata = tab.picture._repr_mimebundle_(**kwargs)
            data = {**{key: value for key, value in picture.items() if key in ("image/png", "text/plain")},
                    "application/vnd.jupyter.widget-view+json": data["application/vnd.jupyter.widget-view+json"]}
        return data, metadata
