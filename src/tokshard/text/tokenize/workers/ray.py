"""Units encoded by the tasks of a Ray cluster whose nodes all see the inputs and the output.

A unit of a plain file or table is a task, and so is a compressed file, which can be read only from its
beginning. Ray repeats a task that is lost with its node. :func:`encode_on_node` runs on the nodes.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from heapq import merge
from itertools import count
from typing import Any

from tokshard.errors import InputError, StorageError, WorkerError
from tokshard.storage.files import write_atomically
from tokshard.storage.fs import abspath
from tokshard.storage.paths import is_remote
from tokshard.storage.scratch import scratch_directory
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.tokenize.encoder import EncodingSpec, Task, UnitEncoder, progress_each
from tokshard.text.tokenize.part import UnitKey
from tokshard.text.tokenize.workers.channel import sendable
from tokshard.text.tokenize.workers.executor import Events
from tokshard.text.tokenize.workers.feed import Feed, StreamInput
from tokshard.text.tokenize.workers.ray_cluster import RayOptions, first_sentence
from tokshard.text.tokenizer.files import read_file
from tokshard.version import __version__

_RETRIES = 3
_TASKS_PER_SLOT = 2
_LOOK_SECONDS = 5.0
_HINT_NODES = "every node must see the inputs and the output: store them on a shared file system"
_HINT_VERSION = "install the same version of tokshard on all nodes"


class RayExecutor:
    """Executor that encodes on a Ray cluster."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options

    def run(self, spec: EncodingSpec, parts_directory: str, feed: Feed) -> Events:
        """See :class:`~tokshard.text.tokenize.workers.executor.Executor`."""
        calls = _calls(feed, feed.leave_streams())
        parts = os.path.abspath(parts_directory)
        if spec.tokenizer is not None:  # it may be where only this machine finds it
            tokenizer = os.path.join(os.path.dirname(parts), f"{spec.tokenizer_sha256}.json")
            write_atomically(tokenizer, read_file(spec.tokenizer))
            spec = replace(spec, tokenizer=tokenizer)
        ray = self._options.connect()
        running: dict[Any, str] = {}
        try:
            job = ray.put((__version__, spec, parts))
            cpus = self._options.ray_cpus_per_task
            remote = ray.remote(num_cpus=cpus, max_retries=_RETRIES, scheduling_strategy="SPREAD")
            encode = remote(encode_on_node)
            last_look = -math.inf
            room = 0
            while True:
                if time.monotonic() - last_look > _LOOK_SECONDS:  # after a minute, Ray would end this process
                    self._options.reach(ray.get_runtime_context().gcs_address)
                    last_look = time.monotonic()
                    room = _TASKS_PER_SLOT * self._options.slots(ray)
                while len(running) < room and (call := next(calls, None)) is not None:
                    name, *arguments = call
                    running[encode.options(name=name).remote(job, *arguments)] = name
                if not running:
                    return
                for done in ray.wait(list(running), timeout=_LOOK_SECONDS)[0]:
                    for event in _result(ray, done, running.pop(done)):
                        if isinstance(event, Exception):
                            raise event
                        yield event
        finally:
            for task in running:  # nothing may write any more when the work directory is removed
                ray.cancel(task, force=True)
            if running:
                ray.wait([*running], num_returns=len(running), timeout=_LOOK_SECONDS)
            ray.shutdown()


def _calls(
    feed: Feed, streams: list[StreamInput]
) -> Iterator[tuple[str, CorpusFile, Task | StreamInput, int]]:
    """Yield the name and the arguments of each call, in the order of the inputs, with absolute paths."""
    tasks = iter(feed.take, None)
    works: Iterator[Task | StreamInput] = merge(streams, tasks, key=_number)
    for work in works:
        given = feed.files[_number(work)]
        file = replace(given, path=abspath(given.path))
        if isinstance(work, Task):
            first = work.unit.index
            task = replace(work, unit=replace(work.unit, path=file.path))
            yield f"unit {first} of {given.path}", file, task, first
        else:
            first = next(index for index in count() if not feed.is_done(UnitKey(work.number, index)))
            yield f"unit {first} of {given.path}", file, replace(work, file=file), first


def _number(work: Task | StreamInput) -> int:
    return work.unit.file if isinstance(work, Task) else work.number


def _result(ray: Any, done: Any, name: str) -> Any:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:  # it did not even begin
        reason = str(error).strip().splitlines()[-1]
        raise WorkerError(
            f"a node of the Ray cluster cannot run tokshard: {reason}", hint=_HINT_VERSION
        ) from error
    except ray.exceptions.RayError as error:
        raise WorkerError(
            f"{name} was lost {1 + _RETRIES} times: {first_sentence(error)}",
            hint="run the same command again to resume; finished work is kept",
        ) from error


_encoder = lru_cache(maxsize=1)(UnitEncoder)


def encode_on_node(
    job: tuple[str, EncodingSpec, str], file: CorpusFile, work: Task | StreamInput, first: int
) -> list[Any]:
    """Return the progress and the outcome of each unit, and at the end the error if there is one.

    ``first``: of a compressed file, the first unit to encode.
    """
    host = socket.gethostname()
    events: list[Any] = []
    version, spec, parts = job
    try:
        _check_node(host, version, parts, file)
        with scratch_directory() as scratch:
            tasks = [work] if isinstance(work, Task) else work.tasks(scratch, lambda key: key.index < first)
            for task in tasks:
                events += progress_each(math.inf, _encoder(spec, parts).encode(task))
                if events[-1].refused is not None:
                    break
    except Exception as error:  # noqa: BLE001 - the job raises it
        events.append(sendable(error))
        if isinstance(events[-1], StorageError):
            events[-1].message += f" (on the node {host})"
    return events


def _check_node(host: str, version: str, parts: str, file: CorpusFile) -> None:
    if version != __version__:
        needed = f"the node {host} must have tokshard {version}, got {__version__}"
        raise WorkerError(needed, hint=_HINT_VERSION)
    try:
        os.stat(parts)
        size = file.size_bytes if is_remote(file.path) else os.stat(file.path).st_size
    except OSError as error:
        failed = f"cannot read {error.filename} on the node {host}: {error.strerror}"
        raise InputError(failed, hint=_HINT_NODES) from error
    if size != file.size_bytes:
        raise InputError(
            f"the input {file.path} has {size} bytes on the node {host}, but {file.size_bytes} on the node "
            "that started the run",
            hint=_HINT_NODES,
        )
