"""The allocation in address order, from all of it down to one byte."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvlayout.address import AddressMap
from kvlayout.errors import LayoutError, check_int
from kvlayout.landing import Landing
from kvlayout_widgets.figures import wording
from kvlayout_widgets.figures.common import Coordinate, Drawing
from kvlayout_widgets.figures.fields import field_table
from kvlayout_widgets.figures.folded import folded
from kvlayout_widgets.figures.glyphs import Glyphs, Label
from kvlayout_widgets.figures.lit import Lit, kinds_of, lit_words
from kvlayout_widgets.figures.pieces import cut, nesting
from kvlayout_widgets.figures.raster import Legend
from kvlayout_widgets.figures.ribbon import MOST_BOXES, Ribbon
from kvlayout_widgets.figures.strip import RAMP, Strip, memory_palette
from kvlayout_widgets.figures.theme import AXIS_WORDS, Theme, exact_address, exact_bytes, format_bytes

_STRIP, _RIBBON = (100, 74, 860, 364), (20, 34, 940, 380)  # pixels: left, bottom, right, top
_BY_BYTE = 48  # bytes of a window that are drawn one by one


class MemoryFigure(Drawing):
    """The ribbon, updated in place. ``mode`` is "tiny" (boxes and brackets) or "real" (a folded raster).

    Attributes:
        ribbon: boxes and brackets of the tiny view
        strip: the real view; ``folded`` are its samples
        palette, codes: looks, and the code of each field's name, "padding", "blank", "plain" and "ramp"
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        (left, bottom, right, top), wide = _STRIP, _RIBBON
        self.strip = Strip(self.add_axes(*_STRIP), right - left, top - bottom, self.theme)
        self.ribbon = Ribbon(self.add_axes(*_RIBBON, frame=False), wide[2] - wide[0], wide[3] - wide[1], self.theme)
        self._legend = Legend(self.add_axes(left, 389, 940, 403, frame=False), 940 - left, self.theme)
        self._lit = {"real": Lit(self.strip.axes, self.theme), "tiny": Lit(self.ribbon.axes, self.theme)}
        self._lit_words = Glyphs(self.figure)
        self.mode = "real"

    @property
    def lit(self) -> Lit:
        """The marks of the axes in use."""
        return self._lit[self.mode]

    @property
    def axes(self) -> Axes:
        """The axes in use."""
        return self.ribbon.axes if self.mode == "tiny" else self.strip.axes

    def update(
        self,
        address_map: AddressMap,
        *,
        start: int = 0,
        length: int | None = None,
        fold: int | None = None,
        group: int = 0,
        selected: Coordinate | None = None,
        title: str = "",
        landing: Landing | None = None,
    ) -> None:
        """Draw ``length`` bytes (None: to the end) from byte ``start`` as ``group`` owns them.

        ``fold``: bytes of a row of the real view, by default a stride of the layout. The tiny view is drawn where
        the window has at most 192 pieces and no fold is asked for. ``landing``: cells to be lit, of this group.
        LayoutError names a window outside of the pool.
        """
        self._map, self._size = address_map, address_map.size_bytes
        self.start = check_int("start", start, minimum=0)
        if self.start >= self._size:
            raise LayoutError("start", start, f"must be below the allocation's {self._size:,} bytes")
        rest = self._size - self.start
        self.length = rest if length is None else min(rest, check_int("length", length, minimum=1))
        fold = None if fold is None else check_int("fold", fold, minimum=1)
        self.group = check_int("group", group, minimum=0)
        self._names = field_table(address_map).names
        pieces, by_byte = None, False
        if fold is None:
            pieces = cut(address_map, self.start, self.length, group, MOST_BOXES)
            by_byte = pieces is not None and self.length <= _BY_BYTE and len(pieces) <= 6
            if by_byte:
                pieces = cut(address_map, self.start, self.length, group, MOST_BOXES, by_byte=True)
        self.mode = "real" if pieces is None else "tiny"
        self.strip.axes.set_visible(self.mode == "real")
        self.ribbon.axes.set_visible(self.mode == "tiny")
        at = None if selected is None else selected.offset(address_map)
        if self.mode == "tiny":
            self.palette, self.codes = memory_palette(self._names, "field", self.theme)
            self.ribbon.draw(address_map, pieces, nesting(address_map, by_byte), self.palette, self.codes, at)
            self._say_tiny(selected, at, title)
            self._light_pieces(landing)
        else:
            self.folded = folded(address_map, self.start, self.length, fold, group, _STRIP[2] - _STRIP[0])
            self.palette, self.codes = memory_palette(self._names, self.folded.colour, self.theme)
            self.strip.draw(address_map, self.folded, self.palette, self.codes, selected)
            self._say_real(selected, at, title)
            self._light_strip(landing)

    def _cells(self, landing: Landing | None) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (sorted keys of the landing's cells in this group, their kinds); None where there is no landing."""
        self.lit.clear()
        self._lit_words.set([])
        if landing is None:
            return None
        self._lit_words.set([Label(940 / 960, 396 / 460, "lit:  ● landed   ○ not written   ✕ not predicted", 8,
                                   self.theme.ink, "right")])
        mine = landing.group == self.group
        keys = self._key(landing.layer[mine], landing.block[mine], landing.head[mine])
        order = np.argsort(keys)
        return keys[order], kinds_of(landing)[mine][order]

    @staticmethod
    def _key(layer: np.ndarray, block: np.ndarray, head: np.ndarray) -> np.ndarray:
        return (np.asarray(layer, dtype=np.int64) << 44) | (np.asarray(block, dtype=np.int64) << 12) | head

    def _light_strip(self, landing: Landing | None) -> None:
        """Dim the pixels of other cells, and mark the first byte of each lit one: a cell may be less than a pixel."""
        found = self._cells(landing)
        if found is None:
            return
        view = self.folded
        keys = self._key(view.index("L"), view.index("B"), view.index("H"))
        lit = np.isin(keys, found[0]) & view.owned & view.inside
        self.lit.dim(lit, (0, view.fold, len(lit), 0))
        mine = landing.group == self.group
        at = self._map.offset(landing.layer[mine], landing.block[mine], landing.head[mine]) - view.start
        here = (at >= 0) & (at < min(view.length, len(lit) * view.fold))
        row, column = np.divmod(at[here], view.fold)
        self.lit.show(column, row + 0.5, kinds_of(landing)[mine][here], size=4)
        self.tell((*self._facts, f"Lit: {lit_words(landing)}"))

    def _light_pieces(self, landing: Landing | None) -> None:
        """Mark the boxes of lit cells."""
        found = self._cells(landing)
        if found is None or not len(found[0]):
            return
        pieces = self.ribbon.pieces
        keys = self._key(pieces.layer, pieces.keys["B"], pieces.keys["H"])
        place = np.minimum(np.searchsorted(found[0], keys), len(found[0]) - 1)
        lit = (found[0][place] == keys) & (pieces.layer >= 0)
        x, y = self.ribbon.marks_at(np.flatnonzero(lit))
        self.lit.show(x, y, found[1][place[lit]], size=4)
        self.tell((*self._facts, f"Lit: {lit_words(landing)}"))

    def offset_at(self, x: float, y: float) -> int | None:
        """Return the byte offset under a point of the axes in use (data coordinates); None where no byte is."""
        return (self.ribbon if self.mode == "tiny" else self.strip).offset_at(x, y)

    def _window_words(self) -> str:
        whole = format_bytes(self._size)
        if self.length == self._size:
            return f"all {exact_bytes(self._size)}"
        return f"{exact_bytes(self.length)} of {whole}, from {exact_address(self.start)}"

    def _seen_by(self) -> str:
        groups = self._map.config.kv_cache_groups
        if len(groups) < 2:
            return ""
        return f"{wording.group_words(self._map, self.group)} ({len(groups)} groups overlay these bytes)"

    def _selected_words(self, selected: Coordinate | None, at: int | None) -> str:
        if selected is None:
            return ""
        where = "" if self.start <= at < self.start + self.length else "   (outside of this window)"
        return f"{wording.coordinate_words(self._map, selected)}:   offset {exact_address(at)}{where}"

    def _say_tiny(self, selected: Coordinate | None, at: int | None, title: str) -> None:
        order = " · ".join(wording.physical_axes(self._map))
        headline = " · ".join(part for part in (self._map.layout.name, title, self._window_words()) if part)
        reading = f"the brackets, read from the outside in, spell the layout: {order}"
        spelt = self._selected_words(selected, at)
        self.say(headline, " · ".join(part for part in (self._seen_by(), reading) if part),
                 spelt or "address →   one box is one field of one cell; boxes are not to scale")
        present = [code for code in range(len(self._names)) if code in self.ribbon.pieces.field]
        entries = [(code, self._names[code]) for code in present]
        if np.any(self.ribbon.pieces.field < 0):
            entries.append((self.codes["padding"], self._unowned_words(self.ribbon.pieces.offset[
                self.ribbon.pieces.field < 0])))
        self._legend.set(entries, self.palette, self.codes["blank"])
        self.tell((f"Memory in address order, {headline}", f"{len(self.ribbon.pieces)} boxes; {reading}",
                   self._seen_by(), *self._last_facts(spelt)))

    def _last_facts(self, spelt: str) -> tuple[str, str]:
        return f"Legend: {', '.join(self._legend.entries)}", f"Selected: {spelt}" if spelt else ""

    def _unowned_words(self, offsets: np.ndarray) -> str:
        chosen = offsets[np.linspace(0, len(offsets) - 1, min(6, len(offsets))).astype(int)]
        kinds = {padding.kind for offset in chosen.tolist() for padding in self._map.padding_of(offset)
                 if padding.group == self.group}
        words = {"page": "page padding", "block": "padding behind a block", "pool": "not this group's"}
        return ", ".join(word for kind, word in words.items() if kind in kinds) or "nobody's"

    def _say_real(self, selected: Coordinate | None, at: int | None, title: str) -> None:
        view, blank = self.folded, self.codes["blank"]
        headline = " · ".join(part for part in (self._map.layout.name, title, self._window_words()) if part)
        pixel = view.fold / view.offsets.shape[1]
        sampled = f"one pixel shows the owner of one byte in {pixel:,.0f}" if pixel > 1 else "every byte is drawn"
        spelt = self._selected_words(selected, at)
        if view.colour == "field":
            present = np.unique(view.fields[view.owned & view.inside]).tolist()
            entries = [(code, self._names[code]) for code in present]
            coloured = "coloured by content"
        else:
            word = AXIS_WORDS[view.colour][0]
            ramp = self.codes["ramp"] + np.arange(0, 2 * RAMP, 2)
            last = view.extent(view.colour) - 1
            entries = [(ramp, f"layer L, the first to the last of {last + 1}" if view.colour == "L" else
                        f"{word} {view.colour} 0 to {last:,}")]
            coloured = f"coloured by {word}" + (", neighbours alternate" if view.alternates else "")
        unowned = view.offsets[~view.owned & view.inside]
        if len(unowned):
            entries.append((self.codes["padding"], self._unowned_words(unowned)))
        self._legend.set(entries, self.palette, blank)
        self.say(headline, " · ".join(part for part in (self._seen_by(), coloured, sampled) if part), spelt)
        self.tell((f"Memory in address order, {headline}", f"{len(view.offsets)} of {view.total_rows:,} rows are "
                   f"drawn, one row is {view.fold_words}", f"{coloured.capitalize()}, {sampled}", self._seen_by(),
                   *self._last_facts(spelt)))


def memory_figure(address_map: AddressMap, *, theme: str | Theme = "light", **options) -> Figure:
    """Return the ribbon of :class:`MemoryFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = MemoryFigure(theme)
    drawing.update(address_map, **options)
    return drawing.figure
