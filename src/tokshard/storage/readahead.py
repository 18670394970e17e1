"""Read-ahead for slow sources: the next block is fetched while the current one is used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from tokshard.core.background import Background

BLOCK_BYTES = 4 << 20
_BLOCKS_KEPT = 3
# Readers commonly read this far beyond their stop position.
_OVERHANG_BYTES = 1 << 16
_TAIL_BYTES = 1 << 20


class ReadAhead:
    """Read-ahead window over a source of byte ranges. Memory: at most five blocks, two of them in flight.

    Streams do not share the cache of :mod:`tokshard.storage.remote.ranged_file`: each worker process has its
    own streams, and its memory must stay small.

    Args:
        fetch: Returns the bytes of a range, given its offset and length; called from two threads.
        start: The start position. Blocks are counted from there.
        stop: The expected stop position: blocks are not fetched far beyond it.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], bytes],
        size_bytes: int,
        *,
        start: int = 0,
        stop: int | None = None,
        block_bytes: int | None = None,
    ) -> None:
        self._fetch = fetch
        self._size_bytes = size_bytes
        self._start = start
        self._expected_end = size_bytes if stop is None else min(size_bytes, stop + _OVERHANG_BYTES)
        self._block_bytes = block_bytes or BLOCK_BYTES
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._pending: tuple[int, Background[bytes]] | None = None
        self._last_end = start
        self._lock = threading.Lock()

    def read(self, offset: int, count: int) -> bytes:
        """Return ``count`` bytes from ``offset``; fewer only at the end."""
        first = self.some(offset, count)
        if len(first) == count or not first:
            return first
        pieces = [first]
        done = len(first)
        while done < count and (piece := self.some(offset + done, count - done)):
            pieces.append(piece)
            done += len(piece)
        return b"".join(pieces)

    def some(self, offset: int, count: int) -> bytes:
        """Return at least one and at most ``count`` bytes from ``offset``; none at the end."""
        if offset >= self._size_bytes or count <= 0:
            return b""
        begin, end = self._span(offset)
        with self._lock:
            block = self._block(begin, end)
        return block[offset - begin : offset - begin + count]

    def close(self) -> None:
        """Drop all blocks. The result of a fetch in flight is ignored."""
        with self._lock:
            self._blocks.clear()
            self._pending = None

    def _span(self, offset: int) -> tuple[int, int]:
        if offset < self._expected_end:
            begin = offset - (offset - self._start) % self._block_bytes
            return max(0, begin), min(begin + self._block_bytes, self._expected_end)
        begin = offset - (offset - self._expected_end) % _TAIL_BYTES
        return begin, min(begin + _TAIL_BYTES, self._size_bytes)

    def _block(self, begin: int, end: int) -> bytes:
        block = self._blocks.get(begin)
        if block is not None:
            self._blocks.move_to_end(begin)
            return block
        pending, self._pending = self._pending, None
        if begin == self._last_end:
            self._look_ahead(end)
        self._last_end = end
        if pending is not None and pending[0] == begin:
            block = pending[1].result()
        else:
            block = self._fetch(begin, end - begin)
        self._blocks[begin] = block
        if len(self._blocks) > _BLOCKS_KEPT:
            self._blocks.popitem(last=False)
        return block

    def _look_ahead(self, begin: int) -> None:
        if begin < self._expected_end and begin not in self._blocks:
            end = self._span(begin)[1]
            self._pending = begin, Background(lambda: self._fetch(begin, end - begin))
