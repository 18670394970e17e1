"""The files of a converted dataset besides its tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tokshard.core.codec import TOOL
from tokshard.dataset import layout
from tokshard.dataset.index_file import FileColumn, write_index
from tokshard.dataset.manifest import (
    PROVENANCE_NAME,
    UNITS_NAME,
    UNKNOWN_ENCODER,
    DatasetFiles,
    DatasetRecord,
    EncoderRecord,
    InputRecord,
    Manifest,
    RecordCounts,
    TokenFileRecord,
)
from tokshard.dataset.parameters import BuildPlan, Compression, ConvertParameters, TokenFileInput
from tokshard.dataset.records import UnitRecord, to_line
from tokshard.dataset.source import InputFile
from tokshard.dataset.workdir import stage_chunks, stage_file, stage_manifest
from tokshard.exchange.conversion.conversion import LENGTHS_NAME, TOKENS_NAME, ConvertedUnit
from tokshard.exchange.conversion.files import TokenFile
from tokshard.storage import fs
from tokshard.storage.digest import UNSEALED, FileRecord, piecewise_digest, sealed
from tokshard.storage.files import DigestingWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray


def stage(
    directory: str,
    files: Sequence[TokenFile],
    entries: Sequence[ConvertedUnit],
    plan: BuildPlan,
    parameters: ConvertParameters,
    tokenizer_path: str | None,
) -> Manifest:
    """Write all files except the tokens into the work directory; return the manifest."""
    units = [entry.unit for entry in entries]
    index = _stage_index(directory, units, parameters)
    lines = stage_chunks(directory, 0, UNITS_NAME, map(to_line, units))
    provenance = stage_chunks(directory, 0, PROVENANCE_NAME, _rows(units))
    pieces = piecewise_digest(unit.tokens_xxh3_128 for unit in units)
    tokens = TokenFileRecord(fs.getsize(os.path.join(directory, TOKENS_NAME)), pieces)
    documents, sequences = _sum(units, "documents"), _sum(units, "sequences")
    eod_tokens, ended = (sum(getattr(entry, name) for entry in entries) for name in ("eod_tokens", "ended"))
    has_eod = None if parameters.eod_id is None or not sequences else ended == sequences
    manifest = sealed(
        Manifest(
            tool=TOOL,
            fingerprint=plan.fingerprint,
            dataset=DatasetRecord(
                dtype=parameters.dtype,
                multimodal=False,
                field=None,
                units=len(units),
                documents=documents,
                sequences=sequences,
                tokens=_sum(units, "tokens"),
                empty_documents=documents - sequences,
                longest_sequence=max((entry.longest for entry in entries), default=0),
                eod_in_text=eod_tokens - ended,
            ),
            files=DatasetFiles(tokens, index, lines, provenance),
            tokenizer=plan.tokenizer,
            options=replace(parameters, append_eod=has_eod),
            encoder=EncoderRecord({UNKNOWN_ENCODER: documents}, compared=0),
            inputs=tuple(_input_records(files, units, parameters)),
            counts=RecordCounts(
                records=documents,
                documents=documents,
                lines=documents,
                blank_lines=0,
                content_bytes=_sum(units, "content_bytes"),
                rejected={},
            ),
            tokenizer_path=tokenizer_path,
            seal=UNSEALED,
        )
    )
    stage_manifest(directory, 0, manifest)
    return manifest


def _sum(units: Sequence[UnitRecord], name: str) -> int:
    return sum(getattr(unit, name) for unit in units)


def _stage_index(directory: str, units: Sequence[UnitRecord], parameters: ConvertParameters) -> FileRecord:
    documents = _sum(units, "documents")
    column = FileColumn(InputFile(os.path.join(directory, LENGTHS_NAME)), "<i4", documents, 0)

    def lengths() -> Iterator[NDArray[np.int32]]:
        for piece in column.pieces():
            yield piece[piece > 0]

    def sequences_per_document() -> Iterator[NDArray[np.int8]]:
        for piece in column.pieces():
            yield (piece > 0).astype(np.int8)

    def write(file: DigestingWriter) -> None:
        write_index(
            file,
            dtype=np.dtype(parameters.dtype),
            sequence_count=_sum(units, "sequences"),
            document_count=documents,
            lengths=lengths,
            sequences_per_document=sequences_per_document,
        )

    return stage_file(directory, 0, "idx", write)


def _rows(units: Sequence[UnitRecord]) -> Iterator[memoryview]:
    # The number of each document in its file.
    row = 0
    for number, unit in enumerate(units):
        if number and units[number - 1].input != unit.input:
            row = 0
        for first in range(row, row + unit.documents, layout.CHUNK_ENTRIES):
            stop = min(first + layout.CHUNK_ENTRIES, row + unit.documents)
            yield np.arange(first, stop, dtype="<i8").data.cast("B")
        row += unit.documents


def _input_records(
    files: Sequence[TokenFile], units: Sequence[UnitRecord], parameters: ConvertParameters
) -> Iterator[InputRecord]:
    own: dict[int, list[UnitRecord]] = {}
    for unit in units:
        own.setdefault(unit.input, []).append(unit)
    states: list[tuple[TokenFileInput, Compression]] = []
    for file in files:
        states.append((file.state, "none"))
        if file.boundaries is not None:
            states.append((file.boundaries.state, file.boundaries.compression))
    for number, (state, compression) in enumerate(states):
        mine = own[number]
        documents = _sum(mine, "documents")
        yield InputRecord(
            path=state.path,
            size_bytes=state.size_bytes,
            mtime_ns=state.mtime_ns,
            format=parameters.format,
            compression=compression,
            version=None,
            content_bytes=_sum(mine, "content_bytes"),
            pieces_xxh3_128=piecewise_digest(unit.content_xxh3_128 for unit in mine),
            records=documents,
            documents=documents,
            rejected=0,
            blank_lines=0,
        )
