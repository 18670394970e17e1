"""Writer lock of an output, exclusive or shared by the tasks of a job array.

The lock is ``flock`` on a small file that also names its holder, so a killed run leaves no stale lock. On
network file systems such locks are advisory at best, see docs/explanation/crash-safety.md. On a file system
that refuses them, a run can be told to take none (:func:`lock_mode`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Annotated, Literal, Self

from tokshard.core.options import RUN, Option
from tokshard.errors import LockedError, StorageError
from tokshard.storage import syscalls
from tokshard.storage.reading import read_at

LockMode = Literal["flock", "none"]
Lock = Annotated[
    LockMode,
    Option(
        "Lock the output with flock, or not at all (none): for a file system that refuses locks, if only one "
        "run writes this output at a time.",
        group=RUN,
        is_rare=True,
        with_launch=True,
    ),
]
"""The type of the option ``--lock`` of all commands that write."""

_READ_BYTES = 4096
_HOLDER = re.compile(r"process [0-9]+ on '[^']*' \(started '[^']*'\)|a task of a job array")
_REFUSALS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_mode: ContextVar[LockMode] = ContextVar("lock_mode", default="flock")


@contextmanager
def lock_mode(mode: LockMode) -> Iterator[None]:
    """Let all writer locks that are taken inside be of this mode.

    With ``"none"`` nothing is locked, and no lock file is written: the caller promises that no other process
    writes the same output.
    """
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


class WriterLock:
    """Context manager that locks ``path``, or raises :class:`LockedError` without waiting.

    The last holder removes the file on release. A process that opened the file just before that removal
    finds that its descriptor is no longer the file at the path, and tries again. The directory of the file
    is created if absent: another process may have just removed it. Inside ``lock_mode("none")`` nothing
    is done.

    Args:
        shared: Whether other processes that also pass ``shared`` may hold it at the same time.
        mode: The mode, for locks of files that are no outputs: ``"flock"`` always locks, ``"if-supported"``
            continues without a lock on a file system that refuses locks. None for that of :func:`lock_mode`.
    """

    def __init__(
        self,
        path: str,
        *,
        shared: bool = False,
        mode: Literal["flock", "if-supported"] | None = None,
    ) -> None:
        self.path = path
        self._mode = mode
        self._shared = shared
        self._descriptor = -1

    def __enter__(self) -> Self:
        if (self._mode or _mode.get()) == "none":
            return self
        try:
            while (descriptor := self._open()) is None or not self._take(descriptor):
                pass
        except StorageError as error:
            if self._mode == "if-supported" and error.errno in _REFUSALS:
                return self
            raise
        self._descriptor = descriptor
        started = time.strftime("%FT%TZ", time.gmtime())
        holder = f"process {os.getpid()} on {socket.gethostname()!r} (started {started!r})"
        try:
            if not self._shared:
                syscalls.truncate(descriptor, 0, self.path)
            # Processes that share the lock write the same text at the same place.
            syscalls.write(
                descriptor, b"a task of a job array" if self._shared else holder.encode(), self.path
            )
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _open(self) -> int | None:
        # None if its directory vanished before it could be opened.
        directory = os.path.dirname(self.path)
        if directory:
            syscalls.make_directory(directory)
        try:
            return syscalls.open_for_append(self.path)
        except StorageError as error:
            if error.errno == errno.ENOENT and directory:
                return None
            raise

    def _take(self, descriptor: int) -> bool:
        # False, with the descriptor closed, if the file is no longer the one at the path.
        current = False
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            current = _is_current(descriptor, self.path)
        except BlockingIOError:
            raise LockedError(
                f"another process is writing this output: {_owner(descriptor)} holds {self.path}",
                hint="wait for that process to finish, or stop it and run the same command again",
            ) from None
        except OSError as error:
            if error.errno in _REFUSALS:
                raise self._refused(descriptor, error) from error
            raise StorageError("lock", self.path, error) from error
        finally:
            if not current:
                os.close(descriptor)
        return current

    def _refused(self, descriptor: int, error: OSError) -> StorageError:
        # A file without text was never a lock.
        if os.fstat(descriptor).st_size == 0 and _is_current(descriptor, self.path):
            syscalls.unlink(self.path)
        reason = f"the file system does not support flock ({error.strerror})"
        hint = "pass --lock none, and let only one run write this output at a time"
        return StorageError("lock", self.path, OSError(error.errno, reason), hint=hint)

    def _release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                # A user may have removed the file, and another process created a new one.
                if self._is_last(descriptor) and _is_current(descriptor, self.path):
                    syscalls.unlink(self.path)
            finally:
                os.close(descriptor)

    def _is_last(self, descriptor: int) -> bool:
        # If another process shares the lock, the failed upgrade releases it.
        if not self._shared:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def _is_current(descriptor: int, path: str) -> bool:
    try:
        named = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)


def _owner(descriptor: int) -> str:
    try:
        text = read_at(descriptor, _READ_BYTES, 0).decode("utf-8", "replace")
    except OSError:
        text = ""
    return text if _HOLDER.fullmatch(text) else "a process that just started"
