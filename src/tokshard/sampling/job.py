"""The job of building indexes: many requests at once, each data set read once, nothing built twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokshard.errors import InputError, IntegrityError, UsageError
from tokshard.progress import Progress
from tokshard.sampling.cache import (
    Arrays,
    Cache,
    CacheEntry,
    CacheState,
    default_directory,
    gpt_specs,
)
from tokshard.sampling.crew import Crew
from tokshard.sampling.epochs import EpochPlan, plan_epochs, warnings_of
from tokshard.sampling.fingerprint import FingerprintedIndex
from tokshard.sampling.index import GPTDatasetIndex
from tokshard.sampling.provision import LOCK_WAIT_SECONDS, Action, Wanted, provide, sweep
from tokshard.sampling.report import IndexReport
from tokshard.sampling.request import IndexRequest
from tokshard.sampling.sidecar import Origin

# Open data sets are mapped, and every map holds a file descriptor, of which processes have about 1,000.
_OPEN_DATASETS = 64


def build_indices(
    requests: Sequence[IndexRequest],
    *,
    cache_directory: str | None = None,
    workers: int | None = None,
    rebuild: bool = False,
    digests: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    progress: Progress | None = None,
) -> list[IndexReport]:
    """Build the indexes that are not there, and find or verify those that are.

    Everything is checked before anything is built. Memory is that of ``workers`` indexes at once: for
    each 4 bytes for each sequence and epoch, and 12 for each sample.

    Args:
        requests: What is wanted. One whose split has no share is left out, as Megatron leaves it out.
            Two that mean the same files are built once.
        cache_directory: Megatron's ``--data-cache-path``; None for Megatron's default, a directory of
            its own for each data set.
        workers: Threads; None for one for each core.
        rebuild: Whether to replace what is stale, damaged or Megatron's own.
        digests: Whether arrays that are there are read whole and held against their digests, as with
            ``rebuild``. Without, headers, sizes and fingerprints are looked at.
        wait_seconds: How long to wait for another process that builds the same.
        progress: Who is told of the progress, in bytes written.

    Returns:
        A report for each request that Megatron would build, in order.

    Raises:
        UsageError: Two requests would have the same name and different content, or a request is illegal.
        InputError: A data set is missing, or a split of it is empty.
        OutputExistsError: An index is stale, and ``rebuild`` is not given.
        IntegrityError: A data set or an index is damaged.
        LockedError: Another process was not done in time.
        StorageError: The disk is full or broken. What was built is kept.
    """
    crew, datasets = Crew(workers), _Datasets()
    listed, tasks = _plan(requests, cache_directory, datasets, crew)
    before = _survey(tasks, crew, rebuild=rebuild, digests=digests or rebuild)
    # The largest first, so that no thread begins it when the others are done.
    needed = [task for entry, task in tasks.items() if before[entry].state != "fresh"]
    needed.sort(key=lambda task: task.wanted.file_bytes, reverse=True)

    def build(task: _Task) -> Action:
        notice = f"another process is building {task.wanted.name}: waiting for it"
        action = provide(
            task.wanted,
            lambda: task.arrays(datasets.open(task.request.prefix)),
            rebuild=rebuild,
            wait_seconds=wait_seconds,
            pause=lambda seconds: crew.wait(seconds, notice),
            tell=crew.tell,
        )
        crew.tell(0, documents=task.plan.documents, tokens=task.plan.tokens)
        return action

    total = sum(task.wanted.file_bytes for task in needed)
    built = crew.run(build, needed, listener=progress, bytes_total=total)
    done = {task.wanted.entry: action for task, action in zip(needed, built, strict=True)}
    return [
        tasks[entry].report(request, before[entry], done.get(entry, "found")) for request, entry in listed
    ]


def check_indices(
    requests: Sequence[IndexRequest],
    *,
    cache_directory: str | None = None,
    workers: int | None = None,
    digests: bool = True,
    progress: Progress | None = None,
) -> list[IndexReport]:
    """Tell which indexes are fresh: present, complete, as written, and made from the data set as it is now.

    Nothing is written.

    Args:
        requests: As in :func:`build_indices`.
        cache_directory: As in :func:`build_indices`.
        workers: Threads; None for one for each core.
        digests: Whether every array is read whole and held against its digest. Without, headers, sizes
            and fingerprints are looked at.
        progress: Who is told of the progress, in bytes of arrays.

    Returns:
        A report for each request that Megatron would build, in order; see
        :attr:`~tokshard.sampling.report.IndexReport.is_fresh`.

    Raises:
        UsageError, InputError, IntegrityError, StorageError: As :func:`build_indices`, except that the
            state of an index is no error.
    """
    crew = Crew(workers)
    listed, tasks = _plan(requests, cache_directory, _Datasets(), crew)

    def examine(task: _Task) -> CacheState:
        state = task.wanted.examine(digests=digests)
        crew.tell(task.wanted.file_bytes, documents=task.plan.documents, tokens=task.plan.tokens)
        return state

    total = sum(task.wanted.file_bytes for task in tasks.values())
    states = crew.run(examine, list(tasks.values()), listener=progress, bytes_total=total)
    found = dict(zip(tasks, states, strict=True))
    return [tasks[entry].report(request, found[entry], None) for request, entry in listed]


@dataclass(frozen=True, slots=True)
class _Task:
    """A request with everything that follows from the data set."""

    request: IndexRequest
    plan: EpochPlan
    wanted: Wanted

    def arrays(self, dataset: FingerprintedIndex) -> Arrays:
        """Build the arrays.

        Raises:
            IntegrityError: The data set has changed since the plan was made.
        """
        if dataset.fingerprint != self.wanted.origin.dataset:
            raise IntegrityError(
                f"{dataset.path_prefix} has changed while its indexes were built",
                path=dataset.path_prefix,
                hint="run the same command again when nobody writes the data set",
            )
        request = self.request
        index = GPTDatasetIndex.build(
            dataset.table.sequence_lengths,
            _sequences(request, dataset),
            sequence_length=request.sequence_length,
            seed=request.seed,
            num_samples=request.num_samples,
            extra_token=request.extra_token,
            drop_last_partial=request.drops_last_partial,
        )
        return {name: getattr(index, name) for name in self.wanted.entry.arrays}

    def report(self, request: IndexRequest, before: CacheState, action: Action | None) -> IndexReport:
        """Return the report for one of the requests that the task is for."""
        return IndexReport(
            request=request,
            entry=self.wanted.entry,
            plan=self.plan,
            dataset=self.wanted.origin.dataset,
            state=before.state,
            reason=before.reason,
            action=action,
            warnings=tuple(warnings_of(self.plan)),
        )


class _Datasets:
    """The indexes of data sets, each opened once while not too many are open; for any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._open: OrderedDict[str, FingerprintedIndex] = OrderedDict()

    def open(self, prefix: str) -> FingerprintedIndex:
        """Return the index of a data set."""
        with self._guard:
            lock = self._locks.setdefault(prefix, threading.Lock())
        with lock:
            with self._guard:
                if (known := self._open.get(prefix)) is not None:
                    self._open.move_to_end(prefix)
                    return known
            opened = FingerprintedIndex.open(prefix)
            with self._guard:
                self._open[prefix] = opened
                if len(self._open) > _OPEN_DATASETS:
                    self._open.popitem(last=False)
            return opened


