"""Messages between a job and its worker processes: pickles, each after its length, over private sockets.

The job makes a socket before it starts the process at its other end, so nobody else can write into it. An
exception is raised by the job, and a number is the process id of the sender, which is alive.
"""

from __future__ import annotations

import pickle
import socket
import threading
import traceback
from typing import Any, NamedTuple

from tokshard.errors import known_error

_LENGTH_BYTES = 4
_MOST_BYTES = 1 << 28  # of a message: a task lists the lines that are cut


class UnreadableMessageError(Exception):
    """A message is damaged, or is none."""


class WorkerCrashError(RuntimeError):
    """A worker raised an unexpected exception (a bug); the message is the worker's traceback."""


class Ended(NamedTuple):
    """Worker ``number`` has ended, with this exit status or minus the signal that killed it."""

    number: int
    pid: int
    status: int


class Channel:
    """One end of a connection. Threads may share it to send."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message; raise BrokenPipeError or ConnectionResetError if the other process is gone."""
        content = pickle.dumps(message)
        with self._sending:
            self.connection.sendall(len(content).to_bytes(_LENGTH_BYTES) + content)

    def receive(self) -> Any:
        """Wait for a message; raise EOFError if the other process has closed its end."""
        size = int.from_bytes(self._read(_LENGTH_BYTES))
        if size > _MOST_BYTES:
            raise UnreadableMessageError
        content = self._read(size)
        try:
            return pickle.loads(content)  # noqa: S301 - of a process that we started
        except Exception as error:
            raise UnreadableMessageError from error

    def _read(self, size: int) -> bytes:
        try:
            content = self.connection.recv(size, socket.MSG_WAITALL)
        except ConnectionResetError:  # it ended before it had read everything
            content = b""
        if len(content) < size:
            raise EOFError
        return content


def sendable(error: BaseException) -> Exception:
    """Return the error of a worker or a node as the job raises it."""
    return known_error(error) or WorkerCrashError("".join(traceback.format_exception(error)))
