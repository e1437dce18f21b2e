"""Picture: what it sends to the page, what the page's events become, and what is shown without a kernel."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import kvlayout_widgets.picture as picture_module
from kvlayout_widgets.picture import Picture, figure_bytes


def figure_of(yscale="linear"):
    figure = Figure(figsize=(4, 2), dpi=100)
    axes = figure.add_axes((0.25, 0.2, 0.5, 0.6))
    axes.set_xlim(0, 10)
    axes.set_ylim(100, 1)
    axes.set_yscale(yscale)
    return figure


def size_of(png: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(png)).size


def test_a_figure_is_sent_as_a_png_with_its_axes_as_fractions():
    picture = Picture()
    picture.show(figure_of(), alt="ten by a hundred")
    assert size_of(picture.png) == (400, 200)
    assert (picture.width, picture.height, picture.alt) == (400, 200, "ten by a hundred")
    [axes] = picture.axes
    assert [axes[k] for k in ("x0", "x1", "y0", "y1")] == pytest.approx([0.25, 0.75, 0.2, 0.8])
    assert (axes["xlim"], axes["ylim"]) == ([0, 10], [100, 1])  # the y axis points down, and stays so
    assert (axes["xscale"], axes["yscale"]) == ("linear", "linear")
    json.dumps(picture.axes)


def test_a_log_axis_says_so():
    picture = Picture()
    picture.show(figure_of("log"))
    assert picture.axes[0]["yscale"] == "log"


def test_hidden_axes_are_not_reported():
    figure = figure_of()
    figure.add_axes((0.8, 0.2, 0.05, 0.6)).set_visible(False)
    picture = Picture()
    picture.show(figure)
    assert len(picture.axes) == 1


@pytest.mark.parametrize(("ratio", "width"), [(1.0, 400), (2.0, 800), (9.0, 1200), (0.5, 400)])
def test_a_dense_screen_gets_more_pixels_within_reason(ratio, width):
    picture = Picture(pixel_ratio=ratio)
    picture.show(figure_of())
    assert size_of(picture.png)[0] == width
    assert picture.width == 400


def test_picture_and_axes_reach_the_page_in_one_message():
    sent = []
    picture = Picture()
    picture.send_state = lambda key=None: sent.append(set(key))
    picture.show(figure_of())
    assert len(sent) == 1
    assert {"png", "axes", "alt", "width", "height"} >= sent[0] >= {"png", "axes"}


@pytest.mark.parametrize("name", ["hover", "click", "drag", "wheel", "key"])
def test_an_event_of_the_page_is_a_change_of_its_trait(name):
    seen = []
    picture = Picture()
    picture.observe(lambda change: seen.append(change["new"]), name)
    picture.set_state({name: {"axes": 0, "x": 1.5, "y": 2.5, "n": 1}})
    picture.set_state({name: {"axes": 0, "x": 1.5, "y": 2.5, "n": 2}})  # the same place again
    assert [event["n"] for event in seen] == [1, 2]


def test_without_a_kernel_the_png_and_its_words_are_shown():
    picture = Picture()
    picture.show(figure_of(), alt="what is to be seen")
    data, metadata = picture._repr_mimebundle_(include=None, exclude=None)
    assert base64.b64decode(data["image/png"]) == picture.png
    assert data["text/plain"] == "what is to be seen"
    assert metadata["image/png"]["alt"] == "what is to be seen"
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == picture.model_id
    assert picture._repr_png_() == picture.png


def test_an_empty_picture_claims_no_png():
    data, _ = Picture()._repr_mimebundle_()
    assert "image/png" not in data
    assert Picture()._repr_png_() is None


def test_a_download_carries_the_bytes():
    sent = []
    picture = Picture()
    picture.send = lambda content, buffers=None: sent.append((content, buffers))
    picture.download("a.csv", b"1,2", "text/csv")
    assert sent == [({"type": "download", "name": "a.csv", "mime": "text/csv"}, [b"1,2"])]


def test_figures_as_files():
    assert figure_bytes(figure_of(), "svg").lstrip().startswith(b"<?xml")
    pixels = np.asarray(Image.open(io.BytesIO(figure_bytes(figure_of(), "png"))))
    assert pixels.shape[:2] == (200, 400)


def test_the_page_reads_and_writes_only_traits_that_exist():
    script = Path(picture_module.__file__).with_name("picture.js").read_text()
    named = set(re.findall(r'model\.(?:get|set)\("(\w+)"', script)) | set(re.findall(r'report\("(\w+)"', script))
    assert {"png", "alt", "axes", "hover", "click", "drag", "wheel", "key", "is_dark"} <= named
    assert named <= set(Picture.class_trait_names(sync=True))
