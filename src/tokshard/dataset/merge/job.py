"""The merge job: from checked inputs to a published dataset."""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from tokshard.core.codec import TOOL, Count, Record, encode
from tokshard.core.formatting import counted, listed, size, throughput
from tokshard.core.json_text import MAX_JSON_BYTES, dump_json
from tokshard.core.presentation import Section, outcome, planned
from tokshard.core.progress import Progress, ProgressUpdate, reporting
from tokshard.dataset.concatenate import TEXT_STREAMS, Concatenation, StreamName, stage_manifest
from tokshard.dataset.counts import NO_COUNTS, Counts
from tokshard.dataset.manifest import ORDER_NAME, PIECES_NAME, PROVENANCE_NAME, DatasetRecord, Manifest
from tokshard.dataset.merge.inputs import MergeInput, check_together, expand, named_twice, read_input
from tokshard.dataset.merge.options import MergeOptions
from tokshard.dataset.merge.piece import (
    DOCUMENT_STREAMS,
    UNKNOWN_DIGEST,
    dataset_pieces,
    original_inputs,
)
from tokshard.dataset.merge.shuffle import ShuffledDocuments, ShuffleSizes, shuffle_sizes
from tokshard.dataset.outputs import BuildAction, Outputs
from tokshard.dataset.parameters import Build, DocumentShuffle, MergeParameters
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer
from tokshard.dataset.report import BuildReport, DatasetProduct
from tokshard.dataset.token_ids import check_token_ids
from tokshard.dataset.tokenizer_agreement import TokenizerAgreement, agree, shared_identity
from tokshard.dataset.tokenizer_identity import tokenizer_name
from tokshard.errors import InputError, StorageError
from tokshard.storage.digest import UNSEALED, sealed
from tokshard.storage.fs import free_bytes, refuse_remote
from tokshard.storage.lock import lock_mode

T = TypeVar("T")

_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class MergedDataset(Record):
    """An input of a merge."""

    path: str
    counts: Counts

    def __str__(self) -> str:
        documents = self.counts.documents
        tokens = self.counts.tokens
        return f"{self.path} ({counted(documents, 'document')}, {counted(tokens, 'token')})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport(BuildReport):
    """The dataset that :func:`tokshard.merge` wrote, found up to date, or would write."""

    SCHEMA = "tokshard.merge/2"

    output: DatasetProduct
    options: MergeParameters
    inputs: tuple[MergedDataset, ...] | None = None
    shuffle_sizes: ShuffleSizes | None = None
    free_bytes: Count | None = None

    def sections(self) -> list[Section]:
        """Return what was done, or would be done, for people."""
        output, shuffle = self.output, self.options.shuffle
        order = f"shuffled with seed {shuffle.seed}" if shuffle else ""
        if self.action == "planned" and output.dataset is not None:
            inputs = self.inputs or ()
            dtype = output.dataset.dtype
            size_bytes = output.tokens * np.dtype(dtype).itemsize
            facts = [
                ("inputs", f"{len(inputs)}, {size(size_bytes)} of {dtype} tokens"),
                ("output", f"{output.path_prefix} ({self.state})"),
                ("tokenizer", tokenizer_name(output.tokenizer)),
                ("order", shuffle and f"{order} ({shuffle.ALGORITHM})"),
                *(self.shuffle_sizes.facts(self.free_bytes) if self.shuffle_sizes else ()),
            ]
            return [planned(facts, [str(dataset) for dataset in inputs])]
        speed = throughput(self.seconds, output.size_bytes, output.tokens, " written")
        time_text = f"{counted(len(self.options.inputs), 'dataset')} in {speed}"
        flag = " --multimodal" if self.options.multimodal else ""
        next_step = f"tokshard inspect {shlex.quote(output.path_prefix)}{flag}"
        return [outcome(self.action, [output.describe()], [("order", order)], time_text, [next_step])]


def merge(options: MergeOptions, *, dry_run: bool = False, progress: Progress | None = None) -> MergeReport:
    """Concatenate datasets as Megatron's ``IndexedDatasetBuilder.add_index`` does, or shuffle them.

    The bytes of ``OUTPUT.bin`` and ``OUTPUT.idx`` are identical to Megatron's for the same inputs in the
    same order. With ``shuffle``, the documents of all inputs are in a random order, which depends only on the
    seed and the number of documents. All inputs are checked before anything is written. Memory does not
    depend on the size of the inputs. Digests, counts and provenance are merged into ``OUTPUT.tokshard/``.

    Args:
        options: The inputs, the output and the options.
        dry_run: Check the inputs and the sizes, but write nothing.
        progress: Receives the progress.

    Raises:
        UsageError: The output is among the inputs.
        InputError: An input is missing, or the inputs cannot be merged.
        IntegrityError: An input is damaged or truncated.
        TokenizerMismatchError: The inputs were encoded with different tokenizers or EOD tokens, and
            ``allow_tokenizer_mismatch`` is not set.
        OutputExistsError: The output exists and ``force`` is not set.
        LockedError: Another process is writing this output.
        StorageError: A read or write failed.

    Example:
        >>> report = merge(MergeOptions(inputs=["out/a", "out/b"], output="out/ab"))  # doctest: +SKIP
        >>> report.output.counts.documents  # doctest: +SKIP
        790
    """
    started = time.monotonic()
    with lock_mode(options.lock), reporting(progress) as listener:
        listener.start("reading indexes")
        job = _prepare(options)
        if dry_run:
            return _report(job, _planned(job), "planned", started)
        manifests, action = job.outputs.stage_and_publish(partial(_stage, job, listener))
        return _report(job, DatasetProduct.of(options.output_prefix, manifests[0]), action, started)


