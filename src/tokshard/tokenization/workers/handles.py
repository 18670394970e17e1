"""The nursery and its workers as the job sees them: their connections, what they say, and how they end."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import threading

from tokshard.errors import WorkerError
from tokshard.tokenization.encoder import Task
from tokshard.tokenization.part import UnitKey
from tokshard.tokenization.recipe import Recipe
from tokshard.tokenization.workers import messages
from tokshard.tokenization.workers.nursery import MESSAGE_BYTES
from tokshard.tokenization.workers.starting import NurseryProcess, cannot_start

_RESUME = "run the same command again to resume; finished units are kept"
# An orderly end takes milliseconds. What has not come to one by then is stopped or stuck.
_END_SECONDS = 1.0


class WorkerHandle:
    """One worker process.

    Args:
        number: What the nursery is to call it.
        connection: The job's end of the connection to it.

    Attributes:
        pid: Its process id, as soon as it is known.
        task: The unit that it encodes.
        held: The units that it holds, and whether it has been told where to write them.
        heard: When it was last heard of, in seconds of listening.
    """

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.pid: int | None = None
        self.task: Task | None = None
        self.held: dict[UnitKey, tuple[Task, bool]] = {}
        self.heard = 0.0
        self._connection = connection
        self._status: int | None = None
        self._ended = threading.Event()
        self._listener: threading.Thread | None = None

    def give(self, task: Task) -> None:
        """Send a task."""
        self.task = task
        self.send({"task": messages.task_to_json(task)})

    def send(self, message: messages.Message) -> None:
        """Send a message; if the process is gone, the listening thread will tell."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.sendall(messages.to_line(message))

    def listen_to(self, events: Events) -> None:
        """Turn what it says into events, in a thread, until its connection ends."""
        self._listener = threading.Thread(target=self._listen, args=(events,), daemon=True)
        self._listener.start()

    def _listen(self, events: Events) -> None:
        with contextlib.suppress(ConnectionResetError), self._connection.makefile("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):  # else it died while it wrote
                    events.put((self, json.loads(line)))
        self._ended.wait()
        events.put((self, None))

    def close(self) -> None:
        """Wait for the listening thread, and close the connection. The process has been ended."""
        if self._listener is not None:
            self._listener.join()
        self._connection.close()

    def note_end(self, pid: int | None = None, status: int | None = None) -> None:
        """Take in that it has ended; called from the nursery's thread."""
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
        held = [task for task, _ in self.held.values()]
        task = self.task or next(iter(held), None)
        return "while it waited for work" if task is None else f"at unit {task.unit.index} of {task.name}"


class NurseryHandle:
    """The process that loads what workers need, and forks them.

    Args:
        process: It.
        events: Takes what it and its workers say.
    """

    def __init__(self, process: NurseryProcess, events: Events) -> None:
        self._process = process
        self._connection = process.connection
        self._events = events
        self._workers: list[WorkerHandle] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def prepare(self, recipe: Recipe, parts_directory: str) -> None:
        """Let it load what workers need for a recipe."""
        self._send({"recipe": recipe.to_json(), "parts_directory": parts_directory})

    def fork(self) -> WorkerHandle:
        """Order a worker, which may be spoken to at once.

        Raises:
            WorkerError: The system allows no more files.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise cannot_start(error.strerror) from error
        worker = WorkerHandle(len(self._workers), ours)
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
        self._process.kill()
        self._listener.join()
        self._connection.close()
        for worker in self._workers:
            worker.note_end()  # whatever the nursery had no time to tell
            worker.close()

    def death(self) -> WorkerError:
        """Return the error for a process that has ended by itself."""
        how = _how(self._process.status())
        return WorkerError(f"the parent process {self.pid} of the workers {how}", hint=_RESUME)

    def _send(self, message: messages.Message, *sockets: socket.socket) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._connection, [messages.to_line(message)], [one.fileno() for one in sockets])

    def _listen(self) -> None:
        with contextlib.suppress(ConnectionResetError):
            while content := self._connection.recv(MESSAGE_BYTES):
                message = json.loads(content)
                if "ended" in message:
                    self._workers[message["ended"]].note_end(message["pid"], message["status"])
                else:
                    self._events.put((self, message))
        self._events.put((self, None))


Events = queue.Queue[tuple[WorkerHandle | NurseryHandle | None, messages.Message | None]]


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    cause = " (often: the system ran out of memory)" if status == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-status).name}{cause}"
