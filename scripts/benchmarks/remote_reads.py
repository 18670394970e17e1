"""Requests, bytes and seconds of reading a remote file: tokshard's block cache against those of fsspec.

    python scripts/benchmarks/remote_reads.py

The store is simulated, so that the numbers do not depend on a network: each request takes 20 ms and then
100 MB/s. Patterns:

- batches: micro-batches of 32 samples of 8 KiB at random places, each announced while the one before is read,
  which is how the loader reads a shuffled plan;
- sequence: samples of 8 KiB one after the other, which is how it reads a contiguous plan;
- stream: blocks of text, one after the other, each worked on for 30 ms, which is how tokenize reads.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from fsspec import caching

from tokshard.storage.readahead import ReadAhead
from tokshard.storage.remote import ranged_file
from tokshard.storage.remote.ranged_file import BlockPool, RangedFile

FILE_BYTES = 256 << 20
SAMPLE_BYTES = 8 << 10
BATCH, BATCHES = 32, 16
LATENCY_SECONDS, BYTES_PER_SECOND = 0.02, 100e6
WORK_SECONDS = 0.03
REQUEST_BYTES = 4 << 20


class Store:
    """A remote file of zeros that counts its requests."""

    size_bytes, version = FILE_BYTES, "1"

    def __init__(self) -> None:
        self.requests = self.sent = 0
        self._lock = threading.Lock()

    def read(self, offset: int, count: int) -> bytes:
        """Return bytes after the time that a store would take."""
        count = max(0, min(count, FILE_BYTES - offset))
        with self._lock:
            self.requests += 1
            self.sent += count
        time.sleep(LATENCY_SECONDS + count / BYTES_PER_SECOND)
        return bytes(count)

    def between(self, start: int, end: int) -> bytes:
        """Return a range as fsspec's caches ask for it."""
        return self.read(start, end - start)


def ours(store: Store) -> tuple[Callable[[int, int], object], Callable[[int, int], object]]:
    """Return how to read, and how to announce, through tokshard's block cache."""
    pool = BlockPool()
    ranged_file.RemoteFile = lambda *_: store  # type: ignore[assignment, misc]
    ranged_file.recent_status = lambda _: None  # type: ignore[assignment]
    ranged_file.shared_pool = lambda: pool
    file = RangedFile("memory://file")
    buffer = bytearray(1 << 20)
    return lambda offset, count: file.read_into(memoryview(buffer)[:count], offset), file.prefetch


def theirs(
    name: str, block_bytes: int, store: Store
) -> tuple[Callable[[int, int], object], Callable[[int, int], object]]:
    """Return the same through a cache of fsspec, which cannot be told what will be read."""
    options = {} if name == "readahead" else {"maxblocks": (256 << 20) // block_bytes}
    cache = caching.caches[name](block_bytes, store.between, FILE_BYTES, **options)
    return lambda offset, count: cache._fetch(offset, offset + count), lambda *_: None  # noqa: SLF001 - no other way


def stream_ours(store: Store) -> tuple[Callable[[int, int], object], Callable[[int, int], object]]:
    """Return the same through the window that streams are read by."""
    return ReadAhead(store.read, FILE_BYTES).read, lambda *_: None


def batches(read: Callable[[int, int], object], announce: Callable[[int, int], object]) -> None:
    """Read micro-batches at random places."""
    choose = random.Random(7)
    places = [
        [choose.randrange(FILE_BYTES // SAMPLE_BYTES) * SAMPLE_BYTES for _ in range(BATCH)]
        for _ in range(BATCHES)
    ]
    for number, batch in enumerate(places):
        for offset in [
            *(batch if number == 0 else ()),
            *(places[number + 1] if number + 1 < BATCHES else ()),
        ]:
            announce(offset, SAMPLE_BYTES)
        for offset in batch:
            read(offset, SAMPLE_BYTES)


def sequence(read: Callable[[int, int], object], _: Callable[[int, int], object]) -> None:
    """Read samples one after the other."""
    for offset in range(0, 64 << 20, SAMPLE_BYTES):
        read(offset, SAMPLE_BYTES)


def stream(read: Callable[[int, int], object], _: Callable[[int, int], object]) -> None:
    """Read blocks one after the other, and work on each."""
    for offset in range(0, 64 << 20, 1 << 20):
        read(offset, 1 << 20)
        time.sleep(WORK_SECONDS / 4)


READERS = {
    "tokshard": ours,
    "blockcache 64 KiB": partial(theirs, "blockcache", 64 << 10),
    "blockcache 4 MiB": partial(theirs, "blockcache", REQUEST_BYTES),
    "readahead 4 MiB": partial(theirs, "readahead", REQUEST_BYTES),
    "background 64 KiB": partial(theirs, "background", 64 << 10),
    "background 4 MiB": partial(theirs, "background", REQUEST_BYTES),
}
STREAMERS = {"tokshard": stream_ours, **{name: READERS[name] for name in READERS if "4 MiB" in name}}


def main() -> int:
    """Print a table."""
    print(f"{'pattern':<10} {'reader':<20} {'requests':>9} {'MB':>8} {'s':>7}")
    for pattern, readers in ((batches, READERS), (sequence, READERS), (stream, STREAMERS)):
        for name, reader in readers.items():
            store = Store()
            read, announce = reader(store)
            started = time.monotonic()
            pattern(read, announce)
            seconds = time.monotonic() - started
            numbers = f"{store.requests:>9} {store.sent / 1e6:>8.1f} {seconds:>7.2f}"
            print(f"{pattern.__name__:<10} {name:<20} {numbers}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
