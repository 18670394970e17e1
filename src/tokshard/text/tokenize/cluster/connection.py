"""Connection of a job to a Ray cluster: submits calls, receives answers, and repeats lost work.

The gateway process talks to Ray; if it exits, that is an error.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import IO, Generic, Protocol, Self, TypeVar

from tokshard.core.worker_errors import WorkerCrashError
from tokshard.errors import MissingExtraError, StorageError, UsageError, WorkerError
from tokshard.text.tokenize.cluster.options import RayOptions
from tokshard.text.tokenize.cluster.task import Message, to_bytes
from tokshard.version import __version__

RESUME = "run the same command again to resume; finished work is kept"
_NO_CLUSTER = "start a cluster (ray start --head), pass --ray-address HOST:PORT, or omit --executor ray"
# Ray tries for minutes to reach an unreachable cluster.
_CONNECT_SECONDS = 60.0
_TICK_SECONDS = 0.5
_END_SECONDS = 5.0
_TASKS_PER_SLOT = 2
_KEPT_LINES = 20
# Ray's "[2026-11-22 01:32:27,419 E 25099 25213] rpc_client.h:204: ".
_LOG_PREFIX = re.compile(r"\[[^\]]*\] (\S+:[0-9]+: )?")

# It takes a cluster some seconds to notice that a node has died.
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 8.0
_IMPORT_FAILED = "No module named 'tokshard"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Calls:
    """The parameters shared by all calls of a connection.

    Attributes:
        function: The function to call on the nodes: ``"module:name"`` of a
            :data:`tokshard.text.tokenize.cluster.task.Function`.
        attachment: A file whose content is passed to each call, or None.
        deliver_to: The directory for files that come with answers; ``""`` if there are none.
    """

    function: str
    attachment: str | None = None
    deliver_to: str = ""


class Connection:
    """The connection to a Ray cluster; a context manager.

    An exception in the body closes it at once, and Ray stops the running tasks.

    Attributes:
        slots: The number of tasks that the cluster currently has CPUs for.

    Raises:
        MissingExtraError: Ray is not installed.
        UsageError: No node has as many CPUs as one task needs.
        WorkerError: The cluster does not exist or does not respond.
    """

    def __init__(self, options: RayOptions, calls: Calls) -> None:
        if find_spec("ray") is None:
            raise MissingExtraError("--executor ray", "ray")
        self._options = options
        self._calls = calls
        self._messages: queue.Queue[Message | None] = queue.Queue()
        self._printed: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._is_connected = False
        self.slots = 0

    def __enter__(self) -> Self:
        start = {
            "address": self._options.resolved,
            "endpoint": self._options.endpoint,
            "cpus_per_task": self._options.ray_cpus_per_task,
            "attachment": self._calls.attachment,
            "deliver_to": self._calls.deliver_to,
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tokshard.text.tokenize.cluster.gateway"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                env=_environment(),
            )
        except OSError as error:
            raise WorkerError(f"cannot start the Ray gateway process: {error.strerror}") from error
        self._listeners = [
            threading.Thread(target=target, daemon=True) for target in (self._listen, self._collect)
        ]
        for listener in self._listeners:
            listener.start()
        try:
            self._write(start)
            self._connect()
        except BaseException:
            self._kill()
            raise
        return self

    @property
    def capacity(self) -> int:
        """The number of tasks to keep in flight now; the cluster may grow and shrink."""
        return self._options.tasks or max(1, _TASKS_PER_SLOT * self.slots)

    def submit(self, number: int, label: str, arguments: Message) -> None:
        """Start a task."""
        request = {"version": __version__, "function": self._calls.function, "arguments": arguments}
        self._write({"number": number, "label": label, "call": request})

    def wait(self) -> Message | None:
        """Wait for a message with a ``number``; return None after half a second without one.

        A message has one of ``began`` (``host`` and ``pid``), ``answer``, ``ended``, ``lost`` (the reason),
        and ``crashed`` (the traceback).

        Raises:
            WorkerError: The connection was lost, or a node has another version of tokshard.
            StorageError: A file that came with an answer cannot be written.
        """
        message = self._next(_TICK_SECONDS)
        if message is None or "nodes" in message:
            if message is not None:
                self._measure(message["nodes"])
            return None
        if "refused" in message:
            raise WorkerError(message["refused"], hint="install the same version of tokshard on all nodes")
        if "undelivered" in message:
            action, path, code, reason = message["undelivered"]
            raise StorageError(action, path, OSError(code, reason))
        return message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._close_stdin()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        self._kill()

    def _connect(self) -> None:
        deadline = time.monotonic() + _CONNECT_SECONDS
        while time.monotonic() < deadline:
            if (message := self._next(_TICK_SECONDS)) is not None:
                self._measure(message["nodes"])
                return
        raise WorkerError(
            f"the Ray cluster at {self._options.resolved} did not respond within {_CONNECT_SECONDS:g} s",
            hint=_NO_CLUSTER,
        )

    def _measure(self, nodes: list[float]) -> None:
        each = self._options.ray_cpus_per_task
        self.slots = sum(int(cpus / each) for cpus in nodes)
        if not self.slots and not self._is_connected:
            raise UsageError(
                f"--ray-cpus-per-task must be at most {max(nodes, default=0.0):g}, the CPUs of the "
                f"largest node of the Ray cluster at {self._options.resolved}, got {each:g}",
                hint="lower --ray-cpus-per-task",
            )
        self._is_connected = True

    def _next(self, seconds: float) -> Message | None:
        try:
            message = self._messages.get(timeout=seconds)
        except queue.Empty:
            return None
        if message is None:
            raise self._death()
        if "failed" in message:
            first = message["failed"].strip().split("\n", 1)[0]
            where = self._options.resolved
            raise WorkerError(f"cannot use the Ray cluster at {where}: {first}", hint=_NO_CLUSTER)
        return message

    def _write(self, message: Message) -> None:
        stdin = self._process.stdin
        if stdin is None:
            raise RuntimeError("the gateway is always started with a pipe as its stdin")
        with contextlib.suppress(BrokenPipeError):  # the listening thread will tell
            stdin.write(to_bytes(message) + b"\n")
            stdin.flush()

    def _listen(self) -> None:
        # Runs in a thread until the process ends.
        for line in self._stream(self._process.stdout):
            if line.endswith(b"\n"):
                self._messages.put(json.loads(line))
        self._process.wait()
        self._messages.put(None)

    def _collect(self) -> None:
        # Runs in a thread; Ray's last lines explain why it exited.
        self._printed.extend(self._stream(self._process.stderr))

    @staticmethod
    def _stream(pipe: IO[bytes] | None) -> IO[bytes]:
        if pipe is None:
            raise RuntimeError("the gateway is always started with pipes")
        return pipe

    def _death(self) -> WorkerError:
        self._listeners[1].join(_TICK_SECONDS)
        lines = [text for line in self._printed if (text := line.decode("utf-8", "replace").strip())]
        last = f": {_LOG_PREFIX.sub('', lines[-1]).partition('. ')[0]}" if lines else ""
        status = self._process.returncode
        return WorkerError(f"the Ray gateway process exited with status {status}{last}", hint=RESUME)

    def _close_stdin(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close_stdin()
        for listener in self._listeners:
            listener.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _environment() -> dict[str, str]:
    # An empty entry means the current directory, which is also that of the gateway.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)}


class RetryableTask(Protocol[T_co]):
    """A piece of work for one Ray task, which may answer several times."""

    @property
    def label(self) -> str:
        """A readable name of the work: ``"unit 7 of web.jsonl"``."""

    def arguments(self) -> Message | None:
        """Return the arguments of a call for everything not answered yet; None if everything is answered."""

    def receive(self, answer: Message) -> T_co:
        """Process an answer. An exception stops the run."""


def run_retryable(connection: Connection, tasks: Iterator[RetryableTask[T]], *, retries: int) -> Iterator[T]:
    """Run tasks until all are done, as many at once as the cluster has room for.

    Work lost with its worker or node is repeated, except for the parts already answered; each task at most
    ``retries`` times.

    Raises:
        WorkerError: A task was lost more often, or the cluster is unreachable.
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
            where = "before it started" if host is None else f"on the node {host}"
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
        return WorkerCrashError(traceback)
