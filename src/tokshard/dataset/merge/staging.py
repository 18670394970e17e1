"""Staging of a merge: copies the tokens with checkpoints, then writes index, sidecar files and manifest.

The work directory holds the append-only ``0.bin`` and the journal ``merge.jsonl``. The journal has one line
for each finished input that had no digest. Tokens of inputs with a manifest never enter this process: the
kernel copies them, and the digests of their pieces are reused.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import xxhash

from tokshard.core.codec import TOOL, Count, Record, Xxh3, decode, encode
from tokshard.core.json_text import MAX_JSON_BYTES, dump_json
from tokshard.core.progress import Progress, ProgressUpdate
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
    UnrepresentedText,
    file_of,
)
from tokshard.dataset.merge.inputs import MergeInput, common
from tokshard.dataset.merge.output_columns import (
    input_columns,
    shuffled_columns,
    stage_index,
    stage_order,
)
from tokshard.dataset.merge.shuffled_output import TOKENS_NAME
from tokshard.dataset.parameters import BuildPlan, HubDatasetRecord
from tokshard.dataset.pieces import pieces_path, read_pieces
from tokshard.dataset.records import PieceRecord, UnitRecord, read_records, to_line
from tokshard.dataset.source import InputFile
from tokshard.dataset.tokenizer_agreement import DatasetTokenizer, TokenizerMismatch
from tokshard.dataset.workdir import (
    file_chunks,
    stage_chunks,
    stage_manifest,
)
from tokshard.errors import InputError, IntegrityError
from tokshard.storage.digest import READ_BYTES, UNSEALED, FileRecord, file_digest, piecewise_digest, sealed
from tokshard.storage.files import AppendFile
from tokshard.storage.journal import Journal, read_checkpoints
from tokshard.storage.paths import bin_path

JOURNAL_NAME = "merge.jsonl"

CHECKPOINT_BYTES = 1 << 30
COPY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class CopiedInput(Record):
    """Journal entry: an input without a manifest was copied."""

    input: Count
    xxh3_128: Xxh3


class TokenCopy:
    """The tokens copied so far.

    Attributes:
        resumed_bytes: The bytes copied by an earlier run.
        total_bytes: The bytes to copy.
        pieces: None: the units are the pieces of the output.
        digests: The XXH3-128 of the ``.bin`` of each finished input without a manifest, by input number.

    Raises:
        IntegrityError: The files are shorter than the journal says.
    """

    def __init__(self, directory: str, inputs: Sequence[MergeInput], progress: Progress) -> None:
        self._inputs = inputs
        self._progress = progress
        self.total_bytes = sum(dataset.bin_bytes for dataset in inputs)
        self.pieces = None
        self._documents = 0  # of finished inputs
        self.digests: dict[int, str] = {}
        journal_path = os.path.join(directory, JOURNAL_NAME)
        sizes: dict[str, int] = {}
        journal_bytes = 0
        for checkpoint in read_checkpoints(journal_path):
            copied = [decode(CopiedInput, entry, journal_path) for entry in checkpoint.entries]
            self.digests |= {entry.input: entry.xxh3_128 for entry in copied}
            sizes, journal_bytes = checkpoint.sizes, checkpoint.journal_bytes
        self.resumed_bytes = self._synced_bytes = sizes.get(TOKENS_NAME, 0)
        self._journal = Journal(journal_path, journal_bytes)
        try:
            self._tokens = AppendFile(os.path.join(directory, TOKENS_NAME), self.resumed_bytes)
        except BaseException:
            self._journal.close()
            raise

    def run(self) -> None:
        """Copy the missing tokens and fsync.

        Raises:
            IntegrityError: An input is too short.
            StorageError: An input cannot be read, or the output cannot be written. The tokens up to the
                last checkpoint are kept.
        """
        begin = 0
        for number, dataset in enumerate(self._inputs):
            done = min(dataset.bin_bytes, max(0, self._tokens.size_bytes - begin))
            if dataset.manifest is not None:
                if done < dataset.bin_bytes:
                    self._copy(dataset, done)
            elif number not in self.digests:
                self.digests[number] = self._copy_and_digest(dataset, done)
                self._journal.append(encode(CopiedInput(number, self.digests[number])))
            begin += dataset.bin_bytes
            self._documents += dataset.header.document_count
            self._tell()
        self._checkpoint()

    def close(self) -> None:
        """Close all files."""
        self._tokens.close()
        self._journal.close()

    def _copy(self, dataset: MergeInput, done: int) -> None:
        file = InputFile(bin_path(dataset.prefix))
        while done < dataset.bin_bytes:
            wanted = min(COPY_BYTES, CHECKPOINT_BYTES, dataset.bin_bytes - done)
            copied = self._tokens.copy(file.descriptor, done, wanted)
            done += copied
            if copied < wanted:
                raise IntegrityError(
                    f"{file.path} was truncated to {done} bytes (it had {dataset.bin_bytes} when checked)",
                    path=file.path,
                    offset=done,
                    hint="copy both files of the dataset again, or rebuild it",
                )
            self._after_block()

    def _copy_and_digest(self, dataset: MergeInput, done: int) -> str:
        file = InputFile(bin_path(dataset.prefix))
        state = xxhash.xxh3_128()
        buffer = memoryview(bytearray(min(READ_BYTES, CHECKPOINT_BYTES, dataset.bin_bytes)))
        position = 0
        while position < dataset.bin_bytes:
            # Tokens copied by an earlier run are read again only for the digest.
            end = done if position < done else dataset.bin_bytes
            block = buffer[: min(len(buffer), end - position)]
            file.read_into(block, position)
            state.update(block)
            if position >= done:
                self._tokens.write(block)
                self._after_block()
            position += len(block)
        return state.hexdigest()

    def _after_block(self) -> None:
        if self._tokens.size_bytes - self._synced_bytes >= CHECKPOINT_BYTES:
            self._checkpoint()
        self._tell()

    def _checkpoint(self) -> None:
        self._journal.checkpoint({TOKENS_NAME: self._tokens})
        self._synced_bytes = self._tokens.size_bytes

    def _tell(self) -> None:
        size = self._tokens.size_bytes
        itemsize = self._inputs[0].header.dtype.itemsize
        self._progress.update(ProgressUpdate(size, self._documents, size // itemsize))


def stage(
    directory: str,
    inputs: Sequence[MergeInput],
    digests: Mapping[int, str],
    plan: BuildPlan,
    *,
    multimodal: bool,
    mismatches: tuple[TokenizerMismatch, ...],
    tokenizers: tuple[DatasetTokenizer, ...],
    pieces: Sequence[PieceRecord] | None = None,
) -> Manifest:
    """Write all files except the tokens into the work directory; return the manifest.

    ``mismatches`` are those of the inputs' tokenizers that were allowed, ``tokenizers`` the different ones.
    ``pieces`` are those of a shuffled output, whose columns and order are in the work directory.

    Raises:
        IntegrityError: A sidecar file of an input contradicts its manifest.
    """
    unit_digests: list[str] = []
    columns = input_columns(inputs, multimodal=multimodal) if pieces is None else shuffled_columns(directory)
    index = stage_index(directory, inputs, columns, multimodal=multimodal)
    units = stage_chunks(directory, 0, UNITS_NAME, _unit_lines(inputs, digests, unit_digests))
    provenance: FileRecord | None = None
    rejected: FileRecord | None = None
    if all(dataset.has_provenance for dataset in inputs):
        provenance = stage_chunks(directory, 0, PROVENANCE_NAME, _concatenated(inputs, PROVENANCE_NAME))
    if any(dataset.manifest and dataset.manifest.files.rejected for dataset in inputs):
        rejected = stage_chunks(directory, 0, REJECTED_NAME, _concatenated(inputs, REJECTED_NAME))
    order = stage_order(directory, inputs, digests, pieces)
    tokens = TokenFileRecord(
        sum(dataset.bin_bytes for dataset in inputs),
        piecewise_digest(order.digests if order else unit_digests),
    )
    manifest = sealed(
        Manifest(
            tool=TOOL,
            fingerprint=plan.fingerprint,
            dataset=dataset_record(inputs, multimodal=multimodal),
            files=DatasetFiles(
                tokens,
                index,
                units,
                provenance,
                rejected,
                order=order.order if order else None,
                pieces=order.pieces if order else None,
            ),
            tokenizer=plan.tokenizer,
            options=plan.options,
            encoder=_encoder_record(inputs),
            inputs=input_records(inputs, digests),
            counts=_counts(inputs),
            tokenizer_path=_tokenizer_path(inputs) if plan.tokenizer is not None else None,
            tokenizer_mismatches=mismatches or None,
            merged_tokenizers=tokenizers if tokenizers != (DatasetTokenizer(),) else None,
            hub_datasets=_hub_datasets(inputs),
            seal=UNSEALED,
        )
    )
    stage_manifest(directory, 0, manifest)
    return manifest


def _tokenizer_path(inputs: Sequence[MergeInput]) -> str | None:
    # They have one tokenizer, wherever each found it.
    paths = (dataset.manifest.tokenizer_path for dataset in inputs if dataset.manifest is not None)
    return next(filter(None, paths), None)


def _hub_datasets(inputs: Sequence[MergeInput]) -> tuple[HubDatasetRecord, ...] | None:
    manifests = (dataset.manifest for dataset in inputs if dataset.manifest is not None)
    found = (record for manifest in manifests for record in manifest.hub_datasets or ())
    return tuple(dict.fromkeys(found)) or None


def input_records(inputs: Sequence[MergeInput], digests: Mapping[int, str]) -> tuple[InputRecord, ...]:
    """Return the original inputs of all datasets; a dataset without a manifest is an input itself."""
    records: list[InputRecord] = []
    for number, dataset in enumerate(inputs):
        if dataset.manifest is not None:
            records += dataset.manifest.inputs
        else:
            records.append(_foreign_record(dataset, digests.get(number, "0" * 32)))
    return tuple(records)


def check_manifest_size(inputs: Sequence[MergeInput]) -> None:
    """Raise InputError if the manifest would be too large to be read."""
    size = len(dump_json([encode(record) for record in input_records(inputs, {})]))
    if size > MAX_JSON_BYTES // 2:
        raise InputError(
            f"the manifest must be at most {MAX_JSON_BYTES // 2:,} bytes, but {len(inputs):,} "
            f"datasets need {size:,} to list their inputs",
            hint="merge them into several datasets, and blend these",
        )


def _unit_lines(
    inputs: Sequence[MergeInput], digests: Mapping[int, str], found: list[str]
) -> Iterator[bytes]:
    first_input = 0
    for number, dataset in enumerate(inputs):
        before = len(found)
        for unit in _units(dataset, digests.get(number, "")):
            found.append(unit.tokens_xxh3_128)
            yield to_line(replace(unit, input=first_input + unit.input))
        manifest = dataset.manifest
        if manifest is not None:
            pieces = found[before:]
            if manifest.files.pieces is not None:
                pieces = [piece.tokens_xxh3_128 for piece in read_pieces(dataset.prefix, manifest)]
            if piecewise_digest(pieces) != manifest.files.bin.pieces_xxh3_128:
                name = os.path.basename(pieces_path(dataset.prefix, manifest))
                raise IntegrityError(
                    f"{dataset.prefix}: the digests in {name} contradict the manifest", path=dataset.prefix
                )
        first_input += len(manifest.inputs) if manifest else 1


def _units(dataset: MergeInput, digest: str) -> Iterator[UnitRecord]:
    if dataset.manifest is None:
        yield UnitRecord(
            input=0,
            unit=0,
            content_bytes=dataset.bin_bytes,
            content_xxh3_128=digest,
            lines=0,
            documents=dataset.header.document_count,
            rejected=0,
            sequences=dataset.header.sequence_count,
            tokens=dataset.record.tokens,
            tokens_xxh3_128=digest,
            encoder=UNKNOWN_ENCODER,
        )
        return
    path = file_of(dataset.prefix, UNITS_NAME)
    if file_digest(path) != dataset.manifest.files.units.xxh3_128:
        raise _damaged(dataset, UNITS_NAME)
    yield from read_records(UnitRecord, path)


def _concatenated(inputs: Sequence[MergeInput], name: FileName) -> Iterator[bytes]:
    for dataset in inputs:
        record = dataset.manifest.files.digested().get(name) if dataset.manifest else None
        if record is None:
            continue
        state = xxhash.xxh3_128()
        for chunk in file_chunks(file_of(dataset.prefix, name)):
            state.update(chunk)
            yield chunk
        if state.hexdigest() != record.xxh3_128:
            raise _damaged(dataset, name)


def _damaged(dataset: MergeInput, name: str) -> IntegrityError:
    path = file_of(dataset.prefix, name)
    return IntegrityError(
        f"{path} is damaged: its digest differs from the manifest",
        path=path,
        hint="copy it again from its source, or rebuild the dataset",
    )


def dataset_record(inputs: Sequence[MergeInput], *, multimodal: bool) -> DatasetRecord:
    """Return the properties and counts of the merged dataset."""
    records = [dataset.record for dataset in inputs]
    return DatasetRecord(
        dtype=records[0].dtype,
        multimodal=multimodal,
        field=common([record.field for record in records]),
        units=sum(record.units for record in records),
        documents=sum(record.documents for record in records),
        sequences=sum(record.sequences for record in records),
        tokens=sum(record.tokens for record in records),
        empty_documents=sum(record.empty_documents for record in records),
        longest_sequence=max(record.longest_sequence for record in records),
        eod_in_text=sum(record.eod_in_text for record in records),
        split=common([record.split for record in records]),
        unrepresented=_unrepresented(records),
    )


def _unrepresented(records: Sequence[DatasetRecord]) -> UnrepresentedText | None:
    # Unknown unless every input with documents has a record with the same unit.
    total: UnrepresentedText | None = None
    for record in records:
        if not record.documents:
            continue
        of_input = record.unrepresented
        if of_input is None or (total is not None and of_input.unit != total.unit):
            return None
        total = of_input if total is None else total + of_input
    return total


def _foreign_record(dataset: MergeInput, digest: str) -> InputRecord:
    documents = dataset.header.document_count
    return InputRecord(
        path=bin_path(dataset.prefix),
        size_bytes=dataset.bin_bytes,
        mtime_ns=dataset.source.bin_mtime_ns,
        format=INDEXED,
        compression="none",
        version=None,
        content_bytes=dataset.bin_bytes,
        pieces_xxh3_128=piecewise_digest([digest]),
        records=documents,
        documents=documents,
        rejected=0,
        blank_lines=0,
    )


def _encoder_record(inputs: Sequence[MergeInput]) -> EncoderRecord:
    records = (
        EncoderRecord({UNKNOWN_ENCODER: dataset.header.document_count}, compared=0)
        if dataset.manifest is None
        else dataset.manifest.encoder
        for dataset in inputs
    )
    return reduce(add, records)


def _counts(inputs: Sequence[MergeInput]) -> RecordCounts:
    rejected: Counter[str] = Counter()
    excluded: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for dataset in inputs:
        documents = dataset.header.document_count
        counts = (
            dataset.manifest.counts
            if dataset.manifest
            else RecordCounts(documents, documents, 0, 0, dataset.bin_bytes, {})
        )
        rejected.update(counts.rejected)
        excluded.update(counts.excluded or {})
        for name in ("records", "documents", "lines", "blank_lines", "content_bytes"):
            total[name] += getattr(counts, name)
    return RecordCounts(**total, rejected=dict(rejected), excluded=dict(excluded) or None)
