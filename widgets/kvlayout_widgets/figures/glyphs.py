"""Many short labels at once: outlines in one collection, since hundreds of Text objects are too slow to draw."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import IdentityTransform, Transform

from kvlayout_widgets.figures.theme import FONT

_UNIT = 100  # outlines are cached at this size in points


@lru_cache(maxsize=512)
def _glyph(character: str, bold: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Return (vertices, codes, advance) of one character at ``_UNIT`` points."""
    font = FontProperties(family=FONT, weight="bold" if bold else "normal")
    bar = TextPath((0, 0), "|", size=_UNIT, prop=font).vertices[:, 0].max()
    advance = TextPath((0, 0), character + "|", size=_UNIT, prop=font).vertices[:, 0].max() - bar
    if character.isspace():
        return np.zeros((0, 2)), np.zeros(0, dtype=Path.code_type), advance
    outline = TextPath((0, 0), character, size=_UNIT, prop=font)
    return outline.vertices, outline.codes, advance


def text_width(text: str, size: float, bold: bool = False, dpi: float = 100) -> float:
    """Return the width of one line of text in pixels at ``dpi``; ``size`` in points."""
    return sum(_glyph(character, bold)[2] for character in text) * size / _UNIT * dpi / 72


def fit(text: str, width: float, size: float, bold: bool = False) -> str:
    """Return ``text``, cut short with an ellipsis where it is wider than ``width`` pixels."""
    if text_width(text, size, bold) <= width:
        return text
    room = width - text_width("…", size, bold)
    for index, character in enumerate(text):
        room -= text_width(character, size, bold)
        if room < 0:
            return text[:index].rstrip() + "…"
    return text


def wrap(text: str, width: float, size: float) -> list[str]:
    """Return ``text`` in lines of at most ``width`` pixels, broken at spaces."""
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if line and text_width(longer, size) > width:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line] if line else lines


@lru_cache(maxsize=4096)
def _outline(text: str, size: float, align: str, bold: bool, upright: bool) -> Path:
    """Return the outline of a label, in points, its anchor at (0, 0): left, center or right, and half-way up."""
    vertices, codes, x = [], [], 0.0
    for character in text:
        points, kinds, advance = _glyph(character, bold)
        vertices.append(points + (x, 0))
        codes.append(kinds)
        x += advance
    scale = size / _UNIT
    points = np.concatenate(vertices) if vertices else np.zeros((0, 2))
    shift = {"left": 0.0, "center": x / 2, "right": x}[align]
    points = (points - (shift, 36.5)) * scale
    if upright:
        points = points[:, ::-1] * (-1, 1)
    return Path(points, np.concatenate(codes) if codes else None)


@dataclass(frozen=True)
class Label:
    """One label: where, what, size in points, colour, alignment of ``x``; ``upright`` reads from below."""

    x: float
    y: float
    text: str
    size: float = 7
    colour: str = "#000000"
    align: str = "center"
    bold: bool = False
    upright: bool = False


class Glyphs:
    """The labels of one axes or figure; ``labels`` is what is drawn now."""

    def __init__(self, parent: Axes | Figure, zorder: float = 5, transform: Transform | None = None):
        """``transform``: what labels' x and y mean, by default data coordinates, or fractions of the figure."""
        if transform is None:
            transform = parent.transData if isinstance(parent, Axes) else parent.transFigure
        self.labels: tuple[Label, ...] = ()
        # A size of 1 draws paths in points, and the identity keeps the axes from scaling them as data.
        self._collection = PathCollection([], sizes=[1], offset_transform=transform, linewidths=0, zorder=zorder)
        self._collection.set_transform(IdentityTransform())
        self._collection.set_clip_on(False)
        parent.add_artist(self._collection)

    def set(self, labels: list[Label]) -> None:
        """Draw these labels and no others."""
        self.labels = tuple(label for label in labels if label.text.strip())
        self._collection.set_paths([_outline(label.text, label.size, label.align, label.bold, label.upright)
                                    for label in self.labels])
        self._collection.set_offsets(np.array([(label.x, label.y) for label in self.labels]).reshape(-1, 2))
        self._collection.set_facecolor([label.colour for label in self.labels])
        self._collection.set_visible(bool(self.labels))
