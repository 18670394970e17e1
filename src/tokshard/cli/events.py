"""The event log of ``--log-json``: the progress and outcome of a command, one JSON object per line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

import typer

import tokshard
from tokshard.cli import failures, terminal
from tokshard.core.formatting import visible
from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.errors import StorageError
from tokshard.version import __version__

_BEGINNING = b'{"schema": "tokshard.event/'
_PROGRESS_SECONDS = 1.0


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
        """Write a line. If the log can no longer be written, print one warning and stop logging."""
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

    def write(self, kind: str, **fields: Any) -> None:
        """Write an event, ``kind`` by its name in the log."""
        if self._sink is None:
            return
        from tokshard.cli.documents import EVENTS

        event = EVENTS[kind](
            time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            seconds=round(time.monotonic() - self._started, 3),
            command=self._command,
            pid=os.getpid(),
            **fields,
        )
        self._sink.write(json.dumps(event.to_json()))

    def warnings(self, texts: Iterable[str]) -> None:
        """Write warnings; the command itself prints them."""
        for text in texts:
            self.write("warning", message=text)

    def following(self, meter: Progress) -> Progress:
        """Return a listener that passes everything to ``meter`` and writes events."""
        return meter if self._sink is None else _Following(self, meter)


class _Following:
    def __init__(self, log: EventLog, meter: Progress) -> None:
        self._log = log
        self._meter = meter
        self._activity = ""
        self._total: int | None = None
        self._heard: ProgressUpdate | None = None
        self._written = 0.0

    def start(self, activity: str, bytes_total: int | None = None, bytes_resumed: int = 0) -> None:
        self._write_last()
        self._activity, self._total = activity, bytes_total
        self._write(ProgressUpdate(bytes_done=bytes_resumed))
        self._meter.start(activity, bytes_total, bytes_resumed)

    def update(self, state: ProgressUpdate) -> None:
        self._heard = state
        if time.monotonic() - self._written >= _PROGRESS_SECONDS:
            self._write(state)
        self._meter.update(state)

    def message(self, text: str) -> None:
        self._log.write("message", message=text)
        self._meter.message(text)

    def finish(self) -> None:
        self._write_last()
        self._meter.finish()

    def _write_last(self) -> None:
        if self._heard is not None:
            self._write(self._heard)

    def _write(self, state: ProgressUpdate) -> None:
        self._heard = None
        self._written = time.monotonic()
        self._log.write(
            "progress",
            activity=self._activity,
            bytes_total=self._total,
            bytes_done=state.bytes_done,
            content_bytes=state.content_bytes,
            documents=state.documents,
            tokens=state.tokens,
            rejected=state.rejected,
        )


@contextmanager
def recorded(target: str | None, command: str) -> Iterator[EventLog]:
    """Record the block as one run of a command, from its start to its outcome.

    Args:
        target: The value of ``--log-json``: a file, ``-`` for stderr, None for no log.
        command: The command.

    Raises:
        OutputExistsError: The file exists and is not an event log.
        StorageError: It cannot be opened.
    """
    sink: Sink | None = None
    if target is not None:
        sink = StderrSink() if target == "-" else FileSink(target)
    log = EventLog(sink, command)
    log.write("started", version=__version__, arguments=tuple(sys.argv[1:]))
    try:
        yield log
    except BaseException as error:
        _end(log, error)
        raise
    else:
        log.write("finished", exit_code=0)
    finally:
        if sink is not None:
            sink.close()


def _end(log: EventLog, error: BaseException) -> None:
    if isinstance(error, typer.Exit):
        log.write("finished", exit_code=error.exit_code)
    elif (known := failures.as_ours(error)) is not None:
        from tokshard.cli.documents import details_of

        log.write("failed", **details_of(known))
    else:
        code = failures.exit_code_of(error)
        log.write("failed", error=type(error).__name__, message=str(error), hint=None, exit_code=code)
