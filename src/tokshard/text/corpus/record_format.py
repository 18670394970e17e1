"""Descriptor of a format of inputs: recognition, file names, the extra it needs, and its readers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tokshard.dataset.manifest import SourceFile
from tokshard.dataset.parameters import TextFormat
from tokshard.text.corpus.batch import DocumentBatch, LineBatch
from tokshard.text.corpus.fields import FieldPath
from tokshard.text.corpus.rejection import TextCheck
from tokshard.text.corpus.selection import ALL_RECORDS, RecordSelection
from tokshard.text.corpus.units import Unit
from tokshard.text.corpus.values import RecordFields

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Large enough to hide the cost per batch, small enough for a core's cache: 4 MiB is 10% slower.
BATCH_BYTES = 1 << 20
MAX_DOCUMENT_BYTES = 16_000_000


class Reading(NamedTuple):
    """The part of the records that is read.

    Attributes:
        fields: The fields, at least one of text. A value of text is a string, or a list of strings: a
            document of several sequences, or of none; a value of token ids is a list.
        max_document_bytes: Larger lines (in a table: larger texts) are rejected.
        check: Raises UnusableRecordError for texts that the tokenizer cannot encode.
        selection: The records to read; others are not parsed.
        batch_bytes: About the size of a batch. The documents and rejected records do not depend on it.
    """

    fields: RecordFields
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    check: TextCheck | None = None
    selection: RecordSelection = ALL_RECORDS
    batch_bytes: int = BATCH_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormat:
    """Format of inputs.

    Attributes:
        name: Its name in manifests.
        title: Its name in messages.
        suffixes: Endings of names, by which the files of a directory are found.
        magic: Pattern of the first bytes; None for text, which is recognized by the suffix.
        extra: The extra that must be installed, or None.
        units: Yields the units of an uncompressed file: of its number among the inputs, the file, the nominal
            size of a unit and the fields.
        documents: Yields the documents of a unit in batches.
        documents_of_lines: Returns the documents of lines with these numbers in the unit, if each record is a
            line: records have byte offsets then, and files can be compressed. None for tables, whose records
            have row numbers.
        has_token_ids: Returns whether a field of a table is a column of lists of integers. None for lines.
    """

    name: TextFormat
    title: str
    suffixes: tuple[str, ...]
    magic: re.Pattern[bytes] | None = None
    extra: str | None = None
    units: Callable[[int, SourceFile, int, RecordFields], Iterator[Unit]]
    documents: Callable[[Any, Reading], Iterator[DocumentBatch]]
    documents_of_lines: Callable[[LineBatch, NDArray[np.int64], Reading], DocumentBatch] | None = None
    has_token_ids: Callable[[str, FieldPath], bool] | None = None

    @property
    def has_lines(self) -> bool:
        """True if each record is a line; False for a table."""
        return self.documents_of_lines is not None
