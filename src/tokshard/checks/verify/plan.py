"""Verification of a plan: its document, rank manifests, files and coverage."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import numpy as np

from tokshard.checks.verify.context import VerifyContext, unreadable_found
from tokshard.checks.verify.report import ProductFindings, VerifiedProduct
from tokshard.checks.verify.tokenizers import examine_tokenizers
from tokshard.dataset.products import RANK_NAME, rank_name
from tokshard.errors import InputError, IntegrityError, MissingFileError, StorageError, TokshardError
from tokshard.ranks.locator import Locator
from tokshard.ranks.manifests import check_ranks
from tokshard.ranks.plan import Plan
from tokshard.ranks.sources import DatasetReference
from tokshard.storage.fs import state

_BLOCK = 1 << 18


PlanReading = tuple[tuple[int | str, ...] | None, Plan | TokshardError]
"""The state of the file of a plan, and the plan or the error of reading it after that."""


def verify_plan(path: str, reading: PlanReading, context: VerifyContext) -> VerifiedProduct:
    """Verify a plan with the manifests of all its ranks; the indexes it reads are separate products."""
    findings = ProductFindings("plan", path)
    _, plan = reading
    if isinstance(plan, Plan):
        ranks = range(plan.topology.world_size)
        findings.counts["ranks"] = len(ranks)
        _examine_ranks(plan, os.path.dirname(path), ranks, findings)
    return _verified_reads(path, reading, findings, context)


def verify_rank(path: str, plan_path: str, reading: PlanReading, context: VerifyContext) -> VerifiedProduct:
    """Verify the manifest of one rank, and the files that its plan reads."""
    findings = ProductFindings("rank", path)
    _, plan = reading
    named = RANK_NAME.fullmatch(os.path.basename(path))
    if isinstance(plan, Plan) and named is not None:
        _examine_ranks(plan, os.path.dirname(path), (int(named[1]),), findings)
    return _verified_reads(plan_path, reading, findings, context)


def _examine_ranks(plan: Plan, directory: str, ranks: Iterable[int], findings: ProductFindings) -> None:
    for rank, error in check_ranks(plan, directory, ranks):
        code = "plan-rank-missing" if isinstance(error, MissingFileError) else "plan-rank"
        findings.find_error(code, error, path=os.path.join(directory, rank_name(rank)))


def _verified_reads(
    path: str, reading: PlanReading, findings: ProductFindings, context: VerifyContext
) -> VerifiedProduct:
    before, plan = reading
    if isinstance(plan, TokshardError):
        # The file that describes the samples may be a blend.json elsewhere.
        file = getattr(plan, "filename", None) or getattr(plan, "path", None)
        is_other_file = not isinstance(plan, StorageError) and file not in {None, path}
        findings.find_error(_file_code(plan) if is_other_file else "plan-damaged", plan, path=path)
    else:
        _examine_reads(plan, findings, context)
    # When a plan is replaced, its document is removed first and written last.
    if state(path) != before:
        findings.find_changed()
    return findings.close()


def _file_code(error: TokshardError) -> str:
    return "plan-file-missing" if isinstance(error, MissingFileError) else "plan-file-changed"


def _examine_reads(plan: Plan, findings: ProductFindings, context: VerifyContext) -> None:
    files = [file for stream in plan.streams.values() for file in stream.source.files.items()]
    for path, fingerprint in dict.fromkeys(files):
        try:
            fingerprint.check(path, "plan")
        except (InputError, IntegrityError, StorageError) as error:
            findings.find_error(_file_code(error), error, path=path)
    if context.reaches("digest"):
        for dataset in {dataset.path_prefix: dataset for dataset in _datasets(plan)}.values():
            _examine_dataset(dataset, findings, context)
    recorded = {dataset.path_prefix: plan.tokenizer for dataset in _datasets(plan)}
    examine_tokenizers(recorded, plan.tokenizer_mismatches, findings, context)
    for name, stream in plan.streams.items():
        findings.counts[f"{name}_samples"] = stream.order.samples
    if context.reaches("deep") and not findings.has("plan-file-missing", "plan-file-changed"):
        _examine_samples(plan, findings)


def _examine_samples(plan: Plan, findings: ProductFindings) -> None:
    for name in plan.streams:
        with unreadable_found(findings, findings.path):
            for text in count_reads(plan, name):
                findings.find("plan-coverage", f"{findings.path}: {name}: {text}")


def _datasets(plan: Plan) -> Iterator[DatasetReference]:
    for stream in plan.streams.values():
        yield from stream.source.datasets


def _examine_dataset(dataset: DatasetReference, findings: ProductFindings, context: VerifyContext) -> None:
    try:
        changes = context.fingerprint(dataset.path_prefix).changes_since(dataset.fingerprint)
    except MissingFileError:
        return  # found by its fingerprint
    except (InputError, IntegrityError, StorageError) as error:
        findings.find_error("dataset-damaged", error, path=dataset.path_prefix)
        return
    if changes:
        text = f"{dataset.path_prefix} has changed since it was planned: {', '.join(changes)}"
        findings.find("plan-file-changed", text, path=dataset.path_prefix)


def count_reads(plan: Plan, name: str) -> Iterator[str]:
    """Count what all ranks of a stream read in the first epoch of each range, sample by sample.

    One byte per sample of the source is held. If a blend was re-weighted, samples are read again in later
    source epochs, so ids are counted instead of samples of datasets.

    Yields:
        A phrase for each problem.

    Raises:
        IntegrityError: The arrays of a blend name samples that do not exist.
        StorageError: A file cannot be read.
    """
    stream = plan.streams[name]
    order = stream.order
    is_mixed = stream.source.order is not None and plan.reweighting_of(name) is None
    locator = Locator(stream.source)
    key_of = stream.open_sort_key()
    sizes = [dataset.samples for dataset in stream.source.datasets]
    bounds = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    end = -order.skipped
    for epochs in order.epoch_ranges:
        first = max(0, end)
        end += epochs.size
        epoch, position = order.point(first)
        seen = np.zeros(bounds[-1] if is_mixed else stream.source.total, np.bool_)
        reads = 0
        stop = min(first + epochs.read - position, end, order.samples)
        for begin in range(first, stop, _BLOCK):
            numbers = np.arange(begin, min(begin + _BLOCK, stop), dtype=np.int64)
            samples = order.ids(numbers[~order.repeated(numbers)], key_of)
            if is_mixed:
                datasets, within = locator.locate(samples)
                samples = bounds[datasets] + within
            seen[samples] = True
            reads += samples.size
        distinct = int(np.count_nonzero(seen))
        if distinct != reads:
            yield f"{reads - distinct} samples are read twice in epoch {epoch}"
