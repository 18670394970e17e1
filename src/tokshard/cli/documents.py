"""The JSON documents of the command line itself: errors and events.

Imported only where one is written: a command without JSON output starts without the codec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from tokshard.core.codec import Document, Key
from tokshard.errors import TokshardError, hint_of


@dataclass(frozen=True)
class MissingUnitsDetail:
    """Units of one input that are not finished."""

    input: Annotated[str, Key("input", "The input.")]
    units: Annotated[tuple[int, ...], Key("units", "The numbers of the units.", minimum=0)]
    open_from: Annotated[
        int | None,
        Key(
            "open_from",
            "In a compressed input that was not read to its end: the first unit that may not exist.",
            minimum=0,
        ),
    ]


@dataclass(frozen=True)
class Problem:
    """An error, in a document or an event."""

    error: Annotated[str, Key("error", "The class of the error in `tokshard.errors`, or that of a bug.")]
    message: Annotated[str, Key("message", "One sentence with the file, position and value concerned.")]
    hint: Annotated[str | None, Key("hint", "Instruction for the user.")]
    exit_code: Annotated[int, Key("exit_code", "The exit code of the command.", minimum=1, maximum=255)]
    path: Annotated[str | None, Key("path", "The file.", omit_none=True)] = None
    line: Annotated[int | None, Key("line", "The line or row, from 1.", minimum=1, omit_none=True)] = None
    offset: Annotated[int | None, Key("offset", "The byte offset.", minimum=0, omit_none=True)] = None
    reason: Annotated[
        str | None, Key("reason", "Reason code (docs/reference/bad-records.md).", omit_none=True)
    ] = None
    field: Annotated[str | None, Key("field", "The field of a format.", omit_none=True)] = None
    differences: Annotated[
        tuple[str, ...] | None,
        Key("differences", "Differences from the run that cannot be resumed.", omit_none=True),
    ] = None
    missing: Annotated[
        tuple[MissingUnitsDetail, ...] | None,
        Key("missing", "The units of a job array that are not finished.", omit_none=True),
    ] = None
    tasks: Annotated[
        tuple[int, ...] | None,
        Key("tasks", "With `--tasks`: the tasks of the array with missing units.", minimum=0, omit_none=True),
    ] = None


@dataclass(frozen=True)
class ErrorReport(Problem, Document):
    """An error of any command with `--json`, on stdout where the result would have been."""

    SCHEMA = "tokshard.error/1"


def details_of(error: TokshardError) -> dict[str, Any]:
    """Return an error as the fields of a :class:`Problem`."""
    value: dict[str, Any] = {
        "error": type(error).__name__,
        "message": error.message,
        "hint": hint_of(error),
        "exit_code": error.exit_code,
    }
    for name in ("path", "line", "offset", "reason", "field", "differences", "tasks"):
        value[name] = getattr(error, name, None)
    missing = getattr(error, "missing", None)
    if missing is not None:
        value["missing"] = tuple(
            MissingUnitsDetail(units["input"], tuple(units["units"]), units["open_from"]) for units in missing
        )
    return value


@dataclass(frozen=True)
class Event(Document):
    """A line of `--log-json`: one event of a command."""

    SCHEMA = "tokshard.event/1"

    time: Annotated[str, Key("time", "UTC.", pattern=r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z")]
    seconds: Annotated[float, Key("seconds", "Seconds since the command started.", minimum=0)]
    command: Annotated[str, Key("command", "The command, for example `merge`.")]
    pid: Annotated[int, Key("pid", "Process id, which distinguishes concurrent runs in one log.", minimum=1)]


@dataclass(frozen=True)
class Started(Event):
    """The first event of a run."""

    TAG = ("event", "started")

    version: Annotated[str, Key("version", "The version of tokshard.")]
    arguments: Annotated[tuple[str, ...], Key("arguments", "The command line after `tokshard`.")]


@dataclass(frozen=True)
class Progressed(Event):
    """Totals of an activity: at its start, at most once a second, and at its end."""

    TAG = ("event", "progress")

    activity: Annotated[str, Key("activity", "The activity, for example `encoding`; for display only.")]
    bytes_total: Annotated[
        int | None, Key("bytes_total", "The expected final `bytes_done`, if known.", minimum=0)
    ]
    bytes_done: Annotated[
        int, Key("bytes_done", "Bytes of the work that are done, earlier runs included.", minimum=0)
    ]
    content_bytes: Annotated[
        int | None,
        Key(
            "content_bytes",
            "Bytes of decompressed text that this run encoded; null until then, and for other activities.",
            minimum=0,
        ),
    ]
    documents: Annotated[int, Key("documents", "Documents.", minimum=0)]
    tokens: Annotated[int, Key("tokens", "Tokens.", minimum=0)]
    rejected: Annotated[int, Key("rejected", "Rejected records.", minimum=0)]


@dataclass(frozen=True)
class Message(Event):
    """A message that is not a warning, for example that the run waits for another."""

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


EVENTS: dict[str, type[Event]] = {
    kind.TAG[1]: kind for kind in (Started, Progressed, Message, Warned, Finished, Failed)
}
"""The kinds of events by their names."""
