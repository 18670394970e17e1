"""Messages between a job and its worker processes: pickles, each after its length, over private sockets.

The job makes a socket before it starts the process at its other end, so nobody else can write into it. An
exception is raised by the job, and a number is the process id of the sender, which is alive.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

from tokshard.errors import known_error

_LENGTH = struct.Struct(">I")
_MOST_BYTES = 1 << 28  # of a message: a task lists the lines that are cut
_READ_BYTES = 1 << 16


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
        self._received = bytearray()
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message; raise BrokenPipeError or ConnectionResetError if the other process is gone."""
        content = pickle.dumps(message)
        with self._sending:
            self.connection.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self) -> Iterator[Any]:
        """Wait until something arrives, and yield the messages that are complete.

        Raises:
            EOFError: The other process has closed its end.
            UnreadableMessageError: What arrives is no message.
        """
        try:
            content = self.connection.recv(_READ_BYTES)
        except ConnectionResetError:  # it ended before it had read everything
            content = b""
        if not content:
            raise EOFError
        self._received += content
        while len(self._received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received)
            end = _LENGTH.size + size
            if size > _MOST_BYTES:
                raise UnreadableMessageError
            if len(self._received) < end:
                return
            pickled = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            try:
                message = pickle.loads(pickled)  # noqa: S301 - of a process that we started
            except Exception as error:
                raise UnreadableMessageError from error
            yield message


def sendable(error: BaseException) -> Exception:
    """Return the error of a worker or a node as the job raises it."""
    return known_error(error) or WorkerCrashError("".join(traceback.format_exception(error)))
