"""From the documents of a dataset to the records that they were made from, and back.

The units of a dataset say which documents and which lines of an input belong together, and its provenance
where each document's record begins. Lines are counted from these alone wherever a unit has no blank line;
only where it has some, the input itself is read, one unit of it.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tokshard.dataset.manifest import PROVENANCE_NAME, InputRecord, Manifest, file_of, read_manifest
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.storage.fs import isfile, realpath
from tokshard.storage.paths import bin_path
from tokshard.tracing.items import Item
from tokshard.tracing.linestarts import line_starts
from tokshard.tracing.origin import Match, Origin
from tokshard.tracing.units import RejectedRecords, UnitTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

NO_MANIFEST = "the dataset has no manifest: another program made it, and nothing tells from what"
FOREIGN = "another program made the dataset that the document was in first, and nothing tells from what"
NO_PROVENANCE = "the dataset was made without provenance"
_INDEXED = "indexed"
_JSONL = "jsonl"


class Provenance:
    """What the sidecar files of a dataset tell of the origin of its documents.

    Args:
        path_prefix: The dataset.
        manifest: Its manifest.

    Raises:
        IntegrityError: A sidecar file is missing, damaged, or contradicts the manifest.
        StorageError: One cannot be read.
    """

    def __init__(self, path_prefix: str, manifest: Manifest) -> None:
        self.path_prefix = path_prefix
        self._manifest = manifest
        self._units = UnitTable.read(path_prefix, manifest)
        self._begins = self._map_begins()
        # For lists, whose items are often neighbours.
        self._starts = lru_cache(maxsize=4)(line_starts)
        self._real_path = lru_cache(maxsize=1024)(_real_path)

    @classmethod
    def open(cls, path_prefix: str) -> Provenance | None:
        """Return the provenance of a dataset; None where it has no manifest."""
        manifest = read_manifest(path_prefix)
        return None if manifest is None else cls(path_prefix, manifest)

    @property
    def is_silent(self) -> bool:
        """Whether it knows no file of text: all of the dataset was made by another program."""
        return all(entry.format == _INDEXED for entry in self._manifest.inputs)

    def origins(self, documents: Integers) -> list[Origin]:
        """Return where documents come from.

        Args:
            documents: Numbers of documents that the dataset has.
        """
        units = self._units.of_documents(documents).tolist()
        return [
            self._origin(document, unit) for document, unit in zip(documents.tolist(), units, strict=True)
        ]

    def matches(self, item: Item) -> list[Match]:
        """Return what the dataset has of a line or a place of a file; nothing if the file is no input.

        An item that names a document matches where that dataset was merged into this one without a
        manifest.
        """
        path = bin_path(item.path) if item.kind == "document" else item.path
        return [self._match(item, number) for number in self._inputs_at(path, item.kind)]

    def _map_begins(self) -> NDArray[np.int64] | None:
        if self._manifest.files.provenance is None:
            return None
        path = file_of(self.path_prefix, PROVENANCE_NAME)
        if not isfile(path):
            raise IntegrityError(f"{path} is missing, but the manifest lists it", path=path)
        file = InputFile(path)
        expected = 8 * self._manifest.dataset.documents
        if file.size_bytes != expected:
            raise IntegrityError(
                f"{path} has {file.size_bytes} bytes, but {expected} belong to the documents of the dataset",
                path=path,
                hint="copy it again from its source, or make the dataset again",
            )
        return np.frombuffer(file.map(), np.dtype("<i8"))

    def _inputs_at(self, path: str, kind: str) -> list[int]:
        named = self._inputs_by_name.get(path) or self._inputs_by_name.get(self._real_path(path), [])
        indexed = kind == "document"
        inputs = self._manifest.inputs
        return [number for number in named if (inputs[number].format == _INDEXED) == indexed]

    @cached_property
    def _units_of(self) -> list[slice]:
        return [self._units.of_input(number) for number in range(len(self._manifest.inputs))]

    @cached_property
    def _inputs_by_name(self) -> dict[str, list[int]]:
        """The inputs by their names as recorded, and by the files that these are now."""
        found: dict[str, list[int]] = {}
        for number, entry in enumerate(self._manifest.inputs):
            for name in {entry.path, _real_path(entry.path)}:
                found.setdefault(name, []).append(number)
        return found

    def _origin(self, document: int, unit: int) -> Origin:
        units = self._units
        number = int(units.inputs[unit])
        entry = self._manifest.inputs[number]
        path, kind = entry.path, entry.format
        if kind == _INDEXED:
            first = int(units.first_document[self._units_of[number].start])
            return Origin(path, kind, document=document - first, note=FOREIGN)
        begin = None if self._begins is None else int(self._begins[document])
        place = document - int(units.first_document[unit])
        rejected = self._rejected_in(unit)
        line = int(units.first_line[unit]) + place
        # The rejected records before the place-th document are those with no more documents before them.
        line += int(np.searchsorted(rejected - np.arange(rejected.size), place, side="right"))
        if kind != _JSONL:
            return Origin(path, kind, row=line if begin is None else begin)
        if units.blank_lines[unit] == 0:
            return Origin(path, kind, line=line + 1, offset=begin)
        if begin is None:
            return Origin(path, kind, note=NO_PROVENANCE)
        starts = self._line_starts(unit, path)
        if starts is None:
            note = "its line is not known: there are blank lines, and the input is not there as it was"
            return Origin(path, kind, offset=begin, note=note)
        return Origin(path, kind, line=_line_at(starts, begin) + int(units.first_line[unit]), offset=begin)

    def _match(self, item: Item, number: int) -> Match:
        table = self._units_of[number]
        entry = self._manifest.inputs[number]
        if item.kind == "document":
            return self._numbered(table, item, entry)
        if item.kind == "line" or entry.format != _JSONL:
            line, lines = item.number - (item.kind == "line"), self._units.lines_of_input(table)
            if line >= lines:
                return Match(None, f"{item.path} has {lines} lines")
            unit = table.start + _last_from(self._units.first_line[table], line)
            return self._at_line(unit, line - int(self._units.first_line[unit]), item, entry.path)
        if self._begins is None:
            return Match(None, f"{NO_PROVENANCE}: give the line, and not the byte")
        size = self._units.bytes_of_input(table)
        if item.number >= size:
            return Match(None, f"{item.path} has {size} bytes of text")
        return self._at_byte(table.start + _last_from(self._units.first_byte[table], item.number), item)

    def _numbered(self, table: slice, item: Item, entry: InputRecord) -> Match:
        if item.number >= entry.documents:
            return Match(None, f"{item.path} has {entry.documents} documents")
        return Match(int(self._units.first_document[table.start]) + item.number)

    def _at_line(self, unit: int, line: int, item: Item, path: str) -> Match:
        rejected = self._rejected_in(unit)
        before = int(np.searchsorted(rejected, line))
        if before < rejected.size and rejected[before] == line:
            return self._refusal(int(self._units.first_rejected[unit]) + before)
        if self._units.blank_lines[unit] == 0:
            return Match(int(self._units.first_document[unit]) + line - before)
        if self._begins is None:
            return Match(None, f"{NO_PROVENANCE}, and the input has blank lines: its lines cannot be told")
        starts = self._line_starts(unit, path)
        if starts is None:
            starts = self._line_starts(unit, item.path)
        if starts is None:
            return Match(
                None,
                f"lines cannot be counted: there are blank ones, and {item.path} is not there as it was; "
                "give the byte instead: FILE@OFFSET",
            )
        document = self._beginning_at(unit, int(starts[line]))
        return Match(None, f"line {item.number} is blank") if document is None else Match(document)

    def _at_byte(self, unit: int, item: Item) -> Match:
        document = self._beginning_at(unit, item.number)
        if document is not None:
            return Match(document)
        first = int(self._units.first_rejected[unit])
        offsets = self._rejected.offsets[first : first + int(self._units.rejected[unit])]
        place = int(np.searchsorted(offsets, item.number))
        if place < offsets.size and offsets[place] == item.number:
            return self._refusal(first + place)
        return Match(None, f"no record begins at byte {item.number} of {item.path}")

    def _beginning_at(self, unit: int, offset: int) -> int | None:
        first = int(self._units.first_document[unit])
        begins = (
            np.empty(0, np.int64)
            if self._begins is None
            else self._begins[first : first + int(self._units.documents[unit])]
        )
        place = int(np.searchsorted(begins, offset))
        return first + place if place < begins.size and begins[place] == offset else None

    def _refusal(self, number: int) -> Match:
        record = self._rejected
        reason = record.reasons[number]
        return Match(None, f"the record in line {record.lines[number]} was rejected: {reason}", rejected=True)

    def _rejected_in(self, unit: int) -> Integers:
        """Return the lines of a unit, from 0, whose records were rejected."""
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


def _real_path(path: str) -> str:
    return "" if "\0" in path else realpath(path)


def _last_from(firsts: Integers, number: int) -> int:
    """Return the last place whose number is not larger: of units that begin there, the one with content."""
    return int(np.searchsorted(firsts, number, side="right")) - 1


def _line_at(starts: Integers, offset: int) -> int:
    """Return the line, from 1, that an offset lies in."""
    return int(np.searchsorted(starts, offset, side="right"))
