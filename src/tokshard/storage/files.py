"""Atomic and append-only files: a crash leaves either the old state or the new one."""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
from functools import partial
from types import TracebackType
from typing import Self

from tokshard.core.background import Background
from tokshard.errors import IntegrityError, OutputExistsError, StorageError
from tokshard.storage import syscalls
from tokshard.storage.digest import FileRecord

_TEMPORARY_NAME = re.compile(r"\..+\.[0-9]+-[0-9]+(-[0-9a-f]{8})?\.tokshard-tmp", re.DOTALL)
# Errors of link on file systems without hard links.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL})
_numbers = itertools.count()
# Processes on different hosts may share a directory and have the same pid.
_HOST = secrets.token_hex(4)


def temporary_path(path: str) -> str:
    """Return a unique temporary name for ``path`` in the same directory."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.{os.getpid()}-{next(_numbers)}-{_HOST}.tokshard-tmp")


def is_temporary(name: str) -> bool:
    """Return whether a file name was made by :func:`temporary_path`.

    Example:
        >>> is_temporary(".corpus.bin.4711-0.tokshard-tmp"), is_temporary("corpus.tmp")
        (True, False)
    """
    return _TEMPORARY_NAME.fullmatch(name) is not None


def rename_new(source: str, target: str) -> None:
    """Rename atomically, unless a file or link exists under the new name.

    The file gets its new name as a second one, and then loses the old one. A call that was interrupted in
    between is completed by repeating it. On a file system without hard links, a file that appears between a
    check and the rename is replaced.

    Raises:
        OutputExistsError: A file or link exists.
    """
    try:
        syscalls.link(source, target)
    except StorageError as error:
        if error.errno == errno.EEXIST or (error.errno in _NO_LINKS and os.path.lexists(target)):
            if not is_same_file(source, target):
                raise foreign_file(target) from error
        elif error.errno in _NO_LINKS:
            syscalls.replace(source, target)
            return
        else:
            raise
    syscalls.unlink(source)


def is_same_file(path: str, other: str) -> bool:
    """Return whether two names are those of one file."""
    try:
        return os.path.samestat(os.lstat(path), os.lstat(other))
    except FileNotFoundError:
        return False


def foreign_file(path: str) -> OutputExistsError:
    """Return the error about a file that another program created at an output during the run."""
    return OutputExistsError(
        f"{path} appeared while the output was being written: another program created it",
        hint="move it away, or pass --force to replace it, and run the command again",
    )


FORCED_BYTES = 64 << 20
"""A file is forced to the disk in another thread each time it has grown by so much: little is left to do."""


class _GrowingFile:
    """A file that is written in order, and forced to the disk in another thread while it grows.

    Attributes:
        path: The path, for errors.
        size_bytes: The number of bytes written.
    """

    path: str
    size_bytes = 0
    _descriptor = -1
    _durable = True
    _forced_bytes = 0
    _forcing: Background[None] | None = None

    def write(self, buffer: syscalls.Buffer) -> None:
        """Append ``buffer``.

        Raises:
            StorageError: It cannot be written, or what was written before cannot be forced to the disk.
        """
        syscalls.write(self._descriptor, buffer, self.path)
        self._grow(memoryview(buffer).nbytes)

    def copy(self, source: int, offset: int, count: int) -> int:
        """Append a range of another open file; return the number of bytes copied, up to ``count``."""
        copied = syscalls.copy_range(source, self._descriptor, offset, count, self.path)
        self._grow(copied)
        return copied

    def sync(self) -> None:
        """Check that the size on disk is the number of bytes written, then fsync the file."""
        _check_size(self._descriptor, self.size_bytes, self.path)
        if self._durable:
            self._settle()
            syscalls.fsync(self._descriptor, self.path)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._forcing is not None:
            self._forcing.exception()  # waits
        if self._descriptor >= 0:
            descriptor = self._descriptor
            self._descriptor = -1
            syscalls.close(descriptor, self.path)

    def _grow(self, count: int) -> None:
        self.size_bytes += count
        is_due = self._durable and self.size_bytes - self._forced_bytes >= FORCED_BYTES
        if is_due and (self._forcing is None or self._forcing.done()):
            self._settle()
            self._forced_bytes = self.size_bytes
            self._forcing = Background(partial(syscalls.fsync, self._descriptor, self.path))

    def _settle(self) -> None:
        forcing = self._forcing
        self._forcing = None
        if forcing is not None:
            forcing.result()


class AtomicFile(_GrowingFile):
    """A new file that appears under its name complete or not at all.

    Use as a context manager: a normal exit publishes the file (fsync, size check, rename, and fsync of
    the directory unless ``durable`` is False); an exception removes the temporary file.

    Args:
        path: The final name. An existing file is replaced.
        durable: Whether to fsync data and name. Use False for files whose reader checks their digest and
            can rebuild them.
        replace: Whether to replace an existing file; if not, it is an OutputExistsError.
    """

    def __init__(self, path: str, *, durable: bool = True, replace: bool = True) -> None:
        self.path = path
        self._replace = replace
        self._temporary = temporary_path(path)
        self._durable = durable

    def __enter__(self) -> Self:
        syscalls.unlink(self._temporary)
        self._descriptor = syscalls.create(self._temporary)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        elif self._descriptor >= 0:
            self._publish()

    def discard(self) -> None:
        """Discard the file without publishing it."""
        try:
            self.close()
        finally:
            syscalls.unlink(self._temporary)

    def _publish(self) -> None:
        try:
            self.sync()
            self.close()
            (syscalls.replace if self._replace else rename_new)(self._temporary, self.path)
        except BaseException:
            self.discard()
            raise
        if self._durable:
            syscalls.fsync_directory(os.path.dirname(self.path))


class DigestingWriter(AtomicFile):
    """An atomic file whose digest is computed while it is written."""

    def __init__(self, path: str) -> None:
        import xxhash

        super().__init__(path)
        self._digest = xxhash.xxh3_128()

    def write(self, buffer: syscalls.Buffer) -> None:
        """Append ``buffer``."""
        self._digest.update(buffer)
        super().write(buffer)

    def record(self) -> FileRecord:
        """Return the size and digest of the bytes written."""
        return FileRecord(self.size_bytes, self._digest.hexdigest())


class AppendFile(_GrowingFile):
    """An append-only file that can be truncated to a known good size.

    Args:
        path: The file; created if absent.
        size_bytes: The size to continue from. Bytes after it are removed.
        durable: Whether to force the file to the disk while it grows. Use False for scratch files.

    Raises:
        IntegrityError: The file is shorter than ``size_bytes``.
    """

    def __init__(self, path: str, size_bytes: int = 0, *, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        self.size_bytes = self._forced_bytes = size_bytes
        self._descriptor = syscalls.open_for_append(path)
        try:
            self._cut_back()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _cut_back(self) -> None:
        actual = os.fstat(self._descriptor).st_size
        if actual < self.size_bytes:
            raise IntegrityError(
                f"{self.path} must have at least {self.size_bytes} bytes (recorded as written), got {actual}",
                path=self.path,
                hint="run the same command again, with --no-resume",
            )
        if actual > self.size_bytes:
            syscalls.truncate(self._descriptor, self.size_bytes, self.path)
        os.lseek(self._descriptor, self.size_bytes, os.SEEK_SET)


def write_atomically(path: str, content: syscalls.Buffer, *, replace: bool = True) -> None:
    """Write a small file: temporary name, fsync, rename, fsync of the directory.

    Raises:
        OutputExistsError: The file exists, and ``replace`` is False.
    """
    with AtomicFile(path, replace=replace) as file:
        file.write(content)


def _check_size(descriptor: int, expected: int, path: str) -> None:
    actual = os.fstat(descriptor).st_size
    if actual != expected:
        raise IntegrityError(f"{path} must have {expected} bytes after the write, got {actual}", path=path)


def remove_if_empty(path: str) -> None:
    """Remove a directory if it is empty."""
    try:
        syscalls.remove_directory(path)
    except StorageError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            raise


def remove_tree(path: str) -> None:
    """Remove ``path``: a directory with its contents, a file, or a link (not its target)."""
    if os.path.islink(path) or not os.path.isdir(path):
        syscalls.unlink(path)
        return
    for name in sorted(os.listdir(path)):
        remove_tree(os.path.join(path, name))
    syscalls.remove_directory(path)
