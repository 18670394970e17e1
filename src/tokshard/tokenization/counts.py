"""Counts: what a unit, or many of them, came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(slots=True)
class FieldCounts:
    """What one field of a unit (or of many) came to.

    Attributes:
        tokens: Tokens, EOD tokens included.
        sequences: Sequences, none of them empty.
        empty_documents: Documents that gave no token.
        eod_in_text: Occurrences of the EOD id that came from the text itself.
        longest_sequence: Tokens of the longest sequence.
    """

    tokens: int = 0
    sequences: int = 0
    empty_documents: int = 0
    eod_in_text: int = 0
    longest_sequence: int = 0

    def add(self, other: FieldCounts) -> None:
        """Add the counts of more documents to these."""
        self.tokens += other.tokens
        self.sequences += other.sequences
        self.empty_documents += other.empty_documents
        self.eod_in_text += other.eod_in_text
        self.longest_sequence = max(self.longest_sequence, other.longest_sequence)


@dataclass(slots=True)
class UnitCounts:
    """What one unit (or many) came to: ``records == documents + sum(rejected.values())``.

    Attributes:
        records: Lines that are not blank, or rows.
        documents: Records that became documents.
        lines: Lines, blank ones included, or rows.
        blank_lines: Blank lines.
        content_bytes: Decompressed input bytes.
        compared: Documents that both engines encoded, with equal results.
        rejected: Rejected records by reason.
        fields: The counts of each field.
    """

    records: int = 0
    documents: int = 0
    lines: int = 0
    blank_lines: int = 0
    content_bytes: int = 0
    compared: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    fields: list[FieldCounts] = field(default_factory=list)

    def add(self, other: UnitCounts) -> None:
        """Add the counts of another unit to these."""
        self.records += other.records
        self.documents += other.documents
        self.lines += other.lines
        self.blank_lines += other.blank_lines
        self.content_bytes += other.content_bytes
        self.compared += other.compared
        for reason, count in other.rejected.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + count
        for mine, theirs in zip(self.fields, other.fields, strict=True):
            mine.add(theirs)

    @property
    def rejected_total(self) -> int:
        """Rejected records of all reasons."""
        return sum(self.rejected.values())

    def to_json(self) -> dict[str, Any]:
        """Return the counts as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the counts that :meth:`to_json` wrote."""
        return cls(**{**value, "fields": [FieldCounts(**one) for one in value["fields"]]})
