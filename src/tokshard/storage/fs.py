"""Queries about files, local or remote, by path or URL.

The functions are named after those of ``os.path``.
"""

from __future__ import annotations

import errno
import os
import stat
from glob import glob as local_glob
from types import ModuleType

from tokshard.errors import StorageError, UsageError
from tokshard.storage.paths import is_remote

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM})
"""The errors that mean that there is no file, or none for this user."""


def exists(path: str) -> bool:
    """Return whether a file exists.

    Raises:
        StorageError: It is unknown: a file system cannot tell, or an object store does not respond.
    """
    return _mode(path) is not None


def lexists(path: str) -> bool:
    """Return whether a name exists, even as a broken link; see :func:`exists`."""
    return _mode(path, follow_links=False) is not None


def isfile(path: str) -> bool:
    """Return whether a regular file exists; see :func:`exists`."""
    return stat.S_ISREG(_mode(path) or 0)


def _mode(path: str, *, follow_links: bool = True) -> int | None:
    # The functions of os.path take every error for the absence of the file.
    if is_remote(path):
        return stat.S_IFREG if _objects().exists(path) else None
    try:
        return os.stat(path, follow_symlinks=follow_links).st_mode
    except ValueError:  # a name with a NUL character
        return None
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise StorageError("read", path, error) from error


def _objects() -> ModuleType:
    # Readers of local files, such as the loader in most jobs, must not load the object store client.
    from tokshard.storage.remote import objects

    return objects


def getsize(path: str) -> int:
    """Return the size of a file in bytes."""
    return int(_objects().status(path).size_bytes) if is_remote(path) else os.stat(path).st_size


def state(path: str) -> tuple[int | str, ...] | None:
    """Return a token that changes whenever the file is replaced or modified, or None if unavailable."""
    try:
        if is_remote(path):
            now = _objects().status(path)
            return now.size_bytes, now.version
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def abspath(path: str) -> str:
    """Return the absolute path of a file; a URL is absolute as it is.

    Example:
        >>> abspath("s3://bucket/web"), abspath("/data/../web")
        ('s3://bucket/web', '/web')
    """
    return path if is_remote(path) else os.path.abspath(path)


def relative_inside(path: str, directory: str) -> str:
    """Return a path as it is stored in files of ``directory``: relative if it is inside.

    Example:
        >>> relative_inside("/mix/cache/a", "/mix"), relative_inside("/data/web", "/mix")
        ('cache/a', '/data/web')
    """
    root, full = os.path.abspath(directory), abspath(path)
    inside = not is_remote(full) and os.path.commonpath([root, full]) == root
    return os.path.relpath(full, root) if inside else full


def realpath(path: str) -> str:
    """Return the canonical path of a local file, with links resolved; URLs are unchanged."""
    return path if is_remote(path) else os.path.realpath(path)


def glob(pattern: str) -> list[str]:
    """Return the names of the files that match a pattern (``**`` for any depth), unordered."""
    found: list[str] = _objects().glob(pattern) if is_remote(pattern) else local_glob(pattern, recursive=True)
    return found


def refuse_remote(path: str, what: str) -> None:
    """Raise an error if a path is a URL.

    ``what`` is the requirement, for the message: ``"a plan must be a local file"``.
    """
    if is_remote(path):
        raise UsageError(f"{what}, got the URL {path}", hint="download the file first")


def free_bytes(path: str) -> int | None:
    """Return the free space of the file system of a path, which need not exist; None if it is unknown."""
    directory = os.path.abspath(path)
    while not os.path.lexists(directory):
        directory = os.path.dirname(directory)
    try:
        status = os.statvfs(directory)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
