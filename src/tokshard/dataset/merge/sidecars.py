"""What a merge stages beside the tokens: the index, the sidecar files and the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import xxhash

from tokshard.core.codec import encode
from tokshard.core.strict_json import MAX_JSON_BYTES, dump_json
from tokshard.core.tool import Tool
from tokshard.dataset.manifest import (
    INDEXED,
    PROVENANCE_NAME,
    REJECTED_NAME,
    UNITS_NAME,
    UNKNOWN_ENCODER,
    DatasetFiles,
    DatasetRecord,
    EncoderRecord,
    FileName,
    InputRecord,
    Manifest,
    RecordCounts,
    TokenFileRecord,
    file_of,
)
from tokshard.dataset.merge.inputs import MergeInput
from tokshard.dataset.merge.plan import common
from tokshard.dataset.plan import BuildPlan
from tokshard.dataset.publication import (
    DigestingWriter,
    file_chunks,
    stage_chunks,
    stage_file,
    stage_manifest,
)
from tokshard.dataset.records import UnitRecord, read_records, to_line
from tokshard.dataset.writer import write_index
from tokshard.errors import InputError, IntegrityError
from tokshard.storage.digest import FileRecord, file_digest, piecewise_digest
from tokshard.storage.paths import bin_path

if TYPE_CHECKING:
    from numpy.typing import NDArray


def stage(
    directory: str,
    inputs: Sequence[MergeInput],
    digests: Mapping[int, str],
    plan: BuildPlan,
    *,
    multimodal: bool,
) -> list[Manifest]:
    """Write everything but the tokens into the work directory; return the manifest in a list.

    Args:
        directory: The work directory.
        inputs: The inputs.
        digests: The XXH3-128 of the ``.bin`` of each input without a manifest, by its number.
        plan: The plan of the run.
        multimodal: Whether the inputs have modes.

    Raises:
        IntegrityError: A sidecar file of an input is not what its manifest says.
    """
    pieces: list[str] = []
    index = _stage_index(directory, inputs, multimodal=multimodal)
    units = stage_chunks(directory, 0, UNITS_NAME, _unit_lines(inputs, digests, pieces))
    provenance: FileRecord | None = None
    rejected: FileRecord | None = None
    if all(one.has_provenance for one in inputs):
        provenance = stage_chunks(directory, 0, PROVENANCE_NAME, _concatenated(inputs, PROVENANCE_NAME))
    if any(one.manifest and one.manifest.files.rejected for one in inputs):
        rejected = stage_chunks(directory, 0, REJECTED_NAME, _concatenated(inputs, REJECTED_NAME))
    tokens = TokenFileRecord(sum(one.bin_bytes for one in inputs), piecewise_digest(pieces))
    manifest = Manifest(
        tool=Tool(),
        fingerprint=plan.fingerprint,
        dataset=_dataset_record(inputs, len(pieces), multimodal=multimodal),
        files=DatasetFiles(tokens, index, units, provenance, rejected),
        tokenizer=plan.tokenizer,
        options=plan.options,
        encoder=_encoder_record(inputs),
        inputs=input_records(inputs, digests),
        counts=_counts(inputs),
    )
    stage_manifest(directory, 0, manifest)
    return [manifest]


def input_records(inputs: Sequence[MergeInput], digests: Mapping[int, str]) -> tuple[InputRecord, ...]:
    """Return the inputs of all inputs; one without a manifest is an input itself."""
    records: list[InputRecord] = []
    for number, one in enumerate(inputs):
        if one.manifest is not None:
            records += one.manifest.inputs
        else:
            records.append(_foreign_record(one, digests.get(number, "0" * 32)))
    return tuple(records)


def check_manifest_size(inputs: Sequence[MergeInput]) -> None:
    """Check that the list of the inputs' inputs can be written so that it can be read again.

    Raises:
        InputError: There are too many.
    """
    size = len(dump_json([encode(record) for record in input_records(inputs, {})]))
    if size > MAX_JSON_BYTES // 2:
        raise InputError(
            f"the manifest would need {size} bytes to list the inputs of all {len(inputs)} datasets, "
            f"more than {MAX_JSON_BYTES // 2}",
            hint="merge them into several datasets, and blend these",
        )


def _stage_index(directory: str, inputs: Sequence[MergeInput], *, multimodal: bool) -> FileRecord:
    """Write the index from those of the inputs, of which one is open at a time."""

    def lengths() -> Iterator[NDArray[Any]]:
        for one in inputs:
            yield from one.columns(multimodal=multimodal).sequence_lengths.pieces()

    def sequences_per_document() -> Iterator[NDArray[Any]]:
        for one in inputs:
            yield from one.columns(multimodal=multimodal).sequences_per_document()

    def modes() -> Iterator[NDArray[Any]]:
        for one in inputs:
            yield from one.columns(multimodal=multimodal).sequence_modes.pieces()

    def write(file: DigestingWriter) -> None:
        write_index(
            file,
            dtype=inputs[0].header.dtype,
            sequence_count=sum(one.header.sequence_count for one in inputs),
            document_count=sum(one.header.document_count for one in inputs),
            lengths=lengths,
            sequences_per_document=sequences_per_document,
            modes=modes if multimodal else None,
        )

    return stage_file(directory, 0, "idx", write)


def _unit_lines(
    inputs: Sequence[MergeInput], digests: Mapping[int, str], pieces: list[str]
) -> Iterator[bytes]:
    """Yield the units of all inputs with the new numbers of their inputs; collect the digests of pieces."""
    first_input = 0
    for number, one in enumerate(inputs):
        before = len(pieces)
        for unit in _units(one, digests.get(number, "")):
            pieces.append(unit.tokens_xxh3_128)
            yield to_line(replace(unit, input=first_input + unit.input))
        if one.manifest is not None:
            _check_pieces(one, one.manifest, pieces[before:])
        first_input += len(one.manifest.inputs) if one.manifest else 1


def _units(one: MergeInput, digest: str) -> Iterator[UnitRecord]:
    if one.manifest is None:
        yield UnitRecord(
            input=0,
            unit=0,
            content_bytes=one.bin_bytes,
            content_xxh3_128=digest,
            lines=0,
            documents=one.header.document_count,
            rejected=0,
            sequences=one.header.sequence_count,
            tokens=one.tokens,
            tokens_xxh3_128=digest,
            encoder=UNKNOWN_ENCODER,
        )
        return
    path = file_of(one.prefix, UNITS_NAME)
    if file_digest(path) != one.manifest.files.units.xxh3_128:
        raise _damaged(one, UNITS_NAME)
    yield from read_records(UnitRecord, path)


def _check_pieces(one: MergeInput, manifest: Manifest, pieces: Sequence[str]) -> None:
    if piecewise_digest(pieces) != manifest.files.bin.pieces_xxh3_128:
        raise IntegrityError(
            f"{one.prefix}: the digests in {UNITS_NAME} do not make the one in the manifest", path=one.prefix
        )


def _concatenated(inputs: Sequence[MergeInput], name: FileName) -> Iterator[bytes]:
    """Yield a sidecar file of all inputs that have it, each held against its digest."""
    for one in inputs:
        record = one.manifest.files.digested().get(name) if one.manifest else None
        if record is None:
            continue
        state = xxhash.xxh3_128()
        for chunk in file_chunks(file_of(one.prefix, name)):
            state.update(chunk)
            yield chunk
        if state.hexdigest() != record.xxh3_128:
            raise _damaged(one, name)


def _damaged(one: MergeInput, name: str) -> IntegrityError:
    path = file_of(one.prefix, name)
    return IntegrityError(
        f"{path} is not what was written: its digest is not the one in the manifest",
        path=path,
        hint="copy it again from its source, or make the dataset again",
    )


def _dataset_record(inputs: Sequence[MergeInput], units: int, *, multimodal: bool) -> DatasetRecord:
    counts = [one.counts for one in inputs]
    totals = {name: sum(count[name] for count in counts) for name in counts[0]}
    return DatasetRecord(
        dtype=inputs[0].header.dtype.name,
        multimodal=multimodal,
        field=common([one.manifest.dataset.field if one.manifest else None for one in inputs]),
        units=units,
        **{**totals, "longest_sequence": max(count["longest_sequence"] for count in counts)},
        eod_in_text=sum(one.manifest.dataset.eod_in_text for one in inputs if one.manifest),
    )


def _foreign_record(one: MergeInput, digest: str) -> InputRecord:
    documents = one.header.document_count
    return InputRecord(
        path=bin_path(one.prefix),
        size_bytes=one.bin_bytes,
        mtime_ns=one.source.bin_mtime_ns,
        format=INDEXED,
        compression="none",
        version=None,
        content_bytes=one.bin_bytes,
        pieces_xxh3_128=piecewise_digest([digest]),
        records=documents,
        documents=documents,
        rejected=0,
        blank_lines=0,
    )


def _encoder_record(inputs: Sequence[MergeInput]) -> EncoderRecord:
    documents: Counter[str] = Counter()
    compared = 0
    for one in inputs:
        if one.manifest is None:
            documents[UNKNOWN_ENCODER] += one.header.document_count
        else:
            documents.update(one.manifest.encoder.documents)
            compared += one.manifest.encoder.compared
    return EncoderRecord(dict(documents), compared)


def _counts(inputs: Sequence[MergeInput]) -> RecordCounts:
    rejected: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for one in inputs:
        documents = one.header.document_count
        counts = (
            one.manifest.counts
            if one.manifest
            else RecordCounts(documents, documents, 0, 0, one.bin_bytes, {})
        )
        rejected.update(counts.rejected)
        for name in ("records", "documents", "lines", "blank_lines", "content_bytes"):
            total[name] += getattr(counts, name)
    return RecordCounts(**total, rejected=dict(rejected))
