"""Verification of a plan: its document, rank manifests, files and coverage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tokshard.checks.verify.context import VerifyContext, unreadable_found
from tokshard.checks.verify.report import ProductFindings, VerifiedProduct
from tokshard.checks.verify.tokenizers import examine_tokenizers
from tokshard.dataset.fingerprint import FileFingerprint
from tokshard.dataset.products import rank_name
from tokshard.errors import InputError, IntegrityError, MissingFileError, StorageError, TokshardError
from tokshard.ranks.history import reweighting_of, stops_of
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import Plan, Stream
from tokshard.ranks.ranks import check_ranks, read_rank
from tokshard.ranks.sources import CachedArrays, DatasetReference
from tokshard.ranks.summary import check_partition
from tokshard.samples.index.description import BlendedDescription
from tokshard.samples.index.entry import CacheEntry
from tokshard.storage.fs import state
from tokshard.storage.paths import bin_path, idx_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.ranks.order import KeyOf


_BLOCK = 1 << 18


PlanReading = tuple[tuple[int | str, ...] | None, Plan | TokshardError]
"""The state of the file of a plan, and the plan or the error of reading it after that."""


def verify_plan(path: str, reading: PlanReading, context: VerifyContext) -> VerifiedProduct:
    """Verify a plan with the manifests of all its ranks; the indexes it reads are separate products."""
    findings = ProductFindings("plan", path)
    _, plan = reading
    if isinstance(plan, Plan):
        directory = os.path.dirname(path)
        findings.counts["ranks"] = plan.topology.world_size
        for rank, error in check_ranks(plan, directory):
            _find_rank(os.path.join(directory, rank_name(rank)), error, findings)
    return _verified_reads(path, reading, findings, context)


def verify_rank(path: str, plan_path: str, reading: PlanReading, context: VerifyContext) -> VerifiedProduct:
    """Verify the manifest of one rank, and the files that its plan reads."""
    findings = ProductFindings("rank", path)
    _, plan = reading
    if isinstance(plan, Plan):
        try:
            read_rank(path)
        except TokshardError as error:
            _find_rank(path, error, findings)
    return _verified_reads(plan_path, reading, findings, context)


def _verified_reads(
    path: str, reading: PlanReading, findings: ProductFindings, context: VerifyContext
) -> VerifiedProduct:
    before, plan = reading
    if isinstance(plan, TokshardError):
        findings.find_error("plan-damaged", plan, path=path)
    else:
        _examine_reads(plan, findings, context)
    # When a plan is replaced, its document is removed first and written last.
    if state(path) != before:
        findings.find_changed()
    return findings.close()


def _find_rank(path: str, error: TokshardError, findings: ProductFindings) -> None:
    code = "plan-rank-missing" if isinstance(error, MissingFileError) else "plan-rank"
    findings.find_error(code, error, path=path)


def _examine_reads(plan: Plan, findings: ProductFindings, context: VerifyContext) -> None:
    for path, stamp in _stamped_files(plan):
        try:
            stamp.check(path)
        except MissingFileError as error:
            findings.find_error("plan-file-missing", error, path=path)
        except (InputError, IntegrityError, StorageError) as error:
            findings.find_error("plan-file-changed", error, path=path)
    if context.reaches("digest"):
        for dataset in {dataset.path_prefix: dataset for dataset in _datasets(plan)}.values():
            _examine_dataset(dataset, findings, context)
    recorded = {dataset.path_prefix: plan.tokenizer for dataset in _datasets(plan)}
    examine_tokenizers(recorded, plan.tokenizer_mismatches, findings, context)
    for name, stream in plan.streams.items():
        findings.counts[f"{name}_samples"] = stream.assignment.samples_per_rank * stream.assignment.ranks
        for epochs in stream.assignment.epoch_ranges:
            try:
                check_partition(epochs.layout)
            except IntegrityError as error:
                findings.find_error("plan-coverage", error)
    if context.reaches("deep") and not findings.has("plan-file-missing", "plan-file-changed"):
        _examine_samples(plan, findings)


def _examine_samples(plan: Plan, findings: ProductFindings) -> None:
    for name in plan.streams:
        with unreadable_found(findings, findings.path):
            for text in count_reads(plan, name):
                findings.find("plan-coverage", f"{findings.path}: {name}: {text}")


def _stamped_files(plan: Plan) -> list[tuple[str, FileFingerprint]]:
    found: dict[tuple[str, FileFingerprint], None] = {}
    for name, stream in plan.streams.items():
        for dataset in stream.source.datasets:
            found[idx_path(dataset.path_prefix), dataset.idx] = None
            found[bin_path(dataset.path_prefix), dataset.bin] = None
        cached = [dataset.index.files for dataset in stream.source.datasets if dataset.index is not None]
        cached += [stream.source.order] if stream.source.order is not None else []
        for files in cached:
            for array, stamp in files.fingerprints.items():
                found[files.path(array), stamp] = None
        record, order = reweighting_of(stops_of(plan.history, name)), stream.source.order
        if record is not None and order is not None:
            found[order.path("unread"), record.unread] = None
            found[order.path("source_epochs"), record.source_epochs] = None
    return list(found)


def _datasets(plan: Plan) -> Iterator[DatasetReference]:
    for stream in plan.streams.values():
        yield from stream.source.datasets


def _examine_dataset(dataset: DatasetReference, findings: ProductFindings, context: VerifyContext) -> None:
    try:
        changes = context.fingerprint(dataset.path_prefix).changes_since(dataset.fingerprint)
    except MissingFileError:
        return  # found by its stamp
    except (InputError, IntegrityError, StorageError) as error:
        findings.find_error("dataset-damaged", error, path=dataset.path_prefix)
        return
    if changes:
        text = f"{dataset.path_prefix} has changed since it was planned: {', '.join(changes)}"
        findings.find("plan-file-changed", text, path=dataset.path_prefix)


def entries_of(plan: Plan) -> Iterator[tuple[CacheEntry, str | None]]:
    """Yield the entries of caches that a plan reads, and the path prefix of the dataset of each index."""
    for stream in plan.streams.values():
        for dataset in stream.source.datasets:
            if dataset.index is not None:
                yield _entry(dataset.index.files), dataset.path_prefix
        order = stream.source.order
        if order is not None and order.kind == BlendedDescription.CLASS:
            yield _entry(order), None


def _entry(files: CachedArrays) -> CacheEntry:
    return CacheEntry(files.directory, f"{files.hash}-{files.kind}-{files.split}")


def prefixes_of(plan: Plan) -> list[str]:
    """Return the datasets that a plan reads, each once."""
    return list(dict.fromkeys(dataset.path_prefix for dataset in _datasets(plan)))


def count_reads(plan: Plan, name: str) -> Iterator[str]:
    """Count what all ranks of a stream read in the first epoch of each pass, sample by sample.

    One byte per sample of the source is held. If a blend was re-weighted, samples are read again in later
    source epochs, so positions of the order are counted instead of samples of datasets.

    Yields:
        A phrase for each problem.

    Raises:
        IntegrityError: The arrays of a blend name samples that do not exist.
        StorageError: A file cannot be read.
    """
    stream = plan.streams[name]
    weighted = reweighting_of(stops_of(plan.history, name)) is not None
    locator = None if weighted or stream.source.order is None else Locator(stream.source)
    key_of = stream.open_sort_key()
    sizes = [dataset.samples for dataset in stream.source.datasets]
    bounds = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    for place, epochs in enumerate(stream.assignment.epoch_ranges):
        before = sum(earlier.per_rank for earlier in stream.assignment.epoch_ranges[:place])
        first = max(0, before - stream.assignment.skipped)
        stop = min(before + epochs.per_epoch - stream.assignment.skipped, stream.assignment.samples_per_rank)
        seen = np.zeros(stream.source.total if locator is None else int(bounds[-1]), np.bool_)
        reads = 0
        for ids in _blocks(stream, first, stop, key_of):
            if locator is None:
                samples = ids
            else:
                numbers, within = locator.locate(ids)
                samples = bounds[numbers] + within
            seen[samples] = True
            reads += len(samples)
        distinct = int(np.count_nonzero(seen))
        if distinct != reads:
            yield f"{reads - distinct} samples are read twice in epoch {epochs.first_epoch}"


def _blocks(stream: Stream, first: int, stop: int, key_of: KeyOf | None) -> Iterator[NDArray[np.int64]]:
    # Samples read again as padding are left out.
    assignment = stream.assignment
    for rank in range(assignment.ranks):
        for begin in range(first, stop, _BLOCK):
            local = np.arange(begin, min(begin + _BLOCK, stop), dtype=np.int64)
            ranks = np.full(len(local), rank, dtype=np.int64)
            ids = assignment.at(ranks, local, key_of)
            yield ids[~assignment.repeated(ranks, local)]
