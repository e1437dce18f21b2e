"""Painting whole images of styled pixels: matplotlib's own hatching is far too slow for hundreds of boxes.

A picture is an array of codes, one a pixel; a code is a row of a :class:`Palette`. Every pixel shows one code;
nothing is averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from matplotlib.axes import Axes

from kvlayout.rounding import ceil_div
from kvlayout_widgets.figures.glyphs import Glyphs, Label, text_width
from kvlayout_widgets.figures.theme import Theme, field_style, ink_on, mix, rgb

# Which pixels (x, y) of a face are inked.
HATCHES = {
    "": lambda x, y: np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=bool),
    "/": lambda x, y: (x + y) % 6 < 2,
    "\\": lambda x, y: (x - y) % 8 < 1,
    "x": lambda x, y: ((x + y) % 6 < 1) | ((x - y) % 6 < 1),
    ".": lambda x, y: (x % 4 < 1) & (y % 4 < 1),
    "-": lambda x, y: (y % 5 < 1) & (x > -1),
    "|": lambda x, y: (x % 4 < 1) & (y > -1),
}


@lru_cache(maxsize=64)
def _hatch_pixels(hatch: str, height: int, width: int) -> np.ndarray:
    return HATCHES[hatch](np.arange(width)[None, :], np.arange(height)[:, None])


class Palette:
    """Colours and hatches by code; a negative code counts from the end, as in a list."""

    def __init__(self, looks: Sequence[tuple[str, str, str]]):
        """``looks``: (face, colour of the hatch, hatch) of each code."""
        self.looks = tuple(looks)
        # A pixel is one 32-bit number here, which is four times quicker to look up than four bytes.
        self._faces = np.array([(*rgb(face), 255) for face, _, _ in looks], dtype=np.uint8).view(np.uint32)[:, 0]
        self._inks = np.array([(*rgb(ink), 255) for _, ink, _ in looks], dtype=np.uint8).view(np.uint32)[:, 0]

    def paint(self, codes: np.ndarray) -> np.ndarray:
        """Return the RGBA image (uint8) of an array [height, width] of codes."""
        image = self._faces[codes]
        for kind in {hatch for _, _, hatch in self.looks if hatch}:
            has_hatch = np.array([hatch == kind for _, _, hatch in self.looks])
            inked = has_hatch[codes]
            if inked.any():
                inked &= _hatch_pixels(kind, *codes.shape)
                image[inked] = self._inks[codes[inked]]
        return image.view(np.uint8).reshape(*codes.shape, 4)

    def colours_of(self, code: int) -> set[tuple[int, int, int]]:
        """Return the colours that pixels of ``code`` may have."""
        face, ink, hatch = self.looks[code]
        return {rgb(face), rgb(ink)} if hatch else {rgb(face)}


def field_look(name: str, theme: Theme) -> tuple[str, str, str]:
    """Return (face, colour of the hatch, hatch) of a kind of content."""
    style = field_style(name)
    face = mix(style.face, theme.background, 0.15) if theme.name == "dark" else style.face
    return face, mix(face, ink_on(face), 0.55), style.hatch


def unowned_look(theme: Theme) -> tuple[str, str, str]:
    """Return the look of bytes that nobody owns."""
    return theme.unowned, mix(theme.unowned, theme.soft, 0.45), "\\"


def blank_look(theme: Theme) -> tuple[str, str, str]:
    """Return the look of a pixel where nothing is."""
    return theme.background, theme.background, ""


class Raster:
    """One painted image that fills its axes in data coordinates ``extent``: (left, right, bottom, top)."""

    def __init__(self, axes: Axes, zorder: float = 1):
        self.codes = np.zeros((1, 1), dtype=np.int16)
        self._image = axes.imshow(np.zeros((1, 1, 4), dtype=np.uint8), aspect="auto", interpolation="nearest",
                                  zorder=zorder, extent=(0, 1, 0, 1))
        axes.set_autoscale_on(False)

    def set(self, codes: np.ndarray, palette: Palette, extent: tuple[float, float, float, float]) -> None:
        """Show these codes, the first row at the top."""
        self.codes, self.palette = codes, palette
        self._image.set_data(palette.paint(codes))
        self._image.set_extent(extent)

    @property
    def rgba(self) -> np.ndarray:
        """The image as drawn: uint8 [height, width, 4]."""
        return self._image.get_array()


class Legend:
    """A row of painted swatches with names, in an axes of its own whose data coordinates are pixels."""

    def __init__(self, axes: Axes, width: int, theme: Theme, height: int = 14):
        self._raster, self._glyphs, self.entries = Raster(axes), Glyphs(axes), ()
        self._width, self._height, self._theme = width, height, theme
        axes.set_xlim(0, width)
        axes.set_ylim(0, height)

    def set(self, entries: Sequence[tuple[np.ndarray | int, str]], palette: Palette, blank: int) -> None:
        """Show (code or a gradient's codes, name) entries; those without room are counted in the last one."""
        self.entries = tuple(name for _, name in entries)
        codes = np.full((self._height, self._width), blank, dtype=np.int16)
        labels, x = [], 0
        for index, (swatch, name) in enumerate(entries):
            swatch = np.full(22, swatch) if np.ndim(swatch) == 0 else np.repeat(swatch, ceil_div(44, len(swatch)))
            needed = len(swatch) + 6 + text_width(name, 8.5) + 18
            more = f"and {len(entries) - index} more"
            if x + needed > self._width - (0 if index == len(entries) - 1 else text_width(more, 8.5)):
                labels.append(Label(x, self._height / 2, more, 8.5, self._theme.soft, "left"))
                break
            codes[1:-1, x:x + len(swatch)] = swatch
            labels.append(Label(x + len(swatch) + 6, self._height / 2, name, 8.5, self._theme.ink, "left"))
            x += int(needed)
        self._raster.set(codes, palette, (0, self._width, 0, self._height))
        self._glyphs.set(labels)
