"""Units encoded in worker processes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tokshard.errors import WorkerError
from tokshard.tokenization.encoder import Task
from tokshard.tokenization.execution import messages
from tokshard.tokenization.execution.executor import Listener
from tokshard.tokenization.execution.feed import Feed
from tokshard.tokenization.recipe import Recipe

SILENCE_SECONDS = 60.0
_LISTEN_SECONDS = 1.0


class ProcessExecutor:
    """Encodes in worker processes.

    They are started as they are needed, by a command of their own (not by fork or by importing the main
    module again, so any program may call this), in a process group of their own (so that Ctrl-C reaches
    only this process, which then ends them).

    Args:
        workers: Most processes to start.
        silence_seconds: A worker that says nothing for so long (it says something every second, even
            while it encodes) is taken for dead. Only time in which this process listens counts: it may
            have been suspended itself.
    """

    def __init__(self, workers: int, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._limit = workers
        self._silence_seconds = silence_seconds
        self._events: queue.Queue[tuple[_Worker | None, messages.Message | None]] = queue.Queue()
        self._workers: list[_Worker] = []
        self._looked = 0.0
        self._listened_seconds = 0.0

    def run(
        self,
        recipe: Recipe,
        parts_directory: str,
        make_feed: Callable[[Callable[[], None]], Feed],
        listener: Listener,
    ) -> None:
        """See :class:`~tokshard.tokenization.execution.executor.Executor`."""
        events = self._events = queue.Queue()  # what workers of an earlier run said last is of no interest
        self._looked = time.monotonic()
        feed = make_feed(lambda: events.put((None, None)))
        start = messages.to_line({"recipe": recipe.to_json(), "parts_directory": parts_directory})
        try:
            while True:
                self._hand_out(feed, start)
                if feed.exhausted and all(worker.task is None for worker in self._workers):
                    return
                self._handle(listener, lambda: self._hand_out(feed, start))
        finally:
            feed.stop()
            self._end()

    def _hand_out(self, feed: Feed, start: bytes) -> None:
        """Give tasks to workers that have none, as long as there are tasks right now."""
        while True:
            worker = next((worker for worker in self._workers if worker.task is None), None)
            if worker is None and len(self._workers) >= self._limit:
                return
            if (task := feed.take()) is None:
                return
            if worker is None:
                worker = _Worker.start(start, self._events)
                self._workers.append(worker)
            worker.heard = self._listened_seconds
            worker.give(task)

    def _handle(self, listener: Listener, hand_out: Callable[[], None]) -> None:
        """Wait for one event and deal with it."""
        try:
            worker, message = self._events.get(timeout=_LISTEN_SECONDS)
        except queue.Empty:
            worker, message = None, None
        now = time.monotonic()
        self._listened_seconds += min(now - self._looked, _LISTEN_SECONDS)
        self._looked = now
        if worker is None:
            self._check_silence()
            return
        worker.heard = self._listened_seconds
        if message is None:
            raise worker.death()
        if "error" in message:
            raise messages.error_from_json(message["error"])
        if "progress" in message:
            listener.encoded(*message["progress"])
        if "outcome" in message:
            worker.task = None
            outcome = messages.outcome_from_json(message["outcome"])
            if outcome.refused is None:
                hand_out()  # before the listener, who may take long
            listener.finished(outcome)
        self._check_silence()

    def _check_silence(self) -> None:
        for worker in self._workers:
            if worker.task is not None and self._listened_seconds - worker.heard > self._silence_seconds:
                raise worker.silence(self._silence_seconds)

    def _end(self) -> None:
        """End all workers at once: whatever they are writing is temporary."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.close()
        self._workers.clear()


def _environment() -> dict[str, str]:
    """Return the environment of a worker."""
    return {
        # Nothing here uses BLAS, but numpy's starts threads that spin for a while.
        "OPENBLAS_NUM_THREADS": "1",
        # Batches are freed and asked for again: the heap keeps them, or each costs its page faults anew.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
        **os.environ,
        # An empty entry is the current directory, in which the worker runs, too.
        "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path),
    }


@dataclass(eq=False, slots=True)
class _Worker:
    """One worker process, as the job sees it."""

    process: subprocess.Popen[bytes]
    task: Task | None = None
    heard: float = 0.0  # in seconds of listening
    listener: threading.Thread = field(init=False)

    @classmethod
    def start(
        cls, start: bytes, events: queue.Queue[tuple[_Worker | None, messages.Message | None]]
    ) -> _Worker:
        """Start a process and a thread that turns its answers into events.

        Raises:
            WorkerError: The system allows no more processes or files.
        """
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tokshard.tokenization.execution.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,
                env=_environment(),
            )
        except OSError as error:
            raise WorkerError(
                f"cannot start a worker process: {error.strerror}",
                hint="run the same command with fewer --workers to resume",
            ) from error
        worker = cls(process)
        worker.listener = threading.Thread(target=worker.listen, args=(events,), daemon=True)
        worker.listener.start()
        worker.send(start)
        return worker

    def give(self, task: Task) -> None:
        """Send a task."""
        self.task = task
        self.send(messages.to_line(messages.task_to_json(task)))

    def send(self, line: bytes) -> None:
        """Send a line; if the process is gone, the listening thread will tell."""
        stdin = self.process.stdin
        if stdin is None:
            raise RuntimeError("a worker is always started with a pipe as its stdin")
        try:
            stdin.write(line)
            stdin.flush()
        except BrokenPipeError:
            return

    def listen(self, events: queue.Queue[tuple[_Worker | None, messages.Message | None]]) -> None:
        """Turn the answers into events until the process ends (runs in a thread)."""
        stdout = self.process.stdout
        if stdout is None:
            raise RuntimeError("a worker is always started with a pipe as its stdout")
        with stdout as answers:
            for line in answers:
                if line.endswith(b"\n"):  # else it died while it wrote
                    events.put((self, json.loads(line)))
        self.process.wait()
        events.put((self, None))

    def close(self) -> None:
        """Wait for the end of the process, which has been killed, and of the listening thread."""
        self.process.wait()
        self.listener.join()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # what it did not read any more
                self.process.stdin.close()

    def death(self) -> WorkerError:
        """Return the error for a process that has ended by itself."""
        status = self.process.returncode
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        cause = " (often: the system ran out of memory)" if status == -signal.SIGKILL else ""
        return WorkerError(
            f"worker process {self.process.pid} {how}{cause} {self._at_work()}",
            hint="run the same command again to resume; finished units are kept",
        )

    def silence(self, seconds: float) -> WorkerError:
        """Return the error for a process that does not answer."""
        return WorkerError(
            f"worker process {self.process.pid} has not answered for {seconds:g} s {self._at_work()}",
            hint="run the same command again to resume; finished units are kept",
        )

    def _at_work(self) -> str:
        if self.task is None:
            return "while it waited for work"
        return f"at unit {self.task.unit.index} of {self.task.name}"
