"""What a tokenize run stages: from a finished assembly to index, sidecars and manifest of each field."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from tokshard.core.tool import Tool
from tokshard.dataset.manifest import (
    PROVENANCE_NAME,
    REJECTED_NAME,
    UNITS_NAME,
    DatasetFiles,
    DatasetRecord,
    EncoderRecord,
    InputRecord,
    Manifest,
    RecordCounts,
    TokenFileRecord,
)
from tokshard.dataset.plan import BuildPlan, TextInput, TokenizeParameters
from tokshard.dataset.publication import (
    DigestingWriter,
    file_chunks,
    stage_chunks,
    stage_file,
    stage_manifest,
)
from tokshard.dataset.records import UnitRecord, to_line
from tokshard.storage.digest import FileRecord, piecewise_digest
from tokshard.tokenization.assembly import Assembly
from tokshard.tokenization.part import UnitCounts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def stage(
    directory: str, assembly: Assembly, plan: BuildPlan, parameters: TokenizeParameters
) -> list[Manifest]:
    """Write every output's files into the work directory; return the manifests.

    Args:
        directory: The work directory.
        assembly: The assembly, with all units in it.
        plan: The plan of the run.
        parameters: Its options.
    """
    assembly.complete()
    inputs = _input_records(assembly, plan)
    encoder = _encoder_record(assembly)
    rejected_path = os.path.join(directory, "rejected.jsonl")
    manifests = []
    for k, field in enumerate(parameters.fields):
        provenance: FileRecord | None = None
        rejected: FileRecord | None = None
        if parameters.provenance:
            chunks = file_chunks(os.path.join(directory, "offsets"))
            provenance = stage_chunks(directory, k, PROVENANCE_NAME, chunks)
        if os.path.getsize(rejected_path):
            rejected = stage_chunks(directory, k, REJECTED_NAME, file_chunks(rejected_path))
        files = DatasetFiles(
            bin=TokenFileRecord(
                os.stat(os.path.join(directory, f"{k}.bin")).st_size,
                piecewise_digest(unit.tokens_xxh3_128[k] for unit in assembly.units()),
            ),
            idx=_stage_index(directory, k, assembly.counts, parameters.dtype),
            units=stage_chunks(directory, k, UNITS_NAME, _unit_lines(assembly, k)),
            provenance=provenance,
            rejected=rejected,
        )
        manifest = Manifest(
            tool=Tool(),
            fingerprint=plan.fingerprint,
            dataset=_dataset_record(assembly, k, field, parameters),
            files=files,
            tokenizer=plan.tokenizer,
            options=plan.options,
            encoder=encoder,
            inputs=inputs,
            counts=_record_counts(assembly.counts),
        )
        stage_manifest(directory, k, manifest)
        manifests.append(manifest)
    return manifests


def _dataset_record(assembly: Assembly, k: int, field: str, parameters: TokenizeParameters) -> DatasetRecord:
    return DatasetRecord(
        dtype=parameters.dtype,
        multimodal=False,
        field=field,
        units=sum(1 for _ in assembly.units()),
        documents=assembly.counts.documents,
        **asdict(assembly.counts.fields[k]),
    )


def _record_counts(counts: UnitCounts) -> RecordCounts:
    return RecordCounts(
        records=counts.records,
        documents=counts.documents,
        lines=counts.lines,
        blank_lines=counts.blank_lines,
        content_bytes=counts.content_bytes,
        rejected=counts.rejected,
    )


def _input_records(assembly: Assembly, plan: BuildPlan) -> tuple[InputRecord, ...]:
    """Return each input of the plan with what was found in it."""
    sources = [source for source in plan.inputs if isinstance(source, TextInput)]
    counts = [UnitCounts()] * len(sources)
    digests: list[list[str]] = [[] for _ in sources]
    for unit in assembly.units():
        header = unit.header
        counts[header.file] += replace(header.counts, fields=())
        digests[header.file].append(header.content_xxh3_128)
    return tuple(
        InputRecord(
            **asdict(source),
            content_bytes=found.content_bytes,
            pieces_xxh3_128=piecewise_digest(pieces),
            records=found.records,
            documents=found.documents,
            rejected=found.rejected_total,
            blank_lines=found.blank_lines,
        )
        for source, found, pieces in zip(sources, counts, digests, strict=True)
    )


def _encoder_record(assembly: Assembly) -> EncoderRecord:
    documents: dict[str, int] = {}
    for unit in assembly.units():
        made = unit.header.counts.documents
        documents[unit.header.encoder] = documents.get(unit.header.encoder, 0) + made
    return EncoderRecord(documents, assembly.counts.compared)


def _unit_lines(assembly: Assembly, k: int) -> Iterator[bytes]:
    """Yield the lines of an output's units.jsonl: the journal's, for one field."""
    for unit in assembly.units():
        header = unit.header
        counts = header.counts
        record = UnitRecord(
            input=header.file,
            unit=header.unit,
            content_bytes=counts.content_bytes,
            content_xxh3_128=header.content_xxh3_128,
            lines=counts.lines,
            documents=counts.documents,
            rejected=counts.rejected_total,
            sequences=counts.fields[k].sequences,
            tokens=counts.fields[k].tokens,
            tokens_xxh3_128=unit.tokens_xxh3_128[k],
            encoder=header.encoder,
        )
        yield to_line(record)


def _stage_index(directory: str, k: int, counts: UnitCounts, dtype: str) -> FileRecord:
    from tokshard.dataset.writer import write_index

    def write(file: DigestingWriter) -> None:
        write_index(
            file,
            dtype=dtype,
            sequence_count=counts.fields[k].sequences,
            document_count=counts.documents,
            lengths=_column(os.path.join(directory, f"{k}.lengths"), "<i4"),
            sequences_per_document=_column(os.path.join(directory, f"{k}.sequences"), "<u4"),
        )

    return stage_file(directory, k, "idx", write)


def _column(path: str, dtype: str) -> Callable[[], Iterator[NDArray[np.generic]]]:
    """Return a function that reads a file of numbers in pieces, as often as it is called."""
    import numpy as np

    def pieces() -> Iterator[NDArray[np.generic]]:
        for chunk in file_chunks(path):
            yield np.frombuffer(chunk, dtype)

    return pieces
