"""The local worker pool, in the process of the job: it starts the workers, feeds them and notices their end.

The workers are forked, as they are needed, from one process that has loaded what they need: the
*forkserver* (:mod:`tokshard.text.tokenize.workers.forkserver`), which is started by a command of its own,
not by fork or by importing the main module again, so any program may use the pool.

This module imports nothing that takes time: the forkserver loads libraries while this process does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from tokshard.errors import WorkerError, reason_of
from tokshard.text.tokenize.workers.channel import Channel, Ended, UnreadableMessageError
from tokshard.text.tokenize.workers.executor import LOOK_SECONDS

if TYPE_CHECKING:
    from tokshard.text.tokenize.encoder import EncodingSpec, Task
    from tokshard.text.tokenize.options import TokenizeOptions
    from tokshard.text.tokenize.workers.executor import Events
    from tokshard.text.tokenize.workers.feed import Feed

SILENCE_SECONDS = 60.0
# A worker has its next unit at hand, whatever the job is doing when it has finished one.
_UNITS_OF_A_WORKER = 2
_LISTEN_SECONDS = 1.0
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

    def __exit__(self, *_: object) -> None:
        """End the forkserver and all workers, if there are any."""
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.end()

    def run(self, spec: EncodingSpec, parts_directory: str, feed: Feed) -> Events:
        """See :class:`~tokshard.text.tokenize.workers.executor.Executor`."""
        from tokshard.text.tokenize.encoder import Outcome

        with self:
            processes = self.start()
            processes.forkserver.send(("encode", spec, parts_directory))
            ahead: deque[Task] = deque()
            while True:
                _hand_out(feed, ahead, processes)
                idle = [worker for worker in processes.workers if not worker.tasks]
                if feed.exhausted and not ahead and len(idle) == len(processes.workers):
                    return
                seconds = LOOK_SECONDS if idle and not feed.exhausted else _LISTEN_SECONDS
                for event in processes.listen(seconds, self._silence_seconds):
                    if isinstance(event, Outcome) and event.refused is None:
                        # Before the job appends the part, which may take long.
                        _hand_out(feed, ahead, processes)
                    yield event


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


class Processes:
    """The forkserver and its workers, each with a connection to this process.

    They are a process group of their own, so that Ctrl-C reaches only this process, which then ends them.

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
        self.pid = self._process.pid  # and that of the group
        self.forkserver, *self.workers = (_Peer(ours) for ours, _ in pairs)
        self._peers = {peer.connection.fileno(): peer for peer in (self.forkserver, *self.workers)}
        self._poll = select.poll()
        for descriptor in self._peers:
            self._poll.register(descriptor, select.POLLIN)
        self._listened_seconds = 0.0

    def expect(self, options: TokenizeOptions) -> None:
        """Load what is likely to be needed: both encoders, for a ``tokenizer.json`` at hand."""
        if options.tokenizer_json is not None:
            settings = {**options.tokenizer_settings, "special_tokens": options.special_tokens}
            self.forkserver.send(("expect", options.tokenizer, settings))

    def give(self, worker: _Peer, task: Task) -> None:
        """Send a task; with its first one, a worker is forked."""
        if not worker.tasks:
            worker.heard = self._listened_seconds
        worker.tasks.append(task)
        worker.send(task)

    def listen(self, seconds: float, silence_seconds: float) -> Events:
        """Wait for messages, and yield what workers report.

        Raises:
            TokshardError: The error of a worker, or one has ended, is silent, or cannot be understood.
        """
        began = time.monotonic()
        ready = self._poll.poll(1000 * seconds)
        self._listened_seconds += min(time.monotonic() - began, seconds)
        for descriptor, _ in ready:
            yield from self._hear(self._peers[descriptor])
        for worker in self.workers:
            # While the forkserver is loading, it speaks for those that it has not forked yet.
            heard = worker.heard if worker.pid else max(worker.heard, self.forkserver.heard)
            if worker.tasks and self._listened_seconds - heard > silence_seconds:
                raise self._error(worker, f"has not answered for {silence_seconds:g} s")

    def end(self) -> None:
        """End all at once: whatever they are writing is temporary."""
        connection = self.forkserver.connection
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

    def _hear(self, peer: _Peer) -> Events:
        from tokshard.text.tokenize.encoder import Outcome

        try:
            message = peer.receive()
        except UnreadableMessageError:
            raise self._error(peer, "sent an unreadable message") from None
        except EOFError:
            peer.is_gone = True
            self._poll.unregister(peer.connection)
            if peer is self.forkserver:
                raise self._error(peer, _how(self._kill())) from None
            return
        peer.heard = self._listened_seconds
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Ended):
            worker = self.workers[message.number]
            worker.pid = message.pid
            while not worker.is_gone:  # it may have said why
                yield from self._hear(worker)
            raise self._error(worker, _how(message.status))
        if isinstance(message, int):
            peer.pid = message
            return
        if isinstance(message, Outcome):
            peer.tasks.popleft()
        yield message

    def _error(self, peer: _Peer, what: str) -> WorkerError:
        if peer is self.forkserver:
            message = f"the parent process {self.pid} of the workers {what}"
        else:
            who = f"worker process {peer.pid}" if peer.pid else "a worker process that was ordered"
            task = peer.tasks[0] if peer.tasks else None
            where = f"at unit {task.unit.index} of {task.name}" if task else "while it waited for work"
            message = f"{who} {what} {where}"
        return WorkerError(message, hint="run the same command again to resume; finished units are kept")


class _Peer(Channel):
    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        # It may be stopped in the middle of a message.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 5, 0))
        self.pid: int | None = None  # as soon as it is known
        self.tasks: deque[Task] = deque()  # the one that it encodes, and the next
        self.heard = 0.0  # when it last sent something, in seconds of listening
        self.is_gone = False

    def send(self, message: object) -> None:
        # If it is gone, those who listen to it notice that.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            super().send(message)


def cannot_start(reason: str) -> WorkerError:
    """Return the error for a system that allows no more processes or files."""
    return WorkerError(
        f"cannot start a worker process: {reason}",
        hint="raise the limit, or run the same command with fewer --workers to resume",
    )


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    cause = " (often: the system ran out of memory)" if status == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-status).name}{cause}"


# Batches are freed and asked for again: the heap keeps them, or each costs new page faults.
WORKER_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 28)}


def _environment() -> dict[str, str]:
    return {
        # Nothing here uses BLAS, but numpy's starts threads that spin for a while.
        "OPENBLAS_NUM_THREADS": "1",
        **WORKER_MALLOC,
        **os.environ,
        # An empty entry is the current directory, in which the forkserver runs, too.
        "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path),
    }
