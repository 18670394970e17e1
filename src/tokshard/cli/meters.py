"""Progress on stderr: a line that is redrawn every second on a terminal, a line every 30 s elsewhere."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from tokshard.cli import terminal
from tokshard.core.formatting import count, short_count, size, visible
from tokshard.core.progress import Progress, ProgressUpdate, SilentProgress

_REDRAW_SECONDS = 1.0
_LOG_SECONDS = 30.0
# Rates are means over the last updates, so that ETA follows a change of speed.
_WINDOW_SECONDS = 30.0
_MOST_SECONDS = 99 * 3600
_SMALLEST_BAR, _LARGEST_BAR = 6, 40
_UNICODE_BAR, _ASCII_BAR = "━╸─", "#>-"
_DROPPED = ("amount", "tokens", "elapsed", "documents", "rate", "eta", "percent")
"""The parts that a narrow terminal does not show, in the order in which they go."""


class Tracker:
    """The lines that show the totals of an activity and their rates."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.start("", None, 0)

    def start(self, activity: str, bytes_total: int | None, bytes_resumed: int) -> None:
        """Begin an activity."""
        self._activity, self._total = visible(activity), bytes_total
        self._state = ProgressUpdate(bytes_done=bytes_resumed)
        self._history: deque[tuple[float, ProgressUpdate]] = deque()

    def update(self, state: ProgressUpdate) -> None:
        """Take in totals."""
        now, self._state = self._clock(), state
        self._history.append((now, state))
        while len(self._history) > 1 and self._history[1][0] <= now - _WINDOW_SECONDS:
            self._history.popleft()

    def bar_line(self, columns: int, characters: str = _UNICODE_BAR) -> str:
        """Return one line of at most ``columns`` characters."""
        parts = self._parts()
        least = 0
        if self._total:
            parts.pop("documents", None)
            least = _SMALLEST_BAR
        for name in ("", *_DROPPED):
            parts.pop(name, None)
            text = "  ".join(parts.values())
            cells = min(_LARGEST_BAR, columns - len(f"{self._activity}  {text}"))
            if cells >= least:
                break
        bar = " "
        if self._total and cells >= least:
            halves = int(2 * cells * min(1.0, self._state.bytes_done / self._total))
            bar += (characters[0] * (halves // 2) + characters[1] * (halves % 2)).ljust(cells, characters[2])
        return f"{self._activity}{bar} {text}"[:columns].rstrip()

    def log_line(self) -> str:
        """Return a line for a log, with all parts that are known."""
        parts = self._parts()
        names = ("percent", "amount", "rate", "documents", "tokens", "eta")
        texts = [parts.get(name, "").strip() for name in names]
        known = ", ".join(text for text in texts if text and "-" not in text)
        return f"{parts['elapsed']} {self._activity}" + (f": {known}" if known else "")

    def _parts(self) -> dict[str, str]:
        # Their widths are fixed, so that they stay in their columns from one line to the next.
        now, state, total = self._clock(), self._state, self._total
        parts = {}
        if total:
            parts["percent"] = f"{int(100 * min(1.0, state.bytes_done / total)):>3}%"
            parts["amount"] = f"{size(state.bytes_done):>7} of {size(total)}"
        elif state.bytes_done:
            parts["amount"] = f"{size(state.bytes_done):>7}"
        if state.documents:
            parts["documents"] = f"{count(state.documents)} documents"
        if total or state.bytes_done:
            rate = self._rate("bytes_done" if state.content_bytes is None else "content_bytes", now)
            text = f"{'-' if rate is None else size(rate)}/s{state.content}"
            parts["rate"] = text.rjust(len("12.3 MB/s of text" if total else "12.3 MB/s"))
        parts["elapsed"] = _clock_time(now - self._began)
        if total:
            speed = self._rate("bytes_done", now)
            left = max(0, total - state.bytes_done) / speed if speed else math.inf
            parts["eta"] = f"ETA {_clock_time(left, math.ceil)}"
        if state.tokens:
            rate = self._rate("tokens", now)
            parts["tokens"] = f"{'-' if rate is None else short_count(rate):>5} tokens/s"
        elif total:
            parts["tokens"] = " " * len("3.10M tokens/s")
        return parts

    def _rate(self, name: str, now: float) -> float | None:
        """Return a total per second, or None before there are two updates to compare."""
        # The first update contains the work of earlier runs, which counts for no rate.
        if len(self._history) < 2 or now <= self._history[0][0]:
            return None
        first, then = self._history[0]
        return ((getattr(self._state, name) or 0) - (getattr(then, name) or 0)) / (now - first)


def _clock_time(seconds: float, rounded: Callable[[float], int] = int) -> str:
    if seconds > _MOST_SECONDS:
        return "-:--:--"
    whole = rounded(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def make_meter(*, quiet: bool, animated: bool) -> Progress:
    """Return a listener that shows progress on stderr."""
    if quiet:
        return SilentProgress()
    return Meter(animated=animated and sys.stderr.isatty() and os.environ.get("TERM") != "dumb")


class Meter:
    """Shows progress regularly: the time moves even while no update comes."""

    def __init__(self, *, animated: bool) -> None:
        self._animated = animated
        self._tracker = Tracker()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, activity: str, bytes_total: int | None = None, bytes_resumed: int = 0) -> None:
        """Begin an activity."""
        with self._lock:
            self._tracker.start(activity, bytes_total, bytes_resumed)
        if bytes_resumed:
            self.message(f"resuming: {size(bytes_resumed)} were processed by an earlier run")
        elif self._animated:
            self._draw()
        if self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._draw_regularly, daemon=True)
            self._thread.start()

    def update(self, state: ProgressUpdate) -> None:
        """Take in totals."""
        with self._lock:
            self._tracker.update(state)

    def message(self, text: str) -> None:
        """Print a text."""
        with self._lock:
            self._clear()
            terminal.tell(visible(text))
        if self._animated and self._thread is not None:
            self._draw()

    def finish(self) -> None:
        """End the thread, and remove the line that is redrawn."""
        if self._thread is not None:
            self._ended.set()
            if self._thread.is_alive():  # a signal may have come before it was started
                self._thread.join()
            self._thread = None
            self._clear()

    def _draw_regularly(self) -> None:
        while not self._ended.wait(_REDRAW_SECONDS if self._animated else _LOG_SECONDS):
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            if not self._animated:
                terminal.tell(self._tracker.log_line())
                return
            is_unicode = (sys.stderr.encoding or "").lower().startswith("utf")
            # The last column stays empty: some terminals begin a new line after it.
            line = self._tracker.bar_line(_columns() - 1, _UNICODE_BAR if is_unicode else _ASCII_BAR)
            terminal.tell(f"\r{line}\x1b[K", end="")

    def _clear(self) -> None:
        if self._animated:
            terminal.tell("\r\x1b[K", end="")


def _columns() -> int:
    # Not those of stdout, which may be a file.
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(sys.stderr.fileno()).columns) or 80
    except (OSError, ValueError):
        return 80
