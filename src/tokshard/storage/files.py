"""Atomic and append-only files: a crash leaves either the old state or the new one."""

from __future__ import annotations

import errno
import itertools
import os
import re
import secrets
from collections.abc import Callable
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
"""A large file is forced to the disk in another thread after so many bytes: little is left at its end."""


class EarlyForce:
    """Forces a file to the disk in another thread while more is written to it.

    Args:
        force: Forces what has been written so far; called in another thread.
        size_bytes: The size of the file, whose bytes are on the disk.
    """

    def __init__(self, force: Callable[[], None], size_bytes: int = 0) -> None:
        self._force = force
        self._forced = size_bytes
        self._under_way: Background[None] | None = None

    def written(self, size_bytes: int) -> None:
        """Begin to force the file if it has grown enough and no earlier call is under way.

        Raises:
            StorageError: The last one failed.
        """
        if size_bytes - self._forced >= FORCED_BYTES and (self._under_way is None or self._under_way.done()):
            self.settle()
            self._under_way, self._forced = Background(self._force), size_bytes

    def settle(self) -> None:
        """Wait until no call is under way.

        Raises:
            StorageError: It failed.
        """
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def wait(self) -> None:
        """Wait until no call is under way, even if it fails."""
        if self._under_way is not None:
            self._under_way.exception()


class AtomicFile:
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
        self._descriptor = -1
        self._early = EarlyForce(self._force)
        self.size_bytes = 0

    def __enter__(self) -> Self:
        syscalls.unlink(self._temporary)
        self._descriptor = syscalls.create(self._temporary)
        return self

    def write(self, buffer: syscalls.Buffer) -> None:
        """Append ``buffer``."""
        syscalls.write(self._descriptor, buffer, self.path)
        self.size_bytes += memoryview(buffer).nbytes
        if self._durable:
            self._early.written(self.size_bytes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        elif self._descriptor >= 0:
            self._publish()

    def discard(self) -> None:
        """Discard the file without publishing it."""
        self._early.wait()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        syscalls.unlink(self._temporary)

    def _publish(self) -> None:
        try:
            _check_size(self._descriptor, self.size_bytes, self.path)
            if self._durable:
                self._early.settle()
                self._force()
            descriptor, self._descriptor = self._descriptor, -1
            syscalls.close(descriptor, self.path)
            (syscalls.replace if self._replace else rename_new)(self._temporary, self.path)
        except BaseException:
            self.discard()
            raise
        if self._durable:
            syscalls.fsync_directory(os.path.dirname(self.path))

    def _force(self) -> None:
        syscalls.fsync(self._descriptor, self.path)


def write_atomically(path: str, content: syscalls.Buffer, *, replace: bool = True) -> None:
    """Write a small file: temporary name, fsync, rename, fsync of the directory.

    Raises:
        OutputExistsError: The file exists, and ``replace`` is False.
    """
    with AtomicFile(path, replace=replace) as file:
        file.write(content)


class DigestingWriter:
    """A file whose digest is computed while it is written."""

    def __init__(self, file: AtomicFile) -> None:
        import xxhash

        self._file = file
        self._state = xxhash.xxh3_128()

    def write(self, buffer: syscalls.Buffer) -> None:
        """Append ``buffer``."""
        self._state.update(buffer)
        self._file.write(buffer)

    def record(self) -> FileRecord:
        """Return the size and digest of the bytes written."""
        return FileRecord(self._file.size_bytes, self._state.hexdigest())


class AppendFile:
    """An append-only file that can be truncated to a known good size.

    Args:
        path: The file; created if absent.
        size_bytes: The size to continue from. Bytes after it are removed.

    Raises:
        IntegrityError: The file is shorter than ``size_bytes``.
    """

    def __init__(self, path: str, size_bytes: int = 0) -> None:
        self.path = path
        self.size_bytes = size_bytes
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

    def write(self, buffer: syscalls.Buffer) -> None:
        """Append ``buffer``."""
        syscalls.write(self._descriptor, buffer, self.path)
        self.size_bytes += memoryview(buffer).nbytes

    def copy(self, source: int, offset: int, count: int) -> int:
        """Append a range of another open file; return the number of bytes copied, up to ``count``."""
        copied = syscalls.copy_range(source, self._descriptor, offset, count, self.path)
        self.size_bytes += copied
        return copied

    def sync(self) -> None:
        """Check the size, then fsync the file."""
        self.check_size()
        self.force()

    def check_size(self) -> None:
        """Check that the size on disk is the number of bytes written."""
        _check_size(self._descriptor, self.size_bytes, self.path)

    def force(self) -> None:
        """Fsync the file. Another thread may write concurrently."""
        syscalls.fsync(self._descriptor, self.path)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            syscalls.close(descriptor, self.path)


def _check_size(descriptor: int, expected: int, path: str) -> None:
    actual = os.fstat(descriptor).st_size
    if actual != expected:
        raise IntegrityError(f"{path} must have {expected} bytes after the write, got {actual}", path=path)


def remove_tree(path: str) -> None:
    """Remove ``path``: a directory with its contents, a file, or a link (not its target)."""
    if os.path.islink(path) or not os.path.isdir(path):
        syscalls.unlink(path)
        return
    for name in sorted(os.listdir(path)):
        remove_tree(os.path.join(path, name))
    syscalls.remove_directory(path)
