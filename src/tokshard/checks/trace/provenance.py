"""Provenance: from the documents of a dataset to the records that they were made from, and back.

The units of a dataset say which documents and which lines of an input belong together, and its provenance
where each document's record begins. Lines are counted from these alone wherever a unit has no blank line;
only where it has some, the input itself is read, one unit of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np

from tokshard.checks.trace.options import TraceItem
from tokshard.checks.trace.report import DocumentOrigin
from tokshard.core.formatting import counted
from tokshard.dataset.document_order import DocumentOrder
from tokshard.dataset.manifest import (
    INDEXED,
    PROVENANCE_NAME,
    REJECTED_NAME,
    UNITS_NAME,
    InputRecord,
    Manifest,
    file_of,
    read_manifest,
)
from tokshard.dataset.parameters import Compression
from tokshard.dataset.records import RejectionRecord, UnitRecord, read_records
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError
from tokshard.storage.fs import isfile, realpath
from tokshard.storage.paths import bin_path
from tokshard.storage.reading import open_file
from tokshard.text.corpus.compressed import ByteSource, CorruptStreamError, decompressed_chunks
from tokshard.text.corpus.formats import has_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

NO_MANIFEST = "the dataset has no manifest, so its inputs are unknown"
_FOREIGN = "the document comes from an indexed dataset without a manifest, so its inputs are unknown"
_NO_PROVENANCE = "the dataset was built without provenance"
_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class ItemMatch:
    """Match of an item in a dataset.

    Attributes:
        document: The document that was made of it; None where there is none.
        detail: Then the reason, as a sentence.
        rejected: Whether the reason is that the record was rejected.
    """

    document: int | None
    detail: str | None = None
    rejected: bool = False


class Provenance:
    """Origins of the documents of a dataset, from its sidecar files.

    Raises:
        IntegrityError: A sidecar file is missing, damaged, or contradicts the manifest.
        StorageError: One cannot be read.
    """

    def __init__(self, path_prefix: str, manifest: Manifest) -> None:
        self.path_prefix = path_prefix
        self._manifest = manifest
        self._units = UnitTable.read(path_prefix, manifest)
        self._begins = self._map_begins()
        self._order = DocumentOrder.open(path_prefix, manifest)
        # For lists, whose items are often neighbours.
        self._starts = lru_cache(maxsize=4)(_line_starts)
        self._real_path = lru_cache(maxsize=1024)(_real_path)

    @classmethod
    def open(cls, path_prefix: str) -> Provenance | None:
        """Return the provenance of a dataset; None where it has no manifest."""
        manifest = read_manifest(path_prefix)
        return None if manifest is None else cls(path_prefix, manifest)

    @property
    def is_silent(self) -> bool:
        """True if it knows no file of text: all of the dataset was made by another program."""
        return all(entry.format == INDEXED for entry in self._manifest.inputs)

    def origins(self, documents: Integers) -> list[DocumentOrigin]:
        """Return the origins of documents."""
        numbers = documents if self._order is None else self._order.numbers(documents)
        units = self._units.of_documents(numbers).tolist()
        return [self._origin(number, unit) for number, unit in zip(numbers.tolist(), units, strict=True)]

    def matches(self, item: TraceItem) -> list[ItemMatch]:
        """Return the matches of a line or a byte of a file; none if the file is no input of the dataset.

        An item that names a document matches where that dataset was merged into this one without a
        manifest.
        """
        path = bin_path(item.path) if item.kind == "document" else item.path
        return [self._shown(self._match(item, number)) for number in self._inputs_at(path, item.kind)]

    def _shown(self, match: ItemMatch) -> ItemMatch:
        # A match has the number of a document in the order of the units.
        if match.document is None or self._order is None:
            return match
        return ItemMatch(self._order.document(match.document))

    def _map_begins(self) -> NDArray[np.int64] | None:
        if self._manifest.files.provenance is None:
            return None
        path = file_of(self.path_prefix, PROVENANCE_NAME)
        if not isfile(path):
            raise IntegrityError(f"file not found: {path} (listed in the manifest)", path=path)
        file = InputFile(path)
        expected = 8 * self._manifest.counts.documents
        if file.size_bytes != expected:
            raise IntegrityError(
                f"{path} must have {expected} bytes for the documents of the dataset, got {file.size_bytes}",
                path=path,
                hint="copy it again from its source, or rebuild the dataset",
            )
        return np.frombuffer(file.map(), np.dtype("<i8"))

    def _inputs_at(self, path: str, kind: str) -> list[int]:
        named = self._inputs_by_name.get(path) or self._inputs_by_name.get(self._real_path(path), [])
        indexed = kind == "document"
        inputs = self._manifest.inputs
        return [number for number in named if (inputs[number].format == INDEXED) == indexed]

    @cached_property
    def _units_of(self) -> list[slice]:
        return [self._units.of_input(number) for number in range(len(self._manifest.inputs))]

    @cached_property
    def _inputs_by_name(self) -> dict[str, list[int]]:
        # By the names as recorded, and by the files that these are now.
        found: dict[str, list[int]] = {}
        for number, entry in enumerate(self._manifest.inputs):
            for name in {entry.path, _real_path(entry.path)}:
                found.setdefault(name, []).append(number)
        return found

    def _origin(self, document: int, unit: int) -> DocumentOrigin:
        units = self._units
        number = int(units.inputs[unit])
        entry = self._manifest.inputs[number]
        path, kind = entry.path, entry.format
        if kind == INDEXED:
            first = int(units.first_document[self._units_of[number].start])
            return DocumentOrigin(path, kind, document=document - first, detail=_FOREIGN)
        begin = None if self._begins is None else int(self._begins[document])
        place = document - int(units.first_document[unit])
        rejected = self._rejected_in(unit)
        line = int(units.first_line[unit]) + place
        # The rejected records before the place-th document are those with no more documents before them.
        line += int(np.searchsorted(rejected - np.arange(rejected.size), place, side="right"))
        if units.blank_lines[unit] == 0:
            row = line if begin is None else begin
            is_line = has_lines(kind)
            return DocumentOrigin(
                path,
                kind,
                line=line + 1 if is_line else None,
                offset=begin if is_line else None,
                row=None if is_line else row,
            )
        if begin is None:
            return DocumentOrigin(path, kind, detail=_NO_PROVENANCE)
        if not has_lines(kind):
            return DocumentOrigin(path, kind, row=begin)
        starts = self._line_starts(unit, path)
        if starts is None:
            gaps = "excluded records" if units.excluded[unit] else "blank lines"
            detail = f"the line is unknown: the input has {gaps}, and it is missing or has changed"
            return DocumentOrigin(path, kind, offset=begin, detail=detail)
        return DocumentOrigin(
            path, kind, line=_line_at(starts, begin) + int(units.first_line[unit]), offset=begin
        )

    def _match(self, item: TraceItem, number: int) -> ItemMatch:
        table = self._units_of[number]
        entry = self._manifest.inputs[number]
        if item.kind == "document":
            return self._numbered(table, item, entry)
        if item.kind == "line" or not has_lines(entry.format):
            line, lines = item.number - (item.kind == "line"), self._units.lines_of_input(table)
            if line >= lines:
                return ItemMatch(None, _beyond(entry) or f"{item.path} has {counted(lines, 'line')}")
            unit = table.start + _last_from(self._units.first_line[table], line)
            return self._at_line(unit, line - int(self._units.first_line[unit]), item, entry.path)
        if self._begins is None:
            return ItemMatch(None, f"{_NO_PROVENANCE}: use FILE:LINE instead of FILE@OFFSET")
        size = self._units.bytes_of_input(table)
        if item.number >= size:
            return ItemMatch(None, _beyond(entry) or f"{item.path} has {counted(size, 'byte')} of text")
        return self._at_byte(table.start + _last_from(self._units.first_byte[table], item.number), item)

    def _numbered(self, table: slice, item: TraceItem, entry: InputRecord) -> ItemMatch:
        if item.number >= entry.counts.documents:
            return ItemMatch(None, f"{item.path} has {counted(entry.counts.documents, 'document')}")
        return ItemMatch(int(self._units.first_document[table.start]) + item.number)

    def _at_line(self, unit: int, line: int, item: TraceItem, path: str) -> ItemMatch:
        rejected = self._rejected_in(unit)
        before = int(np.searchsorted(rejected, line))
        if before < rejected.size and rejected[before] == line:
            return self._refusal(int(self._units.first_rejected[unit]) + before)
        if self._units.blank_lines[unit] == 0:
            return ItemMatch(int(self._units.first_document[unit]) + line - before)
        gaps = "excluded records" if self._units.excluded[unit] else "blank lines"
        if self._begins is None:
            return ItemMatch(
                None, f"{_NO_PROVENANCE}, and the input has {gaps}, so its line numbers are unknown"
            )
        if not has_lines(self._manifest.inputs[int(self._units.inputs[unit])].format):
            document = self._beginning_at(unit, int(self._units.first_line[unit]) + line)
            return self._at_record(document, f"row {item.number}", unit)
        starts = self._line_starts(unit, path)
        if starts is None:
            starts = self._line_starts(unit, item.path)
        if starts is None:
            return ItemMatch(
                None,
                f"cannot count lines: the input has {gaps}, and {item.path} is missing or has changed; "
                "use FILE@OFFSET instead",
            )
        return self._at_record(self._beginning_at(unit, int(starts[line])), f"line {item.number}", unit)

    def _at_record(self, document: int | None, place: str, unit: int) -> ItemMatch:
        if document is not None:
            return ItemMatch(document)
        excluded = f"excluded ({self._codes})"
        if not self._units.excluded[unit]:
            excluded = "blank"
        elif self._units.blank_lines[unit] > self._units.excluded[unit]:
            excluded += " or blank"
        return ItemMatch(None, f"{place} is {excluded}")

    @property
    def _codes(self) -> str:
        return ", ".join(sorted(self._manifest.counts.excluded or ()))

    def _at_byte(self, unit: int, item: TraceItem) -> ItemMatch:
        document = self._beginning_at(unit, item.number)
        if document is not None:
            return ItemMatch(document)
        first = int(self._units.first_rejected[unit])
        offsets = self._rejected.offsets[first : first + int(self._units.rejected[unit])]
        place = int(np.searchsorted(offsets, item.number))
        if place < offsets.size and offsets[place] == item.number:
            return self._refusal(first + place)
        text = f"no record begins at byte {item.number} of {item.path}"
        if self._units.excluded[unit]:
            text += f", or it is excluded ({self._codes})"
        return ItemMatch(None, text)

    def _beginning_at(self, unit: int, offset: int) -> int | None:
        first = int(self._units.first_document[unit])
        begins = (
            np.empty(0, np.int64)
            if self._begins is None
            else self._begins[first : first + int(self._units.documents[unit])]
        )
        place = int(np.searchsorted(begins, offset))
        return first + place if place < begins.size and begins[place] == offset else None

    def _refusal(self, number: int) -> ItemMatch:
        record = self._rejected
        reason = record.reasons[number]
        return ItemMatch(
            None, f"the record in line {record.lines[number]} was rejected: {reason}", rejected=True
        )

    def _rejected_in(self, unit: int) -> Integers:
        count = int(self._units.rejected[unit])
        if not count:
            return np.empty(0, np.int64)
        first = int(self._units.first_rejected[unit])
        lines: Integers = self._rejected.lines[first : first + count] - self._units.first_line[unit] - 1
        return lines

    @cached_property
    def _rejected(self) -> RejectedRecords:
        found = RejectedRecords.read(self.path_prefix, self._manifest)
        if found.lines.size != int(self._units.rejected.sum()):
            raise IntegrityError(
                f"{self.path_prefix}: {found.lines.size} rejected records are listed, but its units have "
                f"{self._units.rejected.sum()}",
                path=self.path_prefix,
            )
        return found

    def _line_starts(self, unit: int, path: str) -> Integers | None:
        units = self._units
        entry = self._manifest.inputs[int(units.inputs[unit])]
        compression = entry.compression
        starts = self._starts(path, compression, int(units.first_byte[unit]), int(units.sizes[unit]))
        return starts if starts is not None and starts.size == units.lines[unit] else None


def _beyond(entry: InputRecord) -> str | None:
    return f"the limit was reached before this place of {entry.path}" if entry.partial else None


def _real_path(path: str) -> str:
    return "" if "\0" in path else realpath(path)


def _last_from(firsts: Integers, number: int) -> int:
    # Of several units that begin at a number, the last is the one with content.
    return int(np.searchsorted(firsts, number, side="right")) - 1


def _line_at(starts: Integers, offset: int) -> int:
    return int(np.searchsorted(starts, offset, side="right"))


@dataclass(frozen=True, slots=True, eq=False)
class UnitTable:
    """The units of a dataset in order: int64 arrays with one entry for each.

    Attributes:
        inputs: The number of the input.
        lines: Its lines; rows of a table.
        documents: Its documents.
        rejected: Its rejected records.
        excluded: Its records that were not selected.
        blank_lines: Its lines that are neither documents nor rejected: blank lines and excluded records.
        sizes: Its decompressed bytes.
        first_line: The lines before it in the same input.
        first_byte: The decompressed bytes before it in the same input.
        first_document: The documents before it in the dataset.
        first_rejected: The rejected records before it in the dataset.
    """

    inputs: Integers
    lines: Integers
    documents: Integers
    rejected: Integers
    excluded: Integers
    blank_lines: Integers
    sizes: Integers
    first_line: Integers
    first_byte: Integers
    first_document: Integers
    first_rejected: Integers

    @classmethod
    def read(cls, path_prefix: str, manifest: Manifest) -> Self:
        """Read the units that the manifest of a dataset lists.

        Raises:
            IntegrityError: The file is missing, damaged, or contradicts the manifest.
        """
        path = file_of(path_prefix, UNITS_NAME)
        rows = [
            (
                unit.input,
                unit.counts.lines,
                unit.counts.documents,
                unit.counts.rejected_total,
                unit.counts.excluded_total,
                unit.counts.content_bytes,
            )
            for unit in read_records(UnitRecord, path)
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 6).T
        inputs, lines, documents, rejected, excluded, sizes = table
        if (np.diff(inputs) < 0).any() or (inputs >= len(manifest.inputs)).any():
            raise _damaged(path, "its units must be in the order of the inputs")
        # A dataset that was merged without a manifest counts as one unit without lines.
        if ((lines < documents + rejected + excluded) & (lines > 0)).any():
            raise _damaged(path, "a unit must not have fewer lines than records")
        if int(documents.sum()) != manifest.counts.documents:
            raise _damaged(
                path, f"its units must have {manifest.counts.documents} documents, got {documents.sum()}"
            )
        return cls(
            inputs=inputs,
            lines=lines,
            documents=documents,
            rejected=rejected,
            excluded=excluded,
            blank_lines=lines - documents - rejected,
            sizes=sizes,
            first_line=_before_in_input(inputs, lines),
            first_byte=_before_in_input(inputs, sizes),
            first_document=_before(documents),
            first_rejected=_before(rejected),
        )

    def of_input(self, number: int) -> slice:
        """Return the units of an input."""
        first, stop = np.searchsorted(self.inputs, [number, number + 1])
        return slice(int(first), int(stop))

    def lines_of_input(self, units: slice) -> int:
        """Return the lines of an input, given its units."""
        return int(self.first_line[units][-1] + self.lines[units][-1]) if units.stop > units.start else 0

    def bytes_of_input(self, units: slice) -> int:
        """Return the decompressed bytes of an input, given its units."""
        return int(self.first_byte[units][-1] + self.sizes[units][-1]) if units.stop > units.start else 0

    def of_documents(self, documents: Integers) -> Integers:
        """Return the unit of each document, which must exist."""
        return np.searchsorted(self.first_document, documents, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class RejectedRecords:
    """The rejected records of a dataset, in the order of its units.

    Attributes:
        lines: The line of each in its input, from 1; int64.
        offsets: Its byte offset, or its row in a table, from 0; int64.
        reasons: The code of the reason.
    """

    lines: Integers
    offsets: Integers
    reasons: list[str]

    @classmethod
    def read(cls, path_prefix: str, manifest: Manifest) -> Self:
        """Read the rejected records that the manifest of a dataset lists.

        Raises:
            IntegrityError: The file is missing or damaged.
        """
        path = file_of(path_prefix, REJECTED_NAME)
        found = [*read_records(RejectionRecord, path)] if manifest.files.rejected is not None else []
        return cls(
            np.array([record.line for record in found], dtype=np.int64),
            np.array([record.offset for record in found], dtype=np.int64),
            [record.reason for record in found],
        )


def _before(counts: Integers) -> Integers:
    return np.cumsum(counts) - counts


def _before_in_input(inputs: Integers, counts: Integers) -> Integers:
    before = _before(counts)
    return before - before[np.searchsorted(inputs, inputs)]


def _damaged(path: str, problem: str) -> IntegrityError:
    return IntegrityError(
        f"{path} is damaged: {problem}", path=path, hint="copy it again from its source, or rebuild it"
    )


def _line_starts(
    path: str, compression: Compression, first_byte: int, size_bytes: int
) -> NDArray[np.int64] | None:
    # Offsets in the decompressed input, int64, ascending; None if the input is missing, unreadable or ends
    # before ``first_byte + size_bytes``. Everything before ``first_byte`` of a compressed input must be
    # decompressed. Memory: the part and 8 bytes for each of its lines.
    try:
        with open_file(path) as file:
            if compression == "none":
                file.seek(first_byte)
                content = file.read(size_bytes)
            else:
                chunks = decompressed_chunks(ByteSource(file, path), compression)
                content = b"".join(_part(chunks, first_byte, size_bytes))
    except (OSError, InputError, CorruptStreamError):
        return None
    if len(content) != size_bytes:
        return None
    newlines = np.flatnonzero(np.frombuffer(content, np.uint8) == _NEWLINE)
    starts = np.concatenate((np.zeros(1, np.int64), newlines + 1))
    return starts[starts < size_bytes] + first_byte


def _part(chunks: Iterator[bytes], first_byte: int, size_bytes: int) -> Iterator[bytes]:
    position, stop = 0, first_byte + size_bytes
    for chunk in chunks:
        yield chunk[max(0, first_byte - position) : max(0, stop - position)]
        position += len(chunk)
        if position >= stop:
            return
