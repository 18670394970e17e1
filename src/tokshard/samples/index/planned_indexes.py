"""Indexes that are needed together: each dataset is read once, and nothing is built twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tokshard.core.background import ThreadRunner
from tokshard.core.progress import Progress
from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, TokenizerMismatch, allowed_warnings
from tokshard.dataset.token_ids import check_token_ids
from tokshard.dataset.tokenizer_agreement import JobTokenizer, TokenizerAgreement
from tokshard.samples.index.build_or_reuse import (
    LOCK_WAIT_SECONDS,
    Action,
    Datasets,
    IndexTask,
    build_or_reuse,
    plan_tasks,
    sweep,
)
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.examination import Examination
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.packing_report import PackingReport
from tokshard.samples.index.tokenizer_check import check_tokenizers


@dataclass(frozen=True, slots=True)
class IndexOutcome:
    """One index with the objects that it was built by.

    Attributes:
        plan: The numbers of the index: samples, epochs, tokens.
        before: The examination of the files before.
        array_bytes: Size of the arrays.
        action: ``"found"`` (it was fresh), ``"built"`` or ``"rebuilt"``.
        tokenizer: The tokenizer of the dataset.
        packing_report: The report of packed samples; None for all others.
    """

    request: IndexRequest
    entry: CacheEntry
    plan: EpochPlan
    dataset: DatasetFingerprint
    before: Examination
    action: Action
    array_bytes: int
    tokenizer: DatasetTokenizer
    packing_report: PackingReport | None

    @property
    def recorded_mismatches(self) -> tuple[TokenizerMismatch, ...]:
        """The mismatches of tokenizers that were allowed when the index was built that is reused."""
        sidecar = self.before.sidecar if self.before.condition == "fresh" else None
        return (sidecar.tokenizer_mismatches if sidecar is not None else None) or ()


@dataclass(frozen=True, slots=True)
class PlannedIndexes:
    """Indexes with everything that follows from their datasets; nothing is written yet.

    Attributes:
        agreement: The agreement of the tokenizers; an empty one unless :meth:`agreeing` compared them.
    """

    listed: Sequence[tuple[IndexRequest, CacheEntry]]
    tasks: Mapping[CacheEntry, IndexTask]
    datasets: Datasets
    workers: int | None
    agreement: TokenizerAgreement

    @property
    def tokenizers(self) -> dict[str, DatasetTokenizer]:
        """The tokenizers of the datasets by path prefix."""
        return {request.prefix: self.tasks[entry].tokenizer for request, entry in self.listed}

    def agreeing(
        self, job: JobTokenizer | None, *, allowed: bool, shares: Mapping[str, float] | None = None
    ) -> PlannedIndexes:
        """Return the same indexes; those that are built will record the mismatches of their datasets.

        The arguments are those of :func:`~tokshard.samples.index.tokenizer_check.check_tokenizers`.

        Raises:
            TokenizerMismatchError: The datasets do not fit together or the job, and this is not allowed.
            InputError: The tokens of a dataset are no integers, or negative.
        """
        check_token_ids(self.tokenizers)
        agreement = check_tokenizers(self.tokenizers, job, allowed=allowed, shares=shares)
        tasks = {
            entry: task.recording(agreement.concerning(task.request.prefix, task.tokenizer))
            for entry, task in self.tasks.items()
        }
        return replace(self, tasks=tasks, agreement=agreement)

    def tokenizer_warnings(self, outcomes: Sequence[IndexOutcome]) -> tuple[str, ...]:
        """Return the warnings of the agreement, and those that reused indexes record."""
        recorded = (found for outcome in outcomes for found in outcome.recorded_mismatches)
        return (*self.agreement.warnings, *allowed_warnings(recorded))

    def build(
        self,
        *,
        rebuild: bool = False,
        digests: bool = False,
        wait_seconds: float = LOCK_WAIT_SECONDS,
        progress: Progress | None = None,
    ) -> list[IndexOutcome]:
        """Build the indexes that are missing, and find those that exist.

        Everything is checked before anything is built. Memory is that of ``workers`` indexes at once: for
        each 4 bytes for each sequence and epoch, and 12 for each sample.

        Args:
            rebuild: Whether to replace what is stale, damaged or Megatron's own.
            digests: Whether existing arrays are read whole and compared with their digests, as with
                ``rebuild``. Without, headers, sizes and fingerprints are checked.
            wait_seconds: How long to wait for another process that builds the same.
            progress: Receives the progress, in bytes written.

        Returns:
            An outcome for each request that Megatron would build, in order.

        Raises:
            OutputExistsError: An index is stale or Megatron's own, and ``rebuild`` is not given.
            IntegrityError: A dataset or an index is damaged.
            LockedError: Another process was not done in time.
            StorageError: The disk is full or broken. What was built is kept.
        """
        before = self.examine(digests=digests or rebuild, progress=progress)
        _refuse(self.tasks, before, rebuild=rebuild)
        # The largest first, so that no thread begins it when the others are done.
        needed = [
            task
            for entry, task in self.tasks.items()
            if before[entry].condition != "fresh" or task.target.unrecorded
        ]
        needed.sort(key=lambda task: task.target.content.file_bytes, reverse=True)

        threads = ThreadRunner(self.workers)
        built = _build(
            needed, threads, self.datasets, rebuild=rebuild, wait_seconds=wait_seconds, listener=progress
        )
        done = {task.target.entry: action for task, action in zip(needed, built, strict=True)}
        return [
            _outcome(self.tasks[entry], request, before[entry], done.get(entry, "found"))
            for request, entry in self.listed
        ]

    def examine(
        self, *, digests: bool = False, progress: Progress | None = None
    ) -> dict[CacheEntry, Examination]:
        """Examine the indexes; nothing is written.

        With ``digests`` every array is read whole and compared with its digest; without, headers, sizes and
        fingerprints are checked.

        Raises:
            StorageError: A file cannot be read; the condition of an index is no error.
        """

        def examine(task: IndexTask) -> Examination:
            return task.target.examine(digests=digests)

        tasks = list(self.tasks.values())
        states = ThreadRunner(self.workers).run(
            examine, tasks, activity="checking indexes", listener=progress
        )
        return dict(zip(self.tasks, states, strict=True))


def plan_indexes(
    requests: Sequence[IndexRequest],
    *,
    cache_directory: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> PlannedIndexes:
    """Open the datasets and plan their indexes.

    Args:
        requests: The indexes. One whose split has no share is left out, as Megatron leaves it out. Two that
            mean the same files are one.
        cache_directory: Megatron's ``--data-cache-path``; None for Megatron's default, a directory of
            its own for each dataset.
        workers: How many threads build; None for one for each core.
        progress: Receives the progress.

    Raises:
        UsageError: Two requests would have the same name and different content, or a request is illegal.
        InputError: A dataset is missing, or a split of it is empty.
        IntegrityError: A dataset is damaged.
        StorageError: A dataset cannot be read.
    """
    threads, datasets = ThreadRunner(workers), Datasets()
    listed, tasks = plan_tasks(requests, cache_directory, datasets, threads, progress)
    return PlannedIndexes(listed, tasks, datasets, workers, TokenizerAgreement())


def _build(
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


def _refuse(
    tasks: Mapping[CacheEntry, IndexTask], before: Mapping[CacheEntry, Examination], *, rebuild: bool
) -> None:
    # Entries that must not be replaced are refused before anything is built.
    for entry, task in tasks.items():
        task.target.refuse_other_packing(before[entry])
        if before[entry].condition == "fresh":
            sweep(entry)
        elif not rebuild:
            task.target.refuse(before[entry].condition, before[entry].detail)


def _outcome(task: IndexTask, request: IndexRequest, before: Examination, action: Action) -> IndexOutcome:
    content = task.target.content
    return IndexOutcome(
        request=request,
        entry=task.target.entry,
        plan=task.plan,
        dataset=task.dataset,
        before=before,
        action=action,
        array_bytes=content.file_bytes,
        tokenizer=task.tokenizer,
        packing_report=content.packing_report,
    )
