"""Indexes built on the nodes of a Ray cluster, each by a task, into a cache that all nodes see."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

from tokshard.cluster.connection import Calls, Connection, run_retryable
from tokshard.cluster.options import RayOptions
from tokshard.cluster.task import Answer, Message, on_node
from tokshard.core.codec import Key, decode, encode
from tokshard.core.progress import Progress, ProgressUpdate, SilentProgress
from tokshard.core.thread_runner import ThreadRunner
from tokshard.core.worker_errors import error_from_json, error_to_json
from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.dataset.tokenizer_agreement import TokenizerMismatch
from tokshard.errors import InputError
from tokshard.index_cache.build_or_reuse import Action, Datasets, IndexTask, build_or_reuse, plan_tasks
from tokshard.index_cache.options import IndexRequest
from tokshard.storage import syscalls
from tokshard.storage.files import temporary_path
from tokshard.storage.fs import abspath
from tokshard.storage.lock import LockMode, current_lock_mode, lock_mode

_FUNCTION = "tokshard.index_cache.ray:build_on_node"
_HINT = "put datasets and the cache on a file system shared by all nodes"


def build_on_ray(
    tasks: Sequence[IndexTask],
    options: RayOptions,
    *,
    rebuild: bool,
    wait_seconds: float,
    listener: Progress | None,
) -> list[Action]:
    """Build indexes on a Ray cluster.

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
    listener.start("building indexes", sum(task.target.content.file_bytes for task in tasks))
    try:
        with _probes(tasks) as probes, Connection(options, Calls(_FUNCTION)) as connection:
            builds = [
                _RetryableBuild(
                    task,
                    _BuildCall(
                        request=replace(task.request, prefix=abspath(task.request.prefix)),
                        directory=os.path.abspath(task.target.entry.directory),
                        dataset=task.dataset,
                        probe=probes[task.target.entry.directory],
                        rebuild=rebuild,
                        wait_seconds=wait_seconds,
                        mismatches=task.target.mismatches,
                        lock=current_lock_mode(),
                    ),
                    progress,
                )
                for task in tasks
            ]
            for _ in run_retryable(connection, iter(builds), retries=options.retries):
                pass
        return [build.action or "found" for build in builds]
    finally:
        listener.finish()


class _Totals:
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


@dataclass(frozen=True, slots=True)
class _BuildCall:
    request: Annotated[IndexRequest, Key("request", "The index.")]
    directory: Annotated[str, Key("directory", "The cache.")]
    dataset: Annotated[DatasetFingerprint, Key("dataset", "Fingerprint that the dataset must have.")]
    probe: Annotated[str, Key("probe", "A file that must be in the cache.")]
    rebuild: Annotated[bool, Key("rebuild", "Whether to replace what is not fresh.")]
    wait_seconds: Annotated[float, Key("wait_seconds", "The longest wait for another process.")]
    mismatches: Annotated[tuple[TokenizerMismatch, ...], Key("mismatches", "Mismatches to be recorded.")]
    lock: Annotated[LockMode, Key("lock", "Mode of the writer locks.")]


@dataclass(frozen=True, slots=True)
class _BuildAnswer:
    action: Annotated[Action | None, Key("action", "What was done; null after an error.")] = None
    error: Annotated[Any, Key("error", "See tokshard.core.worker_errors; null if there is none.")] = None


class _RetryableBuild:
    def __init__(self, task: IndexTask, call: _BuildCall, totals: _Totals) -> None:
        self._task = task
        self._call = call
        self._totals = totals
        self.action: Action | None = None

    @property
    def label(self) -> str:
        return self._task.target.label

    def arguments(self) -> Message | None:
        arguments: Message | None = encode(self._call) if self.action is None else None
        return arguments

    def receive(self, answer: Message) -> None:
        decoded = decode(_BuildAnswer, answer, "the answer of a node")
        if decoded.error is not None:
            raise error_from_json(decoded.error)
        self.action = decoded.action
        self._totals.add(self._task)


@contextmanager
def _probes(tasks: Sequence[IndexTask]) -> Iterator[dict[str, str]]:
    # By these files a node checks that it sees the same directories.
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


def build_on_node(arguments: Message, attachment: bytes) -> Iterator[Answer]:  # noqa: ARG001 - the signature of tasks
    """Build an index on a node, in a worker process of the cluster.

    ``arguments`` are a :class:`_BuildCall` as JSON.

    Yields:
        An :class:`_BuildAnswer` as JSON.
    """
    host = socket.gethostname()
    try:
        answer = _BuildAnswer(action=_build(decode(_BuildCall, arguments, "the call"), host))
    except Exception as error:  # noqa: BLE001 - the job raises it
        answer = _BuildAnswer(error=error_to_json(on_node(error, host)))
    yield encode(answer), b""


def _build(call: _BuildCall, host: str) -> Action:
    if not os.path.exists(call.probe):
        raise InputError(
            f"the cache {call.directory} is a different directory on the node {host}", hint=_HINT
        )
    datasets = Datasets()
    _, tasks = plan_tasks([call.request], call.directory, datasets, ThreadRunner(1))
    (task,) = (task.recording(call.mismatches) for task in tasks.values())
    if changes := task.dataset.changes_since(call.dataset):
        raise InputError(
            f"the dataset {call.request.prefix} differs on the node {host}: {changes[0]}", hint=_HINT
        )
    with lock_mode(call.lock):
        return build_or_reuse(
            task.target,
            lambda: task.arrays(datasets.get(call.request.prefix)),
            rebuild=call.rebuild,
            wait_seconds=call.wait_seconds,
        )
