"""The Verify button: the proof by memory runs beside the kernel's other work, shows its progress, can be stopped."""

from __future__ import annotations

import threading
import time

import ipywidgets as widgets

from kvlayout.errors import LayoutError, raised
from kvlayout.memory.cache import KVCache
from kvlayout.memory.probe import verify
from kvlayout.proof import Report
from kvlayout_widgets.figures.common import render_png
from kvlayout_widgets.figures.mismatches import mismatches_figure
from kvlayout_widgets.html import outcome, paragraph

_SECONDS_BETWEEN = 0.1  # a progress bar that moves more often only costs messages


class _Stopped(Exception):
    """The user pressed Stop."""


class Verification:
    """Proves a cache in a thread. ``report`` is the last result; ``is_running`` while one is under way.

    ``changed`` is called when a proof begins and when it has ended, whatever its end. ``widget`` has the progress and
    the result in a sentence; ``details``, for a wider place, where bytes are wrong.
    """

    def __init__(self, changed):
        self._changed = changed
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_running = False
        self.report: Report | None = None
        self.button = widgets.Button(
            description="Verify", layout=widgets.Layout(width="94px"),
            tooltip="Write a fingerprint through every view, read the raw buffer back and compare every byte with "
                    "the address map. Overwrites the allocated cache")
        self.stop = widgets.Button(description="Stop", layout=widgets.Layout(width="94px"),
                                   tooltip="Stop the proof; the cache then holds zeros")
        self.bar = widgets.IntProgress(0, 0, 1000, layout=widgets.Layout(width="100%"))
        self.text = widgets.HTML()
        self.widget = widgets.VBox([self.bar, self.text])
        self.picture = widgets.Image(format="png", width=960, layout=widgets.Layout(max_width="100%"))
        self.more = widgets.HTML()
        self.details = widgets.VBox([self.picture, self.more])
        self.stop.on_click(lambda _: self._stop.set())
        self._result = ""
        self.clear()

    def clear(self) -> None:
        """Show no result: another cache is there, or none."""
        self.report, self._result, self.text.value = None, "", ""
        for part in (self.bar, self.stop, self.details):
            part.layout.display = "none"

    def say(self, older: str = "") -> None:
        """Show the result; ``older``: which cache it is of, where another plan than its own is shown."""
        if self._result:
            self.text.value = outcome(self._result, older)

    def start(self, cache: KVCache, theme: str) -> None:
        """Begin to prove ``cache``; at once if nothing is under way."""
        if self.is_running:
            raise LayoutError("verify", cache, "is proving this cache already", "Wait for it, or press Stop")
        self.clear()
        self.is_running, self.bar.value = True, 0
        self.bar.layout.display = self.stop.layout.display = None
        self._stop.clear()
        self._changed()
        self._thread = threading.Thread(target=self._run, args=(cache, theme), daemon=True, name="kvlayout verify")
        self._thread.start()

    def wait(self) -> None:
        """Return when the proof that is under way has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, cache: KVCache, theme: str) -> None:
        shown = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal shown
            if self._stop.is_set():
                raise _Stopped
            if time.monotonic() - shown > _SECONDS_BETWEEN:
                shown = time.monotonic()
                self.bar.value = 1000 * done // max(1, total)

        try:
            self.report = verify(cache, progress=progress)
            self._show(theme)
        except _Stopped:
            self.text.value = paragraph("Stopped: nothing is proven, and the cache holds zeros again.", "warn")
        except Exception as error:  # in a thread nobody else would see it
            said = str(error) if isinstance(error, LayoutError) else raised(error)
            self._result = f"✗ {said}"
            self.say()
        finally:
            self.is_running = False
            self.bar.layout.display = self.stop.layout.display = "none"
            self._changed()

    def _show(self, theme: str) -> None:
        report = self.report
        if report.ok:
            self._result = f"✓ {report.summary}"
            self.say()
            return
        self._result = f"✗ {report.summary}"
        self.say()
        self.more.value = "".join(paragraph(f"· {one}", "line") for one in report.mismatches[1:6])
        self.picture.value = render_png(mismatches_figure(report, theme=theme))
        self.details.layout.display = None
