"""Scratch directories: private temporary directories that are removed with their process.

A killed process leaves its directory behind. The next process that creates one removes those whose owner is
dead: each is locked, and the lock dies with its process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tokshard.errors import LockedError, StorageError
from tokshard.storage import syscalls
from tokshard.storage.files import remove_tree
from tokshard.storage.lock import WriterLock

_LOCK_NAME = "lock"
# A new directory may not be locked yet.
_YOUNG_SECONDS = 60.0


@contextmanager
def scratch_directory() -> Iterator[str]:
    """Create a directory below ``TMPDIR`` with mode 700; remove it with its contents on exit."""
    base = tempfile.gettempdir()
    beginning = f"tokshard-scratch-{os.getuid()}-"
    _remove_left_behind(base, beginning)
    directory = os.path.join(base, beginning + secrets.token_hex(8))
    syscalls.make_private_directory(directory)
    with WriterLock(os.path.join(directory, _LOCK_NAME), mode="if-supported"):
        try:
            yield directory
        finally:
            remove_tree(directory)  # while nobody can take it for one that was left behind


def _remove_left_behind(base: str, beginning: str) -> None:
    # A directory that cannot be removed stays.
    for name in os.listdir(base):
        path = os.path.join(base, name)
        with contextlib.suppress(LockedError, StorageError, FileNotFoundError):
            if name.startswith(beginning) and _is_left_behind(path):
                with WriterLock(os.path.join(path, _LOCK_NAME), mode="flock"):
                    remove_tree(path)


def _is_left_behind(path: str) -> bool:
    status = os.lstat(path)
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return ours and time.time() - status.st_mtime > _YOUNG_SECONDS
