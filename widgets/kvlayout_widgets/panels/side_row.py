"""The controls of one side of a transfer: one row, with the reason below it where a choice can't be."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from kvlayout.as_typed import block_ids
from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.control import parse_integer
from kvlayout_widgets.html import paragraph
from kvlayout_widgets.two_sides import MOST_RANKS, SideChoice

_AS_HERE = "as here"
_ORDER = ("layout", "tp_size", "ranks", "blocks", "block_ids", "pp_size", "stages", "block_size", "num_blocks")
# A captured config leaves none of these open.
_PLANNED = ("tp_size", "ranks", "pp_size", "stages", "block_size", "num_blocks")


class SideRow:
    """Text boxes that are empty where a side is as the cache that is shown.

    ``name``: "Source" or "Target"; a target is one rank of one stage, a source all or some of its ranks.
    """

    def __init__(self, name: str, blocks: str, on_change: Callable[[], None]):
        self.name, self.is_target = name, name == "Target"
        ranks = ("rank", "0", "The rank that receives, from 0") if self.is_target else \
            ("ranks", "all", "The ranks that send, such as 0, 2; all of them if left empty")
        stages = ("stage", "0", "The pipeline stage that receives, from 0") if self.is_target else \
            ("stages", "all", "The pipeline stages that send; all of them if left empty")
        self.tp_size = _text("TP", _AS_HERE, "--tensor-parallel-size of this side", 22, 100)
        self.ranks = _text(*ranks, 38, 96)
        self.pp_size = _text("PP", _AS_HERE, "--pipeline-parallel-size of this side", 22, 100)
        self.stages = _text(*stages, 46, 104)
        self.layout = widgets.Dropdown(options=[_AS_HERE, *KVCacheLayout.__members__], description="Layout",
                                       tooltip="This side's KVCacheLayout; forced, without asking the backend",
                                       layout=widgets.Layout(width="154px"), style={"description_width": "48px"})
        self.block_size = _text("Block size", _AS_HERE, "--block-size of this side, tokens", 70, 148)
        self.num_blocks = _text("Blocks", _AS_HERE, "num_gpu_blocks of this side's pool", 48, 126)
        self.blocks = _text("Block ids", "5, 9 or 0-3", "The request's block ids here, in token order", 62, 190)
        self.blocks.value = blocks
        self.block_ids = widgets.Dropdown(
            options=[("manager's", "manager"), ("kernel's", "map")], description="ids are",
            tooltip="What the ids count: the block manager's blocks, or kernel blocks",
            layout=widgets.Layout(width="140px"), style={"description_width": "44px"})
        self.controls = {one: getattr(self, one) for one in _ORDER}
        self.message, self._stage = widgets.HTML(), 0
        row = widgets.HBox([widgets.HTML(f'<span class="kvl-axis"><b>{name}</b></span>'), *self.controls.values()],
                           layout=widgets.Layout(flex_flow="row wrap", align_items="center"))
        self.widget = widgets.VBox([row, self.message])
        for one in self.controls.values():
            one.observe(lambda _: on_change(), "value")
        self.say("")

    def choice(self) -> SideChoice:
        """Return what the controls say; LayoutError for text that means nothing."""
        numbers = {one: self._number(one) for one in ("tp_size", "pp_size", "block_size", "num_blocks")}
        layout = None if self.layout.value == _AS_HERE else self.layout.value
        return SideChoice(**numbers, ranks=self._listed("ranks"), stages=self._listed("stages"), layout=layout,
                          blocks=tuple(block_ids(self.blocks.value, f"{self.name}: block ids")),
                          block_ids=self.block_ids.value)

    def show(self, *, is_captured: bool, is_split: bool, stage: int) -> None:
        """Offer only what works: a captured config is there once, as it is; ids of two kinds need split blocks.

        ``stage``: the one that is shown, which receives where nothing else is typed.
        """
        self._stage = 0 if self.pp_size.value.strip() else stage
        if self.is_target:
            self.stages.placeholder = f"{self._stage}"
        for one in _PLANNED:
            self.controls[one].disabled = is_captured
        self.block_ids.layout.display = None if is_split else "none"

    def say(self, reason: object) -> None:
        """Show why the row's choices can't be; "" takes that back."""
        self.message.value = paragraph(f"✗ {reason}", "refused") if reason else ""
        self.message.layout.display = None if reason else "none"

    def _number(self, name: str) -> int | None:
        control = self.controls[name]
        return None if control.disabled else parse_integer(
            control.value, f"{self.name}: {control.description}", _AS_HERE)

    def _listed(self, name: str) -> tuple[int, ...] | None:
        """Ranks or stages: one for a target, all (None) or some for a source."""
        control = self.controls[name]
        text = "" if control.disabled or control.value.strip().lower() == "all" else control.value
        noun = "rank" if name == "ranks" else "stage"
        found = tuple(block_ids(text, f"{self.name}: {control.description}", MOST_RANKS, noun))
        if not self.is_target:
            return found or None
        if len(found) > 1:
            raise LayoutError(f"{self.name}: {control.description}", text, "must be one number, such as 0")
        return found or (self._stage if name == "stages" else 0,)


def _text(description: str, placeholder: str, tooltip: str, label_width: int, width: int) -> widgets.Text:
    return widgets.Text(description=description, placeholder=placeholder, tooltip=tooltip, continuous_update=False,
                        layout=widgets.Layout(width=f"{width}px"), style={"description_width": f"{label_width}px"})
