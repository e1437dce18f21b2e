"""The judge in the background: vLLM loads in a process of its own, and whoever asks never waits for it.

This module imports neither torch nor vLLM. The process is :mod:`kvlayout.upstream.worker_judge`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kvlayout.errors import LayoutError
from kvlayout.selection import Selection, decode_json
from kvlayout.upstream.release import COVERED, found
from kvlayout.upstream.verdict import Verdict

logger = logging.getLogger(__name__)

Callback = Callable[[Verdict | LayoutError], None]

# Loads the kvlayout of this process and nothing else of its path, so that any Python may judge.
_BOOT = """import sys, importlib.util as u
s = u.spec_from_file_location("kvlayout", sys.argv[1] + "/__init__.py", submodule_search_locations=[sys.argv[1]])
m = sys.modules["kvlayout"] = u.module_from_spec(s); s.loader.exec_module(m)
from kvlayout.upstream.worker_judge import main
sys.exit(main())
"""


@dataclass(frozen=True, eq=False)
class _Request:
    number: int
    selection: Selection
    callback: Callback


class Judge:
    """Asks a worker process what vLLM says. No method blocks; callbacks come from other threads.

    ``python``: the interpreter that has vLLM. ``on_state``: called without arguments after ``state`` or ``reason``
    has changed. ``command``: another worker, for tests.

    Attributes:
        state: "absent" (no vLLM there), "loading", "ready" or "failed"; before :meth:`start` "loading" or "absent"
        reason: why it is absent or has failed, or what is going on; empty when ready
        version, build: the vLLM's, as far as known
    """

    def __init__(self, python: str = sys.executable, *, on_state: Callable[[], None] | None = None,
                 command: Sequence[str] | None = None):
        self._command = list(command or (python, "-c", _BOOT, str(Path(__file__).parents[1])))
        self._on_state = on_state
        self._lock = threading.RLock()
        self._process: subprocess.Popen | None = None
        self._running: _Request | None = None
        self._waiting: _Request | None = None
        self._count = 0
        self.version: str | None = None
        self.build: str | None = None
        self.state, self.reason = "loading", "vLLM isn't loaded yet"
        # Another Python is asked by its worker.
        if command is None and python == sys.executable:
            there = found()
            if there is None:
                self.state, self.reason = "absent", _absent()
            else:
                self.version, self.build = there

    def start(self) -> Judge:
        """Start loading vLLM, unless it is absent, loading or loaded; after a failure, try again."""
        with self._lock:
            if self._process is not None or self.state == "absent":
                return self
            try:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    text=True, encoding="utf-8", errors="replace",
                    # vLLM's own messages would hide the line that says why it died.
                    env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"})
            except OSError as error:
                self._set("failed", f"{self._command[0]} can't be started: {error.strerror}")
            else:
                self._set("loading", "vLLM is being loaded, which takes 10 to 40 s")
                _thread(self._read, self._process)
        return self

    def ask(self, selection: Selection, callback: Callback) -> None:
        """Have ``selection`` judged, and ``callback`` called with a Verdict, or a LayoutError saying why not.

        The newest request wins: an older one that waits or is being judged is forgotten, and its callback isn't
        called. Where the judge is absent or has failed, the callback gets that as a LayoutError.
        """
        with self._lock:
            self._count += 1
            self._waiting = _Request(self._count, selection, callback)
            if self.state in ("absent", "failed"):
                _thread(self._give_up)
                return
            self._send()
        self.start()

    def close(self) -> None:
        """End the worker process; the newest request, if unanswered, gets a LayoutError."""
        with self._lock:
            process, self._process = self._process, None
            if self.state != "absent":
                self._set("failed", "the judge was closed")
        if process is not None:
            process.kill()

    def __enter__(self) -> Judge:
        return self.start()

    def __exit__(self, *exc_info) -> None:
        self.close()

    def _set(self, state: str, reason: str) -> None:
        """Take on a state, the lock held; others hear of it, and requests that nobody will judge are answered."""
        changed = (state, reason) != (self.state, self.reason)
        self.state, self.reason = state, reason
        if changed and self._on_state is not None:
            _thread(_call, self._on_state)
        if state in ("absent", "failed"):
            _thread(self._give_up)

    def _give_up(self) -> None:
        """Answer the newest unanswered request with the reason why nobody judges it."""
        with self._lock:
            if self.state not in ("absent", "failed"):
                return
            left = [one for one in (self._running, self._waiting) if one is not None and one.number == self._count]
            self._running = self._waiting = None
            error = LayoutError("judge", self.state, self.reason)
        for request in left:
            _call(request.callback, error)

    def _send(self) -> None:
        """Hand the waiting request to a worker that is idle; the lock is held."""
        if self.state == "ready" and self._running is None and self._waiting is not None:
            self._running, self._waiting = self._waiting, None
            # A pipe can block while its reader is busy, so it isn't written to from the caller's thread.
            _thread(self._write, self._process, self._running)

    def _write(self, process: subprocess.Popen, request: _Request) -> None:
        try:
            text = json.dumps({"id": request.number, "selection": request.selection.to_dict()}, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            self._answer(process, request.number, LayoutError("selection", request.selection.model,
                                                              f"can't be written as JSON: {error}"))
            return
        try:
            process.stdin.write(text + "\n")
            process.stdin.flush()
        except (OSError, ValueError) as error:
            # The worker has ended, which its reader notices too, with the reason; it answers this request.
            logger.debug("the judge's worker takes no request: %s", error)

    def _read(self, process: subprocess.Popen) -> None:
        """Take the worker's lines until it ends; runs in a thread of its own."""
        last: deque[str] = deque(maxlen=1)
        drain = _thread(lambda: last.extend(line.strip() for line in process.stderr if line.strip()))
        fault = None
        for line in process.stdout:
            try:
                self._take(process, decode_json(line, "line"))
            except (LayoutError, KeyError, TypeError) as error:
                fault = f"the worker said what is no answer: {line.strip()[:200]!r} ({type(error).__name__})"
                process.kill()
                break
        status = process.wait()
        drain.join()
        for pipe in (process.stdout, process.stderr, process.stdin):
            _close(pipe)
        with self._lock:
            if self._process is not process:
                return
            self._process = None
            if fault or self.state in ("loading", "ready"):
                words = last[0] if last else "it said nothing"
                self._set("failed", fault or f"the worker ended with status {status}: {words}")

    def _take(self, process: subprocess.Popen, message: dict) -> None:
        """Act on one message of the worker; LayoutError, KeyError or TypeError where it is none."""
        if "state" not in message:
            is_verdict = "verdict" in message
            self._answer(process, message["id"], Verdict.from_dict(message["verdict"]) if is_verdict
                         else LayoutError(**message["error"]))
            return
        state = message["state"]
        reason = {"ready": "", "absent": _absent(), "failed": message.get("reason")}[state]
        with self._lock:
            if self._process is not process:
                return
            if state == "ready":
                self.version, self.build = message["version"], message["build"]
            self._set(state, reason)
            self._send()

    def _answer(self, process: subprocess.Popen, number: int, answer: Verdict | LayoutError) -> None:
        """Pass the answer on if its request is still the newest, and let the next one go."""
        with self._lock:
            if self._process is not process or self._running is None:
                return
            done, self._running = self._running, None
            is_newest = done.number == number == self._count
            self._send()
        if is_newest:
            _call(done.callback, answer)


def _absent() -> str:
    return f"vLLM isn't installed in this Python; {COVERED}"


def _thread(target: Callable, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name="kvlayout judge", daemon=True)
    thread.start()
    return thread


def _close(pipe: IO[str]) -> None:
    try:
        pipe.close()
    except OSError as error:
        # What was still to be written to a process that has ended.
        logger.debug("the judge's worker is gone: %s", error)


def _call(callback: Callable, *arguments: object) -> None:
    """Call what others gave; what it raises is logged, so that the thread that called lives on."""
    try:
        callback(*arguments)
    except Exception:
        logger.exception("a callback of the judge failed")
