"""What every figure is built on: the coordinate it selects, a canvas, its texts, and PNG bytes."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from matplotlib.transforms import Bbox

from kvlayout.address import AddressMap
from kvlayout_widgets.figures.glyphs import Glyphs, Label, fit, text_width
from kvlayout_widgets.figures.shown import ShownFigure
from kvlayout_widgets.figures.theme import Theme, as_theme

WIDTH, HEIGHT, DPI = 960, 460, 100  # pixels; 9.6 x 4.6 inches
MARGIN = 20


@dataclass(frozen=True)
class Coordinate:
    """One byte of the cache: layer name, block, head slot, token state, and byte inside that state's C."""

    layer: str
    block: int
    head: int = 0
    state: int = 0
    byte: int = 0

    def offset(self, address_map: AddressMap) -> int:
        """Return its byte offset; LayoutError where the map has no such coordinate."""
        return address_map.offset(self.layer, self.block, self.head, self.state, self.byte)


class Drawing:
    """A figure that is made once and updated often: one canvas, a headline, a line below it, and a footer.

    ``headline``, ``subline`` and ``footer`` are the three lines as drawn.
    """

    def __init__(self, theme: str | Theme = "light"):
        self.theme = as_theme(theme)
        self.figure = ShownFigure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor=self.theme.background)
        FigureCanvasAgg(self.figure)
        self.headline = self.subline = self.footer = ""
        self._facts: tuple[str, ...] = ()
        self._lines = Glyphs(self.figure)

    def say(self, headline: str, subline: str = "", footer: str = "") -> None:
        """Set the three lines of text; a long one is set smaller, and too long a one ends in an ellipsis."""
        room = WIDTH - 2 * MARGIN
        labels = []
        for text, y, largest, colour, bold in ((headline, HEIGHT - 19, 11.5, self.theme.ink, True),
                                               (subline, HEIGHT - 41, 9.5, self.theme.soft, False),
                                               (footer, 15, 9, self.theme.ink, False)):
            size = min(largest, max(0.8 * largest, largest * room / max(1, text_width(text, largest, bold))))
            text = fit(text, room + 1, size, bold)
            labels.append(Label(MARGIN / WIDTH, y / HEIGHT, text, size, colour, "left", bold))
        self._lines.set(labels)
        self.headline, self.subline, self.footer = (label.text for label in labels)

    def add_axes(self, left: float, bottom: float, right: float, top: float, *, frame: bool = True) -> Axes:
        """Return new axes between these pixels of the figure, without ticks; without a frame if so asked."""
        axes = self.figure.add_axes((left / WIDTH, bottom / HEIGHT, (right - left) / WIDTH, (top - bottom) / HEIGHT))
        axes.set_facecolor(self.theme.background)
        axes.set_autoscale_on(False)
        if not frame:
            axes.set_axis_off()
            return axes
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_visible(False)
            axis.set_major_locator(NullLocator())
        for spine in axes.spines.values():
            spine.set_color(self.theme.line)
            spine.set_linewidth(0.8)
        return axes

    def coordinate_at(self, x: float, y: float) -> Coordinate | None:
        """Return the coordinate under a point of the first axes (data coordinates); None where nothing is."""
        return None

    def alt_text(self) -> str:
        """Return what the figure shows, in sentences made of the same facts."""
        return " ".join(self._facts)

    def tell(self, facts: Iterable[str]) -> None:
        """Set the sentences of the alt text."""
        self._facts = tuple(fact if fact.endswith((".", "!", "?")) else f"{fact}." for fact in facts if fact)
        self.figure.alt = self.alt_text()


def render_png(figure: Figure, scale: float = 1.0) -> bytes:
    """Return the figure as PNG bytes, ``scale`` pixels a pixel; quick rather than small."""
    buffer = io.BytesIO()
    # A box is given because a notebook's own settings may ask for a cropped picture.
    figure.savefig(buffer, format="png", dpi=DPI * scale, facecolor=figure.get_facecolor(),
                   bbox_inches=Bbox.from_bounds(0, 0, *figure.get_size_inches()),
                   pil_kwargs={"compress_level": 1})
    return buffer.getvalue()
