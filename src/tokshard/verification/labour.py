"""The work of a verification: pieces of it in threads, and one account of how far all of it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.core.thread_runner import ThreadRunner

Item = TypeVar("Item")
Result = TypeVar("Result")

# A thread costs as much as a few megabytes do.
_WORTH_THREADS_BYTES = 4 << 20


class Labour:
    """Runs pieces of work, many times, under one progress.

    Args:
        workers: How many threads at most; None for one for each core that this process may use.
        progress: Who is told, from the first piece to the last.

    Example:
        >>> from tokshard.core.progress import SilentProgress
        >>> Labour(1, SilentProgress()).run(abs, [-1, 2], 0)
        [1, 2]
    """

    def __init__(self, workers: int | None, progress: Progress) -> None:
        self._crew = ThreadRunner(workers)
        self._progress = progress
        self._done = 0
        self._threaded = False

    @property
    def done(self) -> int:
        """The bytes that were read."""
        return self._done

    def run(self, work: Callable[[Item], Result], items: Sequence[Item], size_bytes: int) -> list[Result]:
        """Do the work for all items; return the results in their order.

        Args:
            work: Called with an item; it tells of what it reads.
            items: What to work on.
            size_bytes: How much will be read. Little is read in this thread.
        """
        if len(items) < 2 or size_bytes < _WORTH_THREADS_BYTES:
            return [work(item) for item in items]
        onward = _Onward(self._progress, self._done)
        self._threaded = True
        try:
            return self._crew.run(work, items, listener=onward)
        finally:
            self._threaded = False
            self._done = onward.done

    def tell(self, count: int) -> None:
        """Count bytes that were read; called by the work.

        Raises:
            Cancelled: The work was stopped meanwhile.
        """
        if self._threaded:
            self._crew.tell(count)
            return
        self._done += count
        self._progress.update(ProgressUpdate(bytes_done=self._done))


class _Onward:
    """Tells a listener of one run of several."""

    def __init__(self, outer: Progress, before: int) -> None:
        self._outer = outer
        self._before = before
        self.done = before

    def start(self, bytes_total: int | None, bytes_resumed: int) -> None:
        """Nothing: the listener was started before the first run."""

    def update(self, state: ProgressUpdate) -> None:
        """Tell what this run and those before it have done."""
        self.done = self._before + state.bytes_done
        self._outer.update(ProgressUpdate(bytes_done=self.done))

    def message(self, text: str) -> None:
        """Pass a message on."""
        self._outer.message(text)

    def finish(self) -> None:
        """Nothing: the listener is finished after the last run."""