@dataclass(frozen=True, slots=True)
class _Job:
    options: MergeOptions
    inputs: tuple[MergeInput, ...]
    parameters: MergeParameters
    outputs: Outputs
    agreement: TokenizerAgreement
    sizes: ShuffleSizes | None
    warnings: tuple[str, ...]

    @property
    def record(self) -> DatasetRecord:
        """The properties of the merged dataset."""
        records = [dataset.record for dataset in self.inputs]
        return DatasetRecord(
            dtype=records[0].dtype,
            multimodal=self.options.multimodal,
            field=_common([record.field for record in records]),
            units=sum(record.units for record in records),
            split=_common([record.split for record in records]),
        )


def _prepare(options: MergeOptions) -> _Job:
    prefix = options.output_prefix
    prefixes = expand(options.input_names, prefix)
    for name in prefixes:
        refuse_remote(name, "merge requires local datasets")
    inputs = tuple(read_input(name, multimodal=options.multimodal) for name in prefixes)
    check_together(inputs)
    check_token_ids({dataset.prefix: dataset.tokenizer for dataset in inputs})
    _check_manifest_size(inputs)
    agreement = agree([(dataset.prefix, dataset.tokenizer) for dataset in inputs])
    agreement.require(allowed=options.allow_tokenizer_mismatch)
    is_one = not agreement.to_record and not agreement.unchecked
    parameters = _parameters(inputs, options)
    build = Build(
        inputs=tuple(state for dataset in inputs for state in dataset.states),
        tokenizer=shared_identity([dataset.tokenizer for dataset in inputs]) if is_one else None,
        options=parameters,
    )
    return _Job(
        options=options,
        inputs=inputs,
        parameters=parameters,
        outputs=Outputs(build, (prefix,), options.force),
        agreement=agreement,
        sizes=None if options.shuffle is None else shuffle_sizes(inputs, options.shuffle_memory_bytes),
        warnings=_warnings(inputs, agreement),
    )


def _parameters(inputs: Sequence[MergeInput], options: MergeOptions) -> MergeParameters:
    recorded = [dataset.manifest.options if dataset.manifest else None for dataset in inputs]
    # Where only some inputs end documents with EOD, theirs is the EOD token of the output.
    ending = [made_with for made_with in recorded if not made_with or made_with.append_eod is not False]
    return MergeParameters(
        inputs=tuple(dataset.prefix for dataset in inputs),
        multimodal=options.multimodal,
        eod_id=_common([made_with.eod_id if made_with else None for made_with in ending or recorded]),
        append_eod=_common([made_with.append_eod if made_with else None for made_with in recorded]),
        shuffle=None if options.shuffle is None else DocumentShuffle(options.shuffle),
    )


def _check_manifest_size(inputs: Sequence[MergeInput]) -> None:
    records = [record for dataset in inputs for record in original_inputs(dataset, UNKNOWN_DIGEST)]
    size_bytes = len(dump_json(list(map(encode, records))))
    if size_bytes > MAX_JSON_BYTES // 2:
        raise InputError(
            f"the manifest must be at most {MAX_JSON_BYTES // 2:,} bytes, but {len(inputs):,} "
            f"datasets need {size_bytes:,} to list their inputs",
            hint="merge them into several datasets, and blend these",
        )


