"""Concatenation: pieces appended to the streams of an output, which become a dataset.

A piece is a number of consecutive documents: a part of a tokenize run, a dataset that is merged, or documents
that were shuffled or converted. The staging directory holds a file for each stream of output ``K``. Most of
them are files of the dataset already; ``K.lengths`` (i32, tokens of each sequence) and ``K.sequences`` (u32,
sequences of each document) become its index.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
import xxhash

from tokshard.dataset.counts import NO_COUNTS, Counts
from tokshard.dataset.index_file import write_index
from tokshard.dataset.manifest import (
    MANIFEST_NAME,
    ORDER_NAME,
    PIECES_NAME,
    PROVENANCE_NAME,
    REJECTED_NAME,
    UNITS_NAME,
    DatasetFiles,
    InputRecord,
    Manifest,
    SourceFile,
    TokenFileRecord,
)
from tokshard.dataset.records import PieceRecord, UnitRecord, read_records
from tokshard.errors import IntegrityError
from tokshard.storage.digest import FileRecord, piecewise_digest
from tokshard.storage.files import AppendFile, DigestingWriter
from tokshard.storage.publication import stage_chunks, stage_file
from tokshard.storage.reading import iter_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.dataset.source import InputFile
    from tokshard.storage.syscalls import Buffer

StreamName = Literal[
    "bin",
    "lengths",
    "sequences",
    "modes",
    "provenance.bin",
    "rejected.jsonl",
    "units.jsonl",
    "order.bin",
    "pieces.jsonl",
]
TEXT_STREAMS: tuple[StreamName, ...] = ("bin", "lengths", "sequences", UNITS_NAME, REJECTED_NAME)
"""The streams of each dataset that tokenize makes, provenance aside."""

COPY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FileRange:
    """Tokens that the kernel copies, so that they never enter this process: bytes of a ``.bin`` file."""

    file: InputFile
    offset: int
    size_bytes: int


class DocumentPiece(Protocol):
    """Consecutive documents of an output.

    Attributes:
        counts: Their counts, complete when the streams have been read.
    """

    counts: Counts

    def streams(self) -> Iterator[tuple[StreamName, Buffer | FileRange]]:
        """Yield what is appended to each stream, in chunks; a chunk is valid until the next is requested."""


class Concatenation:
    """The streams of one output; use as a context manager, which closes the files.

    Args:
        directory: The staging directory.
        streams: The streams that the pieces have. The files of others do not exist.
        k: The number of the output.
        sizes: The size of the file of each stream to continue from, by file name; what follows is removed.

    Attributes:
        counts: The counts of all pieces.
    """

    def __init__(
        self,
        directory: str,
        streams: Iterable[StreamName],
        *,
        k: int = 0,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self._directory = directory
        self._k = k
        self.counts = NO_COUNTS
        self.digests: dict[StreamName, xxhash.xxh3_128] = {}
        self.files: dict[StreamName, AppendFile] = {}
        for name in streams:
            path = self._path(name)
            self.files[name] = AppendFile(path, (sizes or {}).get(os.path.basename(path), 0))
            if name != "bin":  # the digests of its pieces are recorded
                self.digests[name] = xxhash.xxh3_128()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.close()

    def append(self, piece: DocumentPiece, tell: Callable[[int], None] = lambda _: None) -> None:
        """Append the documents of a piece.

        Args:
            piece: The piece.
            tell: Called with the bytes of tokens of the output after each chunk of them.

        Raises:
            IntegrityError: The piece is damaged or truncated.
            StorageError: It cannot be read, or the output cannot be written.
        """
        for name, chunk in piece.streams():
            if isinstance(chunk, FileRange):
                for size_bytes in _copies(chunk, self.files[name]):
                    tell(size_bytes)
                continue
            self.files[name].write(chunk)
            if name in self.digests:
                self.digests[name].update(chunk)
            if name == "bin":
                tell(self.files[name].size_bytes)
        self.counts += piece.counts

    def finish(self, *, dtype: str, multimodal: bool = False) -> DatasetFiles:
        """Force the streams to the disk and write the index; return the files of the dataset.

        Raises:
            IntegrityError: The streams do not fit together.
            StorageError: The output cannot be written.
        """
        for file in self.files.values():
            file.sync()
        index = stage_file(self._directory, f"{self._k}.idx", partial(self._write_index, dtype, multimodal))
        records = {
            name: FileRecord(self.files[name].size_bytes, digest.hexdigest())
            for name, digest in self.digests.items()
        }
        rejected = records.get(REJECTED_NAME)
        return DatasetFiles(
            bin=TokenFileRecord(self.files["bin"].size_bytes, piecewise_digest(self._piece_digests())),
            idx=index,
            units=records[UNITS_NAME],
            provenance=records.get(PROVENANCE_NAME),
            rejected=rejected if rejected is not None and rejected.size_bytes else None,
            order=records.get(ORDER_NAME),
            pieces=records.get(PIECES_NAME),
        )

    def units(self) -> Iterator[UnitRecord]:
        """Yield the units that were appended, in order."""
        return read_records(UnitRecord, self._path(UNITS_NAME))

    def close(self) -> None:
        """Close all files; safe to call twice."""
        for file in self.files.values():
            file.close()

    def _path(self, name: StreamName) -> str:
        return os.path.join(self._directory, f"{self._k}.{name}")

    def _piece_digests(self) -> Iterator[str]:
        if PIECES_NAME in self.files:
            return (piece.tokens_xxh3_128 for piece in read_records(PieceRecord, self._path(PIECES_NAME)))
        return (unit.tokens_xxh3_128 for unit in self.units())

    def _write_index(self, dtype: str, multimodal: bool, file: DigestingWriter) -> None:  # noqa: FBT001
        write_index(
            file,
            dtype=dtype,
            sequence_count=self.files["lengths"].size_bytes // 4,
            document_count=self.files["sequences"].size_bytes // 4,
            lengths=partial(self._column, "lengths", "<i4"),
            sequences_per_document=partial(self._column, "sequences", "<u4"),
            modes=partial(self._column, "modes", "i1") if multimodal else None,
        )

    def _column(self, name: StreamName, dtype: str) -> Iterator[NDArray[Any]]:
        for block in iter_blocks(self._path(name)):
            yield np.frombuffer(block, dtype)


def _copies(source: FileRange, target: AppendFile) -> Iterator[int]:
    """Append a range of a file; yield the size of the target after each block."""
    done = 0
    while done < source.size_bytes:
        wanted = min(COPY_BYTES, source.size_bytes - done)
        copied = target.copy(source.file.descriptor, source.offset + done, wanted)
        done += copied
        if copied < wanted:
            end = source.offset + source.size_bytes
            raise IntegrityError(
                f"{source.file.path} was truncated to {source.offset + done} bytes "
                f"(it had {end} when checked)",
                path=source.file.path,
                offset=source.offset + done,
                hint="copy both files of the dataset again, or rebuild it",
            )
        yield target.size_bytes


def stage_manifest(directory: str, manifest: Manifest, *, k: int = 0) -> None:
    """Write the staged manifest of output ``k``, or raise IntegrityError if it could not be read back."""
    content = manifest.to_bytes()
    Manifest.from_bytes(content, MANIFEST_NAME)
    stage_chunks(directory, f"{k}.{MANIFEST_NAME}", [content])


def input_records(
    sources: Iterable[SourceFile], units: Iterable[UnitRecord], *, end: int | None = None
) -> tuple[InputRecord, ...]:
    """Return the inputs of a dataset with the counts of their units.

    Args:
        sources: The inputs.
        units: The units of the dataset, in the order of the inputs.
        end: The input at which a limit ended the dataset: it and those after it are partial. None if all
            inputs were read.
    """
    states = list(sources)
    counts = [NO_COUNTS] * len(states)
    digests = [piecewise_digest([])] * len(states)
    for number, of_input in groupby(units, lambda unit: unit.input):
        contents = []
        for unit in of_input:
            counts[number] += unit.counts
            contents.append(unit.content_xxh3_128)
        digests[number] = piecewise_digest(contents)
    return tuple(
        InputRecord(
            **{field.name: getattr(state, field.name) for field in fields(SourceFile)},
            pieces_xxh3_128=digest,
            counts=of_input,
            partial=True if end is not None and number >= end else None,
        )
        for number, (state, of_input, digest) in enumerate(zip(states, counts, digests, strict=True))
    )
