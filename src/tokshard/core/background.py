"""Background threads, and interruptible waits for them.

Signals interrupt only the main thread. Another thread that waits for an object store must check regularly
whether its work was stopped, or the process could not exit before the store responds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Generic, TypeVar

Result = TypeVar("Result")

_TICK_SECONDS = 0.1
_stop_check: ContextVar[Callable[[], None] | None] = ContextVar("stop_check", default=None)


class Background(Generic[Result]):
    """A call running in a thread.

    The thread is a daemon by default, unlike those of ``concurrent.futures``: a process that is asked to
    exit does not wait for a slow response.

    Args:
        call: The function to call.
        daemon: Whether the process may exit while the function runs. Native code that reacquires the GIL
            after that aborts the process.

    Attributes:
        done: Set when the call has returned.

    Example:
        >>> Background(lambda: 6 * 7).result()
        42
    """

    def __init__(self, call: Callable[[], Result], *, daemon: bool = True) -> None:
        self._call = call
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self.done = threading.Event()
        threading.Thread(target=self._run, name="tokshard-background", daemon=daemon).start()

    def result(self) -> Result:
        """Wait for the call to finish; return its result or raise its exception."""
        self.done.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the result raises it
            self._error = error
        finally:
            self.done.set()


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


def set_stop_check(check: Callable[[], None]) -> None:
    """Call ``check`` while this thread waits; it must raise an error if the work was stopped."""
    _stop_check.set(check)


def call_interruptibly(work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, or abandon the call when this thread's work is stopped."""
    if _stop_check.get() is None:
        return work()
    background = Background(work)
    wait_for(background.done)
    return background.result()


def wait_for(event: threading.Event) -> None:
    """Wait for an event; propagate errors of this thread's stop check."""
    check = _stop_check.get()
    if check is None:
        event.wait()
        return
    while not event.wait(_TICK_SECONDS):
        check()