def _stage(job: _Job, progress: Progress, directory: str) -> Manifest:
    total = sum(data.bin_bytes for data in job.inputs)
    itemsize = job.inputs[0].header.dtype.itemsize
    shuffled = _scattered(job, progress, directory)
    streams = _streams(job)
    with Concatenation(directory, streams) as output:

        def tell(size_bytes: int) -> None:
            documents = output.counts.documents
            tokens = size_bytes // itemsize
            progress.update(ProgressUpdate(size_bytes, documents, tokens, content=" written"))

        progress.start("shuffling" if shuffled else "merging", total)
        if shuffled:
            output.append(shuffled, tell)
            streams = tuple(name for name in streams if name not in DOCUMENT_STREAMS)
        pieces = dataset_pieces(job.inputs, streams)
        for piece in pieces:
            output.append(piece, tell)
        progress.start("writing the index")
        files = output.finish(dtype=job.record.dtype, multimodal=job.options.multimodal)
    build = job.outputs.build
    manifests = [data.manifest for data in job.inputs if data.manifest]
    tokenizers = tuple(dict.fromkeys(part for data in job.inputs for part in data.tokenizer.parts))
    # All inputs have the same tokenizer, but may have found it under different paths.
    tokenizer_paths = (made.tokenizer_path for made in manifests if made.tokenizer_path)
    hub_datasets = tuple(dict.fromkeys(hub for made in manifests for hub in made.hub_datasets or ()))
    manifest = sealed(
        Manifest(
            tool=TOOL,
            fingerprint=build.fingerprint,
            dataset=job.record,
            counts=output.counts,
            files=files,
            tokenizer=build.tokenizer,
            options=job.parameters,
            inputs=tuple(record for piece in pieces for record in piece.inputs),
            tokenizer_path=next(tokenizer_paths, None) if build.tokenizer is not None else None,
            tokenizer_mismatches=job.agreement.to_record or None,
            merged_tokenizers=tokenizers if tokenizers != (DatasetTokenizer(),) else None,
            hub_datasets=hub_datasets or None,
            seal=UNSEALED,
        )
    )
    stage_manifest(directory, manifest)
    for dataset in job.inputs:
        dataset.check_unchanged()
    return manifest


def _streams(job: _Job) -> tuple[StreamName, ...]:
    streams = list(TEXT_STREAMS)
    if job.options.multimodal:
        streams.append("modes")
    if all(dataset.has_provenance for dataset in job.inputs):
        streams.append(PROVENANCE_NAME)
    if job.parameters.shuffle or any(dataset.is_shuffled for dataset in job.inputs):
        streams += [ORDER_NAME, PIECES_NAME]
    return tuple(streams)


def _scattered(job: _Job, progress: Progress, directory: str) -> ShuffledDocuments | None:
    """Return the documents of a shuffle, of two passes after the first one, or None without a shuffle."""
    sizes = job.sizes
    shuffle = job.parameters.shuffle
    if sizes is None or shuffle is None:
        return None
    free = free_bytes(directory)
    if free is not None and sizes.disk_bytes > free:
        error = OSError(errno.ENOSPC, f"{size(sizes.disk_bytes)} required, {size(free)} free")
        raise StorageError("write", job.options.output_prefix, error)
    documents = ShuffledDocuments(
        directory,
        job.inputs,
        shuffle,
        memory_bytes=sizes.memory_bytes if sizes.scratch_bytes else None,
        multimodal=job.options.multimodal,
    )
    if sizes.scratch_bytes:
        progress.start("distributing documents", sizes.scratch_bytes)
        documents.scatter(lambda size_bytes: progress.update(ProgressUpdate(size_bytes)))
    return documents


def _warnings(inputs: Sequence[MergeInput], agreement: TokenizerAgreement) -> tuple[str, ...]:
    found = []
    if twice := named_twice([dataset.prefix for dataset in inputs]):
        found.append(
            f"{listed(twice, _SHOWN_NAMES)}: passed twice, so their documents are in the output twice"
        )
    found += agreement.warnings
    without = [dataset.prefix for dataset in inputs if not dataset.has_provenance]
    if without and len(without) < len(inputs):
        found.append(f"{listed(without, _SHOWN_NAMES)}: no provenance, so the output has none")
    if not any(dataset.counts.tokens for dataset in inputs):
        found.append("no input has tokens: Megatron cannot train on the output")
    return tuple(found)


def _planned(job: _Job) -> DatasetProduct:
    return DatasetProduct(
        job.options.output_prefix,
        job.outputs.build.tokenizer,
        job.record,
        sum((dataset.counts for dataset in job.inputs), NO_COUNTS),
        tokenizer_mismatches=job.agreement.to_record or None,
    )


def _report(job: _Job, output: DatasetProduct, action: BuildAction, started: float) -> MergeReport:
    is_planned = action == "planned"
    inputs = tuple(MergedDataset(dataset.prefix, dataset.counts) for dataset in job.inputs)
    return MergeReport(
        action=action,
        state=job.outputs.state_of_new() if is_planned else None,
        output=output,
        options=job.parameters,
        inputs=inputs if is_planned else None,
        shuffle_sizes=job.sizes,
        free_bytes=free_bytes(os.path.dirname(output.path_prefix)) if is_planned and job.sizes else None,
        seconds=time.monotonic() - started,
        warnings=job.warnings,
    )


def _common(values: Iterable[T | None]) -> T | None:
    """Return the value shared by all inputs, or None if it is unknown or differs."""
    first, *others = dict.fromkeys(values)
    return None if others else first
