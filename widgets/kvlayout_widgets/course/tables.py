"""Tables of the course: properties of layouts, strides, and contiguous runs, all computed and none typed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

from kvlayout import AddressMap
from kvlayout.capture import RankDump, check_rank, rank_plan
from kvlayout.dtypes import dtype_size_bytes
from kvlayout.layout import AXES, KVCacheLayout
from kvlayout_widgets.figures.theme import format_bytes
from kvlayout_widgets.html import STYLE, layout_chips
from kvlayout_widgets.html import table as html_table

PROPERTIES = {
    "is_layer_compact": "each layer is one region",
    "is_block_outermost": "all bytes of a block lie together",
    "is_block_compact": "a page is one run",
    "is_block_contiguous": "ends in H, N, C",
}

_LONG = 30  # characters that fit in one line of a column


@dataclass(frozen=True)
class Table:
    """A table that a notebook shows; ``rows`` are plain text, the first column a layout's name where there is one.

    ``is_prose``: the cells are words, to be read from the left, not numbers. ``breaks``: some cells are longer than
    a page has room for, and names in them are broken anywhere.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    is_prose: bool = False
    breaks: bool = False

    def _repr_html_(self) -> str:
        # A header of chips would be wider than a notebook. Jupyter aligns cells to the right, which suits no name.
        wrap = "normal;overflow-wrap:anywhere;min-width:120px" if self.breaks else "nowrap"
        cells = [[f'<div style="text-align:left;white-space:{wrap}">{_first_cell(first)}</div>',
                  *map(self._cell, rest)] for first, *rest in self.rows]
        first, *rest = self.header
        header = [f'<div style="text-align:left">{escape(first)}</div>', *map(self._cell, rest)]
        return f"<style>{STYLE}</style><div class='kvl'>{html_table(header, cells, self.caption)}</div>"

    def _cell(self, text: str) -> str:
        style = ";overflow-wrap:anywhere;min-width:200px" if self.breaks and len(text) > _LONG else ""
        return f'<div style="text-align:left{style}">{escape(text)}</div>' if self.is_prose else escape(text)

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths))
                 for row in (self.header, *self.rows)]
        return "\n".join(line.rstrip() for line in (*filter(None, [self.caption]), *lines))


def _first_cell(text: str) -> str:
    return layout_chips(text) if sorted(text) == sorted(AXES) else escape(text)


def layout_table() -> Table:
    """Return the six layouts and their properties."""
    rows = [(layout.name, *("yes" if getattr(layout, name) else "no" for name in PROPERTIES))
            for layout in KVCacheLayout]
    return Table(("layout", *PROPERTIES.values()), tuple(rows), "The six layouts of vLLM")


def stride_table(map_of: Callable[[KVCacheLayout], AddressMap]) -> Table:
    """Return, for the first layer in each layout, how many bytes one step along each axis jumps."""
    rows = []
    for layout in KVCacheLayout:
        region = map_of(layout).region(0)
        rows.append((layout.name, *(f"{stride:,}" for stride in region.geometry.strides)))
    return Table(("layout", "next layer", "next block", "next head", "next token", "next byte"), tuple(rows),
                 "Bytes that one step along an axis jumps")


def runs_table(map_of: Callable[[KVCacheLayout], AddressMap], selections: Mapping[str, dict]) -> Table:
    """Return how many contiguous runs, of how many bytes, each selection is in each layout.

    ``selections``: {what it is called: arguments of ``AddressMap.runs``}.
    """
    maps = {layout: map_of(layout) for layout in KVCacheLayout}
    rows = []
    for name, chosen in selections.items():
        rows.append((name, *(_runs(maps[layout], chosen) for layout in KVCacheLayout)))
    return Table(("selection", *KVCacheLayout.__members__), tuple(rows), "Contiguous runs × bytes of each")


def _runs(address_map: AddressMap, chosen: dict) -> str:
    _, lengths = address_map.run_arrays(**chosen)
    if len(set(lengths.tolist())) != 1:
        return f"{len(lengths):,} × {format_bytes(int(lengths.min()))} to {format_bytes(int(lengths.max()))}"
    return f"{len(lengths):,} × {format_bytes(int(lengths[0]))}"


def views_table(dump: RankDump) -> Table:
    """Return each layer's view as the engine has it, beside what our plan of the engine's own config says."""
    address_map, rows = rank_plan(dump).address_map, []
    wrong = {one.coordinate["layer"] for one in check_rank(dump) if one.coordinate}
    for name, views in dump.views.items():
        view = views[0]
        item = dtype_size_bytes(view.dtype)
        theirs = ", ".join(f"{step * item:,}" for step in view.stride_elements)
        planned = ", ".join(f"{step:,}" for step in address_map.strides(name)[:3])
        rows.append((name, " × ".join(map(str, view.shape)), theirs, planned, f"{view.storage_offset_bytes:,}",
                     f"{address_map.offset(name, 0):,}", "✗" if name in wrong else "✓"))
    return Table(("layer", "shape", "strides [bytes]", "planned B, H, N", "starts at byte", "planned", ""),
                 tuple(rows), f"The engine's own views, rank {dump.rank}, vLLM {dump.vllm_version}")
