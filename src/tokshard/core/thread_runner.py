"""Threads that do independent work while the calling thread reports their progress.

Threads instead of processes: the work is done in numpy, compiled kernels and system calls, which release
the GIL, and its results need not be copied.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TypeVar

from tokshard.core.background import set_stop_check
from tokshard.core.progress import Progress, ProgressUpdate, reporting
from tokshard.errors import Cancelled, UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")

_TICK_SECONDS = 0.2


class ThreadRunner:
    """Pool of threads that can be stopped.

    Args:
        workers: The maximum number of threads; None for one per core available to this process.

    Raises:
        UsageError: ``workers`` is less than 1.

    Example:
        >>> ThreadRunner(2).run(abs, [-1, 2, -3])
        [1, 2, 3]
    """

    def __init__(self, workers: int | None) -> None:
        if workers is not None and workers < 1:
            raise UsageError(f"workers must be at least 1, got {workers}")
        self._workers = workers or len(os.sched_getaffinity(0))
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        self._totals = ProgressUpdate()
        self._notices: dict[str, bool] = {}

    def run(
        self,
        work: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        activity: str = "",
        listener: Progress | None = None,
        bytes_total: int | None = None,
    ) -> list[Result]:
        """Call ``work`` for all items; the first failure stops the rest.

        Args:
            work: Called with an item in one of the threads.
            items: The items, started in this order.
            activity: The name of the activity, for the listener.
            listener: Receives the progress, in the calling thread.
            bytes_total: The total of the bytes that will be passed to :meth:`tell`.

        Returns:
            The results, in the order of the items.
        """
        if not items:
            return []
        self._totals = ProgressUpdate()
        with reporting(listener) as progress:
            progress.start(activity, bytes_total)
            with ThreadPoolExecutor(min(self._workers, len(items)), "tokshard") as pool:
                futures = [pool.submit(copy_context().run, self._do, work, item) for item in items]
                try:
                    self._follow(futures, progress)
                except BaseException:
                    self._stopped.set()
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
            return [future.result() for future in futures]

    def tell(self, count: int, *, documents: int = 0, tokens: int = 0) -> None:
        """Add to the totals; called by the threads.

        Raises:
            Cancelled: The work was stopped.
        """
        self._check()
        with self._guard:
            before = self._totals
            self._totals = ProgressUpdate(
                bytes_done=before.bytes_done + count,
                documents=before.documents + documents,
                tokens=before.tokens + tokens,
            )

    def pause(self, seconds: float) -> None:
        """Sleep in a thread until the time is over or the work is stopped.

        Raises:
            Cancelled: The work was stopped.
        """
        self._stopped.wait(seconds)
        self._check()

    def wait(self, seconds: float, notice: str) -> None:
        """Sleep like :meth:`pause`, and show ``notice`` to the listener once."""
        with self._guard:
            self._notices.setdefault(notice, False)
        self.pause(seconds)

    def _do(self, work: Callable[[Item], Result], item: Item) -> Result:
        set_stop_check(self._check)
        return work(item)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise Cancelled("stopped")

    def _unheard(self) -> list[str]:
        with self._guard:
            notices = [notice for notice, heard in self._notices.items() if not heard]
            self._notices.update(dict.fromkeys(notices, True))
        return notices

    def _follow(self, futures: Sequence[Future[Result]], listener: Progress) -> None:
        pending = set(futures)
        while pending:
            done, pending = wait(pending, _TICK_SECONDS, return_when=FIRST_EXCEPTION)
            for notice in self._unheard():
                listener.message(notice)
            listener.update(self._totals)
            for future in futures:
                if future in done:
                    future.result()
