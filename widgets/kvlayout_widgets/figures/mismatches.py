"""Where a proof by memory found wrong bytes: layer by block, on a logarithmic scale."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from kvlayout.errors import LayoutError
from kvlayout.proof import Report
from kvlayout_widgets.figures.common import Drawing
from kvlayout_widgets.figures.rulers import Ruler, index_ticks
from kvlayout_widgets.figures.theme import AXIS_WORDS, Theme, exact_bytes
from kvlayout_widgets.figures.wording import layer_number

_BOX = (90, 76, 830, 372)  # pixels: left, bottom, right, top


def mismatches_figure(report: Report, *, theme: str | Theme = "light") -> Figure:
    """Return the heatmap of ``report.map``; LayoutError where the proof found nothing wrong."""
    if report.map is None:
        raise LayoutError("report", report, "found nothing wrong, so there is nothing to draw")
    drawing = Drawing(theme)
    wrong, width = report.map.wrong_bytes, report.map.blocks_per_bin
    rows, columns = wrong.shape
    axes = drawing.add_axes(*_BOX)
    axes.set_facecolor(drawing.theme.panel)
    shown = np.ma.masked_equal(wrong, 0)
    extent = (-0.5, columns * width - 0.5, rows - 0.5, -0.5)
    most = max(2, int(wrong.max()))
    image = axes.imshow(shown, cmap="inferno_r" if drawing.theme.name == "light" else "inferno",
                        norm=LogNorm(1, most), aspect="auto", interpolation="nearest", extent=extent)
    axes.set(xlim=extent[:2], ylim=extent[2:])
    left, bottom = Ruler(axes, "left", drawing.theme), Ruler(axes, "bottom", drawing.theme)
    ticks = index_ticks(0, rows, 6)
    left.set(ticks, [layer_number(report.map.layers[int(i)]) for i in ticks])
    left.set_title(f"{AXIS_WORDS['L'][0]}  L", drawing.theme.axis_ink["L"], 40)
    ticks = index_ticks(0, columns * width, 6)
    bottom.set(ticks, [f"{int(i):,}" for i in ticks])
    bins = f"   ({width:,} a bin)" if width > 1 else ""
    bottom.set_title(f"{AXIS_WORDS['B'][0]}  B{bins}", drawing.theme.axis_ink["B"], 40)
    scale = drawing.add_axes(_BOX[2] + 20, _BOX[1], _BOX[2] + 34, _BOX[3])
    steps = np.geomspace(1, most, 256)
    scale.imshow(steps[::-1, None], cmap=image.cmap, norm=image.norm, aspect="auto", extent=(0, 1, 0, 1))
    scale.set(xlim=(0, 1), ylim=(0, 1))
    Ruler(scale, "right", drawing.theme).set((0, 1), ("1 B", exact_bytes(most).split(" (")[0]))
    subline = f"{exact_bytes(report.mismatched_bytes)} differ; where nothing is drawn, every byte is right"
    drawing.say("Where wrong bytes lie, by whose they should be", subline, str(report.mismatches[0]))
    drawing.tell(("Heatmap of wrong bytes by layer and block", subline, str(report.mismatches[0])))
    return drawing.figure
