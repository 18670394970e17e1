"""A dataset as a piece of the output of a merge: its tokens, its index and its sidecar files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import xxhash

from tokshard.dataset.concatenate import FileRange, StreamName
from tokshard.dataset.index_file import FileColumn
from tokshard.dataset.layout import CHUNK_ENTRIES
from tokshard.dataset.manifest import (
    INDEXED,
    ORDER_NAME,
    PIECES_NAME,
    PROVENANCE_NAME,
    REJECTED_NAME,
    UNITS_NAME,
    InputRecord,
    file_of,
)
from tokshard.dataset.merge.inputs import MergeInput
from tokshard.dataset.pieces import pieces_path, read_pieces
from tokshard.dataset.records import PieceRecord, UnitRecord, read_records, to_line
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.storage.digest import file_digest, piecewise_digest
from tokshard.storage.paths import bin_path
from tokshard.storage.reading import READ_BYTES, iter_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.storage.syscalls import Buffer

DOCUMENT_STREAMS: tuple[StreamName, ...] = ("bin", "lengths", "sequences", "modes", ORDER_NAME, PIECES_NAME)
"""The streams that a shuffle writes; the others are in the order of the inputs."""

UNKNOWN_DIGEST = "0" * 32


class DatasetPiece:
    """A dataset that is merged. The kernel copies its tokens if their digests are known.

    Args:
        dataset: The dataset.
        streams: The streams of the output to which it is appended.
        first_input: The number of its first input among the inputs of the output.
        first_document: The number of its first document in the order of the units.
    """

    def __init__(
        self, dataset: MergeInput, streams: Collection[StreamName], first_input: int, first_document: int
    ) -> None:
        self.counts = dataset.counts
        self._dataset = dataset
        self._streams = streams
        self._first_input = first_input
        self._first_document = first_document
        self._digest = ""  # of the .bin file of a dataset without a manifest

    def streams(self) -> Iterator[tuple[StreamName, Buffer | FileRange]]:
        """Yield what is appended to each stream, and check the sidecar files.

        Raises:
            IntegrityError: A file is truncated or contradicts the manifest.
            StorageError: A file cannot be read.
        """
        chunks_of: dict[StreamName, Callable[[], Iterator[Buffer | FileRange]]] = {
            "bin": self._tokens,
            "lengths": self._lengths,
            "sequences": self._sequences,
            "modes": self._modes,
            PROVENANCE_NAME: lambda: self._sidecar(PROVENANCE_NAME),
            REJECTED_NAME: lambda: self._sidecar(REJECTED_NAME),
            UNITS_NAME: self._units,
            ORDER_NAME: self._order,
            PIECES_NAME: self._piece_lines,
        }
        for name, chunks in chunks_of.items():
            if name in self._streams:
                for chunk in chunks():
                    yield name, chunk

    @property
    def inputs(self) -> tuple[InputRecord, ...]:
        """Its inputs, after the streams were read; a dataset without a manifest is an input itself."""
        return original_inputs(self._dataset, self._digest)

    def _tokens(self) -> Iterator[Buffer | FileRange]:
        file = InputFile(bin_path(self._dataset.prefix))
        size = self._dataset.bin_bytes
        if self._dataset.manifest is not None:
            yield FileRange(file, 0, size)
            return
        state = xxhash.xxh3_128()
        for block in blocks(file, 0, size):
            state.update(block)
            yield block
        self._digest = state.hexdigest()

    def _lengths(self) -> Iterator[Buffer]:
        for lengths in self._dataset.columns(multimodal="modes" in self._streams).sequence_lengths.pieces():
            yield lengths.data.cast("B")

    def _sequences(self) -> Iterator[Buffer]:
        columns = self._dataset.columns(multimodal="modes" in self._streams)
        for counts in columns.sequences_per_document():
            yield counts.astype("<u4").data.cast("B")

    def _modes(self) -> Iterator[Buffer]:
        for modes in self._dataset.columns(multimodal=True).sequence_modes.pieces():
            yield modes.data.cast("B")

    def _sidecar(self, name: Literal["provenance.bin", "rejected.jsonl"]) -> Iterator[Buffer]:
        manifest = self._dataset.manifest
        record = manifest.files.digested().get(name) if manifest else None
        if record is None:
            return
        state = xxhash.xxh3_128()
        for chunk in iter_blocks(file_of(self._dataset.prefix, name)):
            state.update(chunk)
            yield chunk
        if state.hexdigest() != record.xxh3_128:
            raise self._damaged(name)

    def _units(self) -> Iterator[Buffer]:
        pieces = []
        for unit in self._unit_records():
            pieces.append(unit.tokens_xxh3_128)
            yield to_line(replace(unit, input=self._first_input + unit.input))
        manifest = self._dataset.manifest
        prefix = self._dataset.prefix
        if manifest is None:
            return
        if manifest.files.pieces is not None:
            pieces = [piece.tokens_xxh3_128 for piece in read_pieces(prefix, manifest)]
        if piecewise_digest(pieces) != manifest.files.bin.pieces_xxh3_128:
            name = os.path.basename(pieces_path(prefix, manifest))
            raise IntegrityError(f"{prefix}: the digests in {name} contradict the manifest", path=prefix)

    def _unit_records(self) -> Iterator[UnitRecord]:
        manifest = self._dataset.manifest
        prefix = self._dataset.prefix
        if manifest is None:
            self._digest = self._digest or file_digest(bin_path(prefix))
            yield UnitRecord(0, 0, self._digest, self._digest, self.counts)
            return
        path = file_of(prefix, UNITS_NAME)
        if file_digest(path) != manifest.files.units.xxh3_128:
            raise self._damaged(UNITS_NAME)
        yield from read_records(UnitRecord, path)

    def _order(self) -> Iterator[Buffer]:
        for first in range(0, self.counts.documents, CHUNK_ENTRIES):
            stop = min(first + CHUNK_ENTRIES, self.counts.documents)
            numbers = document_numbers(self._dataset, first, stop) + self._first_document
            yield numbers.astype("<i8").data.cast("B")

    def _piece_lines(self) -> Iterator[Buffer]:
        manifest = self._dataset.manifest
        counts = self.counts
        if manifest is None:
            yield to_line(PieceRecord(counts.documents, counts.sequences, counts.tokens, self._digest))
            return
        yield from map(to_line, read_pieces(self._dataset.prefix, manifest))

    def _damaged(self, name: str) -> IntegrityError:
        path = file_of(self._dataset.prefix, name)
        return IntegrityError(
            f"{path} is damaged: its digest differs from the manifest",
            path=path,
            hint="copy it again from its source, or rebuild the dataset",
        )


def dataset_pieces(inputs: Sequence[MergeInput], streams: Collection[StreamName]) -> list[DatasetPiece]:
    """Return the pieces of a merge, in order."""
    pieces = []
    first_input = first_document = 0
    for dataset in inputs:
        pieces.append(DatasetPiece(dataset, streams, first_input, first_document))
        first_input += len(original_inputs(dataset, UNKNOWN_DIGEST))
        first_document += dataset.counts.documents
    return pieces


def original_inputs(dataset: MergeInput, digest: str) -> tuple[InputRecord, ...]:
    """Return the inputs of a dataset; without a manifest, it is one itself, and ``digest`` is its digest."""
    if dataset.manifest is not None:
        return dataset.manifest.inputs
    tokens = dataset.states[0]
    return (
        InputRecord(
            path=tokens.path,
            size_bytes=tokens.size_bytes,
            mtime_ns=tokens.mtime_ns,
            format=INDEXED,
            compression="none",
            pieces_xxh3_128=piecewise_digest([digest]),
            counts=dataset.counts,
        ),
    )


def document_numbers(dataset: MergeInput, first: int, stop: int) -> NDArray[np.int64]:
    """Return the numbers of consecutive documents of a dataset in the order of its units."""
    if not dataset.is_shuffled:
        return np.arange(first, stop)
    file = InputFile(file_of(dataset.prefix, ORDER_NAME))
    return FileColumn(file, "<i8", dataset.counts.documents, 0)[first:stop]


def blocks(file: InputFile, offset: int, size: int) -> Iterator[memoryview]:
    """Yield a range of bytes of a file; each block is valid until the next one is read."""
    buffer = memoryview(bytearray(min(READ_BYTES, size)))
    for begin in range(offset, offset + size, READ_BYTES):
        block = buffer[: offset + size - begin]
        file.read_into(block, begin)
        yield block
