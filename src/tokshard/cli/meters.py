"""Progress on stderr: a line that is redrawn every second on a terminal, a line every 30 s elsewhere."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tokshard.cli import terminal
from tokshard.core.formatting import count, short_count, size, visible
from tokshard.core.progress import Progress, ProgressUpdate, SilentProgress

_REDRAW_SECONDS = 1.0
_LOG_SECONDS = 30.0
# Rates are means over the last updates, so that ETA follows a change of speed.
_WINDOW_SECONDS = 30.0
_LARGEST_BAR = 40
_SMALLEST_BAR = 6
_MOST_SECONDS = 99 * 3600
_UNICODE_BAR = "━╸─"
_ASCII_BAR = "#>-"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The progress at a moment.

    Attributes:
        seconds: Time since the command began.
        bytes_per_second: None before there are two updates to compare.
        text_per_second: Bytes of text; None if the work is not on text.
    """

    activity: str
    seconds: float
    bytes_total: int | None
    state: ProgressUpdate
    bytes_per_second: float | None
    tokens_per_second: float | None
    text_per_second: float | None = None

    @property
    def rate(self) -> str:
        """The rate in bytes, in words."""
        is_text = self.state.content_bytes is not None
        rate = self.text_per_second if is_text else self.bytes_per_second
        return f"{'-' if rate is None else size(rate)}/s{' of text' * is_text}"

    @property
    def share(self) -> float | None:
        """The share that is done, 0 to 1; None without a total."""
        if not self.bytes_total:
            return None
        return min(1.0, self.state.bytes_done / self.bytes_total)

    @property
    def seconds_left(self) -> float | None:
        """The estimated time to the total; None if unknown."""
        if not self.bytes_total or not self.bytes_per_second:
            return None
        return max(0, self.bytes_total - self.state.bytes_done) / self.bytes_per_second


