"""Where things lie: a heatmap of byte offsets over any two of the axes L, B, H, N, C."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from kvlayout.address import AddressMap
from kvlayout.errors import LayoutError, check_int
from kvlayout.landing import Landing
from kvlayout.layout import AXES
from kvlayout_widgets.figures import wording
from kvlayout_widgets.figures.bands import GroupBands
from kvlayout_widgets.figures.callout import Callout
from kvlayout_widgets.figures.common import Coordinate, Drawing
from kvlayout_widgets.figures.glyphs import Glyphs, Label, text_width
from kvlayout_widgets.figures.limits import LimitLines
from kvlayout_widgets.figures.lit import Lit, kinds_of, lit_words
from kvlayout_widgets.figures.rulers import Ruler, index_ticks
from kvlayout_widgets.figures.theme import AXIS_WORDS, Theme, byte_unit, exact_address, format_bytes

DRAWN = {"L": 128, "B": 64, "H": 64, "N": 64, "C": 64}  # at most so many indices of an axis
_BOX = (80, 76, 846, 392)  # pixels of the heatmap: left, bottom, right, top
_MOST_NUMBERED = (8, 16)  # rows, columns


class OffsetsFigure(Drawing):
    """The heatmap, updated in place.

    Attributes:
        offsets: masked int64 array [rows, columns] of what is drawn, bytes
        first_row, first_column, num_rows, num_columns: the window of indices that is drawn
        total_rows, total_columns: how many there are
    """

    def __init__(self, theme: str | Theme = "light"):
        super().__init__(theme)
        self.axes = self.add_axes(*_BOX)
        self.axes.patch.set(hatch="////", edgecolor=self.theme.line, facecolor=self.theme.panel)
        colours = colormaps["cividis"].with_extremes(bad=(0, 0, 0, 0))
        self._image = self.axes.imshow(np.zeros((1, 1)), cmap=colours, aspect="auto", interpolation="nearest")
        self.bands = GroupBands(self.axes, self.theme)
        self._numbers = Glyphs(self.axes, zorder=4)
        self.lit = Lit(self.axes, self.theme)
        self._lit_words = Glyphs(self.axes, transform=self.axes.transAxes)
        self.callout = Callout(self.axes, _BOX[2] - _BOX[0], _BOX[3] - _BOX[1], self.theme)
        bar = self.add_axes(_BOX[2] + 18, _BOX[1], _BOX[2] + 32, _BOX[3])
        self._bar = bar.imshow(np.arange(256)[::-1, None], cmap="cividis", aspect="auto")
        self._bar_axes = bar
        bar.set_autoscale_on(False)
        self._bar_ruler = Ruler(bar, "right", self.theme)
        self._unit = Glyphs(bar, transform=bar.transAxes)
        self.limits = LimitLines(self.axes, bar, self.theme)
        self.rulers = {"rows": Ruler(self.axes, "left", self.theme),
                       "columns": Ruler(self.axes, "bottom", self.theme)}

    def update(
        self,
        address_map: AddressMap,
        *,
        rows: str = "L",
        columns: str = "B",
        fixed: dict[str, int | str] | None = None,
        first_column: int = 0,
        first_row: int = 0,
        selected: Coordinate | None = None,
        title: str = "",
        group: int = 0,
        landing: Landing | None = None,
    ) -> None:
        """Draw byte offsets with axis ``rows`` down and ``columns`` across.

        ``fixed``: the index on each other axis (for "L" also a name). By default it is the selection's, or 0 in
        layers that have no such index; without a selection 0, or the first layer of ``group``. The window is moved
        so that it lies within the axis. ``landing``: cells to be lit, where both axes are L, B or H; else none is.
        LayoutError names a bad axis or index.
        """
        if rows not in tuple(AXES) or columns not in tuple(AXES) or rows == columns:
            raise LayoutError("rows, columns", (rows, columns), "must be two different axes",
                              "Choose two of L, B, H, N, C")
        self._map, self.rows, self.columns = address_map, rows, columns
        self._extents = np.array([address_map.shape(i) for i in range(len(address_map.layers))]).reshape(-1, 4)
        self.fixed = self._fix(fixed or {}, selected, group)
        self._asked = set(fixed or {})
        self.total_rows, self.total_columns = self._total(rows), self._total(columns)
        self.num_rows, self.num_columns = (min(DRAWN[rows], self.total_rows), min(DRAWN[columns], self.total_columns))
        self.first_row = min(check_int("first_row", first_row, minimum=0), self.total_rows - self.num_rows)
        self.first_column = min(check_int("first_column", first_column, minimum=0),
                                self.total_columns - self.num_columns)
        self._compute()
        self._draw_map()
        self._draw_lit(landing)
        self._draw_limits()
        self._draw_bands(selected)
        numbered = self._draw_numbers()
        self._draw_selection(selected, numbered)
        self._say(selected, title)

    def coordinate_at(self, x: float, y: float) -> Coordinate | None:
        """Return the coordinate under a point of ``axes`` (data coordinates); None where nothing is."""
        row, column = int(np.floor(y + 0.5)) - self.first_row, int(np.floor(x + 0.5)) - self.first_column
        if not (0 <= row < self.num_rows and 0 <= column < self.num_columns) or self.offsets.mask[row, column]:
            return None
        at = {axis: int(self._index[axis][row, column]) for axis in AXES}
        return Coordinate(self._map.layers[at["L"]], at["B"], at["H"], at["N"], at["C"])

    def _fix(self, fixed: dict, selected: Coordinate | None, group: int) -> dict[str, int]:
        for axis in fixed:
            if axis not in tuple(AXES):
                raise LayoutError("fixed", fixed, f"names {axis!r}, which is no axis", "Use L, B, H, N or C")
        found = dict.fromkeys(AXES, 0)
        groups = self._map.config.kv_cache_groups
        if group < len(groups) and groups[group].layer_names:
            found["L"] = self._map.layer_index(groups[group].layer_names[0])
        if selected is not None:
            found = {"L": self._map.layer_index(selected.layer), "B": selected.block, "H": selected.head,
                     "N": selected.state, "C": selected.byte}
        for axis, index in fixed.items():
            if axis == "L":
                found[axis] = self._map.layer_index(index)
            else:
                found[axis] = check_int(f"fixed[{axis!r}]", index, minimum=0)
        return found

    def _total(self, axis: str) -> int:
        if axis == "L":
            return len(self._extents)
        shown = self._extents if "L" in (self.rows, self.columns) else self._extents[self.fixed["L"]:][:1]
        return int(shown[:, "BHNC".index(axis)].max(initial=0))

    def _compute(self) -> None:
        at = {**self.fixed, self.rows: np.arange(self.first_row, self.first_row + self.num_rows)[:, None],
              self.columns: np.arange(self.first_column, self.first_column + self.num_columns)[None, :]}
        index = {axis: np.broadcast_to(at[axis], (self.num_rows, self.num_columns)) for axis in AXES}
        exists = np.ones((self.num_rows, self.num_columns), dtype=bool)
        self._falls_back = False
        for axis in AXES[1:]:
            inside = index[axis] < self._extents[index["L"], "BHNC".index(axis)]
            if axis in (self.rows, self.columns) or axis in self._asked:
                exists &= inside
            else:
                self._falls_back |= not inside.all()
                index[axis] = np.where(inside, index[axis], 0)
        self._index = index
        values = np.zeros(exists.shape, dtype=np.int64)
        values[exists] = self._map.offset(*(index[axis][exists] for axis in AXES))
        self.offsets = np.ma.masked_array(values, mask=~exists)

    def _draw_map(self) -> None:
        low, high = (int(self.offsets.min()), int(self.offsets.max())) if self.offsets.count() else (0, 0)
        right, bottom = self.first_column + self.num_columns - 0.5, self.first_row + self.num_rows - 0.5
        extent = (self.first_column - 0.5, max(right, self.first_column + 0.5),
                  max(bottom, self.first_row + 0.5), self.first_row - 0.5)
        self._image.set_data(self.offsets)
        self._image.set_extent(extent)
        self._image.set_clim(low, max(high, low + 1))
        self.axes.set_xlim(extent[:2])
        self.axes.set_ylim(extent[2:])
        for ruler, letter, first, number, total, most in (
                ("columns", self.columns, self.first_column, self.num_columns, self.total_columns, 12),
                ("rows", self.rows, self.first_row, self.num_rows, self.total_rows, 8)):
            ticks = index_ticks(first, number, most)
            names = [wording.layer_number(self._map.layers[i]) if letter == "L" else f"{i:,}" for i in ticks]
            self.rulers[ruler].set(ticks, [name if len(name) < 9 else f"{name[:7]}…" for name in names])
            part = f"   ({number:,} of {total:,} drawn)" if number < total else ""
            widest = max((text_width(name, 8) for name in self.rulers[ruler].labels), default=0)
            self.rulers[ruler].set_title(f"{AXIS_WORDS[letter][0]}  {letter}{part}", self.theme.axis_ink[letter],
                                         max(40, min(widest + 19, 70)))
        divisor, unit = byte_unit(high // 4)
        self._bar.set_extent((0, 1, low, max(high, low + 1)))
        self._bar_axes.set_ylim(low, max(high, low + 1))
        ticks = np.linspace(low, max(high, low + 1), 5)
        places = 0 if unit == "B" else 1 if (high - low) / divisor > 20 else 2
        self._bar_ruler.set(ticks, [f"{tick / divisor:,.{places}f}" for tick in ticks])
        self._unit.set([Label(0, 1 + 14 / (_BOX[3] - _BOX[1]), f"offset [{unit}]", 8.5, self.theme.ink, "left")])

    def _draw_lit(self, landing: Landing | None) -> None:
        """Light the landing's cells, at the index that is fixed on the third of L, B, H if that isn't the head."""
        self.lit.clear()
        self._lit_words.set([])
        if landing is None or not {self.rows, self.columns} <= set("LBH"):
            return
        index = {"L": landing.layer, "B": landing.block, "H": landing.head}
        row, column = index[self.rows] - self.first_row, index[self.columns] - self.first_column
        here = (row >= 0) & (row < self.num_rows) & (column >= 0) & (column < self.num_columns)
        for axis in {"L", "B"} - {self.rows, self.columns}:
            here &= index[axis] == self.fixed[axis]
        lit = np.zeros((self.num_rows, self.num_columns), dtype=bool)
        lit[row[here], column[here]] = True
        self.lit.dim(lit, self._image.get_extent())
        kinds = kinds_of(landing)[here]
        wide, high = (_BOX[2] - _BOX[0]) / self.num_columns, (_BOX[3] - _BOX[1]) / self.num_rows
        self.lit.show(column[here] + self.first_column, row[here] + self.first_row, kinds,
                      size=float(np.clip(0.35 * min(wide, high), 3, 9)))
        words = lit_words(landing)
        self._lit_words.set([Label(1, 1 + 9 / (_BOX[3] - _BOX[1]), words, 8, self.theme.ink, "right")])

    def _draw_limits(self) -> None:
        taken = sum(text_width(label.text, label.size) + 12 for label in self._lit_words.labels)
        self.limits.update(self._map, self.rows, self.columns, (self.first_row, self.first_column),
                           (self.num_rows, self.num_columns), self.fixed["L"], taken)

    def _draw_bands(self, selected: Coordinate | None) -> None:
        if "L" not in (self.rows, self.columns):
            self.bands.clear()
            return
        down = self.rows == "L"
        first, number = (self.first_row, self.num_rows) if down else (self.first_column, self.num_columns)
        # Names stand on the right, unless the selection's call-out is likely to.
        across = 0 if selected is None or not down else {"B": selected.block, "H": selected.head, "N": selected.state,
                                                         "C": selected.byte}[self.columns] - self.first_column
        self.bands.update(self._map, first, number, down=down, right=across <= self.num_columns / 2)

    def _draw_numbers(self) -> bool:
        """Write the offsets into the cells where all fit; return whether they do."""
        labels = []
        if 0 < self.num_rows <= _MOST_NUMBERED[0] and 0 < self.num_columns <= _MOST_NUMBERED[1]:
            wide, high = (_BOX[2] - _BOX[0]) / self.num_columns, (_BOX[3] - _BOX[1]) / self.num_rows
            longest = f"{int(self.offsets.max()) if self.offsets.count() else 0:,}"
            size = min(11.0, 0.85 * wide / text_width(longest, 1), high * 0.4)
            if size >= 5.5:
                shades = colormaps["cividis"](self._image.norm(self.offsets))[..., :3].mean(axis=2)
                for row, column in zip(*np.nonzero(~self.offsets.mask)):
                    colour = "#FFFFFF" if shades[row, column] < 0.5 else "#101418"
                    x, y, value = column + self.first_column, row + self.first_row, int(self.offsets[row, column])
                    labels.append(Label(x, y - (0.12 if high > 50 else 0), f"{value:,}", size, colour))
                    if high > 50:
                        labels.append(Label(x, y + 0.16, f"{value:#x}", 0.8 * size, colour))
        self._numbers.set(labels)
        return bool(labels)

    def _draw_selection(self, selected: Coordinate | None, numbered: bool) -> None:
        cell, lines = None, ()
        if selected is not None:
            place = {"L": self._map.layer_index(selected.layer), "B": selected.block, "H": selected.head,
                     "N": selected.state, "C": selected.byte}
            column, row = place[self.columns] - self.first_column, place[self.rows] - self.first_row
            if 0 <= column < self.num_columns and 0 <= row < self.num_rows:
                wide, high = (_BOX[2] - _BOX[0]) / self.num_columns, (_BOX[3] - _BOX[1]) / self.num_rows
                below = self.num_rows - 1 - row
                cell = column * wide, below * high, (column + 1) * wide, (below + 1) * high
                # Beside numbers a box would hide some; the line below says it then.
                lines = () if numbered else self._spell(selected)
        self.callout.show(cell, lines)

    def _spell(self, selected: Coordinate) -> tuple[str, str, str]:
        """Return the selection, its offset, and the distances to its neighbours, in words."""
        index = {"H": selected.head, "N": selected.state, "C": selected.byte}
        axes = "".join(axis for axis in AXES if axis in "LB" + self.rows + self.columns or index[axis])
        return (wording.coordinate_words(self._map, selected, axes),
                wording.address_words(self._map, selected),
                wording.steps_words(self._map, selected, self.columns + self.rows))

    def _say(self, selected: Coordinate | None, title: str) -> None:
        layout = self._map.layout.name
        headline = " · ".join(part for part in (layout, title, wording.page_words(self._map)) if part)
        layer = self._map.layers[self.fixed["L"]] if self._map.layers else None
        reasons = [wording.jump(self._map, layer, axis) for axis in self._by_stride(layer)] if layer else []
        held = [f"{AXIS_WORDS[a][0]} {wording.layer_number(layer) if a == 'L' else f'{self.fixed[a]:,}'}"
                for a in AXES if a not in self.rows + self.columns and layer]
        notes = [f"all at {', '.join(held)}"]
        if len(self._map.config.kv_cache_groups) > 1:
            notes.append("groups overlay each other: a block id belongs to one of them at a time")
        if self._falls_back:
            notes.append("in layers without that index, at 0")
        if self.offsets.mask.any():
            notes.append("hatched: that layer has no such index")
        spelt = "{}:   {}   ·   {}".format(*self._spell(selected)) if selected is not None else ""
        footer = spelt if spelt and not self.callout.lines else "   ·   ".join(notes)
        self.say(headline, " · ".join(reasons), footer)
        low, high = (int(self.offsets.min()), int(self.offsets.max())) if self.offsets.count() else (0, 0)
        self.tell((
            f"Heatmap of byte offsets in layout {headline}, {AXIS_WORDS[self.rows][0]} down and "
            f"{AXIS_WORDS[self.columns][0]} across",
            f"{self.num_rows:,} of {self.total_rows:,} {AXIS_WORDS[self.rows][1]} and {self.num_columns:,} of "
            f"{self.total_columns:,} {AXIS_WORDS[self.columns][1]} are drawn, {'; '.join(notes)}",
            f"Offsets go from {exact_address(low)} to {exact_address(high)} in an allocation of "
            f"{format_bytes(self._map.size_bytes)}",
            *(reason[0].upper() + reason[1:] for reason in reasons), self.limits.fact,
            f"Selected: {spelt}" if spelt else ""))

    def _by_stride(self, layer: str) -> list[str]:
        """The two drawn axes, the one with the longer step first."""
        geometry = self._map.region(layer).geometry
        drawn = [axis for axis in (self.columns, self.rows) if geometry.shape[AXES.index(axis)] > 1]
        return sorted(drawn, key=lambda axis: -geometry.strides[AXES.index(axis)])


def offsets_figure(address_map: AddressMap, *, theme: str | Theme = "light", **options) -> Figure:
    """Return the heatmap of :class:`OffsetsFigure` as a figure; ``options`` are those of its ``update``."""
    drawing = OffsetsFigure(theme)
    drawing.update(address_map, **options)
    return drawing.figure
