"""Slots: where a slot lies, where decode context parallelism puts a token, and what a block table's bytes are."""

from __future__ import annotations

import ipywidgets as widgets

from kvlayout.clinic import slot_report
from kvlayout_widgets.figures.wording import group_words
from kvlayout_widgets.html import paragraph
from kvlayout_widgets.panels.numbers import block_table, whole
from kvlayout_widgets.panels.question import Question, field, reveal
from kvlayout_widgets.panels.slot_answers import Sizes, slot_html
from kvlayout_widgets.panels.slot_pages import facing
from kvlayout_widgets.panels.token_places import parallel_html, touched_html, usable_html
from kvlayout_widgets.state import State
from kvlayout_widgets.tabs.base import Act, Tab

_NO_SLOT = "Type a slot of a slot_mapping, such as 75,849; a negative one, such as -1, is a token that isn't stored."
_NO_POSITION = ("Type a token's position in its request, its block table's entry, and the number of ranks, such as "
                "300, 5 and 4.")
_NO_TABLE = "Type a request's block ids, such as 5, 9, 12-15, and how many tokens they hold."


class SlotsPanel(Tab):
    """Three questions, each with its own controls and its own answer.

    Attributes:
        slot, second, kernel, blocks: a slot, and a block size, kernel block size and pool of one's own for it
        position, block_id, ranks, interleave, size, kernel_size: of decode context parallelism
        table, tokens, group: of a sequence
        where, parallel, sequence: the questions
    """

    title = "Slots"
    asks = "Where does this slot, this position, or this block table lie?"

    def __init__(self, state: State, act: Act):
        super().__init__(state, act)
        self.slot = field("Slot", "An entry of slot_mapping: block × block size + row", "75,849", label=34)
        self.second = field("Also as blocks of", "A second block size, tokens, to decode the slot with side by side",
                            "tokens", width=200, label=112)
        self.kernel = field("kernel blocks of", "Tokens of a kernel block of the second size", "tokens", width=205,
                            label=118)
        self.blocks = field("in a pool of", "Blocks of the second size; empty for this cache's", "blocks", width=170,
                            label=78)
        self.select = widgets.Button(description="Select in all tabs", disabled=True,
                                     tooltip="Select the state that the slot names",
                                     layout=widgets.Layout(width="150px"))
        self.position = field("Position", "The token's position in its request, from 0", "300", width=150, label=56)
        self.block_id = field("Block id", "The block table's entry for it, the same on every rank", "5", width=140,
                              label=56)
        self.ranks = field("Ranks", "decode_context_parallel_size", "4", width=110, label=42)
        self.interleave = field("Interleave", "cp_kv_cache_interleave_size: tokens in a row on one rank", "1",
                                width=140, label=66)
        self.size = field("Block size", "Tokens of a block on one rank; empty for this cache's", "tokens", width=150,
                          label=66)
        self.kernel_size = field("Kernel block", "Tokens of a kernel block; empty for this cache's", "tokens",
                                 width=160, label=82)
        self.table = field("Blocks", "Block ids of the block manager, in order, with ranges", "5, 9, 12-15",
                           width=330, label=46)
        self.tokens = field("Tokens", "How many tokens the blocks hold; empty for all that fit", "all", width=140,
                            label=50)
        self.group = widgets.Dropdown(options=[("group 0", 0)], description="Of", tooltip="Whose block table it is",
                                      layout=widgets.Layout(width="330px"), style={"description_width": "22px"})
        self._is_setting = False
        self.where = Question("A slot", (self.slot, self.second, self.kernel, self.blocks, self.select), self._where,
                              self.later)
        self.parallel = Question("A position, under decode context parallelism", (
            self.position, self.block_id, self.ranks, self.interleave, self.size, self.kernel_size), self._parallel,
            self.later)
        self.sequence = Question("A sequence's block table", (self.table, self.tokens, self.group), self._sequence,
                                 self._table_changed)
        self._address: tuple[int, int] | None = None
        self.select.on_click(lambda _: self.act(self._select))
        self.widget = widgets.VBox([self.where.widget, self.parallel.widget, self.sequence.widget])

    def draw(self, theme: str) -> None:
        self._offer_groups()
        for question in (self.where, self.parallel, self.sequence):
            question.draw()

    def _table_changed(self) -> None:
        if not self._is_setting:
            self.later()

    def _offer_groups(self) -> None:
        address_map = self.state.plan.address_map
        options = [(group_words(address_map, index), index)
                   for index in range(len(address_map.config.kv_cache_groups))]
        self._is_setting = True
        if list(self.group.options) != options:
            self.group.options = options
        self._is_setting = False
        reveal((self.group,), len(options) > 1)

    def _where(self) -> str:
        self._address, self.select.disabled = None, True
        reveal((self.kernel, self.blocks), bool(self.second.value.strip()))
        slot = whole("slot", self.slot.value, "75,849")
        if slot is None:
            return paragraph(_NO_SLOT, "note") + usable_html(self.state.plan.address_map)
        sizes = None
        second = whole("second block size", self.second.value, "16")
        if second is not None:
            sizes = Sizes(second, whole("kernel block", self.kernel.value, "64"),
                          whole("pool", self.blocks.value, "2,699"))
        entries = slot_report(slot, self.state.plan.address_map)
        found = facing(self.state, entries)
        self._address = None if found is None else (found.address, found.entry.group)
        self.select.disabled = self._address is None
        return slot_html(self.state, slot, entries, sizes)

    def _select(self) -> None:
        address, group = self._address
        self.state.select_address(address, group)

    def _parallel(self) -> str:
        position = whole("position", self.position.value, "300")
        reveal((self.size, self.kernel_size), position is not None)
        if position is None:
            return paragraph(_NO_POSITION, "note")
        numbers = (whole("block id", self.block_id.value, "5"), whole("ranks", self.ranks.value, "4"),
                   whole("interleave", self.interleave.value, "1"))
        if numbers[0] is None or numbers[1] is None:
            return paragraph(_NO_POSITION, "note")
        interleave = 1 if numbers[2] is None else numbers[2]
        return parallel_html(self.state.plan.address_map, position, *numbers[:2], interleave,
                             whole("block size", self.size.value, "128"),
                             whole("kernel block", self.kernel_size.value, "64"))

    def _sequence(self) -> str:
        table = block_table(self.table.value)
        reveal((self.tokens,), bool(table))
        if not table:
            return paragraph(_NO_TABLE, "note")
        if self.group.value is None:
            return paragraph("This cache has no group, so no block table.", "warn")
        return touched_html(self.state, table, whole("tokens", self.tokens.value, "40"), self.group.value)
