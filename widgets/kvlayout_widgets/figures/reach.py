"""Where byte ranges reach: who owns the bytes around them, and below, range by range, what is touched.

Owners are sampled, one byte a pixel, and neighbours of one owner are one bar, whose ends are then found exactly. An
owner that lies between two samples of one and the same other owner is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from kvlayout.address import AddressMap
from kvlayout.errors import check_type
from kvlayout_widgets.figures import wording
from kvlayout_widgets.figures.fields import field_table
from kvlayout_widgets.figures.glyphs import text_width
from kvlayout_widgets.figures.spans import SIZE, Span, SpansFigure, as_spans
from kvlayout_widgets.figures.theme import Theme, exact_bytes

_COLUMNS = 780  # samples of a window: one a pixel of the rows
_MOST_BARS = 20
_LEVELS = ("LBHNF", "LBHN", "LBH", "LBN", "LB", "L", "B", "")
_WORDS = {"L": "layer", "B": "block", "H": "head", "N": "state"}
_SEEN = 0.6  # of a row's width, in bars whose text has room


def owner_spans(address_map: AddressMap, window: tuple[int, int], group: int = 0) -> tuple[list[Span], str]:
    """Return the bars of whoever owns the bytes of ``window`` in ``group``, and the axes that they are told by.

    The axes are letters of "LBHNF" (F: the field), as many as give at most 20 bars where owners are sampled; ""
    tells only owned from not. Each bar's ends are exact.
    """
    first, behind = max(0, window[0]), min(address_map.size_bytes, window[1])
    if first >= behind:
        return [], ""
    look_up = _Owners(address_map, group)
    wide = behind - first
    at = np.array([first + wide * (2 * n + 1) // (2 * min(wide, _COLUMNS)) for n in range(min(wide, _COLUMNS))])
    drawn = []
    for axes in _LEVELS[len(look_up.fields) == 1:]:
        keys = look_up.keys(at, axes)
        breaks = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0))
        if len(breaks) >= _MOST_BARS:
            continue
        starts = [first, *look_up.edges(at[breaks], at[breaks + 1], axes)]
        found = look_up.keys(np.array(starts), axes).T.tolist()
        for words in (_WORDS, {axis: axis for axis in _WORDS}):
            spans = _bars(look_up, axes, starts, behind, found, words)
            seen = _seen(spans, wide)
            drawn.append((spans, axes))
            if seen >= _SEEN:
                return drawn[-1]
    return drawn[0] if drawn else ([Span(first, behind, "owners too many to be told apart")], "")


def _bars(look_up: _Owners, axes: str, starts: list[int], behind: int, found: list, words: dict) -> list[Span]:
    """One bar from each start to the next; neighbours that are owned differ in tint."""
    spans, tint = [], 0
    for begin, end, key in zip(starts, [*starts[1:], behind], found):
        text, look = "", "padding"
        if key[0]:
            text, look = look_up.text(dict(zip(axes, key[1:])), words), ("plain", "other")[tint]
            tint = 1 - tint
        spans.append(Span(begin, end, text, look))
    return _named_by_what_varies(spans)


def _seen(spans: list[Span], wide: int) -> float:
    """The share of the row's width, padding aside, in bars whose text has room."""
    owned = [span for span in spans if span.look != "padding"]
    fits = [span for span in owned if text_width(span.text, SIZE) + 8 <= (span.end - span.start) * _COLUMNS / wide]
    return sum(span.end - span.start for span in fits) / max(1, sum(span.end - span.start for span in owned))


