"""The lines of ``units.jsonl``, ``pieces.jsonl`` and ``rejected.jsonl``: one JSON object for each record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from tokshard.core.codec import Count, Positive, Record, Xxh3, decode, encode
from tokshard.core.formatting import count
from tokshard.core.json_text import parse_json_object
from tokshard.dataset.counts import Counts
from tokshard.errors import IntegrityError, StorageError
from tokshard.storage.reading import open_file

# A rejected record quotes 60 characters and names a file; 100 times more than it ever needs.
_MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class UnitRecord(Record):
    """A unit of work: a line of ``units.jsonl``, in the order of the dataset."""

    input: Count
    unit: Count
    content_xxh3_128: Xxh3
    tokens_xxh3_128: Xxh3
    counts: Counts


@dataclass(frozen=True, slots=True)
class PieceRecord(Record):
    """A piece of the ``.bin`` file, with whole documents: a line of ``pieces.jsonl``, in order."""

    documents: Count
    sequences: Count
    tokens: Count
    tokens_xxh3_128: Xxh3


@dataclass(frozen=True, slots=True)
class RejectionRecord(Record):
    """A rejected record of an input: a line of ``rejected.jsonl``, in the order of the dataset."""

    input: str
    line: Positive
    offset: Count
    reason: str
    detail: str
    excerpt: str


T = TypeVar("T", UnitRecord, PieceRecord, RejectionRecord)


def to_line(record: UnitRecord | PieceRecord | RejectionRecord) -> bytes:
    """Return a record as a line of its file, in ASCII."""
    return (json.dumps(encode(record), separators=(",", ":")) + "\n").encode("ascii")


def parse_line(cls: type[T], line: bytes, path: str, number: int) -> T:
    """Return the record of line ``number`` (from 1), or raise IntegrityError if it is invalid."""
    where = f"{path} is damaged: line {number}"
    hint = "copy the file again from its source, or rebuild the dataset"
    if len(line) > _MAX_LINE_BYTES:
        raise IntegrityError(
            f"{where} must have at most {count(_MAX_LINE_BYTES)} bytes", path=path, hint=hint
        )
    if not line.endswith(b"\n"):
        raise IntegrityError(f"{where} is truncated", path=path, hint=hint)
    try:
        return decode(cls, parse_json_object(line, where), where)
    except IntegrityError as error:
        raise IntegrityError(error.message, path=path, field=error.field, hint=hint) from error


def read_records(cls: type[T], path: str) -> Iterator[T]:
    """Yield the records of a file; memory does not depend on its size.

    Raises:
        IntegrityError: The file is missing, or a line is invalid.
        StorageError: The file cannot be read.
    """
    try:
        with open_file(path) as file:
            number = 0
            while line := file.readline(_MAX_LINE_BYTES + 1):
                number += 1
                yield parse_line(cls, line, path, number)
    except FileNotFoundError:
        raise IntegrityError(f"file not found: {path} (listed in the manifest)", path=path) from None
    except StorageError:
        raise
    except OSError as error:
        raise StorageError("read", path, error) from error
