"""A part: what a worker makes of one unit, as one file that is complete or absent.

Layout (little endian): data, then a JSON footer, then the footer's length in bytes as ``u64``, its
XXH3-128 (16 bytes), and the magic ``TOKPART1``. The data consists of named
*streams*, each a list of extents in the order written:

=================  =========================================================
``tokens.K``       token ids of field K, in the data set's dtype
``lengths.K``      ``i32``, tokens of each sequence of field K
``sequences.K``    ``u32``, sequences of each document of field K
``offsets``        ``i64``, where each document's record lies in its input
``rejected``       JSON lines, one for each rejected record
=================  =========================================================

A part is not forced to the disk: its footer holds the digest of each stream, which are checked whenever
the part is used, so a part that a power cut has damaged is just made again.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

from tokshard.errors import IntegrityError
from tokshard.storage.calls import Buffer
from tokshard.storage.digest import content_digest
from tokshard.storage.files import AtomicFile
from tokshard.storage.jsonfile import parse_json_object

_MAGIC = b"TOKPART1"
_TAIL = struct.Struct("<Q16s8s")
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class UnitKey:
    """Which unit: number of the input file, number of the unit in it. Ordered as the output is."""

    file: int
    index: int

    @property
    def part_name(self) -> str:
        """The file name of the unit's part."""
        return f"{self.file:06d}-{self.index:09d}.part"


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


class PartWriter:
    """Writes the part of one unit; a context manager that commits the file when left normally.

    Args:
        path: The final name of the part.
    """

    def __init__(self, path: str) -> None:
        self._file = AtomicFile(path, durable=False)
        self._extents: dict[str, list[tuple[int, int]]] = {}
        self._digests: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def write(self, stream: str, buffer: Buffer) -> None:
        """Append ``buffer`` to one of the part's streams."""
        import xxhash

        if stream not in self._digests:
            self._digests[stream] = xxhash.xxh3_128()
            self._extents[stream] = []
        size = memoryview(buffer).nbytes
        if size:
            self._digests[stream].update(buffer)
            self._extents[stream].append((self._file.size_bytes, size))
            self._file.write(buffer)

    def finish(self, header: dict[str, Any]) -> None:
        """Write the footer: ``header`` and the table of streams."""
        streams = {
            name: {"extents": self._extents[name], "xxh3_128": self._digests[name].hexdigest()}
            for name in self._extents
        }
        footer = json.dumps({**header, "streams": streams}, separators=(",", ":")).encode()
        self._file.write(footer)
        self._file.write(_TAIL.pack(len(footer), bytes.fromhex(content_digest(footer)), _MAGIC))

    def discard(self) -> None:
        """Give the part up: nothing is committed."""
        self._file.discard()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)


class PartReader:
    """Reads a part. Use as a context manager.

    Args:
        path: The part.

    Raises:
        IntegrityError: The file is cut, or not a part.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._buffer = bytearray(_COPY_BYTES)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._footer = self._read_footer()
            self.unit = UnitKey(*self._footer["unit"])
            self.counts = UnitCounts.from_json(self._footer["counts"])
        except (KeyError, TypeError, ValueError) as error:
            self.close()
            raise IntegrityError(f"{path} is not a complete part: {error}", path=path) from error

    @property
    def last(self) -> bool:
        """Whether the unit is the last of its file."""
        return bool(self._footer["last"])

    @property
    def engine(self) -> str:
        """The name of the engine that encoded the unit."""
        return str(self._footer["engine"])

    @property
    def input_bytes(self) -> int:
        """On-disk input bytes that the unit stands for."""
        return int(self._footer["input_bytes"])

    @property
    def content_digest(self) -> str:
        """XXH3-128 of the unit's decompressed input."""
        return str(self._footer["content_xxh3_128"])

    def digest(self, stream: str) -> str:
        """Return the recorded XXH3-128 of a stream."""
        return str(self._stream(stream)["xxh3_128"])

    def chunks(self, stream: str) -> Iterator[memoryview]:
        """Yield a stream in pieces of at most 1 MiB, and check its digest at the end.

        Each piece is valid until the next is asked for: they share one buffer, which stays in the cache.

        Raises:
            IntegrityError: The stream is not what was written.
        """
        import xxhash

        entry = self._stream(stream)
        state = xxhash.xxh3_128()
        for offset, size in entry["extents"]:
            for position in range(offset, offset + size, _COPY_BYTES):
                wanted = memoryview(self._buffer)[: offset + size - position]
                chunk = wanted[: os.preadv(self._descriptor, [wanted], position)]
                state.update(chunk)
                yield chunk
        if state.hexdigest() != entry["xxh3_128"]:
            raise IntegrityError(f"{self.path}: the stream {stream} is damaged", path=self.path, field=stream)

    def read(self, stream: str) -> bytes:
        """Return a whole stream; see :meth:`chunks`."""
        return b"".join(bytes(chunk) for chunk in self.chunks(stream))

    def verify(self) -> None:
        """Check the digest of every stream.

        Raises:
            IntegrityError: One of them is damaged.
        """
        for stream in self._footer["streams"]:
            for _ in self.chunks(stream):
                pass

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.close()

    def _stream(self, name: str) -> dict[str, Any]:
        entry: dict[str, Any] = self._footer["streams"][name]
        return entry

    def _read_footer(self) -> dict[str, Any]:
        size = os.fstat(self._descriptor).st_size
        tail = os.pread(self._descriptor, _TAIL.size, max(0, size - _TAIL.size))
        if len(tail) != _TAIL.size:
            raise ValueError("too short")
        length, digest, magic = _TAIL.unpack(tail)
        if magic != _MAGIC or length > size - _TAIL.size:
            raise ValueError("no footer")
        content = os.pread(self._descriptor, length, size - _TAIL.size - length)
        if bytes.fromhex(content_digest(content)) != digest:
            raise ValueError("a damaged footer")
        return parse_json_object(content, self.path)
