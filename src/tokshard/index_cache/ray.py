"""Indexes built on the nodes of a Ray cluster, each by a task, into a cache that all nodes see."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tokshard.cluster.connection import Calls, Connection, run_retryable
from tokshard.cluster.options import RayOptions
from tokshard.cluster.task import Message
from tokshard.core.codec import encode
from tokshard.core.progress import Progress, ProgressUpdate, SilentProgress
from tokshard.core.worker_errors import error_from_json
from tokshard.index_cache.build_or_reuse import Action
from tokshard.index_cache.task import IndexTask
from tokshard.storage import syscalls
from tokshard.storage.files import temporary_path
from tokshard.storage.fs import abspath

_FUNCTION = "tokshard.index_cache.node:build"


def build_on_ray(
    tasks: Sequence[IndexTask],
    options: RayOptions,
    *,
    rebuild: bool,
    wait_seconds: float,
    listener: Progress | None,
) -> list[Action]:
    """Build indexes on a Ray cluster.

    Args:
        tasks: What to build; begun in this order.
        options: Which cluster, and how.
        rebuild: As in :func:`tokshard.index_cache.build_or_reuse.build_or_reuse`.
        wait_seconds: As there.
        listener: Who is told of the progress, in bytes written; nobody if None.

    Returns:
        What was done about each of them, in order.

    Raises:
        WorkerError: There is no such cluster, or it has lost the same work too often.
        InputError: A node does not see a dataset or the cache.
        IntegrityError, LockedError, StorageError: As ``build_or_reuse``.
    """
    if not tasks:
        return []
    listener = listener or SilentProgress()
    progress = _Totals(listener)
    listener.start(sum(task.target.content.file_bytes for task in tasks), 0)
    try:
        with _probes(tasks) as probes, Connection(options, Calls(_FUNCTION)) as connection:
            common = {"rebuild": rebuild, "wait_seconds": wait_seconds}
            errands = [
                _IndexErrand(task, {**common, "probe": probes[task.target.entry.directory]}, progress)
                for task in tasks
            ]
            for _ in run_retryable(connection, iter(errands), retries=options.retries):
                pass
        return [errand.action or "found" for errand in errands]
    finally:
        listener.finish()


class _Totals:
    """What has been done so far."""

    def __init__(self, listener: Progress) -> None:
        self._listener = listener
        self._done = ProgressUpdate()

    def add(self, task: IndexTask) -> None:
        done = self._done
        self._done = replace(
            done,
            bytes_done=done.bytes_done + task.target.content.file_bytes,
            documents=done.documents + task.plan.documents,
            tokens=done.tokens + task.plan.tokens,
        )
        self._listener.update(self._done)


class _IndexErrand:
    """One index."""

    def __init__(self, task: IndexTask, common: Message, totals: _Totals) -> None:
        self._task = task
        self._common = common
        self._totals = totals
        self.action: Action | None = None

    @property
    def label(self) -> str:
        return self._task.target.label

    def arguments(self) -> Message | None:
        if self.action is not None:
            return None
        request = self._task.request
        return {
            **self._common,
            "request": replace(request, prefix=abspath(request.prefix)).to_json(),
            "directory": os.path.abspath(self._task.target.entry.directory),
            "dataset": encode(self._task.dataset),
        }

    def receive(self, answer: Message) -> None:
        if "error" in answer:
            raise error_from_json(answer["error"])
        self.action = answer["action"]
        self._totals.add(self._task)


@contextmanager
def _probes(tasks: Sequence[IndexTask]) -> Iterator[dict[str, str]]:
    """Put a file into each directory of the cache, by which a node can tell that it is the same there."""
    probes: dict[str, str] = {}
    try:
        for entry in (task.target.entry for task in tasks):
            if entry.directory not in probes:
                syscalls.make_directory(entry.directory)
                path = temporary_path(os.path.join(os.path.abspath(entry.directory), "seen"))
                syscalls.close(syscalls.create(path), path)
                probes[entry.directory] = path
        yield probes
    finally:
        for path in probes.values():
            syscalls.unlink(path)
