"""One block's bytes as strips, one a group: whose content each byte holds if the block is that group's, or nothing's.

All rows have the same byte axis: the block's own bytes, put side by side where they lie in several pieces.
"""

from __future__ import annotations

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from kvlayout.address import AddressMap
from kvlayout.clinic import Strip, group_overlay
from kvlayout.errors import check_int
from kvlayout.strided import merge_runs
from kvlayout_widgets.figures import wording
from kvlayout_widgets.figures.callout import Callout
from kvlayout_widgets.figures.common import Coordinate, Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, fit, text_width
from kvlayout_widgets.figures.raster import Legend, Palette, Raster, blank_look
from kvlayout_widgets.figures.rulers import Ruler
from kvlayout_widgets.figures.theme import Theme, exact_address, exact_bytes, ink_on, mix

DRAWN = 12  # groups
_BOX = (196, 78, 936, 376)  # pixels: left, bottom, right, top
_WIDE, _HIGH = _BOX[2] - _BOX[0], _BOX[3] - _BOX[1]
_TALLEST, _THIN = 140, 2  # pixels: a bar; gaps narrower than that would not be seen
_KINDS = (("#56B4E9", ""), ("#E69F00", "/"), ("#009E73", "."), ("#CC79A7", "x"), ("#F0E442", "-"), ("#0072B2", "|"))


