"""The local worker pool, in the process of the job: it starts the workers, feeds them and notices their end.

The workers are forked, as they are needed, from one process that has loaded what they need: the
*forkserver* (:mod:`tokshard.text.tokenize.workers.forkserver`), which is started by a command of its own,
not by fork or by importing the main module again, so any program may use the pool. All messages are JSON
objects with plain values. docs/explanation/worker-pool.md compares it
with the pools of the standard library.

This module imports nothing that takes time: the forkserver loads libraries while this process does.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from tokshard.core.worker_errors import error_from_json
from tokshard.errors import WorkerError, reason_of

if TYPE_CHECKING:
    from tokshard.text.tokenize.encoder import BatchProgress, EncodingSpec, Outcome, Task
    from tokshard.text.tokenize.options import TokenizeOptions
    from tokshard.text.tokenize.workers.executor import Events
    from tokshard.text.tokenize.workers.feed import Feed

Message = dict[str, Any]
MESSAGE_BYTES = 1 << 20
SILENCE_SECONDS = 60.0
_LISTEN_SECONDS = 1.0
# An orderly end takes milliseconds. A process that has not ended by then is stopped or stuck.
_END_SECONDS = 1.0
_RESUME = "run the same command again to resume; finished units are kept"


def to_line(message: Message) -> bytes:
    """Return a message as one line."""
    return (json.dumps(message, separators=(",", ":")) + "\n").encode("ascii")


class ProcessPool:
    """An executor with worker processes on this machine; use as a context manager to end them.

    Args:
        workers: Most processes to fork; None for one for each core.
        silence_seconds: A worker that sends nothing for so long (it sends something every second, even
            while it encodes) is taken for dead. Only time in which this process listens counts: it may
            have been suspended itself.
    """

    def __init__(self, workers: int | None = None, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._limit = workers or len(os.sched_getaffinity(0))
        self._silence_seconds = silence_seconds
        self._events: _Events = queue.Queue()
        self._forkserver: ForkServer | None = None
        self._workers: list[Worker] = []
        self._looked = 0.0
        self._listened_seconds = 0.0

    def start(self) -> ForkServer:
        """Start the forkserver if there is none."""
        if self._forkserver is None:
            self._events = queue.Queue()  # the last messages of an earlier run's workers are of no interest
            self._forkserver = ForkServer(self._events)
        return self._forkserver

    def end(self) -> None:
        """End the forkserver and all workers, if there are any."""
        forkserver, self._forkserver = self._forkserver, None
        if forkserver is not None:
            forkserver.end()
        self._workers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.end()

    def run(self, spec: EncodingSpec, parts_directory: str, feed: Feed) -> Events:
        """See :class:`~tokshard.text.tokenize.workers.executor.Executor`."""
        from tokshard.text.tokenize.encoder import Outcome

        forkserver = self.start()
        events = self._events
        feed.wake = lambda: events.put((None, None))
        self._looked = time.monotonic()
        try:
            forkserver.prepare(spec, parts_directory)
            while True:
                self._hand_out(feed, forkserver)
                if feed.exhausted and not any(worker.task for worker in self._workers):
                    return
                event = self._next_event()
                if isinstance(event, Outcome) and event.refused is None:
                    # Before the job assembles the part, which may take long.
                    self._hand_out(feed, forkserver)
                if event is not None:
                    yield event
        finally:
            self.end()

    def _hand_out(self, feed: Feed, forkserver: ForkServer) -> None:
        while True:
            worker = next((worker for worker in self._workers if worker.task is None), None)
            if worker is None and len(self._workers) >= self._limit:
                return
            if (task := feed.take()) is None:
                return
            if worker is None:
                worker = forkserver.fork()
                self._workers.append(worker)
            worker.heard = self._listened_seconds
            worker.give(task)

    def _next_event(self) -> BatchProgress | Outcome | None:
        # None if a second has passed, or there may be something else to do.
        try:
            source, message = self._events.get(timeout=_LISTEN_SECONDS)
        except queue.Empty:
            source, message = None, None
        now = time.monotonic()
        self._listened_seconds += min(now - self._looked, _LISTEN_SECONDS)
        self._looked = now
        event = None
        if source is not None:
            if message is None:
                raise source.death()
            if "error" in message:
                raise error_from_json(message["error"])
            if isinstance(source, Worker):
                source.heard = self._listened_seconds
                event = source.take_in(message)
            elif "refused" in message:
                raise _cannot_start(message["refused"])
            else:  # the forkserver is alive, and workers that it has not forked yet are not silent
                for worker in self._workers:
                    if worker.pid is None:
                        worker.heard = self._listened_seconds
        self._check_silence()
        return event

    def _check_silence(self) -> None:
        for worker in self._workers:
            if worker.task and self._listened_seconds - worker.heard > self._silence_seconds:
                raise worker.silence(self._silence_seconds)


class Worker:
    """A worker process as the parent process sees it.

    Attributes:
        pid: Its process id, as soon as it is known.
        task: What it encodes; None while it waits for work.
        heard: When it last sent something, in seconds of listening.
    """

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.pid: int | None = None
        self.task: Task | None = None
        self.heard = 0.0
        self._connection = connection
        self._status: int | None = None
        self._ended = threading.Event()
        self._listener: threading.Thread | None = None

    def give(self, task: Task) -> None:
        """Send a task."""
        self.task = task
        self.send(task.to_json())

    def take_in(self, message: Message) -> BatchProgress | Outcome | None:
        """Record what it has sent; return that if it is for the job."""
        from tokshard.text.tokenize.encoder import BatchProgress, Outcome

        if "outcome" in message:
            self.task = None
            return Outcome.from_json(message["outcome"])
        self.pid = message.get("pid", self.pid)
        return BatchProgress(*message["progress"]) if "progress" in message else None

    def send(self, message: Message) -> None:
        """Send a message; if the process is gone, the listening thread will notice."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.sendall(to_line(message))

    def listen_to(self, events: _Events) -> None:
        """Turn its messages into events, in a thread, until its connection ends."""
        self._listener = threading.Thread(target=self._listen, args=(events,), daemon=True)
        self._listener.start()

    def _listen(self, events: _Events) -> None:
        with contextlib.suppress(ConnectionResetError), self._connection.makefile("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):  # else it died while it wrote
                    events.put((self, json.loads(line)))
        self._ended.wait()
        events.put((self, None))

    def close(self) -> None:
        """Wait for the listening thread, and close the connection. The process has been ended."""
        if self._listener is not None and self._listener.is_alive():  # else a signal came before its start
            self._listener.join()
        self._connection.close()

    def note_end(self, pid: int | None = None, status: int | None = None) -> None:
        """Record that it has ended; called from the forkserver's thread."""
        self.pid = pid or self.pid
        self._status = status
        self._ended.set()

    def death(self) -> WorkerError:
        """Return the error for a process that has ended by itself."""
        how = "ended" if self._status is None else _how(self._status)
        return WorkerError(f"worker process {self.pid} {how} {self._at_work()}", hint=_RESUME)

    def silence(self, seconds: float) -> WorkerError:
        """Return the error for a process that does not answer."""
        who = "a worker process that was ordered" if self.pid is None else f"worker process {self.pid}"
        return WorkerError(f"{who} has not answered for {seconds:g} s {self._at_work()}", hint=_RESUME)

    def _at_work(self) -> str:
        task = self.task
        return "while it waited for work" if task is None else f"at unit {task.unit.index} of {task.name}"


class ForkServer:
    """The process that loads what workers need, and forks them.

    It and the workers are a process group of their own, so that Ctrl-C reaches only this process, which
    then ends them.

    Raises:
        WorkerError: The system allows no more processes or files.
    """

    def __init__(self, events: _Events) -> None:
        try:
            self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "tokshard.text.tokenize.workers.forkserver"],
                    stdin=theirs.fileno(),
                    process_group=0,
                    env=_environment(),
                )
        except OSError as error:
            raise _cannot_start(reason_of(error)) from error
        self.pid = self._process.pid
        self._events = events
        self._workers: list[Worker] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def expect(self, options: TokenizeOptions) -> None:
        """Let it load what is likely to be needed: both encoders, for a ``tokenizer.json`` at hand."""
        if options.tokenizer_json is not None:
            settings = {**options.tokenizer_settings, "special_tokens": options.special_tokens}
            self._send({"expect": options.tokenizer, "settings": settings})

    def prepare(self, spec: EncodingSpec, parts_directory: str) -> None:
        """Let it load what workers need for a specification."""
        self._send({"spec": spec.to_json(), "parts_directory": parts_directory})

    def fork(self) -> Worker:
        """Order a worker, which may be given a task at once."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _cannot_start(reason_of(error)) from error
        worker = Worker(len(self._workers), ours)
        self._workers.append(worker)
        worker.listen_to(self._events)
        with theirs:
            self._send({"fork": worker.number}, theirs)
        return worker

    def end(self) -> None:
        """End it and its workers at once: whatever they are writing is temporary."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        if any(worker.pid for worker in self._workers):  # else it loads still, and does not listen
            self._listener.join(_END_SECONDS)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it was killed before it had made its group
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        self._listener.join()
        self._connection.close()
        for worker in self._workers:
            worker.note_end()  # in case the forkserver had no time to report it
            worker.close()

    def death(self) -> WorkerError:
        """Return the error for a process that has ended by itself."""
        # It stays known to the system until it is waited for, so its group can be no other's meanwhile.
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        status = 0
        if found is not None:
            status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        return WorkerError(f"the parent process {self.pid} of the workers {_how(status)}", hint=_RESUME)

    def _send(self, message: Message, *sockets: socket.socket) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._connection, [to_line(message)], [end.fileno() for end in sockets])

    def _listen(self) -> None:
        with contextlib.suppress(ConnectionResetError):
            while content := self._connection.recv(MESSAGE_BYTES):
                message = json.loads(content)
                if "ended" in message:
                    self._workers[message["ended"]].note_end(message["pid"], message["status"])
                else:
                    self._events.put((self, message))
        self._events.put((self, None))


_Events = queue.Queue[tuple[Worker | ForkServer | None, Message | None]]


def _cannot_start(reason: str | None) -> WorkerError:
    return WorkerError(
        f"cannot start a worker process: {reason}",
        hint="raise the limit, or run the same command with fewer --workers to resume",
    )


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    cause = " (often: the system ran out of memory)" if status == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-status).name}{cause}"


def worker_malloc() -> dict[str, str]:
    """Return the variables that set the memory allocator of workers."""
    # Batches are freed and asked for again: the heap keeps them, or each costs new page faults.
    return {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 28)}


def _environment() -> dict[str, str]:
    return {
        # Nothing here uses BLAS, but numpy's starts threads that spin for a while.
        "OPENBLAS_NUM_THREADS": "1",
        **worker_malloc(),
        **os.environ,
        # An empty entry is the current directory, in which the forkserver runs, too.
        "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path),
    }
