"""The job of building indexes: many requests at once, each dataset read once, nothing built twice."""

from __future__ import annotations

from collections.abc import Sequence

from tokshard.cluster.options import RayOptions
from tokshard.core.progress import Progress
from tokshard.core.thread_runner import ThreadRunner
from tokshard.index_cache.build_or_reuse import LOCK_WAIT_SECONDS, Action, build_or_reuse, sweep
from tokshard.index_cache.entry import CacheEntry, Examination
from tokshard.index_cache.report import IndexReport
from tokshard.index_cache.request import IndexRequest
from tokshard.index_cache.task import Datasets, IndexTask, plan_tasks


def build_indices(
    requests: Sequence[IndexRequest],
    *,
    cache_directory: str | None = None,
    workers: int | RayOptions | None = None,
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
            its own for each dataset.
        workers: How many threads build, None for one for each core; or the Ray cluster that builds, whose
            nodes must see the datasets and the cache directory.
        rebuild: Whether to replace what is stale, damaged or Megatron's own.
        digests: Whether arrays that are there are read whole and held against their digests, as with
            ``rebuild``. Without, headers, sizes and fingerprints are looked at.
        wait_seconds: How long to wait for another process that builds the same.
        progress: Who is told of the progress, in bytes written.

    Returns:
        A report for each request that Megatron would build, in order.

    Raises:
        UsageError: Two requests would have the same name and different content, or a request is illegal.
        InputError: A dataset is missing, or a split of it is empty.
        OutputExistsError: An index is stale, and ``rebuild`` is not given.
        IntegrityError: A dataset or an index is damaged.
        LockedError: Another process was not done in time.
        StorageError: The disk is full or broken. What was built is kept.
        WorkerError: There is no such cluster, or it has lost the same work too often.
    """
    crew, datasets = ThreadRunner(workers if isinstance(workers, int) else None), Datasets()
    listed, tasks = plan_tasks(requests, cache_directory, datasets, crew)
    before = _survey(tasks, crew, rebuild=rebuild, digests=digests or rebuild)
    # The largest first, so that no thread begins it when the others are done.
    needed = [task for entry, task in tasks.items() if before[entry].condition != "fresh"]
    needed.sort(key=lambda task: task.target.content.file_bytes, reverse=True)

    if isinstance(workers, RayOptions):
        from tokshard.index_cache.ray import build_on_ray

        built = build_on_ray(needed, workers, rebuild=rebuild, wait_seconds=wait_seconds, listener=progress)
    else:
        built = _build_here(
            needed, crew, datasets, rebuild=rebuild, wait_seconds=wait_seconds, listener=progress
        )
    done = {task.target.entry: action for task, action in zip(needed, built, strict=True)}
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
    """Tell which indexes are fresh: present, complete, as written, and made from the dataset as it is now.

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
        :attr:`~tokshard.index_cache.report.IndexReport.is_fresh`.

    Raises:
        UsageError, InputError, IntegrityError, StorageError: As :func:`build_indices`, except that the
            state of an index is no error.
    """
    crew = ThreadRunner(workers)
    listed, tasks = plan_tasks(requests, cache_directory, Datasets(), crew)

    def examine(task: IndexTask) -> Examination:
        examination = task.target.examine(digests=digests)
        crew.tell(task.target.content.file_bytes, documents=task.plan.documents, tokens=task.plan.tokens)
        return examination

    total = sum(task.target.content.file_bytes for task in tasks.values())
    states = crew.run(examine, list(tasks.values()), listener=progress, bytes_total=total)
    found = dict(zip(tasks, states, strict=True))
    return [tasks[entry].report(request, found[entry], None) for request, entry in listed]


def _build_here(
    tasks: Sequence[IndexTask],
    crew: ThreadRunner,
    datasets: Datasets,
    *,
    rebuild: bool,
    wait_seconds: float,
    listener: Progress | None,
) -> list[Action]:
    """Build in threads of this process."""

    def build(task: IndexTask) -> Action:
        notice = f"another process is building {task.target.label}: waiting for it"
        action = build_or_reuse(
            task.target,
            lambda: task.arrays(datasets.get(task.request.prefix)),
            rebuild=rebuild,
            wait_seconds=wait_seconds,
            pause=lambda seconds: crew.wait(seconds, notice),
            tell=crew.tell,
        )
        crew.tell(0, documents=task.plan.documents, tokens=task.plan.tokens)
        return action

    total = sum(task.target.content.file_bytes for task in tasks)
    return crew.run(build, tasks, listener=listener, bytes_total=total)


def _survey(
    tasks: dict[CacheEntry, IndexTask], crew: ThreadRunner, *, rebuild: bool, digests: bool
) -> dict[CacheEntry, Examination]:
    """Return the states of all entries; refuse those that must not be replaced, before anything is built."""
    states = crew.run(lambda task: task.target.examine(digests=digests), list(tasks.values()))
    before = dict(zip(tasks, states, strict=True))
    for entry, task in tasks.items():
        if before[entry].condition == "fresh":
            sweep(entry)
        elif not rebuild:
            task.target.refuse(before[entry].condition, before[entry].detail)
    return before
