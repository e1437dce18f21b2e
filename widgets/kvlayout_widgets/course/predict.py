"""Predict, then reveal: where does a coordinate of a tiny cache lie? Four answers, three of them classic mistakes."""

from __future__ import annotations

import random

import ipywidgets as widgets

from kvlayout.layout import KVCacheLayout
from kvlayout_widgets.course.maps import tiny_map
from kvlayout_widgets.figures.common import Coordinate
from kvlayout_widgets.figures.memory import MemoryFigure
from kvlayout_widgets.html import layout_chips
from kvlayout_widgets.picture import Picture


class Predict(widgets.VBox):
    """A question with four byte offsets to choose from; the picture is revealed with the answer.

    ``seed`` fixes the questions. ``truth`` is the right offset of the current one, in bytes; wrong answers are
    what the same coordinate's offset would be in other layouts.
    """

    def __init__(self, seed: int = 0):
        self._random, self.asked, self.right = random.Random(seed), 0, 0
        self.question, self.verdict = widgets.HTML(), widgets.HTML()
        self.choice = widgets.RadioButtons(options=[], description="byte offset")
        self.reveal = widgets.Button(description="Reveal", button_style="primary", tooltip="Show where it lies")
        self.another = widgets.Button(description="Another", tooltip="Ask the next question")
        self.picture, self._figure = Picture(), MemoryFigure()
        super().__init__([self.question, self.choice, widgets.HBox([self.reveal, self.another]), self.verdict,
                          self.picture])
        self.reveal.on_click(lambda _: self.show_answer())
        self.another.on_click(lambda _: self.ask())
        self.ask()

    def ask(self) -> None:
        """Draw a new question whose offset differs from layout to layout."""
        offsets = {}
        while len(set(offsets.values())) < 4:
            self.layout_name = self._random.choice(list(KVCacheLayout)).name
            at = [self._random.randrange(n) for n in (2, 3, 2, 2)]
            offsets = {layout.name: tiny_map(layout).offset(*at) for layout in KVCacheLayout}
        self.truth = offsets[self.layout_name]
        wrong = sorted(set(offsets.values()) - {self.truth})
        options = sorted([self.truth, *self._random.sample(wrong, 3)])
        self.mistaken_for = {offset: [name for name, value in offsets.items() if value == offset]
                             for offset in options}
        self.at = Coordinate(f"layers.{at[0]}", *at[1:])
        self.question.value = (
            f"<div>{layout_chips(self.layout_name)} &nbsp; 2 layers, 3 blocks, 2 heads, 2 tokens a block, K and V "
            f"of 8 bytes each.</div><div>At which byte begins <b>layer {at[0]}, block {at[1]}, head {at[2]}, "
            f"token {at[3]}</b>?</div>")
        self.choice.options = [(f"{offset}", offset) for offset in options]
        self.choice.value, self.choice.disabled, self.reveal.disabled = None, False, False
        self.verdict.value, self.picture.layout.display = "", "none"

    def show_answer(self) -> None:
        """Say whether the prediction was right, what a wrong one would have been right for, and show the memory."""
        given, region = self.choice.value, tiny_map(self.layout_name).region(0)
        self.choice.disabled = self.reveal.disabled = True
        self.asked += 1
        self.right += given == self.truth
        index = (int(self.at.layer[-1]), self.at.block, self.at.head, self.at.state)
        steps = " + ".join(f"{n} × {stride}" for n, stride in zip(index, region.geometry.strides))
        if given == self.truth:
            said = "Right."
        elif given is None:
            said = "No prediction given."
        else:
            said = f"No: {given} would be right for {', '.join(self.mistaken_for[given])}."
        self.verdict.value = (f"<div><b>{said}</b> layer, block, head, token: {steps} = <b>{self.truth}</b>. "
                              f"{self.right} of {self.asked} predicted so far.</div>")
        self._figure.update(tiny_map(self.layout_name), selected=self.at)
        self.picture.show(self._figure.figure, self._figure.alt_text())
        self.picture.layout.display = None
