"""Batches of documents, and why a record does not become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tokshard.errors import BAD_RECORD_EXCERPT_CHARACTERS

REASONS: dict[str, str] = {
    "invalid-json": "The line is not one JSON value.",
    "truncated-record": "The input's last line has no newline and is not one JSON value: it was cut off.",
    "not-object": "The line is JSON, but not an object.",
    "field-missing": "The record does not have the field.",
    "field-null": "The field is null.",
    "field-type": "The field is neither a string nor a list of strings.",
    "item-type": "The field is a list, and an item of it is not a string.",
    "invalid-utf8": "The record's bytes are not UTF-8.",
    "utf-16": "The line is UTF-16 text, but JSON lines are UTF-8.",
    "byte-order-mark": "A byte order mark (U+FEFF) stands before a record that is not the file's first.",
    "nul-byte": "The line holds NUL bytes, as files have after a crash.",
    "lone-surrogate": "The field holds half of a surrogate pair, which is no character.",
    "too-deep": "The line nests arrays and objects too deeply.",
    "too-long": "The record is longer than --max-document-bytes.",
    "corrupt-stream": "The compressed stream breaks off here; what follows is lost.",
}
"""The stable codes of rejection, each with its meaning."""


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    r"""A record that cannot become a document.

    Attributes:
        offset: Its byte offset in the input's decompressed stream (of a table: its row number in the file).
        line: Its 1-based line number within the unit, blank lines counted (of a table: row number).
        reason: A key of :data:`REASONS`.
        excerpt: Its first 60 characters; bytes that are not UTF-8 as ``\xff``. Data, not to be printed raw.
    """

    offset: int
    line: int
    reason: str
    detail: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Consecutive documents of a unit, and the records between them that were rejected.

    Always ``records == documents + len(rejected)`` and ``lines == records + blank_lines``.

    Attributes:
        texts: For each field, the sequences of all documents, one after another.
        sequences_per_document: For each field, how many sequences each document has, uint32
            [documents]; None where each has exactly one.
        offsets: For each document, where its record begins in the input's decompressed stream, or its
            row number in the file; int64 [documents].
        rejected: What did not become documents, in order.
        records: Lines that are not blank, or rows.
        lines: All lines, or rows.
        blank_lines: Lines of nothing but whitespace, which are not records.
        raw: What was consumed, for digests: the bytes of the lines; of a table, each sequence's UTF-8
            and a newline. A line that was too long comes in several batches.
    """

    texts: tuple[list[str], ...]
    sequences_per_document: tuple[npt.NDArray[np.uint32] | None, ...]
    offsets: npt.NDArray[np.int64]
    rejected: list[RejectedRecord]
    records: int
    lines: int
    blank_lines: int
    raw: bytes

    @classmethod
    def plain(
        cls, columns: tuple[list[str], ...], offsets: npt.NDArray[np.int64], raw: bytes | None = None
    ) -> Self:
        """Return a batch in which every record is a document and every field one text."""
        count = len(offsets)
        return cls(
            texts=columns,
            sequences_per_document=(None,) * len(columns),
            offsets=offsets,
            rejected=[],
            records=count,
            lines=count,
            blank_lines=0,
            raw=raw_of_texts(columns) if raw is None else raw,
        )

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.offsets)

    @property
    def input_bytes(self) -> int:
        """Number of decompressed bytes consumed."""
        return len(self.raw)


class UnusableRecordError(Exception):
    """Reason why a record cannot become a document."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class BatchBuilder:
    """Collects documents and rejected records one by one, where a batch is not all plain documents."""

    def __init__(self, field_count: int) -> None:
        self._texts: tuple[list[str], ...] = tuple([] for _ in range(field_count))
        self._counts: tuple[list[int], ...] = tuple([] for _ in range(field_count))
        self._offsets: list[int] = []
        self._rejected: list[RejectedRecord] = []

    def add(self, values: Sequence[str | list[str]], offset: int) -> None:
        """Add a document: for each field, its sequence or list of sequences."""
        self._offsets.append(offset)
        for value, texts, counts in zip(values, self._texts, self._counts, strict=True):
            if isinstance(value, str):
                texts.append(value)
                counts.append(1)
            else:
                texts.extend(value)
                counts.append(len(value))

    def reject(self, offset: int, line: int, error: UnusableRecordError, excerpt: str) -> None:
        """Add a rejected record."""
        self._rejected.append(RejectedRecord(offset, line, error.reason, error.detail, excerpt))

    def batch(self, raw: bytes | None, *, lines: int, blank_lines: int = 0) -> DocumentBatch:
        """Return what was collected; without ``raw``, the raw bytes are those of the texts."""
        return DocumentBatch(
            texts=self._texts,
            sequences_per_document=tuple(
                None if all(count == 1 for count in counts) else np.array(counts, np.uint32)
                for counts in self._counts
            ),
            offsets=np.array(self._offsets, np.int64),
            rejected=self._rejected,
            records=lines - blank_lines,
            lines=lines,
            blank_lines=blank_lines,
            raw=raw_of_texts(self._texts) if raw is None else raw,
        )


def raw_of_texts(columns: Sequence[Sequence[str]]) -> bytes:
    """Return what stands for the texts of a table in digests: each one's UTF-8 and a newline."""
    return "".join(text + "\n" for column in columns for text in column).encode("utf-8")


def usable_value(value: Any, field: str) -> str | list[str]:
    """Return a field's value if it is text or a list of texts; else raise UnusableRecordError."""
    if isinstance(value, str):
        return value
    if value is None:
        raise UnusableRecordError("field-null", f"the field {field!r} is null")
    if not isinstance(value, list):
        raise UnusableRecordError(
            "field-type", f"the field {field!r} is {json_type(value)}, not a string or a list of strings"
        )
    for number, item in enumerate(value):
        if not isinstance(item, str):
            raise UnusableRecordError(
                "item-type", f"item {number} of the field {field!r} is {json_type(item)}, not a string"
            )
    return value


def check_length(size_bytes: int, max_document_bytes: int, *, what: str, unit: str) -> None:
    """Raise UnusableRecordError if a line or row is longer than the limit."""
    if size_bytes > max_document_bytes:
        raise UnusableRecordError(
            "too-long", f"the {what} has {size_bytes} {unit}, the limit is {max_document_bytes}"
        )


def json_type(value: Any) -> str:
    """Return the JSON type of a value, with its article.

    Example:
        >>> json_type(True), json_type({})
        ('a boolean', 'an object')
    """
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")


def excerpt_of(data: bytes) -> str:
    """Return the first characters of a record's bytes, at most 60."""
    # Four bytes a character at most, so a character cut here never shows.
    prefix = data[: 4 * BAD_RECORD_EXCERPT_CHARACTERS]
    return prefix.decode("utf-8", "backslashreplace")[:BAD_RECORD_EXCERPT_CHARACTERS]
