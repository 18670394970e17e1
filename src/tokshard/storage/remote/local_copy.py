"""Local copies of remote files that are read whole or mapped: indexes and manifests, not tokens.

A copy is stored in the user's cache directory under a name made of its URL, size and version, so a changed
file gets a new copy; the old one is then removed. Everything there may be removed at any time: open files
stay readable, and missing copies are fetched again.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress

from tokshard.errors import LockedError
from tokshard.storage import syscalls
from tokshard.storage.files import AtomicFile, is_temporary
from tokshard.storage.lock import WriterLock
from tokshard.storage.paths import user_cache_directory
from tokshard.storage.reading import open_descriptor
from tokshard.storage.remote.objects import RemoteStatus, recent_status
from tokshard.storage.remote.ranged_file import RangedFile

DIRECTORY_NAME = "remote"
LOCK_WAIT_SECONDS = 60.0

_LOCK_NAME = "lock"
_PIECE_BYTES = 4 << 20
_POLL_SECONDS = 0.05
_ABANDONED_SECONDS = 3600.0
_STRANGE = re.compile(r"[^A-Za-z0-9._-]")


def open_copy(url: str, known: RemoteStatus | None = None) -> int:
    """Return a descriptor of an up-to-date local copy of a remote file, downloading it if needed.

    With a ``known`` status, the copy is of this version.

    If several processes do so at once, one downloads and the others wait for it, for at most a minute.

    Raises:
        MissingFileError: The file does not exist.
        InputError, IntegrityError, StorageError: It cannot be read, or its copy cannot be written.
    """
    now = known or recent_status(url)
    directory = _directory(url)
    path = os.path.join(directory, _digest(f"{now.size_bytes} {now.version}"))
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while (descriptor := _open_whole(path, now.size_bytes)) is None:
        try:
            with WriterLock(os.path.join(directory, _LOCK_NAME), mode="if-supported"):
                if not _is_whole(path, now.size_bytes):
                    _fetch(url, now, path)
                    _sweep(directory, keep=path)
        except LockedError:
            if time.monotonic() > deadline:
                _fetch(url, now, path)
            time.sleep(_POLL_SECONDS)
    return descriptor


def _directory(url: str) -> str:
    name = _STRANGE.sub("_", url.rsplit("/", 1)[-1])[-80:]
    return os.path.join(user_cache_directory(), DIRECTORY_NAME, f"{name}-{_digest(url)}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _open_whole(path: str, size_bytes: int) -> int | None:
    try:
        descriptor = open_descriptor(path, os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    if os.fstat(descriptor).st_size == size_bytes:
        return descriptor
    os.close(descriptor)
    return None


def _is_whole(path: str, size_bytes: int) -> bool:
    descriptor = _open_whole(path, size_bytes)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def _fetch(url: str, now: RemoteStatus, path: str) -> None:
    file = RangedFile(url, now)  # this version or none: the name of the copy says which it is
    with AtomicFile(path) as copy:
        buffer = memoryview(bytearray(min(_PIECE_BYTES, file.size_bytes)))
        for offset in range(0, file.size_bytes, _PIECE_BYTES):
            piece = buffer[: file.size_bytes - offset]
            file.read_into(piece, offset)
            copy.write(piece)


def _sweep(directory: str, *, keep: str) -> None:
    # A recent temporary file may belong to another process that stopped waiting and downloads as well.
    for name in {*os.listdir(directory)} - {_LOCK_NAME, os.path.basename(keep)}:
        path = os.path.join(directory, name)
        with suppress(FileNotFoundError):
            if not is_temporary(name) or time.time() - os.stat(path).st_mtime > _ABANDONED_SECONDS:
                syscalls.unlink(path)
