"""Documents' own ids: the values that can be one, and their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokshard.core.formatting import count
from tokshard.corpus.fields import FieldPath, hint_for_id, json_type, quoted
from tokshard.corpus.rejection import UnusableRecordError

MAX_ID_BYTES = 4096
"""The most bytes of an id as UTF-8."""

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1
"""JSON parsers disagree about larger integers, and most make them inexact."""


def id_in(record: dict[str, Any], path: FieldPath) -> bytes:
    """Return the id in a record as UTF-8; raise UnusableRecordError if it has none that is usable."""
    try:
        value = path.find(record)
    except UnusableRecordError as error:
        raise UnusableRecordError("id-missing", error.detail, lambda: hint_for_id(path, record)) from None
    return encoded_id(value, path.name)


def encoded_id(value: Any, field: str) -> bytes:
    """Return an id as UTF-8: a string, or the decimal digits of an integer.

    Raises:
        UnusableRecordError: The value is no id.

    Example:
        >>> encoded_id(-17, "id"), encoded_id("", "id")
        (b'-17', b'')
    """
    if isinstance(value, UnusableRecordError):  # in a table
        raise UnusableRecordError("id-missing", value.detail)
    if value is None:
        raise UnusableRecordError("id-missing", f"field {quoted(field)} is null")
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
            "id-type",
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
    if len(encoded) > MAX_ID_BYTES:
        raise UnusableRecordError(
            "id-too-long",
            f"field {quoted(field)} must have at most {count(MAX_ID_BYTES)} bytes, got {count(len(encoded))}",
        )
    return encoded


def plain_ids(values: Sequence[Any]) -> list[bytes] | None:
    """Return the ids that values are, or None if one of them is not usable."""
    try:
        if {str}.issuperset(map(type, values)):
            encoded = [value.encode() for value in values]
        elif {str, int}.issuperset(map(type, values)):
            encoded = [str(value).encode() for value in values]
        else:
            return None
    except UnicodeEncodeError:
        return None
    return encoded if max(map(len, encoded), default=0) <= MAX_ID_BYTES else None
