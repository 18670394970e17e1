"""Reading ahead: a thread tells the kernel what the next micro-batches need, while this one is trained on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from tokshard.errors import TokshardError


class Readahead:
    """Keeps some micro-batches ahead of the reader. The thread starts when it is first needed.

    It is woken for several micro-batches at once, when half of those ahead are left: waking it costs more
    than its work. Whatever goes wrong ahead is left to happen again, and to be reported, when it is read.

    Args:
        advise: Called in the thread with a range of micro-batches.
        count: How many to keep ahead; 0 for no thread.
        end: The number of micro-batches that there are.
    """

    def __init__(self, advise: Callable[[range], None], count: int, end: int) -> None:
        self._advise = advise
        self._count = count
        self._end = end
        self._next = 0
        self._started = False
        self._wanted: SimpleQueue[range | None] = SimpleQueue()

    def follow(self, number: int) -> None:
        """Note that a micro-batch is about to be read; return at once."""
        if not self._count:
            return
        if not self._started:
            self._start()
        left = self._next - number - 1
        if self._count // 2 < left <= self._count:
            return
        first = self._next if 0 <= left <= self._count else number + 1
        last = min(number + 1 + self._count, self._end)
        if first < last:
            self._wanted.put(range(first, last))
        self._next = number + 1 + self._count

    def _start(self) -> None:
        self._started = True
        thread = threading.Thread(
            target=_work, args=(self._wanted, self._advise), name="tokshard-readahead", daemon=True
        )
        thread.start()
        # The thread knows the queue and not this object, whose end is its end.
        weakref.finalize(self, self._wanted.put, None)


def _work(wanted: SimpleQueue[range | None], advise: Callable[[range], None]) -> None:
    while (numbers := wanted.get()) is not None:
        with suppress(TokshardError, OSError, IndexError, ValueError):
            advise(numbers)
