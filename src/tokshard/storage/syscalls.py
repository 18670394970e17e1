"""System calls that change a file system, one function each.

Nothing else in tokshard creates, writes, renames or removes a file, so a test that counts, kills at, or fails
the k-th of these calls sees every state that a crash can leave. Callers use them as ``calls.write(...)``,
through the module, for the same reason.

Operating system errors become a :class:`~tokshard.errors.StorageError` that names the path. A failed
``fsync`` is never retried: the kernel may have dropped the dirty pages, and a second call would report
success.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from tokshard.errors import StorageError, UsageError
from tokshard.storage.paths import is_remote

Buffer = bytes | bytearray | memoryview

# Errors of copy_file_range across file systems, on old kernels, and in sandboxes.
_NO_COPY_FILE_RANGE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
_COPY_BYTES = 1 << 22
# Linux gives a large write large folios of the page cache: where memory is fragmented, compacting it for them
# takes several times as long as the copy. Writes of this size are as fast on idle machines.
_WRITE_BYTES = 1 << 18
_MAKING_TRIES = 100


@contextmanager
def _translated(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(action, path, error) from error


def _refuse_url(path: str) -> None:
    # A URL taken for a path would create directories named after its parts.
    if is_remote(path):
        raise UsageError(
            f"cannot write {path}: this output must be on a file system, got a URL",
            hint="write to a local directory and upload it",
        )


def create(path: str) -> int:
    """Create a new file for writing and return its descriptor; fails if a file or link exists."""
    _refuse_url(path)
    with _translated("create", path):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def open_for_append(path: str) -> int:
    """Open a regular file for writing, creating it if absent; other file types are refused."""
    _refuse_url(path)
    with _translated("open", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file")
        return descriptor


def write(descriptor: int, buffer: Buffer, path: str) -> None:
    """Write all of ``buffer``; a short write is continued, an error is never swallowed."""
    view = memoryview(buffer).cast("B")
    with _translated("write", path):
        while view:
            view = view[os.write(descriptor, view[:_WRITE_BYTES]) :]


def copy_range(source: int, target: int, offset: int, count: int, path: str) -> int:
    """Append a range of one open file to another, inside the kernel if the file systems support it.

    The position of ``source`` is unchanged.

    Returns:
        The number of bytes copied: fewer than ``count`` only at the end of the source.
    """
    copied = 0
    with _translated("write", path):
        while copied < count and (step := _copy_some(source, target, offset + copied, count - copied)):
            copied += step
    return copied


def _copy_some(source: int, target: int, offset: int, count: int) -> int:
    # Copies at least one byte unless the source ends at the offset.
    try:
        # Some file systems return 0 instead of an error: only a read detects the end.
        if copied := os.copy_file_range(source, target, count, offset):
            return copied
    except OSError as error:
        if error.errno not in _NO_COPY_FILE_RANGE:
            raise
    return os.write(target, os.pread(source, min(count, _COPY_BYTES), offset))


def truncate(descriptor: int, size_bytes: int, path: str) -> None:
    """Truncate an open file to ``size_bytes``."""
    with _translated("truncate", path):
        os.ftruncate(descriptor, size_bytes)


def fsync(descriptor: int, path: str) -> None:
    """Fsync an open file."""
    with _translated("fsync", path):
        os.fsync(descriptor)


def fsync_directory(path: str) -> None:
    """Fsync a directory, so that a rename in it survives a power failure.

    Some network and FUSE file systems return EINVAL for directories. They have nothing to sync, so that is
    ignored; every other error is raised.
    """
    with _translated("fsync", path):
        descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
                raise
        finally:
            os.close(descriptor)


def close(descriptor: int, path: str) -> None:
    """Close a descriptor; some file systems report a failed write only here."""
    with _translated("close", path):
        os.close(descriptor)


def replace(source: str, target: str) -> None:
    """Rename atomically, replacing an existing file."""
    with _translated("rename", f"{source} to {target}"):
        os.replace(source, target)


def link(source: str, target: str) -> None:
    """Give a file a second name; fails if a file or link has it."""
    with _translated("create", target):
        os.link(source, target, follow_symlinks=False)


def make_directory(path: str) -> None:
    """Create a directory and its parents and fsync the new names; existing ones are fine."""
    _refuse_url(path)
    parent = os.path.dirname(path.rstrip("/"))
    tries_left = _MAKING_TRIES
    while not os.path.isdir(path):
        tries_left -= 1
        if parent:
            make_directory(parent)
        try:
            with _translated("create directory", path):
                os.mkdir(path)
            fsync_directory(parent)
        except OSError as error:
            # Another process created it, and may have removed it or its parent again.
            if error.errno not in {errno.EEXIST, errno.ENOENT} or tries_left == 0 or _is_no_directory(path):
                raise


def _is_no_directory(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISDIR(mode) and not os.path.isdir(path)


def make_private_directory(path: str) -> None:
    """Create a directory with mode 700; fails if it exists."""
    with _translated("create directory", path):
        os.mkdir(path, 0o700)


def unlink(path: str) -> None:
    """Remove a file; an absent one is fine."""
    with _translated("remove", path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


def remove_directory(path: str) -> None:
    """Remove an empty directory; an absent one is fine."""
    with _translated("remove directory", path):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
