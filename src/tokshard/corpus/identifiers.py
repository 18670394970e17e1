"""Documents' own ids and the keys of the holdout: the values that can be one, and their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from tokshard.core.formatting import count
from tokshard.corpus.fields import FieldPath, FieldPaths, ScalarKind, hint_for_scalar, json_type, quoted
from tokshard.corpus.rejection import UnusableRecordError

MAX_ID_BYTES = 4096
"""The most bytes of an id as UTF-8."""

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1
"""JSON parsers disagree about larger integers, and most make them inexact."""


def scalar_in(record: dict[str, Any], path: FieldPath, kind: ScalarKind) -> bytes:
    """Return the id or key in a record as UTF-8; raise UnusableRecordError if it has none that is usable."""
    try:
        value = path.find(record)
    except UnusableRecordError as error:
        raise UnusableRecordError(
            f"{kind}-missing", error.detail, lambda: hint_for_scalar(path, record, kind)
        ) from None
    return encoded_scalar(value, path.name, kind)


def encoded_scalar(value: Any, field: str, kind: ScalarKind) -> bytes:
    """Return an id or a key as UTF-8: a string, or the decimal digits of an integer.

    Raises:
        UnusableRecordError: The value is neither.

    Example:
        >>> encoded_scalar(-17, "n", "id"), encoded_scalar("", "n", "key")
        (b'-17', b'')
    """
    if isinstance(value, UnusableRecordError):  # in a table
        raise UnusableRecordError(f"{kind}-missing", value.detail)
    if value is None:
        raise UnusableRecordError(f"{kind}-missing", f"field {quoted(field)} is null")
    if isinstance(value, bytes):  # of a table with invalid UTF-8
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UnusableRecordError(
                "invalid-utf8", f"field {quoted(field)}: invalid UTF-8 at byte {error.start}: {error.reason}"
            ) from None
    if type(value) is int and MIN_INTEGER <= value <= MAX_INTEGER:
        return b"%d" % value
    if not isinstance(value, str):
        raise UnusableRecordError(
            f"{kind}-type",
            f"field {quoted(field)} must be a string or an integer of 64 bits, got {json_type(value)}",
        )
    try:
        encoded = value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UnusableRecordError(
            "lone-surrogate",
            f"field {quoted(field)} contains the lone surrogate U+{ord(value[error.start]):04X} "
            f"at character {error.start}",
        ) from None
    if kind == "id" and len(encoded) > MAX_ID_BYTES:
        raise UnusableRecordError(
            "id-too-long",
            f"field {quoted(field)} must have at most {count(MAX_ID_BYTES)} bytes, got {count(len(encoded))}",
        )
    return encoded


class ScalarColumns(TypedDict, total=False):
    """The ids and keys of documents, as UTF-8."""

    ids: list[bytes]
    keys: list[bytes]


def scalar_columns(paths: FieldPaths, columns: Sequence[Sequence[Any]]) -> ScalarColumns | None:
    """Return the ids and keys in the columns of all paths, or None if a value is not usable."""
    found: ScalarColumns = {}
    for (kind, _), column in zip(paths.scalars, columns[len(paths.texts) :], strict=True):
        values = _plain_scalars(column, kind)
        if values is None:
            return None
        found["ids" if kind == "id" else "keys"] = values
    return found


def _plain_scalars(values: Sequence[Any], kind: ScalarKind) -> list[bytes] | None:
    try:
        if {str}.issuperset(map(type, values)):
            encoded = [value.encode() for value in values]
        elif {str, int}.issuperset(map(type, values)):
            encoded = [str(value).encode() for value in values]
        else:
            return None
    except UnicodeEncodeError:
        return None
    is_short = kind == "key" or max(map(len, encoded), default=0) <= MAX_ID_BYTES
    return encoded if is_short else None
