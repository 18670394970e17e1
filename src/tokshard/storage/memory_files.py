"""Anonymous files in memory (``memfd_create``), through which a process passes arrays to another.

They have no name: the system frees one with the last process that has it open, however that ends.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence

# A file begins with random bytes, which name its content, or with zeros once that was read.
_NAME_BYTES = 16
_READ = bytes(_NAME_BYTES)
# Linux transfers a little less than 2 GiB in one call.
_MOST_BYTES = 1 << 30


class MemoryFiles:
    """The files of this process, each of which is used again once its content was read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._descriptors: list[int] = []

    def write(self, buffers: Sequence[memoryview]) -> tuple[str, bytes]:
        """Write buffers to a file; return the arguments of :func:`read_once` for any process of this user.

        Raises:
            OSError: The system has no such files, or no memory for the buffers, or they exceed 1 GiB.
        """
        size_bytes = _size_bytes(buffers)
        if size_bytes > _MOST_BYTES or not _can_share():
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        name = os.urandom(_NAME_BYTES)
        with self._lock:
            descriptor = self._unused()
            if os.pwritev(descriptor, [name, *buffers], 0) != size_bytes:
                os.pwrite(descriptor, _READ, 0)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return f"/proc/{os.getpid()}/fd/{descriptor}", name

    def _unused(self) -> int:
        if self._process != os.getpid():
            # Those of the process that this one is a fork of remain that one's.
            self._process, self._descriptors = os.getpid(), []
        for descriptor in self._descriptors:
            if os.pread(descriptor, _NAME_BYTES, 0) in {_READ, b""}:
                return descriptor
        self._descriptors.append(os.memfd_create("tokshard-memory"))
        return self._descriptors[-1]


def read_once(path: str, name: bytes, buffers: Sequence[memoryview]) -> None:
    """Fill buffers of the sizes that were written; from here on the file may be used again.

    Raises:
        OSError: The process that has written them has ended, or they were read before.
    """
    found = bytearray(_NAME_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.preadv(descriptor, [found, *buffers], 0) != _size_bytes(buffers) or found != name:
            raise FileNotFoundError(errno.ENOENT, "its process has ended, or it was read before")
        os.pwrite(descriptor, _READ, 0)
    finally:
        os.close(descriptor)


def _size_bytes(buffers: Sequence[memoryview]) -> int:
    return _NAME_BYTES + sum(buffer.nbytes for buffer in buffers)


def _can_share() -> bool:
    # The files of a process that has changed its user, for example, are open to root alone.
    try:
        return hasattr(os, "memfd_create") and os.stat("/proc/self/fd").st_uid == os.geteuid()
    except OSError:
        return False
