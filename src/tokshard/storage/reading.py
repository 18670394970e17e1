"""Reading of local files: regular ones, opened without waiting, and read to the requested length.

In the place of a product's file may be a named pipe, a socket or a device: opening it could wait for ever,
and reading it never end. A read may return fewer bytes than requested before the end of the file, as on
some network and FUSE file systems.
"""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import wait
from contextlib import suppress
from typing import BinaryIO

from tokshard.core.background import Background
from tokshard.errors import InputError

# Opening a named pipe waits for its writer, which another process may be about to start.
PIPE_SECONDS = 5
# Named pipes that were opened for reading.
_pipes: list[BinaryIO] = []


def open_descriptor(path: str, flags: int = 0) -> int:
    """Open a regular file for reading and return its descriptor; ``flags`` are added to those of ``os.open``.

    Raises:
        InputError: It is a named pipe, a socket or a device.
        IsADirectoryError: It is a directory.
        OSError: It cannot be opened.
    """
    try:
        # Without O_NONBLOCK opening a named pipe would wait for a writer. Regular files ignore it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except OSError as error:
        if error.errno == errno.ENXIO:  # of sockets, and of devices without a driver
            raise _irregular(path, os.stat(path).st_mode) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise _irregular(path, mode)


def open_file(path: str) -> BinaryIO:
    """Open a regular file for buffered reading; see :func:`open_descriptor`."""
    return open(path, "rb", opener=lambda name, _: open_descriptor(name))


def open_passed(path: str | int) -> BinaryIO:
    """Open a file that the user passed, which may be a pipe or a terminal, for buffered reading.

    ``path`` can be a descriptor, which stays open when the file is closed.

    Raises:
        InputError: It is a named pipe, and no process has opened it for writing in a few seconds, in which
            no other pipe was open.
        OSError: It cannot be opened.
    """
    is_pipe = isinstance(path, str) and stat.S_ISFIFO(os.stat(path).st_mode)
    opened = _open_pipe(str(path)) if is_pipe else path
    file = open(opened, "rb", closefd=isinstance(path, str))  # noqa: SIM115 - the caller closes it
    if is_pipe:
        _pipes[:] = [*(pipe for pipe in _pipes if not pipe.closed), file]
    return file


def _open_pipe(path: str) -> int:
    """Open a named pipe for reading, once a process has opened it for writing.

    Raises:
        InputError: No process has done so within :data:`PIPE_SECONDS`.
        OSError: It cannot be opened.
    """
    opened = Background(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    while not wait([opened], PIPE_SECONDS).done:
        # Its writer may be writing to another pipe first.
        if all(pipe.closed for pipe in _pipes):
            with suppress(OSError):  # without permission to write, the thread waits until the process exits
                # A writer ends the wait of the thread.
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
                os.close(opened.result())
            raise InputError(
                f"cannot read {path}: no process has opened the named pipe for writing",
                hint="start the process that writes to it first, or pipe its output into the command and "
                "pass -",
            )
    return opened.result()


def irregular_kind(mode: int) -> str:
    """Return the kind of a file that is not a regular one, for messages.

    Example:
        >>> irregular_kind(os.stat("/dev/null").st_mode)
        'a device'
    """
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _irregular(path: str, mode: int) -> InputError:
    return InputError(
        f"cannot read {path}: it is {irregular_kind(mode)}, not a regular file",
        hint="remove it, or replace it with a regular file",
    )


def read_at(descriptor: int, count: int, offset: int) -> bytes:
    """Return ``count`` bytes from a byte offset; fewer only at the end of the file."""
    block = os.pread(descriptor, count, offset)
    if len(block) == count or not block:
        return block
    pieces, found = [block], len(block)
    while found < count and (block := os.pread(descriptor, count - found, offset + found)):
        pieces.append(block)
        found += len(block)
    return b"".join(pieces)


def read_into(descriptor: int, target: memoryview, offset: int) -> int:
    """Fill a buffer from a byte offset and return the bytes read: fewer than requested only at the end."""
    found = 0
    while found < len(target) and (count := os.preadv(descriptor, [target[found:]], offset + found)):
        found += count
    return found
