"""What stores have just said of objects, so that opening a dataset does not ask the same again and again.

What is read afterwards is read on condition that the object has not changed since.
"""

from __future__ import annotations

import time

from tokshard.core.background import call_interruptibly
from tokshard.storage.remote import objects
from tokshard.storage.remote.objects import RemoteStatus

RECENT_SECONDS = 2.0

_MOST = 4096
_known: dict[str, tuple[float, RemoteStatus]] = {}


def recent_status(url: str) -> RemoteStatus:
    """Return what the store says of an object, or has said at most two seconds ago.

    Raises:
        MissingFileError: There is none; that is never kept.
        StorageError: The store refuses or does not answer.
    """
    now = time.monotonic()
    asked, status = _known.get(url, (-RECENT_SECONDS, None))
    if status is None or now - asked >= RECENT_SECONDS:
        status = call_interruptibly(lambda: objects.status(url))
        if len(_known) >= _MOST:
            _known.clear()
        _known[url] = now, status
    return status
