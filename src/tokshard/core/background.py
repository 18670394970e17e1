"""Threads: background calls, calls in order, and pools that report progress and can be stopped.

Threads instead of processes: the work is done in numpy, compiled kernels and system calls, which release
the GIL, and its results need not be copied.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, TypeVar

from tokshard.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from tokshard.core.progress import Progress

Item = TypeVar("Item")
Result = TypeVar("Result")

_TICK_SECONDS = 0.1
_stopped: ContextVar[threading.Event | None] = ContextVar("stopped", default=None)


class Background(Future[Result]):
    """A call running in a thread.

    The thread is a daemon by default, unlike those of ``concurrent.futures``: a process that is asked to
    exit does not wait for a slow response.

    Args:
        call: The function to call.
        daemon: Whether the process may exit while the function runs. Native code that reacquires the GIL
            after that aborts the process.

    Example:
        >>> Background(lambda: 6 * 7).result()
        42
    """

    def __init__(self, call: Callable[[], Result], *, daemon: bool = True) -> None:
        super().__init__()
        thread = threading.Thread(target=self._run, args=(call,), name="tokshard-background", daemon=daemon)
        thread.start()

    def _run(self, call: Callable[[], Result]) -> None:
        try:
            self.set_result(call())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the result raises it
            self.set_exception(error)


def in_order(calls: Iterable[Callable[[], Result]], at_once: int) -> Iterator[Result]:
    """Yield the results of calls in order, while the next ones are running.

    Args:
        calls: The functions to call; consumed as slots become free.
        at_once: The maximum number of calls that are running or finished but not yet consumed.

    Example:
        >>> list(in_order([lambda: 1, lambda: 2, lambda: 3], 2))
        [1, 2, 3]
    """
    under_way: deque[Background[Result]] = deque()
    for call in calls:
        if len(under_way) == at_once:
            yield under_way.popleft().result()
        under_way.append(Background(call))
    while under_way:
        yield under_way.popleft().result()


def call_interruptibly(work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, or abandon the call when the :class:`ThreadRunner` of this thread stops.

    Signals interrupt only the main thread. If another thread waited for an object store, the process could
    not exit before the store responds.
    """
    stopped = _stopped.get()
    if stopped is None:
        return work()
    call = Background(work)
    while not wait([call], _TICK_SECONDS).done:
        _check(stopped)
    return call.result()


def _check(stopped: threading.Event) -> None:
    if stopped.is_set():
        raise Cancelled("stopped")


class ThreadRunner:
    """Pool of threads that can be stopped, while the calling thread reports their progress.

    Args:
        workers: The maximum number of threads; if None, one per core available to this process.

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
        self._totals = (0, 0, 0)
        self._notices: list[str] = []

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
        from tokshard.core.progress import ProgressUpdate, reporting  # the loader needs none

        if not items:
            return []
        self._totals = (0, 0, 0)
        heard = len(self._notices)
        context = copy_context()
        context.run(_stopped.set, self._stopped)
        threads = ThreadPoolExecutor(min(self._workers, len(items)), "tokshard")
        with reporting(listener) as progress, threads as pool:
            progress.start(activity, bytes_total)
            futures = [pool.submit(context.copy().run, work, item) for item in items]
            pending = set(futures)
            try:
                while pending:
                    done, pending = wait(pending, _TICK_SECONDS, return_when=FIRST_EXCEPTION)
                    for notice in self._notices[heard:]:
                        progress.message(notice)
                        heard += 1
                    progress.update(ProgressUpdate(*self._totals))
                    for future in filter(done.__contains__, futures):
                        future.result()
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
        _check(self._stopped)
        with self._guard:
            total_count, total_documents, total_tokens = self._totals
            self._totals = total_count + count, total_documents + documents, total_tokens + tokens

    def wait(self, seconds: float, notice: str) -> None:
        """Sleep in a thread until the time is over or the work is stopped; show ``notice`` once.

        Raises:
            Cancelled: The work was stopped.
        """
        with self._guard:
            if notice not in self._notices:
                self._notices.append(notice)
        self._stopped.wait(seconds)
        _check(self._stopped)
