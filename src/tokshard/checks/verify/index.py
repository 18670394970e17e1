"""Complete check of the index of a dataset: finds all defects, in threads and bounded memory.

Readers stop at the first defect; here each entry is compared only with its neighbors, so that one wrong entry
does not invalidate others, and the parts of an index can be checked in any order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tokshard.checks.verify.context import CountingRunner
from tokshard.checks.verify.report import ProductFindings
from tokshard.dataset import layout
from tokshard.dataset.index_file import FileColumn
from tokshard.dataset.layout import IndexHeader
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError

# Entries that a thread looks at in one go, piece by piece.
_RANGE_ENTRIES = 1 << 22
# A place beyond this could wrap around when lengths are added to it.
_FAR = 2**62

# For each field of the header that can be wrong: the code, and bytes that let the rest be read.
_HEADER_REPAIRS = {
    "magic": ("idx-header", 0, layout.MAGIC),
    "version": ("idx-version", layout.VERSION_OFFSET, struct.pack("<Q", layout.VERSION)),
    "dtype_code": ("idx-dtype", layout.DTYPE_CODE_OFFSET, b"\x04"),
    "document_count": ("idx-count", layout.DOCUMENT_COUNT_OFFSET, struct.pack("<Q", 1)),
}


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """Properties of an index whose header can be read.

    Attributes:
        header: The header.
        multimodal: Whether it has modes.
        bin_bytes: The size of the ``.bin``.
        sound: Whether no defect was found.
        empty_documents: Documents without a sequence.
        longest_sequence: Tokens of the longest sequence.
        lengths: The column of sequence lengths, in the file as it was opened.
        pointers: The column of sequence pointers.
        documents: The column of the boundaries of documents.
    """

    header: IndexHeader
    multimodal: bool
    bin_bytes: int
    sound: bool
    empty_documents: int
    longest_sequence: int
    lengths: FileColumn
    pointers: FileColumn
    documents: FileColumn

    @property
    def tokens(self) -> int:
        """The tokens of a sound dataset."""
        return self.bin_bytes // self.header.dtype.itemsize

    def end_of(self, documents: int) -> tuple[int, int]:
        """Return the number of sequences and ``.bin`` bytes of the first documents of a valid index."""
        sequence = int(self.documents[documents : documents + 1][0])
        place = self.pointers[sequence : sequence + 1]
        return sequence, int(place[0]) if place.size else self.bin_bytes


def examine_index(
    path: str, bin_bytes: int, findings: ProductFindings, runner: CountingRunner, *, multimodal: bool | None
) -> IndexFacts | None:
    """Check a whole index: its header, its size, and every entry.

    If ``multimodal`` is None, the size decides whether it has modes.

    Returns:
        The facts; None if the header cannot be read.

    Raises:
        StorageError: The file cannot be read.
    """
    file = InputFile(path)
    header = _header(file, findings)
    if header is None:
        return None
    if multimodal is None:
        multimodal = file.size_bytes == header.index_bytes(multimodal=True) and header.sequence_count > 0
    try:
        layout.check_size(header, file.size_bytes, multimodal=multimodal, path=path)
    except IntegrityError as error:
        findings.find_error("idx-size", error)
        return None
    runner.count_bytes(layout.HEADER_BYTES)
    lengths = FileColumn(file, "<i4", header.sequence_count, layout.HEADER_BYTES)
    pointers = FileColumn(file, "<i8", header.sequence_count, header.pointers_offset)
    documents = FileColumn(file, "<i8", header.document_count + 1, header.documents_offset)
    tally = _entries((lengths, pointers, documents), header, bin_bytes, runner)
    tally.report(findings, path, header, bin_bytes)
    sound = not findings.has(*(code for code, _, _ in _HEADER_REPAIRS.values())) and not tally.defects
    return IndexFacts(
        header=header,
        multimodal=multimodal,
        bin_bytes=bin_bytes,
        sound=sound,
        empty_documents=tally.empty_documents,
        longest_sequence=tally.longest_sequence,
        lengths=lengths,
        pointers=pointers,
        documents=documents,
    )


def _header(file: InputFile, findings: ProductFindings) -> IndexHeader | None:
    # After a wrong field, continue with a valid value to find other errors.
    head = bytearray(min(layout.HEADER_BYTES, file.size_bytes))
    file.read_into(memoryview(head), 0)
    readable = True
    while True:
        try:
            header = layout.read_header(head, path=file.path)
        except IntegrityError as error:
            code, offset, right = _HEADER_REPAIRS.get(str(error.field), ("idx-header", 0, b""))
            findings.find_error(code, error)
            readable = readable and error.field in {"magic", "version"}
            if not right:
                return None
            head[offset : offset + len(right)] = right
        else:
            return header if readable else None


@dataclass(frozen=True, slots=True)
class _Defect:
    count: int
    entry: int
    text: str

    def __add__(self, other: _Defect) -> _Defect:
        first = min(self, other, key=lambda defect: defect.entry)
        return _Defect(self.count + other.count, first.entry, first.text)


@dataclass(slots=True)
class _Tally:
    defects: dict[str, _Defect] = field(default_factory=dict)
    empty_documents: int = 0
    longest_sequence: int = 0

    def add(self, code: str, defect: _Defect) -> None:
        known = self.defects.get(code)
        self.defects[code] = defect if known is None else known + defect

    def merge(self, other: _Tally) -> None:
        for code, defect in other.defects.items():
            self.add(code, defect)
        self.empty_documents += other.empty_documents
        self.longest_sequence = max(self.longest_sequence, other.longest_sequence)

    def report(self, findings: ProductFindings, path: str, header: IndexHeader, bin_bytes: int) -> None:
        starts = {
            "idx-length": (layout.HEADER_BYTES, 4, "sequences"),
            "idx-pointer": (header.pointers_offset, 8, "sequences"),
            "idx-document": (header.documents_offset, 8, "boundaries of documents"),
        }
        for code, (begin, width, noun) in starts.items():
            if code in self.defects:
                defect = self.defects[code]
                offset = begin + width * defect.entry
                many = "" if defect.count == 1 else f"; so are {defect.count - 1} more {noun}"
                findings.find(code, f"{path} at byte {offset}: {defect.text}{many}", path=path, offset=offset)
        if "bin-size" in self.defects:
            text = f"{path}: {self.defects['bin-size'].text} of the .bin, which has {bin_bytes} bytes"
            findings.find("bin-size", text, path=path)


def _entries(
    columns: tuple[FileColumn, FileColumn, FileColumn],
    header: IndexHeader,
    bin_bytes: int,
    runner: CountingRunner,
) -> _Tally:
    lengths, pointers, documents = columns

    def look(part: tuple[str, int, int]) -> _Tally:
        name, first, stop = part
        tally = _Tally()
        for begin in range(first, stop, layout.CHUNK_ENTRIES):
            end = min(begin + layout.CHUNK_ENTRIES, stop)
            if name == "sequences":
                _look_at_sequences(tally, header, lengths, pointers, begin, end, bin_bytes)
                runner.count_bytes(12 * (end - begin))
            else:
                _look_at_documents(tally, header, documents, begin, end)
                runner.count_bytes(8 * (end - begin))
        return tally

    parts = [("sequences", *span) for span in _ranges(header.sequence_count)]
    parts += [("documents", *span) for span in _ranges(header.document_count + 1)]
    total = _Tally()
    if header.sequence_count == 0 and bin_bytes:
        total.add("bin-size", _Defect(1, 0, "without sequences, the data ends at byte 0"))
    for tally in runner.run(look, parts, header.modes_offset):
        total.merge(tally)
    return total


def _ranges(count: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, _RANGE_ENTRIES):
        yield first, min(first + _RANGE_ENTRIES, count)


def _look_at_sequences(
    tally: _Tally,
    header: IndexHeader,
    lengths: FileColumn,
    pointers: FileColumn,
    begin: int,
    end: int,
    bin_bytes: int,
) -> None:
    count, itemsize, last = header.sequence_count, header.dtype.itemsize, end == header.sequence_count
    sizes = lengths[begin:end]
    places = pointers[begin : end + 1]
    if last:
        places = np.append(places, np.int64(bin_bytes))
    tally.longest_sequence = max(tally.longest_sequence, int(sizes.max(initial=0)))
    negative = sizes < 0
    if negative.any():
        at = int(negative.argmax())
        text = f"the length of sequence {begin + at} must not be negative, got {sizes[at]}"
        tally.add("idx-length", _Defect(int(np.count_nonzero(negative)), begin + at, text))
    here, after = places[:-1], places[1:]
    ends = np.clip(here, -_FAR, _FAR) + sizes.astype(np.int64) * itemsize
    wrong = (ends != after) & ~negative
    if begin == 0 and here[0] != 0:
        tally.add("idx-pointer", _Defect(1, 0, f"sequence 0 must begin at byte 0 of the .bin, got {here[0]}"))
    if last and wrong[-1]:
        tally.add("bin-size", _Defect(1, count, f"the last sequence ends at byte {ends[-1]}"))
        wrong[-1] = False
    if wrong.any():
        at = int(wrong.argmax())
        text = (
            f"sequence {begin + at} ({sizes[at]} tokens from byte {here[at]}) ends at byte {ends[at]}, "
            f"but the next one begins at {after[at]}"
        )
        tally.add("idx-pointer", _Defect(int(np.count_nonzero(wrong)), begin + at + 1, text))


def _look_at_documents(
    tally: _Tally, header: IndexHeader, documents: FileColumn, begin: int, end: int
) -> None:
    sequences = header.sequence_count
    # One more at the left, so that each boundary is compared with the one before it.
    left = min(begin, 1)
    piece = documents[begin - left : end]
    steps = np.diff(piece)
    tally.empty_documents += int(np.count_nonzero(steps == 0))
    here = piece[left:]
    wrong = (here < 0) | (here > sequences)
    wrong[1 - left :] |= steps < 0
    if begin == 0:
        wrong[0] |= here[0] != 0
    if end == header.document_count + 1:
        wrong[-1] |= here[-1] != sequences
    if wrong.any():
        at = int(wrong.argmax())
        before = f" after {piece[at + left - 1]}" if at + left else ""
        text = (
            f"document boundary {begin + at} is {here[at]}{before}; boundaries must ascend from 0 to "
            f"{sequences}, the number of sequences"
        )
        tally.add("idx-document", _Defect(int(np.count_nonzero(wrong)), begin + at, text))
