"""The event log of ``--log-json``: what a long command is doing, one JSON object a line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol

import typer

import tokshard
from tokshard.cli import failures, terminal
from tokshard.cli.failures import Problem
from tokshard.core.codec import Document, Key
from tokshard.core.formatting import visible
from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.errors import StorageError
from tokshard.version import __version__

_BEGINNING = b'{"schema": "tokshard.event/'
_PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class Event(Document):
    """A line of `--log-json`: one event of a command."""

    SCHEMA = "tokshard.event/1"

    time: Annotated[str, Key("time", "UTC.", pattern=r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z")]
    seconds: Annotated[float, Key("seconds", "Since the command began to work.", minimum=0)]
    command: Annotated[str, Key("command", "The command, for example `merge`.")]
    pid: Annotated[int, Key("pid", "Its process, which tells runs in one log apart.", minimum=1)]


@dataclass(frozen=True)
class Started(Event):
    """The first event of a run."""

    TAG = ("event", "started")

    version: Annotated[str, Key("version", "The version of tokshard.")]
    arguments: Annotated[tuple[str, ...], Key("arguments", "The command line after `tokshard`.")]


@dataclass(frozen=True)
class Progressed(Event):
    """Totals since the run began: at most once a second, and at both ends of a piece of work."""

    TAG = ("event", "progress")

    bytes_total: Annotated[int | None, Key("bytes_total", "The last `bytes_done`, if known.", minimum=0)]
    bytes_done: Annotated[
        int, Key("bytes_done", "Bytes of the work that are done, earlier runs included.", minimum=0)
    ]
    documents: Annotated[int, Key("documents", "Documents.", minimum=0)]
    tokens: Annotated[int, Key("tokens", "Tokens.", minimum=0)]
    rejected: Annotated[int, Key("rejected", "Rejected records.", minimum=0)]


@dataclass(frozen=True)
class Message(Event):
    """Something to know that is no warning, for example that the run waits for another."""

    TAG = ("event", "message")

    message: Annotated[str, Key("message", "One sentence.")]


@dataclass(frozen=True)
class Warned(Event):
    """A warning."""

    TAG = ("event", "warning")

    message: Annotated[str, Key("message", "One sentence.")]


@dataclass(frozen=True)
class Finished(Event):
    """The last event of a run that ended in order."""

    TAG = ("event", "finished")

    exit_code: Annotated[int, Key("exit_code", "0, or 1 where problems were found.", minimum=0, maximum=255)]


@dataclass(frozen=True)
class Failed(Problem, Event):
    """The last event of a run that failed or was stopped."""

    TAG = ("event", "failed")


class Sink(Protocol):
    """A destination of lines."""

    def write(self, line: str) -> None:
        """Write a line, which has no end of line yet."""

    def close(self) -> None:
        """End."""


class StderrSink:
    """Sends lines to stderr."""

    def write(self, line: str) -> None:
        """Write a line."""
        terminal.tell(line)

    def close(self) -> None:
        """Leave stderr open."""


class FileSink:
    """Appends lines to a file; see :class:`tokshard.LineLog`."""

    def __init__(self, path: str) -> None:
        self._log = tokshard.LineLog(path, _BEGINNING)

    def write(self, line: str) -> None:
        """Write a line; a log that cannot be written any more is given up, and that is told once."""
        if not self._log.is_open:
            return
        try:
            self._log.write(line)
        except StorageError as error:
            terminal.tell(f"warning: {visible(error.message)}: the event log ends here")
            self.close()

    def close(self) -> None:
        """Close the file."""
        self._log.close()


class EventLog:
    """Writes the events of one run of a command."""

    def __init__(self, sink: Sink | None, command: str) -> None:
        self._sink = sink
        self._command = command
        self._started = time.monotonic()

    def write(self, kind: type[Event], **fields: Any) -> None:
        """Write an event of a kind."""
        if self._sink is None:
            return
        event = kind(
            time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            seconds=round(time.monotonic() - self._started, 3),
            command=self._command,
            pid=os.getpid(),
            **fields,
        )
        self._sink.write(json.dumps(event.to_json()))

    def warnings(self, texts: Iterable[str]) -> None:
        """Write warnings; the command tells them to the user itself."""
        for text in texts:
            self.write(Warned, message=text)

    def following(self, meter: Progress) -> Progress:
        """Return a listener who tells everything to ``meter`` and writes events of it."""
        return meter if self._sink is None else _Following(self, meter)


class _Following:
    def __init__(self, log: EventLog, meter: Progress) -> None:
        self._log = log
        self._meter = meter
        self._total: int | None = None
        self._heard: ProgressUpdate | None = None
        self._written = 0.0

    def start(self, bytes_total: int | None, bytes_resumed: int) -> None:
        self._total = bytes_total
        self._write(ProgressUpdate(bytes_done=bytes_resumed))
        self._meter.start(bytes_total, bytes_resumed)

    def update(self, state: ProgressUpdate) -> None:
        self._heard = state
        if time.monotonic() - self._written >= _PROGRESS_SECONDS:
            self._write(state)
        self._meter.update(state)

    def message(self, text: str) -> None:
        self._log.write(Message, message=text)
        self._meter.message(text)

    def finish(self) -> None:
        if self._heard is not None:
            self._write(self._heard)
        self._meter.finish()

    def _write(self, state: ProgressUpdate) -> None:
        self._heard = None
        self._written = time.monotonic()
        self._log.write(
            Progressed,
            bytes_total=self._total,
            bytes_done=state.bytes_done,
            documents=state.documents,
            tokens=state.tokens,
            rejected=state.rejected,
        )


@contextmanager
def recorded(target: str | None, command: str) -> Iterator[EventLog]:
    """Record the block as one run of a command: how it starts, and how it ends.

    Args:
        target: The value of ``--log-json``: a file, ``-`` for stderr, None for no log.
        command: The command.

    Raises:
        OutputExistsError: There is a file that is no event log.
        StorageError: It cannot be opened.
    """
    sink: Sink | None = None
    if target is not None:
        sink = StderrSink() if target == "-" else FileSink(target)
    log = EventLog(sink, command)
    log.write(Started, version=__version__, arguments=tuple(sys.argv[1:]))
    try:
        yield log
    except BaseException as error:
        _end(log, error)
        raise
    else:
        log.write(Finished, exit_code=0)
    finally:
        if sink is not None:
            sink.close()


def _end(log: EventLog, error: BaseException) -> None:
    if isinstance(error, typer.Exit):
        log.write(Finished, exit_code=error.exit_code)
    elif (known := failures.as_ours(error)) is not None:
        log.write(Failed, **failures.details_of(known))
    else:
        code = failures.exit_code_of(error)
        log.write(Failed, error=type(error).__name__, message=str(error), hint=None, exit_code=code)
