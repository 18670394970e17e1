"""The lines of ``units.jsonl`` and ``rejected.jsonl``: one JSON object for each unit and rejected record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, TypeVar

from tokshard.core.codec import XXH3_128, Key, decode, encode
from tokshard.core.strict_json import MAX_JSON_BYTES, parse_json_object
from tokshard.dataset.manifest import ENCODERS
from tokshard.errors import IntegrityError, StorageError
from tokshard.storage import fs

# Sums of two stay within int64.
_MOST = 2**62 - 1


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """A unit of work: a line of ``units.jsonl``, in the order of the dataset."""

    input: Annotated[int, Key("input", "Index of its input in the manifest.", minimum=0, maximum=_MOST)]
    unit: Annotated[int, Key("unit", "Its number in that input, from 0.", minimum=0, maximum=_MOST)]
    content_bytes: Annotated[
        int, Key("content_bytes", "Decompressed bytes of its part of the input.", minimum=0, maximum=_MOST)
    ]
    content_xxh3_128: Annotated[str, Key("content_xxh3_128", "The digest of these bytes.", pattern=XXH3_128)]
    lines: Annotated[int, Key("lines", "Lines, blank ones included, or rows.", minimum=0, maximum=_MOST)]
    documents: Annotated[int, Key("documents", "Documents.", minimum=0, maximum=_MOST)]
    rejected: Annotated[int, Key("rejected", "Rejected records.", minimum=0, maximum=_MOST)]
    sequences: Annotated[int, Key("sequences", "Sequences.", minimum=0, maximum=_MOST)]
    tokens: Annotated[int, Key("tokens", "Tokens.", minimum=0, maximum=_MOST)]
    tokens_xxh3_128: Annotated[
        str, Key("tokens_xxh3_128", "The digest of its piece of the .bin file.", pattern=XXH3_128)
    ]
    encoder: Annotated[str, Key("encoder", "The encoder of its text.", pattern=ENCODERS)]


@dataclass(frozen=True, slots=True)
class RejectionRecord:
    """A rejected record of an input: a line of ``rejected.jsonl``, in the order of the dataset."""

    input: Annotated[str, Key("input", "The path or URL of the input, as the user named it.")]
    line: Annotated[int, Key("line", "Its line or row in the input, from 1.", minimum=1)]
    offset: Annotated[
        int, Key("offset", "Its byte offset in the decompressed input, or its row, from 0.", minimum=0)
    ]
    reason: Annotated[str, Key("reason", "The code of the reason.")]
    detail: Annotated[str, Key("detail", "The defect, in words.")]
    excerpt: Annotated[str, Key("excerpt", "The beginning of the record.")]


T = TypeVar("T", UnitRecord, RejectionRecord)


def to_line(record: UnitRecord | RejectionRecord) -> bytes:
    """Return a record as a line of its file, in ASCII."""
    return (json.dumps(encode(record), separators=(",", ":")) + "\n").encode("ascii")


def parse_line(cls: type[T], line: bytes, path: str, number: int) -> T:
    """Return the record of line ``number`` (from 1), or raise IntegrityError if it is cut or invalid."""
    where = f"{path} is damaged: line {number}"
    hint = "copy the file again from its source, or make the dataset again"
    if not line.endswith(b"\n"):
        raise IntegrityError(f"{where} is cut", path=path, hint=hint)
    try:
        return decode(cls, parse_json_object(line, where), where)
    except IntegrityError as error:
        raise IntegrityError(error.message, path=path, field=error.field, hint=hint) from error


def read_records(cls: type[T], path: str) -> Iterator[T]:
    """Yield the records of a file; memory does not depend on its size.

    Raises:
        IntegrityError: The file is missing, or a line is no such record.
        StorageError: The file cannot be read.
    """
    try:
        with fs.open_file(path) as file:
            number = 0
            while line := file.readline(MAX_JSON_BYTES):
                number += 1
                yield parse_line(cls, line, path, number)
    except FileNotFoundError:
        raise IntegrityError(f"{path} is missing, but the manifest lists it", path=path) from None
    except StorageError:
        raise
    except OSError as error:
        raise StorageError("read", path, error) from error
