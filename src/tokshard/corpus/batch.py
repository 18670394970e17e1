"""Batches of documents and rejected records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from tokshard.core.formatting import count
from tokshard.errors import BAD_RECORD_EXCERPT_CHARACTERS

REASONS: dict[str, str] = {
    "invalid-json": "The line is not valid JSON.",
    "truncated-record": "The last line of the input is incomplete: no newline, and not valid JSON.",
    "not-object": "The line is valid JSON, but not an object.",
    "field-missing": "The record does not have the field.",
    "field-null": "The field, or an object that contains it, is null.",
    "field-type": "The field is neither a string nor a list of strings.",
    "item-type": "The field is a list with an item that is not a string.",
    "chat-messages": "The field is a list of chat messages, which are not supported yet.",
    "invalid-utf8": "The record is not valid UTF-8.",
    "utf-16": "The line is encoded as UTF-16; JSON lines must be UTF-8.",
    "byte-order-mark": "The line begins with a byte order mark (U+FEFF) and is not the first of the file.",
    "nul-byte": "The line contains NUL bytes, as after a crash of the program or machine that wrote it.",
    "lone-surrogate": "The field contains half of a surrogate pair, which is not a character.",
    "too-deep": "The line nests arrays and objects too deeply.",
    "too-long": "The record is larger than --max-document-bytes.",
    "corrupt-stream": "The compressed stream is truncated or damaged here; the rest of the input is lost.",
}
"""Stable reason codes of rejected records, with their meanings."""


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    r"""A record that cannot become a document.

    Attributes:
        offset: Its byte offset in the input's decompressed stream; in a table its row number in the file.
        line: Its 1-based line number within the unit, counting blank lines; in a table its row number.
        reason: A key of :data:`REASONS`.
        excerpt: Its first 60 characters; bytes that are not UTF-8 as ``\xff``. Untrusted data: escape it
            before printing.
        hint: Advice if it is the first record of its input, or an empty string.
    """

    offset: int
    line: int
    reason: str
    detail: str
    excerpt: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Consecutive documents of a unit, and the rejected records between them.

    Always ``records == documents + len(rejected)`` and ``lines == records + blank_lines``.

    Attributes:
        texts: For each field, the sequences of all documents, concatenated.
        sequences_per_document: For each field, the number of sequences of each document, uint32
            [documents]; None if every document has exactly one.
        offsets: For each document, the offset of its record in the input's decompressed stream, or its
            row number in the file; int64 [documents].
        rejected: Rejected records, in order.
        records: Lines that are not blank, or rows.
        lines: All lines, or rows.
        blank_lines: Lines of whitespace, which are not records.
        raw: Bytes consumed, for digests: the bytes of the lines; of a table, each sequence's UTF-8
            and a newline. A line over the length limit is split over several batches.
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
        document_count = len(offsets)
        return cls(
            texts=columns,
            sequences_per_document=(None,) * len(columns),
            offsets=offsets,
            rejected=[],
            records=document_count,
            lines=document_count,
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
    """Reason why a record cannot become a document; for the fields see :class:`RejectedRecord`."""

    def __init__(self, reason: str, detail: str, hint: str = "") -> None:
        super().__init__(reason, detail, hint)
        self.reason = reason
        self.detail = detail
        self.hint = hint


class BatchBuilder:
    """Builder of a batch from single documents and rejected records."""

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
        self._rejected.append(RejectedRecord(offset, line, error.reason, error.detail, excerpt, error.hint))

    def batch(self, raw: bytes | None, *, lines: int, blank_lines: int = 0) -> DocumentBatch:
        """Return the batch; without ``raw``, the raw bytes are those of the texts."""
        return DocumentBatch(
            texts=self._texts,
            sequences_per_document=tuple(
                None if all(number == 1 for number in counts) else np.array(counts, np.uint32)
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
    """Return the bytes that represent the texts of a table in digests: UTF-8 and a newline each."""
    return "".join(text + "\n" for column in columns for text in column).encode("utf-8")


def check_length(size_bytes: int, max_document_bytes: int, *, what: str) -> None:
    """Raise UnusableRecordError if a line or the text of a row is larger than the limit."""
    if size_bytes > max_document_bytes:
        raise UnusableRecordError(
            "too-long", f"{what} must be at most {count(max_document_bytes)} bytes, got {count(size_bytes)}"
        )


def excerpt_of(data: bytes) -> str:
    """Return the first characters of a record's bytes, at most 60."""
    # UTF-8 has at most 4 bytes per character, so a character cut here is not in the excerpt.
    prefix = data[: 4 * BAD_RECORD_EXCERPT_CHARACTERS]
    return prefix.decode("utf-8", "backslashreplace")[:BAD_RECORD_EXCERPT_CHARACTERS]