class _Owners:
    """Whose bytes are where in one group, as columns of indices that are equal for the same owner."""

    def __init__(self, address_map: AddressMap, group: int):
        self._map, self._group, self._table = address_map, group, field_table(address_map)
        self.fields = self._table.names

    def keys(self, offsets: np.ndarray, axes: str) -> np.ndarray:
        """Return [1 + axes, offsets]: whether the byte is owned, and its index on each axis, -1 where it isn't."""
        found = self._map.locate(offsets, self._group)
        index = {"L": found.layer, "B": found.block, "H": found.head, "N": found.state}
        if "F" in axes:
            index["F"] = self._table.codes(found)
        owned = found.layer >= 0
        return np.stack([owned, *(np.where(owned, index[axis], -1) for axis in axes)])

    def edges(self, low: np.ndarray, high: np.ndarray, axes: str) -> list[int]:
        """Return where owners change between each ``low`` and ``high``: once, or twice where a third lies there.

        By bisection, first for the end of the owner at ``low``, then for the start of the one at ``high``.
        """
        if not len(low):
            return []
        ends = self._bisect(low, high, axes, keep_low=True)
        begins = self._bisect(ends - 1, high, axes, keep_low=False)
        return sorted({*ends.tolist(), *begins.tolist()})

    def _bisect(self, low: np.ndarray, high: np.ndarray, axes: str, keep_low: bool) -> np.ndarray:
        wanted = self.keys(low if keep_low else high, axes)
        low, high = low.copy(), high.copy()
        while (high - low > 1).any():
            middle = (low + high) // 2
            same = (self.keys(middle, axes) == wanted).all(axis=0)
            go_up = same if keep_low else ~same
            low, high = np.where(go_up, middle, low), np.where(go_up, high, middle)
        return high

    def text(self, parts: dict[str, int], words: Mapping[str, str]) -> str:
        """Return an owner in these words for the axes."""
        shown = []
        for axis, value in parts.items():
            if axis == "L":
                shown.append(self._layer(value, words["L"]))
            elif axis == "F":
                shown.append(self._table.names[value])
            elif axis != "H" or self._map.shape(parts["L"])[1] > 1:
                shown.append(f"{words[axis]} {value:,}")
        return " · ".join(shown) or "bytes of the cache"

    def _layer(self, index: int, word: str) -> str:
        """The layer's number where that is its alone in the group, or else its name."""
        name, mates = self._map.layers[index], self._map.config.kv_cache_groups[self._group].layer_names
        number = wording.layer_number(name)
        alone = sum(wording.layer_number(mate) == number for mate in mates) == 1
        return f"{word} {number}" if alone and number != name else name


def _named_by_what_varies(spans: list[Span]) -> list[Span]:
    """Leave out of the bars' texts the words that all of them begin with, unless nothing would be left."""
    parts = [span.text.split(" · ") for span in spans if span.text]
    if len(parts) < 2:
        return spans
    same = 0
    while all(len(words) > same + 1 and words[same] == parts[0][same] for words in parts):
        same += 1
    return [Span(span.start, span.end, " · ".join(span.text.split(" · ")[same:]), span.look) for span in spans]


class ReachFigure(SpansFigure):
    """Owners of a window, one row a group, and below a row for each name in ``ranges``."""

    def reach(
        self,
        address_map: AddressMap,
        ranges: Mapping[str, object],
        *,
        window: tuple[int, int] | None = None,
        marks: Mapping[str, int] | None = None,
        title: str = "",
        footer: str = "",
    ) -> None:
        """Draw where ``ranges`` reach in the allocation.

        ``ranges``: {name: what ``spans.as_spans`` takes}, byte offsets, which may lie outside of the allocation.
        ``window``: (start, end) of the bytes that are drawn, by default all ranges. LayoutError names a range that is
        none.
        """
        check_type("address_map", address_map, AddressMap)
        rows = {name: as_spans(name, given) for name, given in ranges.items()}
        if window is None:
            places = [at for spans in rows.values() for span in spans for at in (span.start, span.end)]
            places += list((marks or {}).values()) or ([0, address_map.size_bytes] if not places else [])
            spare = max(2, (max(places) - min(places)) // 16)
            low, high = min(places), max(places)
            # Room on both sides, but none outside of the allocation unless something lies there.
            window = (low - spare if low < 0 else max(0, low - spare),
                      high + spare if high > address_map.size_bytes else min(address_map.size_bytes, high + spare))
        groups = range(len(address_map.config.kv_cache_groups))
        owners = {}
        for group in groups:
            name = "owner" if len(groups) == 1 else f"group {group}"
            owners[name], _ = owner_spans(address_map, window, group)
        wide = min(address_map.size_bytes, window[1]) - max(0, window[0])
        sampled = f"owners are sampled, one byte in {wide / _COLUMNS:,.0f}" if wide > _COLUMNS else (
            "the owner of every byte is looked up")
        headline = " · ".join(part for part in (address_map.layout.name, title, "an allocation of "
                                                f"{exact_bytes(address_map.size_bytes)}") if part)
        self.update({**owners, **rows}, window=window, inside=(0, address_map.size_bytes), marks=marks,
                    outside_words=("before the base", "past the end"), title=headline, subline=sampled,
                    footer=footer)


def reach_figure(address_map: AddressMap, ranges: Mapping[str, object], *, theme: str | Theme = "light",
                 **options) -> Figure:
    """Return the picture of :class:`ReachFigure` as a figure; ``options`` are those of its ``reach``."""
    drawing = ReachFigure(theme)
    drawing.reach(address_map, ranges, **options)
    return drawing.figure
