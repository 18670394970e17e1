"""The local worker pool, in the process of the job: it starts the workers, feeds them and notices their end.

The workers are forked, as they are needed, from one process that has loaded what they need: the
*forkserver* (:mod:`tokshard.text.tokenize.workers.forkserver`), which is started by a command of its own,
not by fork or by importing the main module again, so any program may use the pool.
docs/explanation/worker-pool.md compares it with the pools of the standard library.

This module imports nothing that takes time: the forkserver loads libraries while this process does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokshard.errors import WorkerError, reason_of
from tokshard.text.tokenize.workers.channel import Channel, Ended, UnreadableMessageError

if TYPE_CHECKING:
    from tokshard.text.tokenize.encoder import BatchProgress, EncodingSpec, Outcome, Task
    from tokshard.text.tokenize.options import TokenizeOptions
    from tokshard.text.tokenize.workers.executor import Events
    from tokshard.text.tokenize.workers.feed import Feed

SILENCE_SECONDS = 60.0
# A worker has its next unit at hand, whatever the job is doing when it has finished one.
_UNITS_OF_A_WORKER = 2
_LISTEN_SECONDS = 1.0
_LOOK_SECONDS = 0.02
# An orderly end takes milliseconds. A process that has not ended by then is stopped or stuck.
_END_SECONDS = 1.0


class ProcessPool(contextlib.AbstractContextManager["ProcessPool"]):
    """An executor with worker processes on this machine, which end with the context.

    Args:
        workers: Most processes to fork; None for one for each core.
        silence_seconds: A worker that sends nothing for so long (it sends something every second, even
            while it encodes) is taken for dead. Only time in which this process listens counts: it may
            have been suspended itself.
    """

    def __init__(self, workers: int | None = None, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._limit = workers or len(os.sched_getaffinity(0))
        self._silence_seconds = silence_seconds
        self._processes: Processes | None = None

    def start(self) -> Processes:
        """Start the forkserver if there is none."""
        if self._processes is None:
            self._processes = Processes(self._limit)
        return self._processes

    def end(self) -> None:
        """End the forkserver and all workers, if there are any."""
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.end()

    def __exit__(self, *arguments: object) -> None:
        self.end()

    def run(self, spec: EncodingSpec, parts_directory: str, feed: Feed) -> Events:
        """See :class:`~tokshard.text.tokenize.workers.executor.Executor`."""
        from tokshard.text.tokenize.encoder import Outcome

        processes = self.start()
        ahead: deque[Task] = deque()
        try:
            processes.prepare(spec, parts_directory)
            while True:
                _hand_out(feed, ahead, processes)
                idle = [worker for worker in processes.workers if not worker.tasks]
                if feed.exhausted and not ahead and len(idle) == len(processes.workers):
                    return
                # Nobody tells when a thread has decompressed another unit.
                seconds = _LOOK_SECONDS if idle and not feed.exhausted else _LISTEN_SECONDS
                for event in processes.listen(seconds):
                    if isinstance(event, Outcome) and event.refused is None:
                        # Before the job appends the part, which may take long.
                        _hand_out(feed, ahead, processes)
                    yield event
                processes.check_silence(self._silence_seconds)
        finally:
            self.end()


def _hand_out(feed: Feed, ahead: deque[Task], processes: Processes) -> None:
    # A unit waits behind another only while there is one more for each worker: at the end of the run no
    # worker has two units while another has none.
    workers = processes.workers
    while True:
        while len(ahead) <= len(workers) and (task := feed.take()) is not None:
            ahead.append(task)
        worker = min(workers, key=lambda worker: len(worker.tasks))
        most = _UNITS_OF_A_WORKER if len(ahead) > len(workers) else 1
        if not ahead or len(worker.tasks) >= most:
            return
        processes.give(worker, ahead.popleft())


class Worker:
    """A worker process as the job sees it, or the forkserver, which gets no tasks.

    Attributes:
        pid: Its process id, as soon as it is known.
        tasks: The one that it encodes, and the next.
        heard: When it last sent something, in seconds of listening.
        is_gone: Whether its connection has ended.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.channel = Channel(connection)
        self.pid: int | None = None
        self.tasks: deque[Task] = deque()
        self.heard = 0.0
        self.is_gone = False

    def send(self, message: object) -> None:
        """Send a message; if the process is gone, those who listen to it notice that."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(message)

    def error(self, what: str) -> WorkerError:
        """Return the error for a worker that something is wrong with."""
        who = "a worker process that was ordered" if self.pid is None else f"worker process {self.pid}"
        at_work = "while it waited for work"
        if self.tasks:
            at_work = f"at unit {self.tasks[0].unit.index} of {self.tasks[0].name}"
        return _error(f"{who} {what} {at_work}")


class Processes:
    """The forkserver and its workers, each with a connection to this process.

    They are a process group of their own, so that Ctrl-C reaches only this process, which then ends them.

    Attributes:
        pid: The process id of the forkserver, which is that of the group.
        workers: As many as may be forked.

    Raises:
        WorkerError: The system allows no more processes or files.
    """

    def __init__(self, workers: int) -> None:
        pairs: list[tuple[socket.socket, socket.socket]] = []
        try:
            pairs.extend(socket.socketpair() for _ in range(1 + workers))
            theirs = [end.fileno() for _, end in pairs]
            self._process = subprocess.Popen(  # noqa: S603 - a program of ours
                [sys.executable, "-P", "-m", "tokshard.text.tokenize.workers.forkserver", *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                pass_fds=theirs,
                process_group=0,
                env=_environment(),
            )
        except OSError as error:
            for ours, _ in pairs:
                ours.close()
            raise cannot_start(reason_of(error)) from error
        finally:
            for _, end in pairs:
                end.close()
        self.pid = self._process.pid
        self._forkserver, *self.workers = (Worker(ours) for ours, _ in pairs)
        self._peers = {peer.connection.fileno(): peer for peer in (self._forkserver, *self.workers)}
        self._poll = select.poll()
        for descriptor in self._peers:
            self._poll.register(descriptor, select.POLLIN)
        self._listened_seconds = 0.0

    def expect(self, options: TokenizeOptions) -> None:
        """Load what is likely to be needed: both encoders, for a ``tokenizer.json`` at hand."""
        if options.tokenizer_json is not None:
            settings = {**options.tokenizer_settings, "special_tokens": options.special_tokens}
            self._forkserver.send(("expect", options.tokenizer, settings))

    def prepare(self, spec: EncodingSpec, parts_directory: str) -> None:
        """Load what workers need for a specification."""
        self._forkserver.send(("encode", spec, parts_directory))

    def give(self, worker: Worker, task: Task) -> None:
        """Send a task; with its first one, a worker is forked."""
        if not worker.tasks:
            worker.heard = self._listened_seconds
        worker.tasks.append(task)
        worker.send(task)

    def listen(self, seconds: float) -> Iterator[BatchProgress | Outcome]:
        """Wait at most so long for messages, and yield what workers report.

        Raises:
            TokshardError: The error of a worker; WorkerError if one has ended or cannot be understood.
        """
        began = time.monotonic()
        ready = self._poll.poll(1000 * seconds)
        self._listened_seconds += min(time.monotonic() - began, seconds)
        for descriptor, _ in ready:
            yield from self._hear(self._peers[descriptor])

    def check_silence(self, seconds: float) -> None:
        """Raise WorkerError if a worker at work has sent nothing for so long."""
        for worker in self.workers:
            # While the forkserver is loading, it speaks for those that it has not forked yet.
            heard = worker.heard if worker.pid else max(worker.heard, self._forkserver.heard)
            if worker.tasks and self._listened_seconds - heard > seconds:
                raise worker.error(f"has not answered for {seconds:g} s")

    def end(self) -> None:
        """End all at once: whatever they are writing is temporary."""
        connection = self._forkserver.connection
        if any(worker.pid for worker in self.workers):  # else it loads still, and does not listen
            connection.settimeout(_END_SECONDS)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
        self._kill()
        for peer in self._peers.values():
            peer.connection.close()

    def _kill(self) -> int:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it was killed before it had made its group
                os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def _hear(self, peer: Worker) -> Iterator[BatchProgress | Outcome]:
        from tokshard.text.tokenize.encoder import Outcome

        error = self._forkserver_error if peer is self._forkserver else peer.error
        try:
            for message in peer.channel.receive():
                peer.heard = self._listened_seconds
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, Ended):
                    worker = self.workers[message.number]
                    worker.pid = message.pid
                    while not worker.is_gone:  # it may have said why
                        yield from self._hear(worker)
                    raise worker.error(_how(message.status))
                if isinstance(message, int):
                    peer.pid = message
                else:
                    if isinstance(message, Outcome):
                        peer.tasks.popleft()
                    yield message
        except UnreadableMessageError:
            raise error("sent an unreadable message") from None
        except EOFError:
            peer.is_gone = True
            self._poll.unregister(peer.connection)
            if peer is self._forkserver:
                raise error(_how(self._kill())) from None

    def _forkserver_error(self, what: str) -> WorkerError:
        return _error(f"the parent process {self.pid} of the workers {what}")


def cannot_start(reason: str) -> WorkerError:
    """Return the error for a system that allows no more processes or files."""
    return WorkerError(
        f"cannot start a worker process: {reason}",
        hint="raise the limit, or run the same command with fewer --workers to resume",
    )


def _error(message: str) -> WorkerError:
    return WorkerError(message, hint="run the same command again to resume; finished units are kept")


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
