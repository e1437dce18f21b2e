"""One side: in how many pieces a part of this cache is moved, in its own layout and in the others."""

from __future__ import annotations

from collections import Counter

import ipywidgets as widgets
import numpy as np

from kvlayout.address import AddressMap
from kvlayout.as_typed import MOST_IDS, block_ids
from kvlayout.clinic import Transfer, registered_regions, transfer, transfer_selections
from kvlayout.clinic.relayout import relaid
from kvlayout.errors import LayoutError
from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.block_ids import ids_words
from kvlayout_widgets.control import parse_integer, parse_size
from kvlayout_widgets.figures.theme import exact_bytes
from kvlayout_widgets.figures.transfer import TransferFigure, below_words, range_words
from kvlayout_widgets.figures.wording import count, layer_words
from kvlayout_widgets.html import layout_chips, paragraph, span, table
from kvlayout_widgets.panels.picture_panel import PicturePanel
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act

WHAT = {"one block": "one block of all layers", "one layer": "one layer, all its blocks",
        "one head shard": "one head shard of a block", "one request": "one request"}
_PLACED = {"in a row from block 1": 1, "every other block": 2, "in these blocks": 0}
_MOST_PIECES = 1 << 20
_SHOWN = 12


class OneSidePanel(PicturePanel):
    """What is moved, as runs by length; the block and the layer are those of the selection."""

    title = "One side"
    asks = "In how many pieces is a part of this cache moved, how long are they, and which layout would do better?"

    def __init__(self, state: State, act: Act):
        self.what = widgets.Dropdown(options=[(words, name) for name, words in WHAT.items()], description="Move",
                                     tooltip="The part that is moved; block and layer are those selected above",
                                     layout=widgets.Layout(width="252px"), style={"description_width": "42px"})
        self.threshold = _text("Threshold", "64 KiB", "Runs shorter than this are counted apart; 0 for none; a bare "
                               "number is in KiB", 70, 160)
        self.threshold.placeholder = "0"
        self.tp_size = _text("Split over", "2", "Ranks that this rank's head slots are split over, as by a peer with "
                             "a larger --tensor-parallel-size", 66, 120)
        self.tp_rank = _text("rank", "0", "The one of them whose head slots are moved, from 0", 32, 80)
        self.tokens = _text("Tokens", "512", "The request's length; its blocks are filled in turn", 50, 130)
        self.placed = widgets.Dropdown(options=list(_PLACED), layout=widgets.Layout(width="170px"),
                                       tooltip="Which blocks the request has: a fresh pool hands them out in a row, "
                                       "a used one doesn't; block 0 is vLLM's null block")
        self.ids = _text("", "1-4, 9", "The request's block ids, as the block table has them", 0, 150)
        super().__init__(state, act, (self.what, self.tp_size, self.tp_rank, self.tokens, self.placed, self.ids,
                                      self.threshold),
                         "A bar is as high as there are runs of that length. Point at a row for its numbers.")
        self._maps: tuple | None = None
        for one in (self.what, self.threshold, self.tp_size, self.tp_rank, self.tokens, self.placed, self.ids):
            one.observe(lambda _: self.later(), "value")
        self._show_controls()

    def draw(self, theme: str) -> None:
        self._show_controls()
        if self._is_request and not _PLACED[self.placed.value] and not self.ids.value.strip():
            self.say(paragraph("Type the request's block ids, such as 5, 9 or 1-4.", "note"))
            return
        super().draw(theme)

    def make(self, theme: str) -> TransferFigure:
        return TransferFigure(theme)

    def update(self, drawing: TransferFigure) -> None:
        threshold = parse_size(self.threshold.value.strip() or "0", "threshold", "KiB")
        what, counted = self._counted()
        self.by_layout = counted
        drawing.update(counted, chosen=self.state.plan.layout.name, threshold_bytes=threshold, what=what,
                       title=self.state.plan.model.title)

    def hovered(self, x: float, y: float, axes: int) -> str:
        return self._drawing.words_at(x, y) if axes == 0 else ""

    def html(self) -> str:
        chosen, drawing = self.state.plan.layout.name, self._drawing
        return (layouts_table(self.by_layout, chosen, drawing.threshold, self.state.refusals)
                + lengths_table(self.by_layout[chosen], chosen) + regions_table(self.state.plan.address_map))

    @property
    def _is_request(self) -> bool:
        return self.what.value == "one request"

    def _show_controls(self) -> None:
        is_shard, is_typed = self.what.value == "one head shard", not _PLACED[self.placed.value]
        for shown, *controls in ((is_shard, self.tp_size, self.tp_rank), (self._is_request, self.placed),
                                 (self._is_request and not is_typed, self.tokens),
                                 (self._is_request and is_typed, self.ids)):
            for one in controls:
                one.layout.display = None if shown else "none"

    def _counted(self) -> tuple[str, dict[str, Transfer | str]]:
        """What is moved, in words, and its runs (or why there are none) in each layout."""
        plan, at = self.state.plan, self.state.coordinate
        address_map = plan.address_map
        region = address_map.region(at.layer)
        names = list(address_map.config.kv_cache_groups[region.group].layer_names)
        of_layers = f"{count(len(names), 'L')}{self._group_words(region.group)}"
        kind = self._block_kind(region.group)
        if self.what.value == "one layer":
            layer = layer_words(address_map, at.layer)
            return f"All {count(address_map.shape(at.layer)[0], 'B')} of {layer}", self._by_layout(
                lambda one: transfer(one, blocks=None, layers=at.layer))
        if self.what.value == "one head shard":
            size, rank = (self._number(one) for one in (self.tp_size, self.tp_rank))
            asked = dict(block=at.block, layer=at.layer, tp_size=size, tp_rank=rank, request=[at.block])
            return (f"Head shard {asked['tp_rank']} of {asked['tp_size']}, {kind} {at.block:,} of {of_layers}",
                    self._by_layout(lambda one: transfer_selections(one, **asked)["one head shard"]))
        ids = self._request_ids(region.group) if self._is_request else [at.block]
        words = ids_words(ids).replace("block", kind, 1)
        self._check_pieces(ids, names)
        return (f"{words[0].upper()}{words[1:]} of {of_layers}",
                self._by_layout(lambda one: transfer(one, blocks=ids, layers=names)))

    def _by_layout(self, counted) -> dict[str, Transfer | str]:
        """The runs in each layout; what the cache itself doesn't have is an error, not a layout's refusal."""
        plan = self.state.plan
        own = counted(plan.address_map)
        found: dict[str, Transfer | str] = {}
        for name, one in self._all_maps().items():
            try:
                found[name] = own if name == plan.layout.name else one if isinstance(one, str) else counted(one)
            except LayoutError as error:
                found[name] = error.rule
        return found

    def _all_maps(self) -> dict[str, AddressMap | str]:
        """The same groups and blocks in each layout, or why not; kept as long as the plan is shown."""
        plan = self.state.plan
        if self._maps is None or self._maps[0] is not plan:
            found: dict[str, AddressMap | str] = {}
            for layout in dict.fromkeys((*KVCacheLayout, plan.layout)):  # the plan's may be none of the six
                try:
                    found[layout.name] = relaid(plan.address_map, layout, vllm_version=plan.selection.vllm_version)
                except LayoutError as error:
                    found[layout.name] = error.rule
            self._maps = plan, found
        return self._maps[1]

    def _request_ids(self, group: int) -> list[int]:
        step = _PLACED[self.placed.value]
        if not step:
            return block_ids(self.ids.value, "block ids")
        tokens = self._number(self.tokens)
        if tokens < 1:
            raise LayoutError("Tokens", tokens, "must be at least 1", "Write a length such as 512")
        each = self.state.plan.kernel_block_sizes[group]
        needed = -(-tokens // each)
        num_blocks = self.state.plan.address_map.shape(self.state.coordinate.layer)[0]
        last = 1 + step * (needed - 1)
        if last >= num_blocks or needed > MOST_IDS:
            raise LayoutError(
                "Tokens", tokens, f"are {needed:,} blocks of {each:,} tokens, up to block {last:,}; the pool ends "
                f"with block {num_blocks - 1:,}, and at most {MOST_IDS:,} are counted",
                "Give fewer tokens, or plan more blocks")
        return list(range(1, last + 1, step))

    @staticmethod
    def _number(box: widgets.Text) -> int:
        """The number in a text box; what stands in it as an example while it is empty."""
        number = parse_integer(box.value, box.description, box.placeholder)
        return int(box.placeholder) if number is None else number

    def _check_pieces(self, ids: list[int], names: list[str]) -> None:
        """A stretch of blocks costs the same however long it is; single ones don't."""
        heads = max(self.state.plan.address_map.shape(name)[1] for name in names)
        most = _MOST_PIECES // (len(names) * max(1, heads))
        distinct = np.unique(ids)
        if distinct[-1] - distinct[0] != len(distinct) - 1 and len(distinct) > most:
            raise LayoutError(
                "request", f"{len(distinct):,} blocks", f"aren't in a row, and are more than the {most:,} that are "
                f"counted here for {len(names)} layers", "Give fewer, or use kvlayout.clinic.transfer")

    def _group_words(self, group: int) -> str:
        return f" of group {group}" if len(self.state.plan.groups) > 1 else ""

    def _block_kind(self, group: int) -> str:
        plan = self.state.plan
        is_split = plan.kernel_block_sizes[group] != plan.groups[group].kv_cache_spec.block_size
        return "kernel block" if is_split else "block"


def layouts_table(by_layout: dict[str, Transfer | str], chosen: str, threshold_bytes: int,
                  refusals: dict[str, str]) -> str:
    """Return what each layout gives; the cache's own is marked, and where vLLM would refuse one it is said."""
    rows = []
    for name, one in by_layout.items():
        mark = "<b>▶ this cache</b>" if name == chosen else ""
        if isinstance(one, str):
            rows.append((layout_chips(name), mark, *("–",) * 4, span(f"✗ {one}", "bad")))
            continue
        below = below_words(one, threshold_bytes) if threshold_bytes and one.num_runs else ""
        why = f"not for vLLM here: {refusals[name]}" if name in refusals and name != chosen else ""
        rows.append((layout_chips(name), mark, f"{one.num_runs:,}", range_words(one.smallest, one.largest),
                     exact_bytes(one.total_bytes), below, span(why, "soft") if why else ""))
    return table(("layout", "", "runs", "bytes a run", "bytes in all", "below the threshold", ""), rows,
                 "The same part in each layout")


def lengths_table(one: Transfer, layout: str) -> str:
    """Return the runs of this cache by their length, longest total first where there are many."""
    lengths = sorted(one.run_bytes, key=lambda length: -length * one.run_bytes[length])
    rows = [(f"{one.run_bytes[length]:,}", exact_bytes(length), exact_bytes(length * one.run_bytes[length]))
            for length in sorted(lengths[:_SHOWN])]
    rest = lengths[_SHOWN:]
    if rest:
        rows.append((f"{sum(one.run_bytes[length] for length in rest):,}", f"{len(rest):,} more lengths",
                     exact_bytes(sum(length * one.run_bytes[length] for length in rest))))
    return table(("runs", "bytes a run", "bytes in all"), rows, f"Runs of this cache ({layout}), by length")


def regions_table(address_map: AddressMap) -> str:
    """Return how many regions of which size a connector registers, alike ones together."""
    regions = registered_regions(address_map)
    kinds = Counter((one.length, len(one.layers)) for one in regions)
    rows = [(f"{number:,}", exact_bytes(length), f"{layers:,}", exact_bytes(number * length))
            for (length, layers), number in kinds.most_common(_SHOWN)]
    more = paragraph(f"and {len(kinds) - _SHOWN:,} more kinds of region", "note") if len(kinds) > _SHOWN else ""
    why = "layers lie apart, so each has its own" if address_map.layout.is_layer_compact else \
        "a block holds all layers, so there is one in all"
    return table(("regions", "bytes each", "layers in each", "bytes in all"), rows,
                 f"Regions that a connector registers: {len(regions):,} ({why})") + more


def _text(description: str, value: str, tooltip: str, label_width: int, width: int) -> widgets.Text:
    return widgets.Text(description=description, value=value, placeholder=value, tooltip=tooltip,
                        continuous_update=False,
                        layout=widgets.Layout(width=f"{width}px"), style={"description_width": f"{label_width}px"})