class StripsFigure(Drawing):
    """The strips, updated in place.

    Attributes:
        strips: of the block, as :func:`kvlayout.clinic.group_overlay` gives them; all groups that have layers
        first_row, num_rows, total_rows: which of them are drawn
        size_bytes: length of the byte axis, the block's own bytes
        codes: int16 [rows, pixels], what is drawn: a layer's kind twice plus 0 or 1 in turn,
            ``padding_code`` or ``unused_code``
        kinds: names of the kinds, as in the legend
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        self.axes = self.add_axes(*_BOX)
        self.axes.patch.set_visible(False)
        for side in ("left", "right", "top"):
            self.axes.spines[side].set_visible(False)
        self._raster = Raster(self.axes)
        self._cuts = LineCollection([], colors=self.theme.line, linewidths=0.7, zorder=0.5)
        self.axes.add_collection(self._cuts, autolim=False)
        self._ruler = Ruler(self.axes, "bottom", self.theme)
        self._names, self._numbers = Glyphs(self.axes), Glyphs(self.axes)
        self._callout = Callout(self.axes, _WIDE, _HIGH, self.theme)
        self._pin, = self.axes.plot([], [], marker="D", ms=7, mfc=self.theme.background, mec=self.theme.ink, mew=1.6,
                                    zorder=8, clip_on=False)
        self._legend = Legend(self.add_axes(20, 389, 940, 403, frame=False), 920, self.theme)

    def update(self, address_map: AddressMap, block: int, *, selected: Coordinate | None = None, first_row: int = 0,
               title: str = "") -> None:
        """Draw a block of the block manager as each group would fill it; LayoutError where there is no such block."""
        self._map, self.block = address_map, block
        self.strips = group_overlay(address_map, block)
        self.total_rows, self.num_rows = len(self.strips), min(DRAWN, len(self.strips))
        self.first_row = min(check_int("first_row", first_row, minimum=0), self.total_rows - self.num_rows)
        self._rows = self.strips[self.first_row:self.first_row + self.num_rows]
        self._measure()
        self._kind_of_layers()
        self.thickened = 0
        sampled = [self._sample(strip) for strip in self._rows]
        self.layers = np.array([layers for layers, _ in sampled]).reshape(self.num_rows, _WIDE)
        self.codes = np.array([codes for _, codes in sampled], dtype=np.int16).reshape(self.num_rows, _WIDE)
        self._paint()
        self._name_rows()
        self._select(selected)
        self._say(selected, title)

    def offset_at(self, x: float, y: float) -> tuple[Strip, int] | None:
        """Return the strip and the byte offset under a point (data coordinates); None beside the rows."""
        row = int(np.floor(y))
        if not (0 <= row < self.num_rows and 0 <= x < self.size_bytes):
            return None
        return self._rows[row], int(self._real(np.array([int(x)]))[0])

    def coordinate_at(self, x: float, y: float) -> Coordinate | None:
        """Return the coordinate of that row's group under a point; None where it keeps nothing."""
        found = self.offset_at(x, y)
        if found is None:
            return None
        strip, offset = found
        owner = next((one for one in self._map.owners(offset) if one.group == strip.group), None)
        return owner and Coordinate(owner.layer, owner.block, owner.head, owner.state, owner.byte)

    def gap_words(self, x: float, y: float) -> str:
        """Return what lies under a point where the row's group keeps nothing; "" beside the rows."""
        found = self.offset_at(x, y)
        if found is None:
            return ""
        strip, offset = found
        what = "padding of its pages" if _inside(strip.page_padding, np.array([offset]))[0] else \
            "content of another block id" if _inside(strip.crossing, np.array([offset]))[0] else "not used by it"
        return f"{wording.group_words(self._map, strip.group)}: {what}\noffset {exact_address(offset)}"

    def _measure(self) -> None:
        """The pieces of the block in memory, and where each begins on the byte axis."""
        runs = [self.strips[0].useful, self.strips[0].padding, self.strips[0].crossing] if self.strips else []
        starts, lengths = (np.concatenate([np.zeros(0, np.int64), *(one[part] for one in runs)]) for part in (0, 1))
        self._starts, self._lengths = merge_runs(starts, lengths)
        self._begins = np.cumsum(self._lengths) - self._lengths
        self.size_bytes = int(self._lengths.sum())

    def _real(self, places: np.ndarray) -> np.ndarray:
        """Byte offsets of places on the byte axis."""
        piece = np.searchsorted(self._begins, places, side="right") - 1
        return self._starts[piece] + places - self._begins[piece]

    def _place(self, offsets: np.ndarray) -> np.ndarray:
        """Places on the byte axis of byte offsets of the block."""
        piece = np.maximum(np.searchsorted(self._starts, offsets, side="right") - 1, 0)
        return self._begins[piece] + offsets - self._starts[piece]

    def _kind_of_layers(self) -> None:
        specs = self._map.config.layer_specs
        names = [_kind_words(specs[name]) for name in self._map.layers]
        self.kinds = tuple(dict.fromkeys(names))
        self._kind = np.array([self.kinds.index(name) for name in names], dtype=np.int16)
        self._turn = np.zeros(len(names), dtype=np.int16)
        for region in self._map.regions:
            self._turn[region.layers] = np.arange(len(region.layers)) % 2
        looks = [_KINDS[index % len(_KINDS)] for index in range(len(self.kinds))]
        faces = [mix(face, self.theme.background, 0.15) if self.theme.name == "dark" else face for face, _ in looks]
        shades = [(mix(face, "#000000" if odd else "#FFFFFF", 0.27 if odd else 0.15), hatch)
                  for face, (_, hatch) in zip(faces, looks) for odd in (0, 1)]
        unused = (self.theme.panel, mix(self.theme.panel, self.theme.soft, 0.35), ".")
        padding = (mix(self.theme.unowned, self.theme.soft, 0.25), self.theme.ink, "\\")
        hatched = [(face, mix(face, ink_on(face), 0.4), hatch) for face, hatch in shades]
        self.padding_code, self.unused_code, self._blank, self._plain = (2 * len(self.kinds) + n for n in range(4))
        self._palette = Palette([*hatched, padding, unused, blank_look(self.theme),
                                 *((face, face, "") for face, _ in shades)])

    def _sample(self, strip: Strip) -> tuple[np.ndarray, np.ndarray]:
        """(layer index, code) of each pixel: that of the byte in its middle; gaps are drawn two pixels at least."""
        edges = np.arange(_WIDE) * self.size_bytes // _WIDE
        offsets = self._real(np.minimum(edges + self.size_bytes // (2 * _WIDE), self.size_bytes - 1))
        layers = self._map.locate(offsets, strip.group).layer.astype(np.int64)
        codes = np.where(layers >= 0, 2 * self._kind[layers] + self._turn[layers], self.unused_code).astype(np.int16)
        layers[_inside(strip.crossing, offsets)] = -1  # another block's, be it this group's
        codes[layers < 0] = self.unused_code
        codes[(layers < 0) & _inside(strip.page_padding, offsets)] = self.padding_code
        starts, lengths = strip.padding
        thin = np.flatnonzero(lengths * _WIDE < _THIN * self.size_bytes)
        if len(thin) * _THIN * 4 <= _WIDE:
            for index in thin.tolist():
                left = min(int(self._place(starts[index:index + 1])[0]) * _WIDE // self.size_bytes, _WIDE - _THIN)
                is_padding = _inside(strip.page_padding, starts[index:index + 1])[0]
                codes[left:left + _THIN] = self.padding_code if is_padding else self.unused_code
                self.thickened += 1
        return layers, codes

    def _paint(self) -> None:
        self._pitch = pitch = _HIGH / max(1, self.num_rows)
        self._bar = bar = min(_TALLEST, int(pitch * 0.74))
        image = np.full((_HIGH, _WIDE), self._blank, dtype=np.int16)
        labels = []
        for row, codes in enumerate(self.codes):
            top = int(row * pitch + (pitch - bar) / 2)
            image[top:top + bar] = codes
            labels += self._layer_numbers(image, row, top, bar)
        self._raster.set(image, self._palette, (0, max(1, self.size_bytes), self.num_rows, 0))
        self.axes.set_xlim(0, max(1, self.size_bytes))
        self.axes.set_ylim(self.num_rows, 0)
        cuts = self._begins[1:] if 1 < len(self._begins) <= 128 else []
        self._cuts.set_segments([[(cut, 0), (cut, self.num_rows)] for cut in cuts])
        self._numbers.set(labels)
        unit = self._ruler.set_bytes(max(1, self.size_bytes), 8)
        joined = "" if len(self._starts) < 2 else f", its {len(self._starts):,} pieces put side by side"
        self._ruler.set_title(f"byte of block {self.block:,} [{unit}]{joined}", self.theme.ink)

    def _layer_numbers(self, image: np.ndarray, row: int, top: int, bar: int) -> list[Label]:
        """Name each stretch of one layer's bytes, on a plate without hatch, where there is room in most of them."""
        layers = self.layers[row]
        edges = [0, *(np.flatnonzero(np.diff(layers)) + 1).tolist(), _WIDE]
        spans = [(left, right) for left, right in zip(edges, edges[1:]) if layers[left] >= 0]
        named = []
        for left, right in spans:
            text = f"L{wording.layer_number(self._map.layers[int(layers[left])])}"
            if text_width(text, 7.5) + 5 < right - left:
                named.append((left, right, text))
        if bar < 16 or 2 * len(named) < len(spans) or len(named) > 40:
            return []
        labels = []
        for left, right, text in named:
            middle, half = (left + right) // 2, int(text_width(text, 7.5) / 2) + 2
            code = int(self.codes[row, middle])
            if code >= self.padding_code:
                continue
            image[top + bar // 2 - 7:top + bar // 2 + 8, middle - half:middle + half] = self._plain + code
            labels.append(Label(middle * self.size_bytes / _WIDE, row + 0.5, text, 7.5,
                                ink_on(self._palette.looks[code][0])))
        return labels

    def _name_rows(self) -> None:
        labels, at = [], -self.size_bytes * 10 / _WIDE
        for row, strip in enumerate(self._rows):
            name, kinds = wording.group_words(self._map, strip.group).split(": ", 1)
            share = f"{100 * strip.padding_share:.3g} % without content" if strip.padding_bytes else "all content"
            if self._pitch < 40:
                text = fit(f"{strip.group}: {kinds}", 176, 8)
                labels.append(Label(at, row + 0.5, text, 8, self.theme.ink, "right"))
                continue
            up = 13 / self._pitch
            labels += [Label(at, row + 0.5 - up, name, 9, self.theme.ink, "right", True),
                       Label(at, row + 0.5, fit(kinds, 176, 8), 8, self.theme.ink, "right"),
                       Label(at, row + 0.5 + up, fit(share, 176, 8), 8, self.theme.soft, "right")]
        self._names.set(labels)

    def _select(self, selected: Coordinate | None) -> None:
        """Outline the selected layer's stretch in its group's row, and pin the selected byte."""
        self._callout.show(None, ())
        self._pin.set_visible(False)
        if selected is None:
            return
        group = self._map.region(selected.layer).group
        row = next((row for row, strip in enumerate(self._rows) if strip.group == group), None)
        offset = np.array([selected.offset(self._map)])
        if row is None or not _inside((self._starts, self._lengths), offset)[0]:
            return
        place = int(self._place(offset)[0])
        mine = self.layers[row] == self._map.layer_index(selected.layer)
        pixel = min(place * _WIDE // self.size_bytes, _WIDE - 1)
        others = np.flatnonzero(~mine)
        left = int(others[others < pixel].max(initial=-1)) + 1
        right = int(others[others > pixel].min(initial=_WIDE))
        top = (self.num_rows - row) * self._pitch - (self._pitch - self._bar) / 2
        self._callout.show((left, top - self._bar, right, top), ())
        self._pin.set_visible(True)
        self._pin.set_data([place], [row + 0.5])

    def _say(self, selected: Coordinate | None, title: str) -> None:
        groups = len(self.strips)
        headline = " · ".join(part for part in (
            self._map.layout.name, title, f"block {self.block:,}, {exact_bytes(self.size_bytes)}") if part)
        facts = ["one group: nothing is shared" if groups == 1 else
                 f"{groups} groups overlay these bytes, a block is one group's at a time"]
        if self.num_rows < groups:
            facts.append(f"{self.num_rows} of {groups} groups are drawn")
        if self.thickened:
            facts.append("thin gaps are drawn 2 pixels wide")
        footer = "" if selected is None else (
            f"{wording.coordinate_words(self._map, selected)}:   offset {exact_address(selected.offset(self._map))}")
        subline = " · ".join(facts)
        self.say(headline, subline, footer)
        used = [kind for kind in range(len(self.kinds)) if np.isin(self.codes, (2 * kind, 2 * kind + 1)).any()]
        entries = [(np.array([2 * kind, 2 * kind + 1]), self.kinds[kind]) for kind in used]
        if (self.codes == self.padding_code).any():
            entries.append((self.padding_code, "padding in the group's pages"))
        if (self.codes == self.unused_code).any():
            entries.append((self.unused_code, "not used by this group"))
        self._legend.set(entries, self._palette, self._blank)
        self.tell((f"Strips of the bytes of one block as each group would fill it, {headline}", subline, *(
            f"{wording.group_words(self._map, one.group)}: {one.useful_bytes:,} bytes of content, "
            f"{one.page_padding_bytes:,} of padding in its pages, {one.unused_bytes:,} not used"
            for one in self._rows), f"Legend: {', '.join(self._legend.entries)}",
            f"Selected: {footer}" if footer else ""))


def _kind_words(spec: object) -> str:
    return wording.kind_words(spec) + (", indexer" if getattr(spec, "cache_role", "") == "indexer" else "")


def _inside(runs: tuple[np.ndarray, np.ndarray], offsets: np.ndarray) -> np.ndarray:
    """Whether each offset lies in one of the runs."""
    starts, lengths = runs
    if not len(starts):
        return np.zeros(len(offsets), dtype=bool)
    index = np.searchsorted(starts, offsets, side="right") - 1
    return (index >= 0) & (offsets < (starts + lengths)[index])


def strips_figure(address_map: AddressMap, block: int, *, theme: str | Theme = "light", **options) -> Figure:
    """Return the picture of :class:`StripsFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = StripsFigure(theme)
    drawing.update(address_map, block, **options)
    return drawing.figure
