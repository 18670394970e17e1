"""What a document was made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Origin:
    """The record that a document was made from.

    Attributes:
        path: The input, as it was named when the dataset was made.
        format: ``"jsonl"``, ``"parquet"``, ``"arrow"``; ``"indexed"`` for a dataset that was merged
            without a manifest.
        line: The line, from 1; None in tables, and where it cannot be counted.
        offset: The byte of the decompressed input where the line begins; None where it is not known.
        row: The row of a table, from 0.
        document: The document of an ``"indexed"`` input.
        note: Why something is not known.
    """

    path: str
    format: str
    line: int | None = None
    offset: int | None = None
    row: int | None = None
    document: int | None = None
    note: str | None = None

    @property
    def place(self) -> str:
        """The record as one text that can be given to trace again.

        Example:
            >>> Origin("web.jsonl", "jsonl", line=3, offset=90).place
            'web.jsonl:3'
        """
        if self.document is not None:
            return f"{self.path.removesuffix('.bin')}#{self.document}"
        if self.row is not None:
            return f"{self.path}@{self.row}"
        if self.line is not None:
            return f"{self.path}:{self.line}"
        return self.path if self.offset is None else f"{self.path}@{self.offset}"

    def to_json(self) -> dict[str, Any]:
        """Return the origin as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Match:
    """What a dataset has of an item.

    Attributes:
        document: The document that was made of it; None where there is none.
        problem: Then the reason, as a sentence.
        rejected: Whether the reason is that the record was rejected.
    """

    document: int | None
    problem: str | None = None
    rejected: bool = False
