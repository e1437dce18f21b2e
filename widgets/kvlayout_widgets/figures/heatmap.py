"""One of two heatmaps side by side, of shares from 0 to 1: its image, the numbers in it, its rulers and call-out."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import Colormap
from matplotlib.image import AxesImage

from kvlayout_widgets.figures.callout import Callout
from kvlayout_widgets.figures.common import Drawing
from kvlayout_widgets.figures.glyphs import Glyphs
from kvlayout_widgets.figures.rulers import Ruler

WRONG = "#D55E00"
PAGES, CELLS = (80, 76, 500, 372), (590, 76, 846, 372)  # pixels: left, bottom, right, top


def add_heatmap(drawing: Drawing, box: tuple[int, int, int, int], colours: Colormap) -> tuple[
        AxesImage, Glyphs, tuple[Ruler, Ruler], Callout]:
    """Add an empty heatmap in ``box`` to a drawing; hatching shows where it has no value.

    Returns the image, the numbers above it, the rulers (left, bottom) and the call-out.
    """
    axes = drawing.add_axes(*box)
    axes.patch.set(hatch="////", edgecolor=drawing.theme.line, facecolor=drawing.theme.panel)
    image = axes.imshow(np.zeros((1, 1)), cmap=colours.with_extremes(bad=(0, 0, 0, 0)), vmin=0, vmax=1, aspect="auto",
                        interpolation="nearest")
    rulers = Ruler(axes, "left", drawing.theme), Ruler(axes, "bottom", drawing.theme)
    return image, Glyphs(axes, zorder=4), rulers, Callout(axes, box[2] - box[0], box[3] - box[1], drawing.theme)
