"""Picture: a matplotlib figure on screen that says where in its axes the pointer and the keys are.

The figure is drawn in the kernel to one PNG; ``picture.js`` shows it. Without a live kernel the PNG itself is shown.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

import anywidget
import traitlets
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_HERE = Path(__file__).parent
_MOST_PIXEL_RATIO = 3.0


class Picture(anywidget.AnyWidget):
    """One figure as a PNG, with events in data coordinates.

    Traits set by :meth:`show`:
        png: the picture, at ``pixel_ratio`` pixels for each CSS pixel
        alt: the same in words
        width, height: CSS pixels; a narrow page shrinks the picture, to 760 pixels at least, and then scrolls it
        axes: for each of the figure's axes {x0, x1, y0, y1: fractions of the picture from its left and bottom edge,
            xlim, ylim: data at those edges, xscale, yscale: "linear" or "log"}
    Traits set by the page, each with a running number ``n`` so that the same event twice is two changes:
        hover: {axes, x, y}, or None where the pointer is on no axes
        click: {axes, x, y}
        drag: {axes, x0, y0, x1, y1}, once the button is released; only with ``drags``
        wheel: {axes, x, y, delta: -1 or 1}; only with ``wheels``, and only while the picture has the focus
        key: {key, shift}: arrows, Home, End, PageUp, PageDown, + - Escape
        pixel_ratio, is_dark: the screen's, and JupyterLab's theme
    Traits for the owner: ``readout``, a text shown beside the pointer; ``drags``, ``wheels``.
    """

    _esm = _HERE / "picture.js"
    _css = _HERE / "picture.css"

    png = traitlets.Bytes().tag(sync=True)
    alt = traitlets.Unicode().tag(sync=True)
    width = traitlets.Int(960).tag(sync=True)
    height = traitlets.Int(460).tag(sync=True)
    axes = traitlets.List(traitlets.Dict()).tag(sync=True)
    readout = traitlets.Unicode().tag(sync=True)
    drags = traitlets.Bool(False).tag(sync=True)
    wheels = traitlets.Bool(False).tag(sync=True)
    hover = traitlets.Dict(None, allow_none=True).tag(sync=True)
    click = traitlets.Dict(None, allow_none=True).tag(sync=True)
    drag = traitlets.Dict(None, allow_none=True).tag(sync=True)
    wheel = traitlets.Dict(None, allow_none=True).tag(sync=True)
    key = traitlets.Dict(None, allow_none=True).tag(sync=True)
    pixel_ratio = traitlets.Float(1.0).tag(sync=True)
    is_dark = traitlets.Bool(False).tag(sync=True)

    def show(self, figure: Figure, alt: str = "") -> None:
        """Draw ``figure`` and show it; ``alt`` says the same in words."""
        ratio = min(max(self.pixel_ratio, 1.0), _MOST_PIXEL_RATIO)
        png = figure_bytes(figure, "png", dpi=figure.dpi * ratio)
        width, height = (round(inches * figure.dpi) for inches in figure.get_size_inches())
        # The axes' place is known only after drawing; one message carries all, so they always fit each other.
        with self.hold_sync():
            self.axes = [_axes_box(axes) for axes in figure.axes if axes.get_visible()]
            self.width, self.height, self.alt, self.png = width, height, alt, png

    def download(self, name: str, data: bytes, mime: str) -> None:
        """Let the browser save ``data`` as a file called ``name``."""
        self.send({"type": "download", "name": name, "mime": mime}, buffers=[data])

    def _repr_mimebundle_(self, **kwargs):
        made = super()._repr_mimebundle_(**kwargs)
        data, metadata = made if isinstance(made, tuple) else (made or {}, {})
        data = {**data, "text/plain": self.alt or "Picture (nothing shown yet)"}
        if self.png:
            data["image/png"] = base64.b64encode(self.png).decode("ascii")
            metadata = {**metadata, "image/png": {"alt": self.alt}}
        return data, metadata

    def _repr_png_(self) -> bytes | None:
        return self.png or None


def figure_bytes(figure: Figure, kind: str, dpi: float | None = None) -> bytes:
    """Return ``figure`` as a file of ``kind``, "png" or "svg"."""
    file = io.BytesIO()
    # Level 1 is a third of the time of the default, for a tenth more bytes.
    extra = {"pil_kwargs": {"compress_level": 1}} if kind == "png" else {}
    figure.savefig(file, format=kind, dpi=dpi or figure.dpi, facecolor=figure.get_facecolor(), **extra)
    return file.getvalue()


def _axes_box(axes: Axes) -> dict:
    box = axes.get_position()
    return {"x0": box.x0, "x1": box.x1, "y0": box.y0, "y1": box.y1,
            "xlim": [float(value) for value in axes.get_xlim()], "ylim": [float(value) for value in axes.get_ylim()],
            "xscale": axes.get_xscale(), "yscale": axes.get_yscale()}
