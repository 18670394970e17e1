"""Counts of the records, documents and tokens of units."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokshard.core.codec import Count, Record
from tokshard.dataset.manifest import UnrepresentedText

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FieldCounts(Record):
    """The counts of one output of a unit, or of many units."""

    tokens: Count
    sequences: Count
    empty_documents: Count
    eod_in_text: Count
    longest_sequence: Count
    unrepresented: UnrepresentedText | None = None

    def __add__(self, other: FieldCounts) -> FieldCounts:
        return FieldCounts(
            self.tokens + other.tokens,
            self.sequences + other.sequences,
            self.empty_documents + other.empty_documents,
            self.eod_in_text + other.eod_in_text,
            max(self.longest_sequence, other.longest_sequence),
            _sum(self.unrepresented, other.unrepresented),
        )


def dropped_characters(rows: NDArray[np.int64]) -> UnrepresentedText:
    """Return the sum of rows of a stream ``characters.K`` of a part."""
    _, checked, dropped = rows.sum(axis=0, dtype=int).tolist()
    return UnrepresentedText("characters", checked, dropped)


@dataclass(frozen=True, slots=True)
class SplitCounts(Record):
    """The counts of one split of a unit, or of many units."""

    documents: Count
    compared: Count

    def __add__(self, other: SplitCounts) -> SplitCounts:
        return SplitCounts(self.documents + other.documents, self.compared + other.compared)


@dataclass(frozen=True, slots=True)
class UnitCounts(Record):
    """The counts of one unit, or of many.

    Always ``records == documents + rejected_total + excluded_total``.
    """

    records: Count
    documents: Count
    lines: Count
    blank_lines: Count
    content_bytes: Count
    compared: Count
    rejected: dict[str, Count]
    fields: tuple[FieldCounts, ...]
    excluded: dict[str, Count] | None = None
    splits: tuple[SplitCounts, ...] | None = None

    @classmethod
    def none(cls, outputs: int = 0, splits: int = 1) -> UnitCounts:
        """Return the counts of no unit."""
        fields = (FieldCounts(0, 0, 0, 0, 0),) * outputs
        return cls(0, 0, 0, 0, 0, 0, {}, fields, None, (SplitCounts(0, 0),) * splits if splits > 1 else None)

    def __add__(self, other: UnitCounts) -> UnitCounts:
        # The outputs of both are the same.
        excluded = _sums(self.excluded or {}, other.excluded or {})
        return UnitCounts(
            self.records + other.records,
            self.documents + other.documents,
            self.lines + other.lines,
            self.blank_lines + other.blank_lines,
            self.content_bytes + other.content_bytes,
            self.compared + other.compared,
            _sums(self.rejected, other.rejected),
            tuple(mine + theirs for mine, theirs in zip(self.fields, other.fields, strict=True)),
            excluded or None,
            None
            if self.splits is None or other.splits is None
            else tuple(mine + theirs for mine, theirs in zip(self.splits, other.splits, strict=True)),
        )

    def split(self, number: int) -> SplitCounts:
        """Return the counts of a split."""
        if self.splits is not None:
            return self.splits[number]
        return SplitCounts(self.documents, self.compared)

    def of_split(self, number: int) -> UnitCounts:
        """Return the counts for the outputs of a split: the documents of others are excluded records."""
        split = self.split(number)
        others = self.documents - split.documents
        excluded = _sums(self.excluded or {}, {"other-split": others} if others else {})
        return replace(self, documents=split.documents, compared=split.compared, excluded=excluded or None)

    @property
    def rejected_total(self) -> int:
        """Rejected records of all reasons."""
        return sum(self.rejected.values())

    @property
    def excluded_total(self) -> int:
        """Records that were not selected."""
        return sum((self.excluded or {}).values())

    @property
    def tokens(self) -> int:
        """Tokens of all outputs."""
        return sum(field.tokens for field in self.fields)


def _sum(first: UnrepresentedText | None, second: UnrepresentedText | None) -> UnrepresentedText | None:
    return second if first is None else first if second is None else first + second


def _sums(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in first | second}
