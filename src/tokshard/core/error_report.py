"""The JSON document of an error.

Imported only where it is written: a command without JSON output starts without the codec.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from tokshard.core.codec import Bounds, Count, Document, Positive, Record
from tokshard.errors import TokshardError, hint_of


@dataclass(frozen=True)
class MissingUnitsDetail(Record):
    """Units of one input that are not finished."""

    input: str
    units: tuple[Count, ...]


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


def report_of(error: TokshardError) -> ErrorReport:
    """Return an error as a document."""
    values: dict[str, Any] = {each.name: getattr(error, each.name, None) for each in fields(ErrorReport)}
    values |= {"error": type(error).__name__, "hint": hint_of(error)}
    if values["missing"] is not None:
        values["missing"] = tuple(
            MissingUnitsDetail(entry["input"], tuple(entry["units"])) for entry in values["missing"]
        )
    return ErrorReport(**values)
