"""Counts of records, documents and tokens: of a unit, an input or a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tokshard.core.codec import Count, Record
from tokshard.core.formatting import count, percent


@dataclass(frozen=True, slots=True)
class UnrepresentedText(Record):
    """Text that the tokenizer cannot represent.

    Attributes:
        unit: Counted unit: ``tokens`` are unknown tokens, ``characters`` are normalized characters that the
            tokenizer drops.
        checked: All tokens of the text, or the normalized characters in a sample of documents.
        count: Unknown tokens, or dropped characters, among the checked ones.
    """

    unit: Literal["tokens", "characters"]
    checked: Count
    count: Count

    def __add__(self, other: UnrepresentedText) -> UnrepresentedText:
        return replace(self, checked=self.checked + other.checked, count=self.count + other.count)

    @property
    def share(self) -> float:
        """The share that is not represented."""
        return self.count / max(self.checked, 1)

    @property
    def name(self) -> str:
        """The name of the unit for messages."""
        return "unknown tokens" if self.unit == "tokens" else "dropped characters"

    def describe(self) -> str:
        """Return count, checked amount and share for a message."""
        checked = count(self.checked) + (" checked" if self.unit == "characters" else "")
        return f"{count(self.count)} of {checked} ({percent(self.share)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(Record):
    """Counts of records and of the documents made of them.

    Always ``records == documents + rejected_total + excluded_total``.

    Attributes:
        records: Records: lines that are not blank, or rows of a table.
        documents: Records that became documents, empty ones included.
        lines: Lines, blank ones included, or rows of tables.
        blank_lines: Blank lines.
        content_bytes: Bytes after decompression.
        rejected: Number of rejected records by reason.
        sequences: Sequences.
        tokens: Tokens, EOD tokens included.
        empty_documents: Documents without a sequence.
        longest_sequence: Tokens of the longest sequence.
        eod_in_text: EOD tokens that tokshard did not append.
        encoders: Number of documents by encoder: ``reference``, ``fast``, ``none`` or ``unknown``.
        compared: Documents that both encoders encoded, with equal results.
        uncompared: Documents of the fast encoder above 1 MB, which are not compared. Absent if there are
            none.
        excluded: Number of records that were not selected, by code. Absent if there are none.
        unrepresented: Text that the tokenizer cannot represent. Absent if it can represent every text, or if
            that is unknown.
    """

    records: Count
    documents: Count
    lines: Count
    blank_lines: Count
    content_bytes: Count
    rejected: dict[str, Count]
    sequences: Count
    tokens: Count
    empty_documents: Count
    longest_sequence: Count
    eod_in_text: Count
    encoders: dict[str, Count]
    compared: Count
    uncompared: Count | None = None
    excluded: dict[str, Count] | None = None
    unrepresented: UnrepresentedText | None = None

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            records=self.records + other.records,
            documents=self.documents + other.documents,
            lines=self.lines + other.lines,
            blank_lines=self.blank_lines + other.blank_lines,
            content_bytes=self.content_bytes + other.content_bytes,
            rejected=_sums(self.rejected, other.rejected),
            sequences=self.sequences + other.sequences,
            tokens=self.tokens + other.tokens,
            empty_documents=self.empty_documents + other.empty_documents,
            longest_sequence=max(self.longest_sequence, other.longest_sequence),
            eod_in_text=self.eod_in_text + other.eod_in_text,
            encoders=_sums(self.encoders, other.encoders),
            compared=self.compared + other.compared,
            uncompared=(self.uncompared or 0) + (other.uncompared or 0) or None,
            excluded=_sums(self.excluded or {}, other.excluded or {}) or None,
            unrepresented=_unrepresented(self, other),
        )

    @property
    def rejected_total(self) -> int:
        """Rejected records of all reasons."""
        return sum(self.rejected.values())

    def excluded_as(self, code: str) -> int:
        """Return the number of records that were not selected for a reason."""
        return (self.excluded or {}).get(code, 0)

    @property
    def excluded_total(self) -> int:
        """Records that were not selected."""
        return sum((self.excluded or {}).values())


NO_COUNTS = Counts(
    records=0,
    documents=0,
    lines=0,
    blank_lines=0,
    content_bytes=0,
    rejected={},
    sequences=0,
    tokens=0,
    empty_documents=0,
    longest_sequence=0,
    eod_in_text=0,
    encoders={},
    compared=0,
)
"""The counts of nothing."""


def _sums(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(first) + Counter(second)) if first and second else {**first, **second}


def _unrepresented(first: Counts, second: Counts) -> UnrepresentedText | None:
    # Unknown unless it is known, in the same unit, on each side that has documents.
    found = [counts.unrepresented for counts in (first, second) if counts.documents]
    if len(found) < 2:
        return found[0] if found else None
    mine, theirs = found
    return mine + theirs if mine and theirs and mine.unit == theirs.unit else None
