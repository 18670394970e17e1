"""Provenance: from the documents of a dataset to the records that they were made from, and back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tokshard.checks.trace.options import TraceItem
from tokshard.checks.trace.report import DocumentOrigin
from tokshard.core.formatting import counted
from tokshard.dataset.document_order import DocumentOrder
from tokshard.dataset.manifest import INDEXED, REJECTED_NAME, InputRecord, Manifest, file_of, read_manifest
from tokshard.dataset.provenance import open_origins
from tokshard.dataset.records import RejectionRecord, read_records
from tokshard.errors import IntegrityError
from tokshard.storage.fs import realpath
from tokshard.storage.paths import bin_path
from tokshard.text.corpus.formats import has_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

NO_MANIFEST = "the dataset has no manifest, so its inputs are unknown"
_FOREIGN = "the document comes from an indexed dataset without a manifest, so its inputs are unknown"
_NO_PROVENANCE = "the dataset was built without provenance, so its records are unknown"


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
    """Origins of the documents of a dataset, from its manifest and sidecar files.

    Raises:
        IntegrityError: A sidecar file is missing, damaged, or contradicts the manifest.
        StorageError: One cannot be read.
    """

    def __init__(self, path_prefix: str, manifest: Manifest) -> None:
        self.path_prefix = path_prefix
        self._manifest = manifest
        self._origins = open_origins(path_prefix, manifest)
        self._order = DocumentOrder.open(path_prefix, manifest)
        self._ends = np.cumsum([entry.counts.documents for entry in manifest.inputs], dtype=np.int64)
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
        inputs = np.searchsorted(self._ends, numbers, side="right").tolist()
        return [self._origin(*pair) for pair in zip(numbers.tolist(), inputs, strict=True)]

    def matches(self, item: TraceItem) -> list[ItemMatch]:
        """Return the matches of a line or a byte of a file; none if the file is no input of the dataset.

        An item that names a document matches where that dataset was merged into this one without a
        manifest.
        """
        path = bin_path(item.path) if item.kind == "document" else item.path
        numbers = self._inputs_by_name.get(path) or self._inputs_by_name.get(self._real_path(path), [])
        return [
            self._match(item, number)
            for number in numbers
            if (self._manifest.inputs[number].format == INDEXED) == (item.kind == "document")
        ]

    @cached_property
    def _inputs_by_name(self) -> dict[str, list[int]]:
        """Numbers of the inputs, by the names as recorded, and by the files that these are now."""
        numbers = defaultdict(list)
        for number, entry in enumerate(self._manifest.inputs):
            for name in {entry.path, _real_path(entry.path)}:
                numbers[name].append(number)
        return numbers

    def _documents_of(self, number: int) -> slice:
        """Return the documents of an input, in the order of the inputs."""
        end = int(self._ends[number])
        return slice(end - self._manifest.inputs[number].counts.documents, end)

    def _origin(self, document: int, number: int) -> DocumentOrigin:
        path = self._manifest.inputs[number].path
        kind = self._manifest.inputs[number].format
        if kind == INDEXED:
            first = self._documents_of(number).start
            return DocumentOrigin(path, kind, document=document - first, detail=_FOREIGN)
        if self._origins is None:
            return DocumentOrigin(path, kind, detail=_NO_PROVENANCE)
        offset, line = self._origins[document].tolist()
        if has_lines(kind):
            return DocumentOrigin(path, kind, line=line, offset=offset)
        return DocumentOrigin(path, kind, row=offset)

    def _match(self, item: TraceItem, number: int) -> ItemMatch:
        entry = self._manifest.inputs[number]
        documents = self._documents_of(number)
        if beyond := _beyond(item, entry):
            return ItemMatch(None, beyond)
        if item.kind == "document":
            return self._numbered(documents.start + item.number)
        if self._origins is None:
            return ItemMatch(None, _NO_PROVENANCE)
        column = "line" if item.kind == "line" else "offset"
        numbers = self._origins[documents][column]
        place = int(np.searchsorted(numbers, item.number))
        if place < numbers.size and numbers[place] == item.number:
            return self._numbered(documents.start + place)
        if record := self._rejected.get((entry.path, column, item.number)):
            reason = f"the record in line {record.line} was rejected: {record.reason}"
            return ItemMatch(None, reason, rejected=True)
        return ItemMatch(None, self._absence(item, entry))

    def _numbered(self, number: int) -> ItemMatch:
        """Return the match of a document, by its number in the order of the inputs."""
        return ItemMatch(number if self._order is None else self._order.document(number))

    @cached_property
    def _rejected(self) -> dict[tuple[str, str, int], RejectionRecord]:
        """Rejected records, by input and line, and by input and offset."""
        if self._manifest.files.rejected is None:
            return {}
        path = file_of(self.path_prefix, REJECTED_NAME)
        records = [*read_records(RejectionRecord, path)]
        if len(records) != self._manifest.counts.rejected_total:
            raise IntegrityError(
                f"{path} must list {counted(self._manifest.counts.rejected_total, 'rejected record')}, got "
                f"{len(records)}",
                path=path,
                hint="copy it again from its source, or rebuild the dataset",
            )
        by_line = {(record.input, "line", record.line): record for record in records}
        return by_line | {(record.input, "offset", record.offset): record for record in records}

    def _absence(self, item: TraceItem, entry: InputRecord) -> str:
        """Return the reason why no document was made of a record that was not rejected."""
        counts = entry.counts
        reasons = [f"excluded ({', '.join(sorted(counts.excluded))})"] if counts.excluded else []
        if item.kind == "line" or not has_lines(entry.format):
            reasons += ["blank"] if counts.blank_lines else []
            return f"{_noun(entry)} {item.number} is {' or '.join(reasons)}"
        text = f"no record begins at byte {item.number} of {item.path}"
        return f"{text}, or it is {reasons[0]}" if reasons else text


def _beyond(item: TraceItem, entry: InputRecord) -> str | None:
    """Return the message for a number that the input does not have; None if it has it."""
    if item.kind == "document":
        noun, amount = "document", entry.counts.documents
    elif item.kind == "line" or not has_lines(entry.format):
        noun, amount = _noun(entry), entry.counts.lines
    else:
        noun, amount = "byte", entry.counts.content_bytes
    if item.number - (item.kind == "line") < amount:
        return None
    if entry.partial:
        return f"the limit was reached before this place of {entry.path}"
    of_text = " of text" if noun == "byte" else ""
    return f"{item.path} has {counted(amount, noun)}{of_text}"


def _noun(entry: InputRecord) -> str:
    return "line" if has_lines(entry.format) else "row"


def _real_path(path: str) -> str:
    return "" if "\0" in path else realpath(path)
