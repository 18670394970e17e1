"""Indexes that are built together: each dataset is read once, each index by one process at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tokshard.core.background import ThreadRunner
from tokshard.core.codec import TOOL, Count, Md5, Record
from tokshard.core.open_cache import OpenCache, affordable
from tokshard.core.progress import Progress
from tokshard.dataset.fingerprint import FingerprintedIndex
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, allowed_warnings
from tokshard.dataset.token_ids import check_token_ids
from tokshard.dataset.tokenizer_agreement import JobTokenizer, TokenizerAgreement
from tokshard.errors import InputError, LockedError, StorageError, UsageError
from tokshard.samples.index.description import GPTDatasetDescription, default_directory
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.epochs import warnings_of
from tokshard.samples.index.examination import CacheTarget, Condition, Examination
from tokshard.samples.index.npy import Blocks, write_blocks
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.sidecar import (
    IndexOrigin,
    Sidecar,
    allowed_mismatches,
    gpt_specs,
    readable_sidecar,
)
from tokshard.samples.index.tokenizer_check import check_tokenizers
from tokshard.storage import syscalls
from tokshard.storage.digest import FileRecord
from tokshard.storage.files import write_atomically
from tokshard.storage.lock import WriterLock
from tokshard.storage.paths import is_remote
from tokshard.storage.publication import remove_temporary_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOCK_WAIT_SECONDS = 3600.0
_POLL_SECONDS = 0.05
# Open datasets are mapped, and every map holds a file descriptor, of which processes have about 1,000.
_OPEN_DATASETS = 64
# The .idx file with its map, and those of an index that is built from it.
_FILES_OF_A_DATASET = 4

Action = Literal["found", "built", "rebuilt"]
Arrays = Mapping[str, "NDArray[Any]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTarget(CacheTarget):
    """The index of a dataset that is needed.

    Attributes:
        request: The first request that needs these files.
        plan: The numbers of the index: samples, epochs, tokens.
        origin: The data and the numbers that it is built from.
    """

    request: IndexRequest
    plan: EpochPlan
    origin: IndexOrigin

    @classmethod
    def of(cls, request: IndexRequest, entry: CacheEntry, dataset: FingerprintedIndex) -> IndexTarget:
        """Return the index that a request asks for.

        Raises:
            UsageError, InputError: It cannot be built.
        """
        label = f"the {request.split_name} index of {request.prefix}"
        try:
            plan = request.plan(request.size(dataset.table))
        except (InputError, UsageError) as error:
            raise type(error)(f"{label}: {error.message}", hint=error.hint) from None
        return cls(
            entry=entry,
            description=request.description(),
            label=label,
            specs=gpt_specs(plan),
            origin=IndexOrigin(dataset=dataset.fingerprint, plan=plan, tokenizer=dataset.tokenizer),
            request=request,
            plan=plan,
        )

    @property
    def tokenizer(self) -> DatasetTokenizer:
        """The tokenizer of the dataset."""
        return self.origin.tokenizer or DatasetTokenizer()

    def arrays(self, dataset: FingerprintedIndex) -> Arrays:
        """Build the arrays.

        Raises:
            IntegrityError: The dataset has changed since the plan was made.
        """
        dataset.check(self.origin.dataset)
        index = self.request.build(dataset.table)
        return {name: getattr(index, name) for name in self.entry.arrays}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport(Record):
    """One index, its condition before the run, and the action."""

    path_prefix: str
    hash: Md5
    description: GPTDatasetDescription
    plan: EpochPlan
    documents: Count
    files: tuple[str, ...]
    size_bytes: Count
    condition: Condition
    reason: str
    action: Action
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, target: IndexTarget, before: Examination, action: Action) -> IndexReport:
        """Return the report of an index that was built or found."""
        plan = target.plan
        return cls(
            path_prefix=target.request.prefix,
            hash=target.entry.hash,
            description=target.request.description(),
            plan=plan,
            # The last entry of a packed index is read as a label only.
            documents=plan.documents - (plan.packed is not None),
            files=target.entry.megatron_files,
            size_bytes=target.file_bytes,
            condition=before.condition,
            reason=before.reason,
            action=action,
            warnings=tuple(warnings_of(plan)),
        )


class Datasets(OpenCache[str, FingerprintedIndex]):
    """Thread-safe cache of the open indexes of datasets, limited in number."""

    def __init__(self) -> None:
        super().__init__(FingerprintedIndex.open, affordable(_OPEN_DATASETS, _FILES_OF_A_DATASET))


@dataclass(frozen=True, slots=True)
class PlannedIndexes:
    """Indexes with the numbers that follow from their datasets; nothing is written yet.

    Attributes:
        listed: The entry of each request that Megatron would build, in order.
        by_entry: The indexes; several requests may need the same one.
        agreement: The agreement of the tokenizers; an empty one unless :meth:`agreeing` compared them.
    """

    listed: Sequence[CacheEntry]
    by_entry: Mapping[CacheEntry, IndexTarget]
    datasets: Datasets
    workers: int | None
    agreement: TokenizerAgreement

    @property
    def targets(self) -> list[IndexTarget]:
        """The index of each request that Megatron would build, in order."""
        return [self.by_entry[entry] for entry in self.listed]

    def agreeing(
        self, job: JobTokenizer | None, *, allowed: bool, shares: Mapping[str, float] | None = None
    ) -> PlannedIndexes:
        """Compare the tokenizers. Return the same indexes, which will record the mismatches when built.

        The arguments are those of :func:`~tokshard.samples.index.tokenizer_check.check_tokenizers`.

        Raises:
            TokenizerMismatchError: The tokenizers of the datasets and of the job differ, and this is not
                allowed.
            InputError: The tokens of a dataset are not integers, or are negative.
        """
        tokenizers = {target.request.prefix: target.tokenizer for target in self.targets}
        check_token_ids(tokenizers)
        agreement = check_tokenizers(tokenizers, job, allowed=allowed, shares=shares)
        recording = {
            entry: replace(target, mismatches=agreement.concerning(target.request.prefix, target.tokenizer))
            for entry, target in self.by_entry.items()
        }
        return replace(self, by_entry=recording, agreement=agreement)

    def tokenizer_warnings(self, reports: Sequence[IndexReport]) -> tuple[str, ...]:
        """Return the warnings of the agreement, and the mismatches that reused indexes record."""
        reused = (
            entry for entry, report in zip(self.listed, reports, strict=True) if report.condition == "fresh"
        )
        recorded = (mismatch for entry in reused for mismatch in allowed_mismatches(entry))
        return tuple(dict.fromkeys((*self.agreement.warnings, *allowed_warnings(recorded))))

    def examine(
        self, *, digests: bool = False, progress: Progress | None = None
    ) -> dict[CacheEntry, Examination]:
        """Examine the indexes; nothing is written.

        With ``digests`` every array is read whole and compared with its digest; without, headers, sizes and
        fingerprints are checked.

        Raises:
            StorageError: A file cannot be read; the condition of an index is no error.
        """

        def examine(target: IndexTarget) -> Examination:
            return target.examine(digests=digests)

        examinations = ThreadRunner(self.workers).run(
            examine, list(self.by_entry.values()), activity="checking indexes", listener=progress
        )
        return dict(zip(self.by_entry, examinations, strict=True))

    def build(
        self,
        *,
        rebuild: bool = False,
        digests: bool = False,
        wait_seconds: float = LOCK_WAIT_SECONDS,
        progress: Progress | None = None,
    ) -> list[IndexReport]:
        """Build the indexes that are missing, and reuse those that are fresh.

        Everything is checked before anything is built. Memory is that of ``workers`` indexes at once: for
        each 4 bytes for each sequence and epoch, and 12 for each sample.

        Args:
            rebuild: Whether to replace indexes that differ.
            digests: Whether existing arrays are read whole and compared with their digests, as with
                ``rebuild``. Without, headers, sizes and fingerprints are checked.
            wait_seconds: Maximum time to wait for another process that builds the same index, in seconds.
            progress: Receives the progress, in bytes written.

        Returns:
            A report for each request that Megatron would build, in order.

        Raises:
            OutputExistsError: An index differs, and ``rebuild`` is not given.
            IntegrityError: A dataset or an index is damaged.
            LockedError: Another process did not finish in time.
            StorageError: The disk is full or broken. What was built is kept.
        """
        before = self.examine(digests=digests or rebuild, progress=progress)
        unfinished = []
        for entry, target in self.by_entry.items():
            target.refuse(before[entry], rebuild=rebuild)
            if before[entry].condition == "fresh":
                sweep(entry)
            if before[entry].condition != "fresh" or target.unrecorded:
                unfinished.append(target)
        # Start with the largest, so that no thread builds it alone at the end.
        unfinished.sort(key=lambda target: target.file_bytes, reverse=True)
        threads = ThreadRunner(self.workers)

        def build(target: IndexTarget) -> Action:
            notice = f"another process is building {target.label}: waiting for it"
            action = build_or_reuse(
                target,
                lambda: target.arrays(self.datasets.get(target.request.prefix)),
                rebuild=rebuild,
                wait_seconds=wait_seconds,
                pause=lambda seconds: threads.wait(seconds, notice),
                tell=threads.tell,
            )
            threads.tell(0, documents=target.plan.documents, tokens=target.plan.tokens)
            return action

        total = sum(target.file_bytes for target in unfinished)
        built = threads.run(
            build, unfinished, activity="building indexes", listener=progress, bytes_total=total
        )
        actions = {target.entry: action for target, action in zip(unfinished, built, strict=True)}
        return [
            IndexReport.of(self.by_entry[entry], before[entry], actions.get(entry, "found"))
            for entry in self.listed
        ]


def plan_indexes(
    requests: Sequence[IndexRequest],
    *,
    cache_directory: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> PlannedIndexes:
    """Open the datasets and plan their indexes; nothing is written.

    Args:
        requests: The indexes. As in Megatron, an index is left out if its split has no share. Two requests
            for the same files are planned once.
        cache_directory: Megatron's ``--data-cache-path``. If None, Megatron's default: each dataset has a
            directory of its own.
        workers: Number of threads, or None for the number of cores.
        progress: Receives the progress.

    Raises:
        UsageError: Two requests would have the same name and different content, or a request is invalid.
        InputError: A dataset is missing, or a split of it is empty.
        IntegrityError: A dataset is damaged.
        StorageError: A dataset cannot be read.
    """
    threads, datasets = ThreadRunner(workers), Datasets()
    listed: list[CacheEntry] = []
    first: dict[CacheEntry, IndexRequest] = {}
    for request in requests:
        if request.is_built:
            entry = CacheEntry.of(request.description(), cache_directory or _beside(request.prefix))
            _check_same(first.setdefault(entry, request), request)
            listed.append(entry)

    def plan(entry: CacheEntry) -> IndexTarget:
        return IndexTarget.of(first[entry], entry, datasets.get(first[entry].prefix))

    targets = threads.run(plan, list(first), activity="reading datasets", listener=progress)
    by_entry = dict(zip(first, targets, strict=True))
    return PlannedIndexes(listed, by_entry, datasets, workers, TokenizerAgreement())


def _beside(prefix: str) -> str:
    if is_remote(prefix):
        raise UsageError(
            f"--cache-dir is required: the indexes of {prefix} cannot be written next to it",
            hint="pass --cache-dir DIRECTORY",
        )
    return default_directory(prefix)


def _check_same(first: IndexRequest, second: IndexRequest) -> None:
    same = replace(second, drop_last_partial=first.drop_last_partial)
    if second.drops_last_partial != first.drops_last_partial or same != first:
        raise UsageError(
            f"the {first.split_name} indexes of {first.prefix} and {second.prefix} have the same names in "
            "the cache, but differ in their data or in options that are not part of the names",
            hint="pass a different --cache-dir or --path-as for each",
        )


def build_or_reuse(
    target: CacheTarget,
    make: Callable[[], Arrays | Blocks],
    *,
    rebuild: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    pause: Callable[[float], object] = time.sleep,
    tell: Callable[[int], None] = lambda _: None,
) -> Action:
    """Make sure that an entry is fresh; return the action.

    Reuses a fresh entry. Builds a missing one, and one of an earlier version of tokshard. Replaces one that
    differs only with ``rebuild``. If two processes need the same entry, the second waits and reuses the
    result of the first.

    ``make`` builds the arrays, in the dtypes and shapes of the target, or returns the blocks that do.
    ``rebuild`` replaces everything that is not fresh, also judged by digests. ``tell`` is called with the
    number of bytes of each finished piece.

    Raises:
        OutputExistsError: The entry differs.
        IntegrityError: It is damaged.
        LockedError: Another process did not finish in time.
        StorageError: A write failed. No file is incomplete then.
    """
    if target.examine(digests=rebuild).condition == "fresh":
        if target.unrecorded:
            # A cache that is read-only here stays as it is: blend.json records them.
            with (
                suppress(StorageError),
                locked(target.entry.lock_path, wait_seconds=wait_seconds, pause=pause),
            ):
                _record(target)
        sweep(target.entry)
        return "found"
    with locked(target.entry.lock_path, wait_seconds=wait_seconds, pause=pause):
        before = target.examine(digests=rebuild)
        if before.condition == "fresh":
            _record(target)
            tell(target.file_bytes)
            return "found"
        target.refuse(before, rebuild=rebuild)
        write(target, make(), tell)
    return "built" if before.condition == "missing" else "rebuilt"


def write(target: CacheTarget, arrays: Arrays | Blocks, tell: Callable[[int], None] = lambda _: None) -> None:
    """Write all files of an entry, replacing existing ones; the caller holds :func:`locked`.

    Each file appears whole and is forced to the disk. An existing description is removed first, and the
    new one is written last: at no moment do all of Megatron's files exist and not belong together.
    """
    entry = target.entry
    _withdraw(entry)
    files: dict[str, FileRecord] = {}
    paths = {name: entry.array_path(name) for name in entry.arrays}
    if isinstance(arrays, Blocks):
        parts = [arrays]
    else:
        parts = [Blocks.of(name, arrays[name]) for name in entry.arrays]
    for blocks in parts:
        written = write_blocks(paths, blocks, tell)
        files |= {f"{name}.npy": record for name, record in written.items()}
    sidecar = Sidecar(
        tool=TOOL,
        description_md5=entry.hash,
        origin=target.origin,
        files=files,
        tokenizer_mismatches=target.mismatches or None,
    )
    sidecar.write(entry.sidecar_path)
    write_atomically(entry.description_path, target.description.text().encode("ascii"))


def _record(target: CacheTarget) -> None:
    """Add allowed mismatches to the sidecar of an entry that was built without them."""
    sidecar = readable_sidecar(target.entry)
    if sidecar is not None and (unrecorded := target.unrecorded):
        mismatches = (*(sidecar.tokenizer_mismatches or ()), *unrecorded)
        replace(sidecar, tokenizer_mismatches=mismatches).write(target.entry.sidecar_path)


@contextmanager
def locked(
    lock_path: str,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[None]:
    """Hold the lock of an entry, or of another file, for writing; wait while another process does.

    ``pause`` is called between two tries with the seconds to wait; it may raise to give up.

    Raises:
        LockedError: The other process did not finish in time.
        StorageError: The file system has no locks, or refuses them.
    """
    deadline = time.monotonic() + wait_seconds
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(WriterLock(lock_path))
                break
            except LockedError:
                if time.monotonic() >= deadline:
                    raise
            pause(_POLL_SECONDS)
        yield


def sweep(entry: CacheEntry) -> None:
    """Remove the lock file of a writer that was killed after it completed an entry."""
    if os.path.lexists(entry.lock_path):
        with suppress(LockedError, StorageError), WriterLock(entry.lock_path):
            pass


def _withdraw(entry: CacheEntry) -> None:
    """Remove the description of an entry, so that it counts as incomplete, and temporary files."""
    syscalls.make_directory(entry.directory)
    stale = [path for path in (entry.description_path, entry.sidecar_path) if os.path.lexists(path)]
    for path in stale:
        syscalls.unlink(path)
    if stale:
        syscalls.fsync_directory(entry.directory)
    remove_temporary_files(entry.directory, f"{entry.stem}-")
