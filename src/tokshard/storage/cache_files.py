"""Files of caches: they can be made again, so a file that cannot be read or written is no error.

The content ends with its SHA-256. Processes that write the same name at once each write a whole file.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

from tokshard.errors import TokshardError
from tokshard.storage import syscalls
from tokshard.storage.files import AtomicFile
from tokshard.storage.reading import open_file

_DIGEST_BYTES: Final = 32
_OTHERS_MAY_WRITE: Final = 0o022


def read_cached(path: str) -> bytes | None:
    """Return the content of a file of a cache.

    Returns:
        The content, or None unless it is as it was written, and only this user or root could write it.
    """
    try:
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in {0, os.geteuid()} or status.st_mode & _OTHERS_MAY_WRITE:
                return None
            content = file.read()
    except (OSError, TokshardError):
        return None
    kept, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return kept if kept and hashlib.sha256(kept).digest() == digest else None


def write_cached(path: str, content: bytes) -> bool:
    """Write a file of a cache, and its directory; return whether that succeeded.

    Not forced to the disk: a file that a power failure damages is made again.
    """
    directory = os.path.dirname(path)
    try:
        syscalls.make_directory(os.path.dirname(directory))
        if not os.path.isdir(directory):
            syscalls.make_private_directory(directory)
        with AtomicFile(path, durable=False, mode=0o644) as file:
            file.write(content + hashlib.sha256(content).digest())
    except (OSError, TokshardError):
        return False
    return True
