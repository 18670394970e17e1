"""The JSON document of an error.

Imported only where it is written: a command without JSON output starts without the codec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from tokshard.core.codec import Bounds, Count, Document, Positive, Record
from tokshard.errors import TokshardError, hint_of


@dataclass(frozen=True)
class MissingUnitsDetail(Record):
    """Units of one input that are not finished."""

    input: str
    units: tuple[Count, ...]
    open_from: Count | None


@dataclass(frozen=True)
class ErrorReport(Document):
    """An error of any command with `--json`, on stdout where the result would have been."""

    SCHEMA = "tokshard.error/2"

    error: str
    message: str
    hint: str | None
    exit_code: Annotated[int, Bounds(1, 255)]
    path: str | None = None
    line: Positive | None = None
    offset: Count | None = None
    reason: str | None = None
    field: str | None = None
    differences: tuple[str, ...] | None = None
    missing: tuple[MissingUnitsDetail, ...] | None = None
    tasks: tuple[Count, ...] | None = None


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
