"""Line logs that several processes append to, such as the event log of ``--log-json``."""

from __future__ import annotations

import fcntl
import os

from tokshard.errors import OutputExistsError
from tokshard.storage import syscalls
from tokshard.storage.reading import read_at


class LineLog:
    """A log file to which each line is appended by one write, so that a kill loses at most the last line.

    Several processes may append to one log at the same time.

    Args:
        path: The file; created if absent.
        beginning: The bytes that an existing file must begin with; other files are refused.

    Raises:
        OutputExistsError: The file exists and does not begin with ``beginning``.
        StorageError: The file cannot be opened.

    Example::

        log = LineLog("events.jsonl", b'{"schema": "tokshard.event/')
        log.write('{"schema": "tokshard.event/1", "event": "started"}')
        log.close()
    """

    def __init__(self, path: str, beginning: bytes) -> None:
        self._path = path
        self._descriptor = syscalls.open_for_append(path)
        size = os.fstat(self._descriptor).st_size
        if size and read_at(self._descriptor, len(beginning), 0) != beginning:
            self.close()
            raise OutputExistsError(
                f"{path} exists and is not an event log", hint="pass another file to --log-json"
            )
        # The kernel appends each line after everything written before.
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
        if size and read_at(self._descriptor, 1, size - 1) != b"\n":
            self.write("")  # ends the line that a killed run has left

    @property
    def is_open(self) -> bool:
        """True until :meth:`close`."""
        return self._descriptor >= 0

    def write(self, line: str) -> None:
        """Append a line of ASCII; ``line`` has no line break.

        Raises:
            StorageError: The write failed.
        """
        syscalls.write(self._descriptor, line.encode("ascii") + b"\n", self._path)

    def close(self) -> None:
        """Close the file."""
        if self.is_open:
            os.close(self._descriptor)
            self._descriptor = -1
