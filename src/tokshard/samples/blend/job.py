"""The job of blending: plan, build or reuse every index, write the orders, measure, and certify."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tokshard.core.codec import Amount, Document, Md5, Record
from tokshard.core.formatting import count, counted, duration, percent, shown_path
from tokshard.core.presentation import Section, Table, outcome, planned
from tokshard.core.progress import Progress, ProgressUpdate, reporting
from tokshard.dataset.fingerprint import FileFingerprint
from tokshard.dataset.manifest import read_dataset_tokenizer
from tokshard.dataset.products import BLEND_NAME
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer
from tokshard.dataset.token_ids import check_token_ids
from tokshard.dataset.tokenizer_agreement import JobTokenizer
from tokshard.errors import IntegrityError, OlderVersionError, OutputExistsError, UsageError, ignore_older
from tokshard.samples.blend.certificate import SourceArrays, measure
from tokshard.samples.blend.document import BlendDocument, BlendSplit, BlendTokenizers, writing
from tokshard.samples.blend.options import CACHE_NAME, BlendOptions, BuilderConfig
from tokshard.samples.blend.order import BlendOrder
from tokshard.samples.blend.plan import KIND_NAMES, BlendPlan, PlannedSplit, SplitPlan, plan_blend
from tokshard.samples.blend.recipe import BlendRecipe
from tokshard.samples.blend.sources import BlendOrderFiles, BlendSource
from tokshard.samples.blend.weights import BlendWeights
from tokshard.samples.index.build import (
    Action,
    Datasets,
    IndexTarget,
    PlannedIndexes,
    build_or_reuse,
    plan_indexes,
)
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.examination import CacheTarget
from tokshard.samples.index.job import actions_text
from tokshard.samples.index.npy import Blocks, npy_fingerprint
from tokshard.samples.index.tokenizer_check import check_tokenizers
from tokshard.storage.fs import abspath, lexists
from tokshard.storage.lock import lock_mode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_INDICES = 20_000
"""Sources of all splits together: 2.6 kB each with prefixes of 64 characters, of the 64 MiB that are read."""


@dataclass(frozen=True, slots=True)
class EntryOutcome(Record):
    """One entry of the cache, and how the blend came by it."""

    split: str
    path_prefix: str | None
    hash: Md5
    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendReport(Document):
    """A blend, and what :func:`tokshard.blend` did."""

    SCHEMA = "tokshard.blend-report/2"

    action: Literal["planned", "written"]
    recipe: BlendRecipe
    resolved: tuple[BlendWeights | None, ...]
    builder: BuilderConfig
    splits: tuple[PlannedSplit, ...]
    path: str | None = None
    blend: BlendDocument | None = None
    entries: tuple[EntryOutcome, ...] = ()
    warnings: tuple[str, ...]
    seconds: Amount

    def planned_sections(self) -> list[Section]:
        """Return the splits of a dry run for people."""
        header = ("source", "share", "samples", "in its index", "epochs", "tokens of an epoch")
        sections = []
        for split in self.splits:
            rows = [
                (
                    *(source.path_prefix, percent(source.weight)),
                    *(count(source.draws), count(source.plan.samples)),
                    *(f"{source.epochs_drawn:.2f}", count(source.plan.tokens_per_epoch)),
                )
                for source in split.sources
            ]
            title = f"{split.name}: {KIND_NAMES[split.kind]}, {counted(split.samples, 'sample')}"
            sections.append(
                Section(title, [Table(header, rows, hide=("tokens of an epoch", "in its index"))])
            )
        return [*sections, planned([])]

    def outcome(self, next_step: str) -> Section:
        """Return what was written for people, and the next step."""
        written = [] if self.path is None else [shown_path(self.path)]
        facts = []
        if self.blend is not None:
            actions = actions_text(entry.action for entry in self.entries)
            facts.append(("indexes", f"{actions} in {shown_path(self.blend.cache_directory)}"))
        return outcome(self.action, written, facts, duration(self.seconds), [next_step])

    @classmethod
    def of(
        cls,
        plan: BlendPlan,
        started: float,
        warnings: Iterable[str],
        blend: BlendDocument | None = None,
        path: str | None = None,
        entries: tuple[EntryOutcome, ...] = (),
    ) -> BlendReport:
        """Return the report of a plan, or of a blend that was written."""
        return cls(
            action="planned" if blend is None else "written",
            recipe=plan.recipe,
            resolved=plan.resolved,
            builder=plan.builder,
            splits=tuple(split.planned for split in plan.splits),
            path=path,
            blend=blend,
            entries=entries,
            warnings=tuple(dict.fromkeys((*plan.warnings, *warnings))),
            seconds=time.monotonic() - started,
        )


def blend(options: BlendOptions, *, dry_run: bool = False, progress: Progress | None = None) -> BlendReport:
    """Build everything that a training run needs for a mixture, and certify it.

    The files in the cache are Megatron's own, under its names, byte for byte; ``OUTPUT/blend.json`` is
    written last. A run with the same options finds what is there and builds nothing. The peak of memory
    is that of the indexes which are built at once; the order of a blend is made and written in blocks.

    Args:
        options: The options; a dry run needs no output.
        dry_run: Whether to plan the blend and check that it would work, without building anything.
        progress: Receives the progress.

    Raises:
        UsageError: The output is missing, or the recipe cannot be built; see
            :func:`tokshard.samples.blend.plan.plan_blend`.
        InputError: A dataset is missing, or has nothing in a split.
        OutputExistsError: There is another blend at the output, or an index in the cache that differs.
        IntegrityError: A dataset or an index is damaged.
        TokenizerMismatchError: The datasets were encoded with different tokenizers, or with another one than
            the job's, and ``allow_tokenizer_mismatch`` is not set.
        LockedError: Another process was not done in time.
        StorageError: The disk is full or broken. What was built is kept.
    """
    if dry_run:
        return _plan_only(options)
    if options.output is None:
        raise UsageError(
            "--output is required", hint="pass for example -o mix, or --dry-run to build nothing"
        )
    recipe, config = options.resolve()
    with lock_mode(options.lock):
        return build_blend(
            recipe,
            config,
            options.output,
            cache_directory=options.cache,
            workers=options.workers,
            rebuild=options.rebuild,
            force=options.force,
            job=options.naming.job_tokenizer(options.path_as),
            allow_tokenizer_mismatch=options.allow_tokenizer_mismatch,
            global_batch_size=options.job_batch_size,
            progress=progress,
        )


def _plan_only(options: BlendOptions) -> BlendReport:
    started = time.monotonic()
    plan = plan_blend(*options.resolve())
    prefixes = dict.fromkeys(request.prefix for request in plan.requests)
    tokenizers = {prefix: read_dataset_tokenizer(prefix) for prefix in prefixes}
    check_token_ids(tokenizers)
    agreement = check_tokenizers(
        tokenizers,
        options.naming.job_tokenizer(options.path_as),
        allowed=options.allow_tokenizer_mismatch,
        shares=_shares(plan),
    )
    return BlendReport.of(plan, started, agreement.warnings)


def build_blend(  # noqa: PLR0913 - as many as the options that decide how it is built
    recipe: BlendRecipe,
    config: BuilderConfig,
    output: str | os.PathLike[str],
    *,
    cache_directory: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    rebuild: bool = False,
    force: bool = False,
    job: JobTokenizer | None = None,
    allow_tokenizer_mismatch: bool = False,
    global_batch_size: int | None = None,
    progress: Progress | None = None,
) -> BlendReport:
    """Build the blend of a recipe; see :func:`blend`."""
    started = time.monotonic()
    directory = os.fspath(output)
    path = os.path.join(directory, BLEND_NAME)
    cache = os.path.join(directory, CACHE_NAME) if cache_directory is None else os.fspath(cache_directory)
    with reporting(progress) as listener:
        listener.start("reading datasets")
        plan = plan_blend(recipe, config)
        _refuse_too_many(plan)
        # Refused before anything is built, not after hours of work.
        _refuse_other(path, lambda there: there.is_of(plan), force=force)
        planned = plan_indexes(plan.requests, cache_directory=cache, workers=workers, progress=listener)
        planned = planned.agreeing(job, allowed=allow_tokenizer_mismatch, shares=_shares(plan))
        built = _build(plan, planned, cache, listener, rebuild=rebuild)
    tokenizers = BlendTokenizers(
        built.tokenizers, None if job is None else job.identity, planned.agreement.to_record
    )
    document = BlendDocument.of(cache, recipe, plan.resolved, plan.builder, built.splits, tokenizers)
    document = replace(document, global_batch_size=global_batch_size)
    with writing(directory):
        exists = lexists(path)
        # Only now are the fingerprints of the datasets known.
        _refuse_other(path, lambda there: there.id == document.id, force=force)
        document.write(directory, replace=force or exists)
    return BlendReport.of(plan, started, built.warnings, document, path, tuple(built.outcomes))


def _shares(plan: BlendPlan) -> dict[str, float]:
    # Of each dataset in the samples of all splits.
    draws: Counter[str] = Counter()
    for split in plan.splits:
        for source in split.sources:
            draws[source.path_prefix] += source.draws
    total = max(1, draws.total())
    return {prefix: count / total for prefix, count in draws.items()}


@dataclass(frozen=True, slots=True)
class _Built:
    outcomes: list[EntryOutcome]
    splits: dict[str, BlendSplit]
    tokenizers: tuple[DatasetTokenizer, ...]
    warnings: tuple[str, ...]


def _build(
    plan: BlendPlan, planned: PlannedIndexes, cache: str, progress: Progress, *, rebuild: bool
) -> _Built:
    # Nothing is certified that is not what was written: so what is found is read whole.
    reports = planned.build(rebuild=rebuild, digests=True, progress=progress)
    distinct = dict.fromkeys(target.tokenizer for target in planned.targets)
    numbers = {tokenizer: number for number, tokenizer in enumerate(distinct)}
    remaining = iter(zip(planned.targets, reports, strict=True))
    built = _Built([], {}, tuple(numbers), planned.tokenizer_warnings(reports))
    datasets = Datasets()  # opened again: what they contain now is compared with what was indexed
    for split in plan.splits:
        own = [next(remaining) for _ in split.sources]
        built.outcomes.extend(
            EntryOutcome(split.name, report.path_prefix, report.hash, report.action) for _, report in own
        )
        entry = None
        if (description := split.description()) is not None:
            mismatches = planned.agreement.to_record
            target = CacheTarget.of_blend(description, cache, f"the {split.name} blend", mismatches)
            entry = target.entry
            progress.start(f"ordering {split.name}", target.file_bytes)
            action = _build_order(split, target, progress, rebuild=rebuild)
            built.outcomes.append(EntryOutcome(split.name, None, entry.hash, action))
        progress.start(f"measuring {split.name}")
        built.splits[split.name] = _describe(split, [target for target, _ in own], entry, numbers, datasets)
    return built


def order_of(split: SplitPlan) -> Iterator[tuple[NDArray[np.int16], NDArray[np.int64]]]:
    """Return the order of a blended split from its first sample on, in blocks: int16 and int64."""
    return BlendOrder(split.weights or (), split.size).blocks()


def _build_order(split: SplitPlan, target: CacheTarget, progress: Progress, *, rebuild: bool) -> Action:
    if not rebuild:
        target.refuse(target.examine(digests=True), rebuild=False)
    order = Blocks(target.specs, lambda: order_of(split))
    written = 0

    def tell(count: int) -> None:
        nonlocal written
        written += count
        progress.update(ProgressUpdate(bytes_done=written))

    return build_or_reuse(target, lambda: order, rebuild=rebuild, tell=tell)


def _describe(
    split: SplitPlan,
    targets: Sequence[IndexTarget],
    entry: CacheEntry | None,
    tokenizers: Mapping[DatasetTokenizer, int],
    datasets: Datasets,
) -> BlendSplit:
    sources: list[BlendSource] = []

    def measured_sources() -> Iterator[SourceArrays]:
        for planned, target in zip(split.sources, targets, strict=True):
            dataset = datasets.get(target.request.prefix)
            dataset.check(target.origin.dataset)
            index = target.entry.load()
            source = BlendSource(
                prefix=abspath(target.request.prefix),
                training_path=target.request.training_path,
                index=os.path.join(target.entry.directory, target.entry.stem),
                draws=planned.draws,
                fingerprint=target.origin.dataset,
                tokenizer=tokenizers[target.tokenizer],
                epochs=target.plan,
                files=dataset.files | _fingerprints(index),
            )
            sources.append(source)
            yield SourceArrays(
                target.request.prefix,
                dataset.table.sequence_lengths,
                index["document_index"],
                index["shuffle_index"],
                None if source.packing is None else index["sample_index"],
            )

    arrays = None if entry is None else entry.load()
    certificate = measure(
        None if arrays is None else (arrays["dataset_index"], arrays["dataset_sample_index"]),
        split.shares,
        [target.plan.samples for target in targets],
        measured_sources(),
        split.requests[0].sequence_length,
    )
    planned = [source.draws for source in split.sources]
    if [source.samples for source in certificate.sources] != planned or certificate.draws_out_of_range:
        path = targets[0].entry.description_path if entry is None else entry.description_path
        raise IntegrityError(
            f"the {split.name} split does not contain the planned samples",
            path=path,
            hint="run the same command with --rebuild",
        )
    order = None
    if entry is not None and arrays is not None:
        index = os.path.join(entry.directory, entry.stem)
        weights = tuple(map(float, split.weights or ()))
        order = BlendOrderFiles(index, weights, split.size, _fingerprints(arrays))
    return BlendSplit(
        split=split.split,  # type: ignore[arg-type]
        kind=split.kind,
        samples=split.samples,
        order=order,
        sources=tuple(sources),
        certificate=certificate,
    )


def _fingerprints(arrays: Mapping[str, NDArray[Any]]) -> dict[str, FileFingerprint]:
    return {name: npy_fingerprint(array) for name, array in arrays.items()}


def _refuse_too_many(plan: BlendPlan) -> None:
    if len(plan.requests) > MAX_INDICES:
        raise UsageError(
            f"the blend must have at most {MAX_INDICES:,} sources in all splits together, got "
            f"{len(plan.requests):,}",
            hint="merge some of them with tokshard merge",
        )


def _refuse_other(path: str, is_same: Callable[[BlendDocument], bool], *, force: bool) -> None:
    if force or not lexists(path):
        return
    try:
        if is_same(BlendDocument.read(path)):
            return
    except OlderVersionError as error:
        ignore_older(error, "it is replaced")
        return
    except IntegrityError:
        pass  # a damaged document is another one
    raise OutputExistsError(
        f"another blend exists: {path}", hint="pass --force to replace it, or another --output"
    )
