"""Bounded cache of open files and datasets."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
Opened = TypeVar("Opened")

# The program has other files open: its libraries, logs, sockets and pipes.
_MARGIN_FILES = 64


def affordable(objects: int, files: int) -> int:
    """Return how many of some objects with so many files each may be open by ``ulimit -n``: 1 or more."""
    limit = os.sysconf("SC_OPEN_MAX")
    return objects if limit < 0 else min(objects, max(1, (limit - _MARGIN_FILES) // files))


class OpenCache(Generic[KeyT, Opened]):
    """Cache of open objects by key that evicts the least recently used; safe to share between threads.

    An evicted object is closed when its last reference is gone: another thread may still be reading it. Each
    object is opened once even if several threads request it, and a failed attempt is repeated by the next
    caller.

    Args:
        opener: Opens the object of a key. Different keys may be opened concurrently.
        capacity: The maximum number of objects kept open; with 0 every call opens again.

    Example:
        >>> cache = OpenCache(lambda name: [name], 2)
        >>> cache.get("a") is cache.get("a")
        True
        >>> first = cache.get("a"), cache.get("b"), cache.get("c")
        >>> len(cache), "a" in cache
        (2, False)
    """

    def __init__(self, opener: Callable[[KeyT], Opened], capacity: int) -> None:
        self._opener = opener
        self._capacity = capacity
        self._entries: OrderedDict[KeyT, Future[Opened]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._entries

    def get(self, key: KeyT) -> Opened:
        """Return the object of a key, opening it if needed; errors of the opener propagate."""
        with self._lock:
            entry, is_new = self._entry(key)
            self._entries.move_to_end(key)
            while is_new and len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        return self._opened(key, entry, is_new=is_new)

    def get_ahead(self, key: KeyT) -> Opened | None:
        """Return the object of a key that is needed later, opening it if nothing is evicted for it.

        Returns:
            None if it is not open and the cache is full. Objects that are used one after the other are so
            opened once, whatever the capacity.
        """
        with self._lock:
            if key not in self._entries and len(self._entries) >= self._capacity:
                return None
            entry, is_new = self._entry(key)
        return self._opened(key, entry, is_new=is_new)

    def clear(self) -> None:
        """Evict everything."""
        with self._lock:
            self._entries.clear()

    def _entry(self, key: KeyT) -> tuple[Future[Opened], bool]:
        entry = self._entries.get(key)
        if entry is not None:
            return entry, False
        self._entries[key] = entry = Future()
        return entry, True

    def _opened(self, key: KeyT, entry: Future[Opened], *, is_new: bool) -> Opened:
        if is_new:
            try:
                entry.set_result(self._opener(key))
            except BaseException as error:
                with self._lock:
                    if self._entries.get(key) is entry:
                        del self._entries[key]
                entry.set_exception(error)
                raise
        return entry.result()