class Tracker:
    """Turns updates into snapshots.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._activity = ""
        self._total: int | None = None
        self._state = ProgressUpdate()
        self._history: deque[tuple[float, ProgressUpdate]] = deque()
        self._updates = 0

    def start(self, activity: str, bytes_total: int | None, bytes_resumed: int) -> None:
        """Begin an activity."""
        self._activity, self._total = activity, bytes_total
        self._state = ProgressUpdate(bytes_done=bytes_resumed)
        self._history.clear()
        self._updates = 0

    def update(self, state: ProgressUpdate) -> None:
        """Take in totals."""
        if not self._history:  # what earlier runs have done is in the first update, and counts for no rate
            self._history.append((self._clock(), state))
        self._state = state
        self._updates += 1

    def snapshot(self) -> Snapshot:
        """Return the progress now."""
        now, state = self._clock(), self._state
        bytes_rate = tokens_rate = text_rate = None
        if self._updates > 1:
            first, then = self._history[0]
            if now > first:
                bytes_rate = (state.bytes_done - then.bytes_done) / (now - first)
                tokens_rate = (state.tokens - then.tokens) / (now - first)
                if state.content_bytes is not None:
                    text_rate = (state.content_bytes - (then.content_bytes or 0)) / (now - first)
            self._history.append((now, state))
            while len(self._history) > 1 and self._history[1][0] <= now - _WINDOW_SECONDS:
                self._history.popleft()
        return Snapshot(
            self._activity, now - self._began, self._total, state, bytes_rate, tokens_rate, text_rate
        )


def bar_line(found: Snapshot, columns: int, *, bar: str = _UNICODE_BAR) -> str:
    """Return one line of at most ``columns`` characters; a narrow terminal shows fewer parts.

    All parts have a fixed width, so that they stay in their columns from one line to the next. The last
    one has its room before there is a token.

    Example:
        >>> state = ProgressUpdate(25_200_000, 12_345, 5_000_000, content_bytes=50_000_000)
        >>> found = Snapshot("encoding", 12.3, 60_000_000, state, 6.15e6, 3.1e6, 12.3e6)
        >>> bar_line(found, 79)
        'encoding ━━━─────  42%  12.3 MB/s of text  0:00:12  ETA 0:00:06  3.10M tokens/s'
        >>> bar_line(found, 40)
        'encoding ━━━━━────────  42%  ETA 0:00:06'
    """
    share = found.share
    parts = {"activity": found.activity}
    if share is None:
        if found.state.bytes_done:
            parts["amount"] = f"  {size(found.state.bytes_done):>7}"
        if found.state.documents:
            parts["documents"] = f"  {count(found.state.documents)} documents"
    else:
        parts["percent"] = f" {int(100 * share):>3}%"
        parts["amount"] = f"  {size(found.state.bytes_done):>7} of {size(found.bytes_total or 0)}"
    if share is not None or found.state.bytes_done:
        width = 9 if share is None else len("12.3 MB/s of text")
        parts["rate"] = f"  {found.rate:>{width}}"
    parts["elapsed"] = f"  {_clock_time(found.seconds)}"
    if share is not None:
        parts["eta"] = f"  ETA {_clock_time(found.seconds_left, up=True)}"
    if share is not None or found.state.tokens:
        tokens = found.tokens_per_second
        parts["tokens"] = f"  {'-' if tokens is None else short_count(tokens):>5} tokens/s"
    least = 0 if share is None else _SMALLEST_BAR + 1
    for name in ("amount", "tokens", "elapsed", "documents", "rate", "eta", "percent"):
        if sum(map(len, parts.values())) + least > columns:
            parts.pop(name, None)
    line = "".join(parts.values())
    room = min(_LARGEST_BAR, columns - len(line) - 1)
    if not found.state.tokens:
        line = line.removesuffix(parts.get("tokens", ""))
    if share is not None and room >= _SMALLEST_BAR:
        line = f"{found.activity} {_bar(share, room, bar)}{line.removeprefix(found.activity)}"
    return line[:columns]


def log_line(found: Snapshot) -> str:
    """Return a line for a log.

    Example:
        >>> state = ProgressUpdate(25_200_000, 12_345, 5_000_000)
        >>> log_line(Snapshot("merging", 30.2, 60_000_000, state, 12.3e6, 3.1e6))
        '0:00:30 merging: 42%, 25.2 MB of 60.0 MB, 12.3 MB/s, 12,345 documents, 3.10M tokens/s, ETA 0:00:03'
    """
    state, share = found.state, found.share
    parts = []
    if share is not None:
        parts += [f"{int(100 * share)}%", f"{size(state.bytes_done)} of {size(found.bytes_total or 0)}"]
    elif state.bytes_done:
        parts.append(size(state.bytes_done))
    if state.bytes_done and found.bytes_per_second is not None:
        parts.append(found.rate)
    if state.documents:
        parts.append(f"{count(state.documents)} documents")
    if state.tokens and found.tokens_per_second is not None:
        parts.append(f"{short_count(found.tokens_per_second)} tokens/s")
    if found.seconds_left is not None:
        parts.append(f"ETA {_clock_time(found.seconds_left, up=True)}")
    return f"{_clock_time(found.seconds)} {found.activity}" + (f": {', '.join(parts)}" if parts else "")


def _clock_time(seconds: float | None, *, up: bool = False) -> str:
    if seconds is None or seconds > _MOST_SECONDS:
        return "-:--:--"
    whole = math.ceil(seconds) if up else int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _bar(share: float, cells: int, characters: str) -> str:
    halves = int(2 * share * cells)
    return (characters[0] * (halves // 2) + characters[1] * (halves % 2)).ljust(cells, characters[2])


def make_meter(*, quiet: bool, animated: bool) -> Progress:
    """Return a listener that shows progress on stderr."""
    if quiet:
        return SilentProgress()
    if animated and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return TerminalMeter()
    return LogMeter()


class _RefreshingMeter:
    # A thread refreshes it: the time moves even while no update comes.
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._tracker = Tracker()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, activity: str, bytes_total: int | None = None, bytes_resumed: int = 0) -> None:
        """Begin an activity."""
        with self._lock:
            self._tracker.start(activity, bytes_total, bytes_resumed)
            self._begin()
        if bytes_resumed:
            self.message(f"resuming: {size(bytes_resumed)} were processed by an earlier run")
        if self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._refresh_regularly, daemon=True)
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
            if self._thread is not None:
                self._begin()

    def finish(self) -> None:
        """End the thread, and remove what is not to stay."""
        if self._thread is not None:
            self._ended.set()
            if self._thread.is_alive():  # a signal may have come before it was started
                self._thread.join()
            self._thread = None
            self._clear()

    def _refresh_regularly(self) -> None:
        while not self._ended.wait(self._seconds):
            with self._lock:
                self._refresh()

    def _begin(self) -> None: ...

    def _refresh(self) -> None: ...

    def _clear(self) -> None: ...


class LogMeter(_RefreshingMeter):
    """Prints a line every half minute, for logs."""

    def __init__(self) -> None:
        super().__init__(_LOG_SECONDS)

    def _refresh(self) -> None:
        terminal.tell(visible(log_line(self._tracker.snapshot())))


class TerminalMeter(_RefreshingMeter):
    """Redraws the last line of a terminal every second."""

    def __init__(self) -> None:
        super().__init__(_REDRAW_SECONDS)
        self._bar = _UNICODE_BAR if _can_encode(_UNICODE_BAR) else _ASCII_BAR

    def _begin(self) -> None:
        self._refresh()

    def _refresh(self) -> None:
        # The last column stays empty: some terminals begin a new line after it.
        line = visible(bar_line(self._tracker.snapshot(), _columns() - 1, bar=self._bar))
        terminal.tell(f"\r{line}\x1b[K", end="")

    def _clear(self) -> None:
        terminal.tell("\r\x1b[K", end="")


def _can_encode(text: str) -> bool:
    try:
        text.encode(sys.stderr.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _columns() -> int:
    # Not those of stdout, which may be a file.
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        pass
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
