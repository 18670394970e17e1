"""A remote file that is read at positions, through the blocks that this process holds."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from tokshard.errors import IntegrityError
from tokshard.storage.remote.block_cache import BlockPool, shared_pool
from tokshard.storage.remote.objects import RemoteFile, RemoteStatus
from tokshard.storage.remote.stat_cache import recent_status

_STREAMS = 32


class RangedFile:
    """A remote file as it was when it was opened: to threads, and to forked processes, like a local one.

    Args:
        url: The file.
        status: What the store has said of it; by default it is asked. Another version is never read.

    Attributes:
        path: The URL.
        size_bytes: Its size.

    Raises:
        MissingFileError: There is no such file.
        InputError, StorageError: It cannot be opened.
    """

    def __init__(self, url: str, status: RemoteStatus | None = None) -> None:
        self.path = url
        self._file = RemoteFile(url, status or recent_status(url))
        self.size_bytes = self._file.size_bytes
        self._key = f"{url} {self._file.version}"
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        # Where sequential readers are: how much is fetched ahead of each, and up to which block it was.
        self._streams: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill ``target`` from a byte offset.

        Raises:
            IntegrityError: The file ends before, or is not what was opened any more.
            InputError, StorageError: It cannot be read.
        """
        if offset + len(target) > self.size_bytes:
            raise IntegrityError(
                f"{self.path} has {self.size_bytes} bytes, and none to {offset + len(target)}",
                path=self.path,
                offset=self.size_bytes,
            )
        pool = shared_pool()
        step = pool.request_blocks * pool.block_bytes
        while target:
            # Up to where requests meet, so that each block is in one of them.
            count = min(len(target), step - offset % pool.block_bytes)
            self._read(pool, target[:count], offset)
            target, offset = target[count:], offset + count

    def prefetch(self, offset: int, count: int) -> None:
        """Have a range fetched by other threads, as much of it as the file has."""
        pool = shared_pool()
        stop = min(offset + count, self.size_bytes)
        numbers = range(max(0, offset) // pool.block_bytes, -(-stop // pool.block_bytes))
        pool.prefetch(self._key, self._file, numbers)

    def _read(self, pool: BlockPool, target: memoryview, offset: int) -> None:
        size, stop = pool.block_bytes, offset + len(target)
        ahead = self._ahead(pool, offset, stop)
        if ahead:
            pool.prefetch(self._key, self._file, ahead)
        for number, content in pool.blocks(self._key, self._file, range(offset // size, -(-stop // size))):
            begin, end = max(offset, number * size), min(stop, (number + 1) * size)
            target[begin - offset : end - offset] = content[begin - number * size : end - number * size]

    def _ahead(self, pool: BlockPool, offset: int, stop: int) -> range:
        """Return the blocks to fetch ahead of a reader: none unless it goes on where one has stopped."""
        if self._process != os.getpid():
            self._begin()
        size = pool.block_bytes
        here, end = -(-stop // size), -(-self.size_bytes // size)
        ahead = range(0)
        with self._lock:
            known = self._streams.pop(offset, None)
            window, asked = known or (0, here)
            if known is not None and window - (asked - here) >= min(pool.request_blocks, window // 2):
                window = min(max(1, 2 * window, here - offset // size), pool.window_blocks)
                ahead = range(max(asked, here), min(here + window, end))
            self._streams[stop] = window, max(asked, ahead.stop)
            if len(self._streams) > _STREAMS:
                self._streams.popitem(last=False)
        return ahead
