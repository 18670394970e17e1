"""Building indexes: many requests at once, each dataset read once, nothing built twice."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from tokshard.cluster.options import RayOptions
from tokshard.core import megatron_defaults
from tokshard.core.codec import Document, Key
from tokshard.core.path_mapping import PathMapping
from tokshard.core.progress import Progress
from tokshard.core.thread_runner import ThreadRunner
from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.tokenizer_agreement import (
    DatasetTokenizer,
    TokenizerAgreement,
    TokenizerMismatch,
    allowed_warnings,
)
from tokshard.errors import UsageError
from tokshard.gpt_index.epochs import EpochPlan, plan_epochs, warnings_of
from tokshard.gpt_index.splits import Split, parse_split, whole_split
from tokshard.index_cache.build_or_reuse import (
    LOCK_WAIT_SECONDS,
    Action,
    Datasets,
    IndexTask,
    build_or_reuse,
    plan_tasks,
    sweep,
)
from tokshard.index_cache.description import JobSettings
from tokshard.index_cache.entry import (
    CacheEntry,
    Condition,
    Examination,
)
from tokshard.index_cache.options import (
    MISSING_SIZE,
    MISSING_SIZE_HINT,
    BuildIndicesOptions,
    IndexRequest,
    neutral_identifiers,
)
from tokshard.index_cache.tokenizer_check import check_tokenizers


@dataclass(frozen=True, slots=True)
class EpochSize:
    """The training samples of a number of epochs."""

    prefix: Annotated[str, Key("prefix", "Path prefix of the dataset.")]
    sequence_length: Annotated[int, Key("sequence_length", "Tokens of a sample.", minimum=1)]
    epochs: Annotated[int, Key("epochs", "Epochs.", minimum=1)]
    train_samples: Annotated[int, Key("train_samples", "Samples that they have.", minimum=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """One index, and what was done about it."""

    prefix: Annotated[str, Key("prefix", "Path prefix of the dataset.")]
    training_path: Annotated[str, Key("training_path", "Path prefix as the job will name it.")]
    split: Annotated[str, Key("split", "train, valid or test.", pattern="train|valid|test")]
    sequence_length: Annotated[int, Key("sequence_length", "Tokens of a sample.", minimum=1)]
    num_samples: Annotated[
        int | None, Key("num_samples", "Samples asked for; null for one epoch.", minimum=0)
    ]
    hash: Annotated[
        str, Key("hash", "MD5 of the description, in the names of the files.", pattern="[0-9a-f]{32}")
    ]
    description: Annotated[str, Key("description", "Content of description.txt.")]
    files: Annotated[tuple[str, ...], Key("files", "The files that Megatron looks up.")]
    size_bytes: Annotated[int, Key("size_bytes", "Size of its arrays.", minimum=0)]
    samples: Annotated[int, Key("samples", "Samples of the index.", minimum=0)]
    epochs: Annotated[int, Key("epochs", "Times that each sequence is read.", minimum=1)]
    tokens_per_epoch: Annotated[int, Key("tokens_per_epoch", "Tokens of the split.", minimum=0)]
    sequences: Annotated[int, Key("sequences", "Sequences of the split.", minimum=0)]
    documents: Annotated[
        int, Key("documents", "Entries of the document index: sequences times epochs.", minimum=0)
    ]
    separate_final_epoch: Annotated[
        bool, Key("separate_final_epoch", "Whether the last epoch is shuffled separately.")
    ]
    condition: Annotated[
        Condition,
        Key(
            "condition",
            "Its condition before: fresh, stale, damaged, missing, or foreign (Megatron's own, not known to "
            "be right).",
        ),
    ]
    detail: Annotated[str, Key("detail", "The reason of the condition.")]
    action: Annotated[Action | None, Key("action", "What was done; null if it was only checked.")]
    warnings: Annotated[tuple[str, ...], Key("warnings", "Messages for the user.")]

    @property
    def is_fresh(self) -> bool:
        """True if the index is fresh now."""
        return self.action is not None or self.condition == "fresh"


@dataclass(frozen=True, slots=True)
class BuildIndicesReport(Document):
    """The indexes that were built, found or checked."""

    SCHEMA = "tokshard.build-indices/1"

    is_fresh: Annotated[bool, Key("fresh", "Whether all indexes are fresh now.")]
    has_megatron_names: Annotated[
        bool,
        Key("megatron_names", "Whether a job will find the files: false if its tokenizer was not specified."),
    ]
    epoch_sizes: Annotated[
        tuple[EpochSize, ...], Key("epoch_sizes", "Sizes requested as epochs, in samples.")
    ]
    indices: Annotated[tuple[IndexReport, ...], Key("indices", "The indexes in order.")]
    seconds: Annotated[float, Key("seconds", "Duration of the run.", minimum=0)]
    warnings: Annotated[tuple[str, ...], Key("warnings", "Messages for the user.")]
    tokenizer_mismatches: Annotated[
        tuple[TokenizerMismatch, ...] | None,
        Key("tokenizer_mismatches", "Mismatches of tokenizers that were allowed.", omit_none=True),
    ] = None


@dataclass(frozen=True, slots=True)
class IndexOutcome:
    """One index with the objects that it was built by.

    Attributes:
        plan: The numbers of the index: samples, epochs, tokens.
        before: The examination of the files before.
        array_bytes: Size of the arrays.
        action: ``"found"`` (it was fresh), ``"verified"`` (Megatron's own, and right), ``"built"``,
            ``"rebuilt"``; None if it was only examined.
        tokenizer: The tokenizer of the dataset.
    """

    request: IndexRequest
    entry: CacheEntry
    plan: EpochPlan
    dataset: DatasetFingerprint
    before: Examination
    action: Action | None
    array_bytes: int
    tokenizer: DatasetTokenizer

    @property
    def is_fresh(self) -> bool:
        """True if the index is fresh now."""
        return self.action is not None or self.before.condition == "fresh"

    @property
    def recorded_mismatches(self) -> tuple[TokenizerMismatch, ...]:
        """The mismatches of tokenizers that were allowed when the index was built that is reused."""
        sidecar = self.before.sidecar if self.before.condition == "fresh" else None
        return (sidecar.tokenizer_mismatches if sidecar is not None else None) or ()

    def report(self) -> IndexReport:
        """Return the outcome as a part of a report."""
        request, plan = self.request, self.plan
        return IndexReport(
            prefix=request.prefix,
            training_path=request.training_path,
            split=request.split_name,
            sequence_length=request.sequence_length,
            num_samples=request.num_samples,
            hash=self.entry.hash,
            description=request.description().text(),
            files=self.entry.megatron_files,
            size_bytes=self.array_bytes,
            samples=plan.samples,
            epochs=plan.epochs,
            tokens_per_epoch=plan.tokens_per_epoch,
            sequences=plan.sequences,
            documents=plan.documents,
            separate_final_epoch=plan.separate_final_epoch,
            condition=self.before.condition,
            detail=self.before.detail,
            action=self.action,
            warnings=tuple(warnings_of(plan)),
        )


def build_indices(options: BuildIndicesOptions, *, progress: Progress | None = None) -> BuildIndicesReport:
    """Build the indexes that Megatron jobs would build at their start, or reuse fresh ones.

    The files have Megatron's names and bytes. Memory is that of ``options.workers`` indexes at once: for
    each 4 bytes for each sequence and epoch, and 12 for each sample.

    Args:
        options: The options.
        progress: Receives the progress, in bytes written.

    Raises:
        UsageError, InputError, OutputExistsError, IntegrityError, LockedError, StorageError, WorkerError: See
            :func:`build_requests`.
        TokenizerMismatchError: The datasets were encoded with different tokenizers, or with another one than
            the job's, and ``allow_tokenizer_mismatch`` is not set.
    """
    started = time.monotonic()
    requests, epoch_sizes = requests_of(options)
    planned, agreement = _planned(options, requests, progress)
    outcomes = planned.build(rebuild=options.rebuild, progress=progress)
    return _report(options, outcomes, agreement, epoch_sizes, started)


def check_indices(options: BuildIndicesOptions, *, progress: Progress | None = None) -> BuildIndicesReport:
    """Check whether the indexes are fresh: present, as written, and built from the datasets as they are now.

    Nothing is written. Every array is read whole and compared with its digest.

    Args:
        options: The options, without ``rebuild``.
        progress: Receives the progress, in bytes of arrays.

    Raises:
        UsageError, InputError, IntegrityError, StorageError: See :func:`examine_requests`.
        TokenizerMismatchError: See :func:`build_indices`.
    """
    if options.rebuild:
        raise UsageError("--assert-hit and --rebuild exclude each other")
    if isinstance(options.workers, RayOptions):
        raise UsageError("--assert-hit and --executor ray exclude each other")
    started = time.monotonic()
    requests, epoch_sizes = requests_of(options)
    planned, agreement = _planned(options, requests, progress)
    return _report(options, planned.examine(progress=progress), agreement, epoch_sizes, started)


def _planned(
    options: BuildIndicesOptions, requests: Sequence[IndexRequest], progress: Progress | None
) -> tuple[PlannedIndexes, TokenizerAgreement]:
    directory = None if options.cache_directory is None else os.fspath(options.cache_directory)
    planned = plan_indexes(requests, cache_directory=directory, workers=options.workers, progress=progress)
    agreement = check_tokenizers(
        planned.tokenizers,
        options.naming.job_tokenizer(options.path_as),
        allowed=options.allow_tokenizer_mismatch,
    )
    return planned.recording(agreement), agreement


def _report(
    options: BuildIndicesOptions,
    outcomes: Sequence[IndexOutcome],
    agreement: TokenizerAgreement,
    epoch_sizes: Sequence[EpochSize],
    started: float,
) -> BuildIndicesReport:
    reports = tuple(outcome.report() for outcome in outcomes)
    return BuildIndicesReport(
        all(report.is_fresh for report in reports),
        options.naming.are_given,
        tuple(epoch_sizes),
        reports,
        time.monotonic() - started,
        tuple(
            dict.fromkeys(
                (
                    *(warning for report in reports for warning in report.warnings),
                    *agreement.warnings,
                    *repeated_warnings(outcomes),
                )
            )
        ),
        agreement.to_record or None,
    )


def requests_of(options: BuildIndicesOptions) -> tuple[list[IndexRequest], list[EpochSize]]:
    """Return one request for each index, and the sizes that were given as epochs.

    Raises:
        UsageError: No index would be built.
        InputError: A dataset, or a file about the job, cannot be read.
    """
    like, identifiers = options.naming.settings(), options.naming.identifiers()
    lengths = options.sequence_lengths or ((like.sequence_length,) if like else ())
    if like is not None and not (options.sizes or options.epochs or like.num_samples):
        raise UsageError(MISSING_SIZE, hint=MISSING_SIZE_HINT)
    requests: list[IndexRequest] = []
    epoch_sizes: list[EpochSize] = []
    for prefix in options.prefixes:
        tokenizer = identifiers if options.naming.are_given else neutral_identifiers(prefix)
        for length in lengths:
            own = [
                EpochSize(prefix, length, epochs, _epoch_samples(options, like, prefix, length, epochs))
                for epochs in options.epochs
            ]
            epoch_sizes += own
            for size in _sizes(options, like, own):
                requests += _requests(options, like, prefix, length, size, tokenizer)
    if not any(request.is_built for request in requests):
        raise UsageError(
            "no index to build: no split has a share, or the job of --like has data for each split",
            hint="pass --split; or use tokshard blend with --train, --valid and --test",
        )
    return requests, epoch_sizes


def _sizes(
    options: BuildIndicesOptions, like: JobSettings | None, epoch_sizes: Sequence[EpochSize]
) -> Iterator[Mapping[str, int | None]]:
    for size in options.sizes:
        yield {"train": size.train, "valid": size.valid, "test": size.test}
    for epoch_size in epoch_sizes:
        yield {"train": epoch_size.train_samples, "valid": 0, "test": 0}
    if like is not None and not options.sizes and not options.epochs:
        yield like.num_samples


def _requests(
    options: BuildIndicesOptions,
    like: JobSettings | None,
    prefix: str,
    length: int,
    size: Mapping[str, int | None],
    tokenizer: Any,
) -> Iterator[IndexRequest]:
    default_seed = like.random_seed if like else megatron_defaults.SEED
    for name, samples in size.items():
        split = _split(options, like, name)
        if split is not None:
            yield IndexRequest(
                prefix=prefix,
                training_path=PathMapping(options.path_as).map(prefix),
                split_name=name,
                split=split,
                num_samples=None if samples is None else math.ceil(samples * (1 + options.surplus)),
                sequence_length=length,
                seed=default_seed if options.seed is None else options.seed,
                tokenizer=tokenizer,
                extra_token=options.extra_token,
                drop_last_partial=options.drop_last_partial,
            )


def _split(options: BuildIndicesOptions, like: JobSettings | None, name: str) -> Split | None:
    # None if the job has no such split of this data.
    if options.split is None and like is not None and like.split is None:
        return whole_split(name) if name in like.num_samples else None
    return parse_split(options.split or (like and like.split) or megatron_defaults.SPLIT)


def _epoch_samples(
    options: BuildIndicesOptions, like: JobSettings | None, prefix: str, length: int, epochs: int
) -> int:
    lengths = IndexedDataset(prefix).sequence_lengths
    split = _split(options, like, "train")
    part = (split.ranges(len(lengths))[0] if split else None) or range(0)
    plan = plan_epochs(
        sequences=len(part),
        tokens_per_epoch=int(lengths[part.start : part.stop].sum(dtype=np.int64)),
        sequence_length=length,
        num_samples=None,
        extra_token=options.extra_token,
    )
    return plan.samples_of_epochs(epochs)


@dataclass(frozen=True, slots=True)
class PlannedIndexes:
    """Indexes with everything that follows from their datasets; nothing is written yet."""

    listed: Sequence[tuple[IndexRequest, CacheEntry]]
    tasks: Mapping[CacheEntry, IndexTask]
    datasets: Datasets
    workers: int | RayOptions | None

    @property
    def tokenizers(self) -> dict[str, DatasetTokenizer]:
        """The tokenizers of the datasets by path prefix."""
        return {request.prefix: self.tasks[entry].tokenizer for request, entry in self.listed}

    def recording(self, agreement: TokenizerAgreement) -> PlannedIndexes:
        """Return the same indexes; those that are built will record the mismatches of their datasets."""
        if not agreement.to_record:
            return self
        tasks = {
            entry: task.recording(agreement.concerning(task.request.prefix, task.tokenizer))
            for entry, task in self.tasks.items()
        }
        return replace(self, tasks=tasks)

    def build(
        self,
        *,
        rebuild: bool = False,
        digests: bool = False,
        wait_seconds: float = LOCK_WAIT_SECONDS,
        progress: Progress | None = None,
    ) -> list[IndexOutcome]:
        """Build or reuse the indexes; see :func:`build_requests`."""
        threads = self._threads()
        before = _examine_all(self.tasks, threads, progress, rebuild=rebuild, digests=digests or rebuild)
        # The largest first, so that no thread begins it when the others are done.
        needed = [
            task
            for entry, task in self.tasks.items()
            if before[entry].condition != "fresh" or task.target.unrecorded
        ]
        needed.sort(key=lambda task: task.target.content.file_bytes, reverse=True)

        if isinstance(self.workers, RayOptions):
            from tokshard.index_cache.ray import build_on_ray

            built = build_on_ray(
                needed, self.workers, rebuild=rebuild, wait_seconds=wait_seconds, listener=progress
            )
        else:
            built = _build_here(
                needed, threads, self.datasets, rebuild=rebuild, wait_seconds=wait_seconds, listener=progress
            )
        done = {task.target.entry: action for task, action in zip(needed, built, strict=True)}
        return [
            _outcome(self.tasks[entry], request, before[entry], done.get(entry, "found"))
            for request, entry in self.listed
        ]

    def examine(self, *, digests: bool = True, progress: Progress | None = None) -> list[IndexOutcome]:
        """Examine the indexes; see :func:`examine_requests`."""
        threads = self._threads()

        def examine(task: IndexTask) -> Examination:
            examination = task.target.examine(digests=digests)
            threads.tell(
                task.target.content.file_bytes, documents=task.plan.documents, tokens=task.plan.tokens
            )
            return examination

        total = sum(task.target.content.file_bytes for task in self.tasks.values())
        states = threads.run(
            examine,
            list(self.tasks.values()),
            activity="checking indexes",
            listener=progress,
            bytes_total=total,
        )
        found = dict(zip(self.tasks, states, strict=True))
        return [_outcome(self.tasks[entry], request, found[entry], None) for request, entry in self.listed]

    def _threads(self) -> ThreadRunner:
        return ThreadRunner(self.workers if isinstance(self.workers, int) else None)


def plan_indexes(
    requests: Sequence[IndexRequest],
    *,
    cache_directory: str | None = None,
    workers: int | RayOptions | None = None,
    progress: Progress | None = None,
) -> PlannedIndexes:
    """Open the datasets and plan their indexes; the arguments are those of :func:`build_requests`.

    Raises:
        UsageError, InputError, IntegrityError, StorageError: See :func:`build_requests`.
    """
    threads, datasets = ThreadRunner(workers if isinstance(workers, int) else None), Datasets()
    listed, tasks = plan_tasks(requests, cache_directory, datasets, threads, progress)
    return PlannedIndexes(listed, tasks, datasets, workers)


def build_requests(
    requests: Sequence[IndexRequest],
    *,
    cache_directory: str | None = None,
    workers: int | RayOptions | None = None,
    rebuild: bool = False,
    digests: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    progress: Progress | None = None,
) -> list[IndexOutcome]:
    """Build the indexes that are not there, and find or verify those that are.

    Everything is checked before anything is built. Memory is that of ``workers`` indexes at once: for
    each 4 bytes for each sequence and epoch, and 12 for each sample.

    Args:
        requests: The indexes to build. One whose split has no share is left out, as Megatron leaves it out.
            Two that mean the same files are built once.
        cache_directory: Megatron's ``--data-cache-path``; None for Megatron's default, a directory of
            its own for each dataset.
        workers: How many threads build, None for one for each core; or the Ray cluster that builds, whose
            nodes must see the datasets and the cache directory.
        rebuild: Whether to replace what is stale, damaged or Megatron's own.
        digests: Whether existing arrays are read whole and compared with their digests, as with
            ``rebuild``. Without, headers, sizes and fingerprints are checked.
        wait_seconds: How long to wait for another process that builds the same.
        progress: Receives the progress, in bytes written.

    Returns:
        An outcome for each request that Megatron would build, in order.

    Raises:
        UsageError: Two requests would have the same name and different content, or a request is illegal.
        InputError: A dataset is missing, or a split of it is empty.
        OutputExistsError: An index is stale, and ``rebuild`` is not given.
        IntegrityError: A dataset or an index is damaged.
        LockedError: Another process was not done in time.
        StorageError: The disk is full or broken. What was built is kept.
        WorkerError: There is no such cluster, or it has lost the same work too often.
    """
    planned = plan_indexes(requests, cache_directory=cache_directory, workers=workers, progress=progress)
    return planned.build(rebuild=rebuild, digests=digests, wait_seconds=wait_seconds, progress=progress)


def examine_requests(
    requests: Sequence[IndexRequest],
    *,
    cache_directory: str | None = None,
    workers: int | None = None,
    digests: bool = True,
    progress: Progress | None = None,
) -> list[IndexOutcome]:
    """Examine indexes: fresh ones are complete, as written, and made from the dataset as it is now.

    Nothing is written. With ``digests`` every array is read whole and compared with its digest; without,
    headers, sizes and fingerprints are checked.

    Returns:
        An outcome for each request that Megatron would build, in order; see
        :attr:`IndexOutcome.is_fresh`.

    Raises:
        UsageError, InputError, IntegrityError, StorageError: As :func:`build_requests`, except that the
            state of an index is no error.
    """
    planned = plan_indexes(requests, cache_directory=cache_directory, workers=workers, progress=progress)
    return planned.examine(digests=digests, progress=progress)


def _build_here(
    tasks: Sequence[IndexTask],
    threads: ThreadRunner,
    datasets: Datasets,
    *,
    rebuild: bool,
    wait_seconds: float,
    listener: Progress | None,
) -> list[Action]:
    def build(task: IndexTask) -> Action:
        notice = f"another process is building {task.target.label}: waiting for it"
        action = build_or_reuse(
            task.target,
            lambda: task.arrays(datasets.get(task.request.prefix)),
            rebuild=rebuild,
            wait_seconds=wait_seconds,
            pause=lambda seconds: threads.wait(seconds, notice),
            tell=threads.tell,
        )
        threads.tell(0, documents=task.plan.documents, tokens=task.plan.tokens)
        return action

    total = sum(task.target.content.file_bytes for task in tasks)
    return threads.run(build, tasks, activity="building indexes", listener=listener, bytes_total=total)


def _examine_all(
    tasks: Mapping[CacheEntry, IndexTask],
    threads: ThreadRunner,
    progress: Progress | None,
    *,
    rebuild: bool,
    digests: bool,
) -> dict[CacheEntry, Examination]:
    # Entries that must not be replaced are refused before anything is built.
    def examine(task: IndexTask) -> Examination:
        return task.target.examine(digests=digests)

    states = threads.run(examine, list(tasks.values()), activity="checking indexes", listener=progress)
    before = dict(zip(tasks, states, strict=True))
    for entry, task in tasks.items():
        if before[entry].condition == "fresh":
            sweep(entry)
        elif not rebuild:
            task.target.refuse(before[entry].condition, before[entry].detail)
    return before


def _outcome(
    task: IndexTask, request: IndexRequest, before: Examination, action: Action | None
) -> IndexOutcome:
    size = task.target.content.file_bytes
    return IndexOutcome(
        request, task.target.entry, task.plan, task.dataset, before, action, size, task.tokenizer
    )


def repeated_warnings(outcomes: Iterable[IndexOutcome]) -> Iterator[str]:
    """Return the warnings about mismatches that were allowed when reused indexes were built."""
    for outcome in outcomes:
        yield from allowed_warnings(outcome.recorded_mismatches)
