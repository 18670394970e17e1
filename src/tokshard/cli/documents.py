"""The JSON document of an error.

Imported only where it is written: a command without JSON output starts without the codec.
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
class ErrorReport(Document):
    """An error of any command with `--json`, on stdout where the result would have been."""

    SCHEMA = "tokshard.error/1"

    error: Annotated[str, Key("error", "The class of the error in `tokshard.errors`.")]
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


def report_of(error: TokshardError) -> ErrorReport:
    """Return an error as a document."""
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
    return ErrorReport(**value)
