"""Batches of documents with the rejected records between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from tokshard.dataset.provenance import ORIGIN
from tokshard.text.corpus.rejection import RejectedRecord, UnusableRecordError
from tokshard.text.corpus.values import RecordFields, texts_in


@dataclass(frozen=True, slots=True)
class LineBatch:
    """Consecutive lines.

    Attributes:
        raw: The bytes read, including newlines. A line over the length limit is split over several batches
            without lines; the last of them has its beginning as its only line.
        lines: The lines without their newlines. Long ones refer to ``raw``, short ones are copies.
        offsets: Offset of each line in the input's stream; int64 [lines].
        lengths: Length of each line in the input's stream, even if ``lines`` has only its beginning;
            int64 [lines].
        complete: Whether the last line ends in a newline; if not, it is the end of the input.
    """

    raw: bytes | memoryview
    lines: list[bytes | memoryview]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    complete: bool


@dataclass(frozen=True, slots=True)
class DocumentBatch:
    """Consecutive documents of a unit, and the rejected records between them.

    Always ``records == documents + len(rejected) + sum(excluded.values())``.

    Attributes:
        texts: For each field, the sequences of all documents, concatenated: strings, or token ids as arrays,
            uint32 [tokens].
        sequences_per_document: For each field, the number of sequences of each document, uint32
            [documents]; None if every document has exactly one.
        origins: For each document, where its record is, :data:`~tokshard.dataset.provenance.ORIGIN`
            [documents]; lines and rows are numbered from 1 in the unit.
        raw: Bytes consumed, for digests: the bytes of all lines; of a table, the UTF-8 of each sequence of
            its documents (or its ids, see :func:`bytes_of`) and a newline. A line over the length limit is
            split over several batches.
        lines: All lines, or rows.
        blank_lines: Lines of whitespace, which are not records.
        rejected: Rejected records, in order.
        keys: For each document, its key of the holdout as UTF-8; None if there is none.
        splits: For each document, the number of its split, uint8 [documents]; None without a holdout.
        excluded: Numbers of records that are not in the sample, by code
            (:data:`tokshard.text.corpus.selection.EXCLUDED`).
    """

    texts: tuple[list[Any], ...]
    sequences_per_document: tuple[npt.NDArray[np.uint32] | None, ...]
    origins: npt.NDArray[np.void]
    raw: bytes | memoryview
    lines: int
    blank_lines: int = 0
    rejected: list[RejectedRecord] = field(default_factory=list)
    keys: list[bytes] | None = None
    splits: npt.NDArray[np.uint8] | None = None
    excluded: dict[str, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Number of lines that are not blank, or rows."""
        return self.lines - self.blank_lines

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.origins)

    def of_split(self, split: int) -> DocumentBatch:
        """Return a batch with only the documents of a split; its counts of records are those of all."""
        if self.splits is None:
            return self
        chosen = self.splits == split
        if chosen.all():
            return self
        columns = zip(self.texts, self.sequences_per_document, strict=True)
        return replace(
            self,
            texts=tuple(
                [*compress(texts, chosen if counts is None else np.repeat(chosen, counts))]
                for texts, counts in columns
            ),
            sequences_per_document=tuple(
                None if counts is None else counts[chosen] for counts in self.sequences_per_document
            ),
            origins=self.origins[chosen],
            splits=self.splits[chosen],
        )


def plain_batch(
    texts: tuple[list[Any], ...],
    keys: list[bytes] | None,
    offsets: npt.NDArray[np.int64],
    lines: npt.NDArray[np.int64],
    raw: bytes | memoryview | None,
) -> DocumentBatch:
    """Return a batch in which every record is a document and every field one text."""
    raw = _raw_of_texts(texts) if raw is None else raw
    origins = np.empty(len(lines), ORIGIN)
    origins["offset"] = offsets
    origins["line"] = lines
    return DocumentBatch(texts, (None,) * len(texts), origins, raw, lines=len(lines), keys=keys)


class BatchBuilder:
    """Builder of a batch from single documents and rejected records."""

    def __init__(self, fields: RecordFields) -> None:
        self._texts: tuple[list[Any], ...] = tuple([] for _ in fields.texts)
        self._counts: tuple[list[int], ...] = tuple([] for _ in fields.texts)
        self._origins: list[tuple[int, int]] = []
        self._keys: list[bytes] | None = None if fields.key is None else []
        self._rejected: list[RejectedRecord] = []

    def add(self, values: Sequence[Any], key: bytes | None, offset: int, line: int) -> None:
        """Add a document: for each field, its sequence or list of sequences; and its key, if it has one."""
        self._origins.append((offset, line))
        if self._keys is not None and key is not None:
            self._keys.append(key)
        for value, texts, counts in zip(values, self._texts, self._counts, strict=True):
            sequences = texts_in(value)
            texts.extend(sequences)
            counts.append(len(sequences))

    def reject(self, offset: int, line: int, error: UnusableRecordError, excerpt: str) -> None:
        """Add a rejected record."""
        hint = "" if self._rejected else error.hint()
        self._rejected.append(RejectedRecord(offset, line, error.reason, error.detail, excerpt, hint))

    def batch(self, raw: bytes | memoryview | None, *, lines: int, blank_lines: int = 0) -> DocumentBatch:
        """Return the batch; without ``raw``, the raw bytes are those of the texts."""
        return DocumentBatch(
            texts=self._texts,
            sequences_per_document=tuple(
                None if all(number == 1 for number in counts) else np.array(counts, np.uint32)
                for counts in self._counts
            ),
            origins=np.array(self._origins, ORIGIN),
            raw=_raw_of_texts(self._texts) if raw is None else raw,
            lines=lines,
            blank_lines=blank_lines,
            rejected=self._rejected,
            keys=self._keys,
        )


def _raw_of_texts(columns: Sequence[Sequence[Any]]) -> bytes:
    """Return the bytes that represent the texts of a table in digests: those of each, and a newline."""
    encoded = [bytes_of(text) for column in columns for text in column]
    return b"\n".join([*encoded, b""])


def bytes_of(text: str | npt.NDArray[np.uint32]) -> bytes:
    """Return the UTF-8 of a text, or token ids as little-endian integers of 32 bits."""
    return text.encode("utf-8") if isinstance(text, str) else text.astype("<u4", copy=False).tobytes()
