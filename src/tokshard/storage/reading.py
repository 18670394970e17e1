"""Reading of files: opened without waiting, read to the requested length, and small ones read whole.

In the place of a product's file may be a named pipe, a socket or a device: opening it could wait for ever,
and reading it never end. A read may return fewer bytes than requested before the end of the file, as on
some network and FUSE file systems.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar

from tokshard.core.codec import Document
from tokshard.core.json_text import MAX_JSON_BYTES, parse_json_object
from tokshard.errors import InputError, MissingFileError, StorageError, TokshardError
from tokshard.storage.paths import is_remote

DocumentT = TypeVar("DocumentT", bound=Document)

READ_BYTES = 1 << 22
MAX_TEXT_BYTES = 64 << 20

# Opening a named pipe waits for its writer, which another process may be about to start.
PIPE_SECONDS = 5
# Named pipes that were opened for reading.
_pipes: list[BinaryIO] = []


def open_regular(path: str, flags: int = 0) -> int:
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
    """Open a regular file or a remote object for buffered reading in order; see :func:`open_regular`."""
    if is_remote(path):
        return _open_object(path)
    return open(path, "rb", opener=lambda name, _: open_regular(name))


def _open_object(url: str) -> BinaryIO:
    # Readers of local files, such as the loader in most jobs, must not load the object store client.
    from tokshard.storage.remote.objects import open_binary

    return open_binary(url)


def open_passed(path: str | int) -> BinaryIO:
    """Open a file that the user passed, which may be a pipe, a terminal or a URL, for buffered reading.

    ``path`` can be a descriptor, which stays open when the file is closed.

    Raises:
        InputError: It is a named pipe, and no process has opened it for writing in a few seconds, in which
            no other pipe was open.
        OSError: It cannot be opened.
    """
    if isinstance(path, int):
        return open(path, "rb", closefd=False)
    if is_remote(path):
        return _open_object(path)
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return open(path, "rb")
    pipe = open(_open_pipe(path), "rb")  # noqa: SIM115 - the caller closes it
    _pipes[:] = [*(each for each in _pipes if not each.closed), pipe]
    return pipe


def _open_pipe(path: str) -> int:
    """Open a named pipe for reading, once a process has opened it for writing.

    Raises:
        InputError: No process has done so within :data:`PIPE_SECONDS`.
        OSError: It cannot be opened.
    """
    from tokshard.core.background import Background  # most inputs are no pipes

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


def iter_blocks(path: str, begin: int = 0, end: int = sys.maxsize) -> Iterator[bytes]:
    """Yield the bytes ``begin`` to ``end`` of a file, or those up to its end, in blocks of at most 4 MiB."""
    with open_file(path) as file:
        file.seek(begin)
        while block := file.read(min(READ_BYTES, end - begin)):
            yield block
            begin += len(block)


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


def read_small_file(path: str, kind: str = "file", *, hint: str | None = None, passed: bool = False) -> bytes:
    """Return the bytes of a file.

    Args:
        path: The file.
        kind: The expected kind of file (``"recipe"``), for errors.
        hint: The advice if it is missing.
        passed: Whether the user passed this path: it may be a pipe then.

    Raises:
        MissingFileError: The file does not exist.
        InputError: It is a directory, another special file, or larger than 64 MiB.
        StorageError: It cannot be read.
    """
    try:
        with open_passed(path) if passed else open_file(path) as file:
            content = file.read(MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        raise MissingFileError(f"{kind} not found: {path}", path=path, hint=hint) from None
    except IsADirectoryError:
        raise InputError(
            f"cannot read {kind} {path}: it is a directory", hint=hint or f"pass the path of a {kind}"
        ) from None
    except TokshardError:
        raise
    except OSError as error:
        raise StorageError("read", path, error) from error
    if len(content) > MAX_TEXT_BYTES:
        raise InputError(f"{path} must have at most {MAX_TEXT_BYTES:,} bytes, got more", hint=hint)
    return content


def read_text(path: str, kind: str = "file", *, hint: str | None = None) -> str:
    """Return the text of a file in UTF-8 that the user passed; see :func:`read_small_file`.

    Raises:
        InputError: It is not UTF-8.
    """
    try:
        return read_small_file(path, kind, hint=hint, passed=True).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} must be UTF-8: {error.reason} at byte {error.start}",
            hint="check the path: this is not a text file, or it must be converted to UTF-8",
        ) from error


def read_json_object(path: str) -> dict[str, Any]:
    """Read and parse a JSON object strictly; see :func:`read_json_bytes` and :func:`parse_json_object`."""
    return parse_json_object(read_json_bytes(path), path)


def read_json_bytes(path: str) -> bytes:
    """Return the bytes of a JSON file; of a file that is too large, one byte more than the limit.

    Raises:
        FileNotFoundError: The file does not exist.
        NotADirectoryError: Its parent is not a directory.
        StorageError: It cannot be read.
    """
    try:
        with open_file(path) as file:
            return file.read(MAX_JSON_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, TokshardError):
        raise
    except OSError as error:
        raise StorageError("read", path, error) from error


def read_document(cls: type[DocumentT], path: str) -> DocumentT:
    """Read a document strictly; see :func:`read_json_bytes`.

    Raises:
        IntegrityError: The content is invalid, or has another schema.
    """
    return cls.from_bytes(read_json_bytes(path), path)
