"""Keys of the holdout: the values that can be one, and their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokshard.text.corpus.fields import (
    FieldPath,
    decoded,
    hint_for_key,
    json_type,
    key_candidates,
    quoted,
    refuse_surrogates,
)
from tokshard.text.corpus.rejection import UnusableRecordError

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1
"""JSON parsers disagree about larger integers, and most make them inexact."""


def key_in(record: dict[str, Any], path: FieldPath) -> bytes:
    """Return the key in a record as UTF-8; raise UnusableRecordError if it has none that is usable."""
    try:
        value = path.find(record)
    except UnusableRecordError as error:
        raise UnusableRecordError(
            "key-missing", error.detail, lambda: hint_for_key(key_candidates(record))
        ) from None
    return encoded_key(value, path.name)


def encoded_key(value: Any, field: str) -> bytes:
    """Return a key as UTF-8: a string, or the decimal digits of an integer.

    Raises:
        UnusableRecordError: The value is neither.

    Example:
        >>> encoded_key(-17, "n"), encoded_key("", "n")
        (b'-17', b'')
    """
    if isinstance(value, UnusableRecordError):  # in a table
        raise UnusableRecordError("key-missing", value.detail)
    if value is None:
        raise UnusableRecordError("key-missing", f"field {quoted(field)} is null")
    if isinstance(value, bytes):  # of a table with invalid UTF-8
        value = decoded(value, field)
    if type(value) is int and MIN_INTEGER <= value <= MAX_INTEGER:
        return b"%d" % value
    if not isinstance(value, str):
        raise UnusableRecordError(
            "key-type",
            f"field {quoted(field)} must be a string or an integer of 64 bits, got {json_type(value)}",
        )
    refuse_surrogates(value, field)
    return value.encode("utf-8")


def plain_keys(values: Sequence[Any]) -> list[bytes] | None:
    """Return the keys in a column, or None if a value is not usable."""
    try:
        if {str}.issuperset(map(type, values)):
            return [value.encode() for value in values]
        if {str, int}.issuperset(map(type, values)):
            return [str(value).encode() for value in values]
    except UnicodeEncodeError:
        return None
    return None
