"""One writer to an output: an advisory lock that dies with its process.

The lock is ``flock`` on a small file that also tells who holds it, so a killed run leaves no stale
lock. On network file systems such locks are advisory at best, see docs/operations.md.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from types import TracebackType
from typing import Self

from tokshard.errors import IntegrityError, LockedError, StorageError
from tokshard.storage import calls
from tokshard.storage.jsonfile import parse_json_object


class WriterLock:
    """A context manager that holds ``path`` locked, or raises :class:`LockedError` at once.

    The file is removed on release. A process that opened the file just before that removal finds that
    its descriptor is no longer the file under the name, and tries again. The directory of the file is
    made where it is absent: another process may have just given it up.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1

    def __enter__(self) -> Self:
        while (descriptor := self._open()) is None or not self._take(descriptor):
            pass
        self._descriptor = descriptor
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": time.strftime("%FT%TZ", time.gmtime()),
        }
        try:
            calls.truncate(descriptor, 0, self.path)
            calls.write(descriptor, json.dumps(owner).encode(), self.path)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _open(self) -> int | None:
        """Return a descriptor of the file; None if its directory vanished before it could be opened."""
        directory = os.path.dirname(self.path)
        if directory:
            calls.make_directory(directory)
        try:
            return calls.open_for_append(self.path)
        except StorageError as error:
            if error.errno == errno.ENOENT and directory:
                return None
            raise

    def _take(self, descriptor: int) -> bool:
        """Lock the open file; False, and the descriptor closed, if it is not the one at the path any more.

        Raises:
            LockedError: Another process holds it.
            StorageError: The file system has no locks.
        """
        current = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            current = _is_current(descriptor, self.path)
        except BlockingIOError:
            raise LockedError(
                f"another process is writing this output: {_owner(descriptor)} holds {self.path}",
                hint="wait for it to end, or stop it and run the same command again",
            ) from None
        except OSError as error:
            raise StorageError("lock", self.path, error) from error
        finally:
            if not current:
                os.close(descriptor)
        return current

    def _release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                # Somebody may have removed the file by hand, and another process made a new one.
                if _is_current(descriptor, self.path):
                    calls.unlink(self.path)
            finally:
                os.close(descriptor)


def _is_current(descriptor: int, path: str) -> bool:
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)


def _owner(descriptor: int) -> str:
    try:
        owner = parse_json_object(os.pread(descriptor, 4096, 0), "the lock")
        return f"process {owner['pid']!r} on {owner['host']!r} since {owner['started']!r}"
    except (IntegrityError, KeyError, OSError):
        return "a process that has just started"
