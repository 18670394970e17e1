"""Errands: pieces of work that are given out as tasks, and again where a worker or node is lost."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from tokshard.cluster.connection import RESUME, Connection
from tokshard.cluster.task import Message
from tokshard.errors import WorkerError

# It takes a cluster some seconds to notice that a node has died.
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
_IMPORT_FAILED = "No module named 'tokshard"


class Errand(Protocol):
    """A piece of work for one task, which may answer several times."""

    @property
    def label(self) -> str:
        """What it is at now, for people: ``"unit 7 of web.jsonl"``."""

    def arguments(self) -> Message | None:
        """Return the arguments of a call that does what has not been answered yet; None if all has."""

    def receive(self, answer: Message) -> None:
        """Take an answer. An exception ends everything."""


class TaskCrashError(RuntimeError):
    """A task raised what it never should: a bug, with its traceback as text."""


def run_errands(connection: Connection, take: Callable[[], Errand | None], *, retries: int) -> None:
    """Run errands until there are no more, as many at once as the cluster has room for.

    What was lost with its worker or node is given out again: only what has not been answered.

    Args:
        connection: The cluster.
        take: Returns the next errand; None when there are no more.
        retries: How often the same thing may be lost.

    Raises:
        WorkerError: It was lost more often, or the cluster is gone.
    """
    _Round(connection, retries).run(take)


class _Round:
    def __init__(self, connection: Connection, retries: int) -> None:
        self._connection = connection
        self._retries = retries
        self._numbers = itertools.count()
        self._active: dict[int, Errand] = {}
        self._hosts: dict[int, str] = {}
        self._losses: Counter[str] = Counter()
        self._lost: deque[tuple[float, Errand]] = deque()

    def run(self, take: Callable[[], Errand | None]) -> None:
        while True:
            for _ in range(len(self._lost)):
                due, errand = self._lost.popleft()
                if due > time.monotonic():
                    self._lost.append((due, errand))
                else:
                    self._start(errand)
            while len(self._active) < self._connection.capacity and (new := take()) is not None:
                self._start(new)
            if not self._active and not self._lost:
                return
            if (message := self._connection.wait()) is not None:
                self._handle(message)

    def _start(self, errand: Errand) -> None:
        if (arguments := errand.arguments()) is not None:
            number = next(self._numbers)
            self._active[number] = errand
            self._connection.submit(number, errand.label, arguments)

    def _handle(self, message: Message) -> None:
        number = message["number"]
        errand = self._active[number]
        if "began" in message:
            self._hosts[number] = message["began"]["host"]
        elif "answer" in message:
            errand.receive(message["answer"])
        elif "crashed" in message:
            raise self._crash(message["crashed"])
        else:
            del self._active[number]
            host = self._hosts.pop(number, None)
            if "lost" in message:
                self._lose(errand, host, message["lost"])

    def _lose(self, errand: Errand, host: str | None, reason: str) -> None:
        if errand.arguments() is None:
            return  # the worker died after its last answer
        label = errand.label
        times = self._losses[label] = self._losses[label] + 1
        if times > self._retries:
            where = "before it began" if host is None else f"on the node {host}"
            often = f"{times} times, the last time " if times > 1 else ""
            raise WorkerError(f"{label} was lost {often}{where}: {reason}", hint=RESUME)
        pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (times - 1))
        self._lost.append((time.monotonic() + pause, errand))

    def _crash(self, traceback: str) -> Exception:
        if _IMPORT_FAILED in traceback:
            return WorkerError(
                "a node of the Ray cluster cannot import tokshard",
                hint="install the same version of tokshard on all nodes",
            )
        return TaskCrashError(traceback)
