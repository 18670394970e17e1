"""Progress on stderr: a bar on a terminal, a line now and then elsewhere, nothing when asked for."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from tokshard.cli import terminal
from tokshard.core.formatting import count, duration, size, visible
from tokshard.core.progress import Progress, ProgressUpdate, SilentProgress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_LINE_SECONDS = 30.0


def make_meter(*, quiet: bool, animated: bool) -> Progress:
    """Return what listens to progress.

    Args:
        quiet: Whether to say nothing at all.
        animated: Whether a bar is wanted where stderr is a terminal.
    """
    if quiet:
        return SilentProgress()
    if animated and sys.stderr.isatty():
        return BarMeter()
    return LineMeter()


class LineMeter:
    """Prints a line about every half minute, for logs."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._started = self._said = time.monotonic()

    def start(self, bytes_total: int | None, bytes_resumed: int) -> None:
        """Note the total."""
        self._total = bytes_total
        if bytes_resumed:
            self.message(f"resuming: {size(bytes_resumed)} of input are done already")

    def update(self, state: ProgressUpdate) -> None:
        """Print a line if the last is half a minute old."""
        now = time.monotonic()
        if now - self._said < _LINE_SECONDS:
            return
        self._said = now
        share = f" ({100 * state.bytes_done / self._total:.1f}%)" if self._total else ""
        terminal.tell(
            f"{duration(now - self._started)}: {size(state.bytes_done)}{share}, "
            f"{count(state.documents)} documents, {count(state.tokens)} tokens"
        )

    def message(self, text: str) -> None:
        """Print a text."""
        terminal.tell(visible(text))

    def finish(self) -> None:
        """Nothing is left to do."""


class BarMeter:
    """Draws a bar with documents, tokens, speed and the time left."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def start(self, bytes_total: int | None, bytes_resumed: int) -> None:
        """Begin to draw."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        self._bar = Bar(
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TextColumn("{task.fields[documents]} documents, {task.fields[tokens]} tokens"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=bytes_total, completed=0, documents="0", tokens="0")
        self._bar.start()
        if bytes_resumed:
            self._bar.update(self._task, completed=bytes_resumed)
            self.message(f"resuming: {size(bytes_resumed)} of input are done already")

    def update(self, state: ProgressUpdate) -> None:
        """Redraw."""
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                completed=state.bytes_done,
                documents=count(state.documents),
                tokens=count(state.tokens),
            )

    def message(self, text: str) -> None:
        """Print a text above the bar."""
        if self._bar is not None:
            self._bar.console.print(visible(text), markup=False, highlight=False)

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
