"""Pieces of work that run as tasks of the cluster, and run again if a worker or node is lost."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from tokshard.cluster.connection import RESUME, Connection
from tokshard.cluster.task import Message
from tokshard.errors import WorkerError

# It takes a cluster some seconds to notice that a node has died.
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
_IMPORT_FAILED = "No module named 'tokshard"


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RetryableTask(Protocol[T_co]):
    """A piece of work for one task of the cluster, which may answer several times."""

    @property
    def label(self) -> str:
        """The name of the work, for people: ``"unit 7 of web.jsonl"``."""

    def arguments(self) -> Message | None:
        """Return the arguments of a call for everything that is not answered yet; None if all is."""

    def receive(self, answer: Message) -> T_co:
        """Take an answer. An exception ends everything."""


class TaskCrashError(RuntimeError):
    """A task raised what it never should: a bug, with its traceback as text."""


def run_retryable(connection: Connection, tasks: Iterator[RetryableTask[T]], *, retries: int) -> Iterator[T]:
    """Run tasks until there are no more, as many at once as the cluster has room for.

    Whatever is lost with its worker or node runs again: only the part that is not answered.

    Args:
        connection: The cluster.
        tasks: The tasks; each is taken when there is room for it.
        retries: How often the same work may be lost.

    Yields:
        The result of :meth:`RetryableTask.receive` for each answer.

    Raises:
        WorkerError: Work was lost more often, or the cluster is gone.
    """
    return _Round(connection, retries, tasks).run()


class _Round(Generic[T]):
    def __init__(self, connection: Connection, retries: int, tasks: Iterator[RetryableTask[T]]) -> None:
        self._tasks = tasks
        self._connection = connection
        self._retries = retries
        self._numbers = itertools.count()
        self._active: dict[int, RetryableTask[T]] = {}
        self._hosts: dict[int, str] = {}
        self._losses: Counter[str] = Counter()
        self._lost: deque[tuple[float, RetryableTask[T]]] = deque()

    def run(self) -> Iterator[T]:
        while True:
            for _ in range(len(self._lost)):
                due, task = self._lost.popleft()
                if due > time.monotonic():
                    self._lost.append((due, task))
                else:
                    self._start(task)
            while (
                len(self._active) < self._connection.capacity and (new := next(self._tasks, None)) is not None
            ):
                self._start(new)
            if not self._active and not self._lost:
                return
            if (message := self._connection.wait()) is not None:
                yield from self._handle(message)

    def _start(self, task: RetryableTask[T]) -> None:
        if (arguments := task.arguments()) is not None:
            number = next(self._numbers)
            self._active[number] = task
            self._connection.submit(number, task.label, arguments)

    def _handle(self, message: Message) -> Iterator[T]:
        number = message["number"]
        task = self._active[number]
        if "began" in message:
            self._hosts[number] = message["began"]["host"]
        elif "answer" in message:
            yield task.receive(message["answer"])
        elif "crashed" in message:
            raise self._crash(message["crashed"])
        else:
            del self._active[number]
            host = self._hosts.pop(number, None)
            if "lost" in message:
                self._lose(task, host, message["lost"])

    def _lose(self, task: RetryableTask[T], host: str | None, reason: str) -> None:
        if task.arguments() is None:
            return  # the worker died after its last answer
        label = task.label
        times = self._losses[label] = self._losses[label] + 1
        if times > self._retries:
            where = "before it began" if host is None else f"on the node {host}"
            often = f"{times} times, the last time " if times > 1 else ""
            raise WorkerError(f"{label} was lost {often}{where}: {reason}", hint=RESUME)
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (times - 1))
        self._lost.append((time.monotonic() + pause, task))

    def _crash(self, traceback: str) -> Exception:
        if _IMPORT_FAILED in traceback:
            return WorkerError(
                "a node of the Ray cluster cannot import tokshard",
                hint="install the same version of tokshard on all nodes",
            )
        return TaskCrashError(traceback)
