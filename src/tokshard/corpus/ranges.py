"""Inputs read at positions: local files as they are, objects in stores a few blocks ahead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tokshard.storage.paths import is_remote
from tokshard.storage.readahead import ReadAhead
from tokshard.storage.remote.objects import RemoteFile


class Ranges(Protocol):
    """An open input."""

    @property
    def size_bytes(self) -> int:
        """Its size when it was opened."""

    def read(self, offset: int, count: int) -> bytes:
        """Return ``count`` bytes from ``offset``; fewer only at its end."""


@contextmanager
def open_ranges(path: str, begin: int, end: int) -> Iterator[Ranges]:
    """Open an input of which a range will be read, from its beginning to about its end.

    Args:
        path: A path or a URL.
        begin: Where reading begins, in bytes.
        end: Where it commonly ends; more may be read.

    Raises:
        OSError: A local file cannot be read.
        InputError: A remote object is missing, or changes while it is read.
        StorageError: A store does not answer.
    """
    if is_remote(path):
        remote = _RemoteRanges(path, begin, end)
        try:
            yield remote
        finally:
            remote.close()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield _LocalRanges(descriptor)
    finally:
        os.close(descriptor)


class _LocalRanges:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = os.fstat(descriptor).st_size

    def read(self, offset: int, count: int) -> bytes:
        block = os.pread(self._descriptor, count, offset)
        while len(block) < count and (
            more := os.pread(self._descriptor, count - len(block), offset + len(block))
        ):
            block += more
        return block


class _RemoteRanges:
    def __init__(self, url: str, begin: int, end: int) -> None:
        file = RemoteFile(url)
        self.size_bytes = file.size_bytes
        self._blocks = ReadAhead(file.read, file.size_bytes, start=begin, stop=end)
        self.read = self._blocks.read
        self.close = self._blocks.close
