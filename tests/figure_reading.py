"""Reading figures in tests: where labels are drawn, what PNG comes out, and who owns a byte in one group."""

import io

import numpy as np
from matplotlib.collections import PathCollection
from PIL import Image

from kvlayout_widgets.figures.common import HEIGHT, WIDTH, Coordinate, render_png


def png_size(figure):
    return Image.open(io.BytesIO(render_png(figure))).size


def label_boxes(figure):
    """(left, bottom, right, top) in pixels of every label that is drawn."""
    figure.canvas.draw()
    boxes = []
    for collection in figure.findobj(PathCollection):
        if not collection.get_visible() or not (collection.axes is None or collection.axes.get_visible()):
            continue
        places = collection.get_offset_transform().transform(collection.get_offsets())
        for path, (x, y) in zip(collection.get_paths(), places):
            points = path.vertices * figure.dpi / 72 + (x, y)
            boxes.append((*points.min(axis=0), *points.max(axis=0)))
    return np.array(boxes).reshape(-1, 4)


def check_labels(figure):
    """All labels lie inside the figure, and no two of them touch."""
    boxes = label_boxes(figure)
    assert len(boxes)
    assert boxes[:, :2].min() >= 0
    assert boxes[:, 2].max() <= WIDTH
    assert boxes[:, 3].max() <= HEIGHT
    a, b = boxes[:, None], boxes[None, :]
    overlap = ((a[..., 0] < b[..., 2]) & (b[..., 0] < a[..., 2]) & (a[..., 1] < b[..., 3]) & (b[..., 1] < a[..., 3]))
    np.fill_diagonal(overlap, False)
    assert not overlap.any(), boxes[np.unique(np.nonzero(overlap)[0])]


def owner_in(address_map, offset, group):
    """The owner of a byte in one group, or None."""
    found = [owner for owner in address_map.owners(int(offset)) if owner.group == group]
    assert len(found) < 2
    return found[0] if found else None


def middle(address_map, layer=None):
    """A coordinate in the middle of a map."""
    layer = address_map.layers[len(address_map.layers) // 2] if layer is None else layer
    blocks, heads, states, content = address_map.shape(layer)
    return Coordinate(layer, blocks // 3, heads - 1, states // 2, content // 2)
