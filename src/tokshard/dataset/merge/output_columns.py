"""Columns of the output of a merge: its index, the order of its documents, and its pieces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.index_file import FileColumn, Pieces, write_index
from tokshard.dataset.layout import CHUNK_ENTRIES
from tokshard.dataset.manifest import ORDER_NAME, PIECES_NAME, file_of
from tokshard.dataset.merge.inputs import MergeInput
from tokshard.dataset.merge.shuffled_output import (
    COUNTS_NAME,
    LENGTHS_NAME,
    MODES_NAME,
    STAGED_ORDER_NAME,
    column,
)
from tokshard.dataset.pieces import read_pieces
from tokshard.dataset.records import PieceRecord, to_line
from tokshard.dataset.source import InputFile
from tokshard.dataset.workdir import stage_chunks, stage_file
from tokshard.storage.digest import FileRecord, file_digest
from tokshard.storage.files import DigestingWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class OutputColumns:
    """Columns of an index in pieces, see :func:`tokshard.dataset.index_file.write_index`."""

    lengths: Pieces
    sequences_per_document: Pieces
    modes: Pieces


def input_columns(inputs: Sequence[MergeInput], *, multimodal: bool) -> OutputColumns:
    """Return the columns of the concatenation of datasets; one dataset is open at a time."""

    def lengths() -> Iterator[NDArray[Any]]:
        for dataset in inputs:
            yield from dataset.columns(multimodal=multimodal).sequence_lengths.pieces()

    def sequences_per_document() -> Iterator[NDArray[Any]]:
        for dataset in inputs:
            yield from dataset.columns(multimodal=multimodal).sequences_per_document()

    def modes() -> Iterator[NDArray[Any]]:
        for dataset in inputs:
            yield from dataset.columns(multimodal=multimodal).sequence_modes.pieces()

    return OutputColumns(lengths, sequences_per_document, modes)


def shuffled_columns(directory: str) -> OutputColumns:
    """Return the columns that a shuffle has written into the work directory."""
    return OutputColumns(
        partial(column, directory, LENGTHS_NAME, "<i4"),
        partial(column, directory, COUNTS_NAME, "<i8"),
        partial(column, directory, MODES_NAME, "i1"),
    )


def stage_index(
    directory: str, inputs: Sequence[MergeInput], columns: OutputColumns, *, multimodal: bool
) -> FileRecord:
    """Write the index of the output into the work directory; return its record."""

    def write(file: DigestingWriter) -> None:
        write_index(
            file,
            dtype=inputs[0].header.dtype,
            sequence_count=sum(dataset.header.sequence_count for dataset in inputs),
            document_count=sum(dataset.header.document_count for dataset in inputs),
            lengths=columns.lengths,
            sequences_per_document=columns.sequences_per_document,
            modes=columns.modes if multimodal else None,
        )

    return stage_file(directory, 0, "idx", write)


@dataclass(frozen=True, slots=True)
class StagedOrder:
    """The records of ``order.bin`` and ``pieces.jsonl``, and the digests of the pieces."""

    order: FileRecord
    pieces: FileRecord
    digests: tuple[str, ...]


def stage_order(
    directory: str,
    inputs: Sequence[MergeInput],
    digests: Mapping[int, str],
    pieces: Sequence[PieceRecord] | None,
) -> StagedOrder | None:
    """Write the order of the documents and the pieces into the work directory.

    Args:
        directory: The work directory.
        inputs: The datasets.
        digests: The digest of each dataset without a manifest, by number.
        pieces: The pieces of a shuffled output, whose order is in the work directory; None without a shuffle.

    Returns:
        None if the documents are in the order of the units, and the units are the pieces.
    """
    if pieces is not None:
        path = os.path.join(directory, STAGED_ORDER_NAME)
        order = FileRecord(os.path.getsize(path), file_digest(path))
    elif any(dataset.is_shuffled for dataset in inputs):
        order = stage_chunks(directory, 0, ORDER_NAME, _order(inputs))
        pieces = [
            piece
            for number, dataset in enumerate(inputs)
            for piece in _pieces(dataset, digests.get(number, ""))
        ]
    else:
        return None
    listed = stage_chunks(directory, 0, PIECES_NAME, map(to_line, pieces))
    return StagedOrder(order, listed, tuple(piece.tokens_xxh3_128 for piece in pieces))


def _order(inputs: Sequence[MergeInput]) -> Iterator[memoryview]:
    base = 0
    for dataset in inputs:
        count = dataset.header.document_count
        path = file_of(dataset.prefix, ORDER_NAME)
        numbers = FileColumn(InputFile(path), "<i8", count, 0) if dataset.is_shuffled else None
        for first in range(0, count, CHUNK_ENTRIES):
            stop = min(first + CHUNK_ENTRIES, count)
            piece = np.arange(first, stop) if numbers is None else numbers[first:stop]
            yield (piece + base).astype("<i8").data.cast("B")
        base += count


def _pieces(dataset: MergeInput, digest: str) -> Iterator[PieceRecord]:
    if dataset.manifest is not None:
        yield from read_pieces(dataset.prefix, dataset.manifest)
        return
    header = dataset.header
    yield PieceRecord(header.document_count, header.sequence_count, dataset.record.tokens, digest)
