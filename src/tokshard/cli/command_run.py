"""One run of a command: errors become messages, progress is drawn, events are logged, the result is shown.

Progress goes to stderr: a bar on a terminal, a line now and then elsewhere, nothing when asked for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import typer

from tokshard.cli import events, failures, rendering, terminal
from tokshard.cli.events import EventLog
from tokshard.core.formatting import count, duration, size, visible
from tokshard.core.progress import Progress, ProgressUpdate, SilentProgress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


_LINE_SECONDS = 30.0


def make_meter(*, quiet: bool, animated: bool) -> Progress:
    """Return what listens to progress."""
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


FOUND_PROBLEMS = 1
"""The exit code of a command that did its work and found what it looks for."""


class Report(Protocol):
    """A result that is a JSON document, too."""

    def to_json(self) -> dict[str, Any]:
        """Return the document."""


ReportT = TypeVar("ReportT", bound=Report)


class CommandRun:
    """The common part of a command: its event log, progress, warnings and result."""

    def __init__(self, log: EventLog, *, as_json: bool, quiet: bool, animated: bool) -> None:
        self.log = log
        self.as_json = as_json
        self.quiet = quiet
        self._animated = animated

    @property
    def progress(self) -> Progress:
        """A new listener for work that takes long: the terminal and the event log."""
        return self.log.following(make_meter(quiet=self.quiet, animated=self._animated))

    def warn(self, warnings: Sequence[str], hint: str | None = None) -> None:
        """Print warnings, with a hint to the last of them, on stderr and to the event log."""
        self.log.warnings(warnings)
        if self.quiet or not warnings:
            return
        for warning in warnings:
            rendering.tell(f"warning: {warning}")
        if hint is not None:
            rendering.tell(f"hint: {hint}")

    def show(self, report: ReportT, view: Callable[[ReportT], object]) -> None:
        """Print a result: as JSON, by ``view``, or not at all."""
        if self.as_json:
            terminal.say_json(report.to_json())
        elif not self.quiet:
            view(report)

    def found_problems(self) -> NoReturn:
        """End with exit code 1."""
        raise typer.Exit(FOUND_PROBLEMS)


@contextmanager
def command_run(
    command: str,
    *,
    as_json: bool = False,
    quiet: bool = False,
    no_progress: bool = False,
    log_json: str | None = None,
) -> Iterator[CommandRun]:
    """Run the block as a command: errors in it become messages and exit codes."""
    with failures.reported(as_json=as_json), events.recorded(log_json, command) as log:
        yield CommandRun(log, as_json=as_json, quiet=quiet, animated=not no_progress)