def _plan(
    requests: Sequence[IndexRequest], cache_directory: str | None, datasets: _Datasets, crew: Crew
) -> tuple[list[tuple[IndexRequest, CacheEntry]], dict[CacheEntry, _Task]]:
    """Return the requests that Megatron would build with their files, and a task for each set of files."""
    listed = [
        (one, Cache(cache_directory or default_directory(one.prefix)).gpt_files(one.description()))
        for one in requests
        if one.is_built
    ]
    first: dict[CacheEntry, IndexRequest] = {}
    for request, entry in listed:
        _check_same(first.setdefault(entry, request), request)
    pairs = list(first.items())
    tasks = crew.run(lambda pair: _task(pair[1], pair[0], datasets.open(pair[1].prefix)), pairs)
    return listed, dict(zip(first, tasks, strict=True))


def _survey(
    tasks: dict[CacheEntry, _Task], crew: Crew, *, rebuild: bool, digests: bool
) -> dict[CacheEntry, CacheState]:
    """Return the states of all entries; refuse those that must not be replaced, before anything is built."""
    states = crew.run(lambda task: task.wanted.examine(digests=digests), list(tasks.values()))
    before = dict(zip(tasks, states, strict=True))
    for entry, task in tasks.items():
        if before[entry].state == "fresh":
            sweep(entry)
        elif not rebuild:
            task.wanted.refuse(before[entry])
    return before


def _task(request: IndexRequest, entry: CacheEntry, dataset: FingerprintedIndex) -> _Task:
    sequences = _sequences(request, dataset)
    lengths = dataset.table.sequence_lengths[sequences.start : sequences.stop]
    tokens = int(lengths.sum(dtype=np.int64))
    name = f"the {request.split_name} index of {request.prefix}"
    try:
        plan = plan_epochs(
            sequences=len(sequences),
            tokens_per_epoch=tokens,
            sequence_length=request.sequence_length,
            num_samples=request.num_samples,
            extra_token=request.extra_token,
            drop_last_partial=request.drops_last_partial,
        )
    except (InputError, UsageError) as error:
        raise type(error)(f"{name}: {error.message}", hint=error.hint) from None
    origin = Origin(
        dataset=dataset.fingerprint,
        options={
            "add_extra_token_to_sequence": request.extra_token,
            "drop_last_partial_sequence": request.drops_last_partial,
        },
        counts={
            "sequences": plan.sequences,
            "tokens_per_epoch": plan.tokens_per_epoch,
            "epochs": plan.epochs,
            "samples": plan.samples,
            "samples_before_final_epoch": plan.samples_before_final,
        },
    )
    return _Task(request, plan, Wanted(entry, gpt_specs(plan), origin, name))


def _sequences(request: IndexRequest, dataset: FingerprintedIndex) -> range:
    count = dataset.table.sequence_count
    sequences = request.sequences(count)
    if not sequences:
        raise InputError(
            f"the {request.split_name} index of {request.prefix}: the split {request.split.text!r} leaves it "
            f"none of the {count} sequences, and Megatron would never end building it",
            hint="give the split a larger share, or none at all (0) so that it is not built",
        )
    return sequences


def _check_same(first: IndexRequest, second: IndexRequest) -> None:
    """Check that two requests with the same files mean the same content."""
    same = replace(second, drop_last_partial=first.drop_last_partial)
    if second.drops_last_partial != first.drops_last_partial or same != first:
        raise UsageError(
            f"the {first.split_name} indexes of {first.prefix} and {second.prefix} would have the same "
            f"names in the cache, and differ in their data or in options that do not enter the names",
            hint="give each a cache directory or a training path of its own",
        )
