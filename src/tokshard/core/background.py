"""Calls in threads of their own, and waiting for them in a way that can be stopped.

A signal interrupts the main thread alone. Another thread that waits for a store must check now and then
whether its work was stopped, or the program would not end before the store has answered.
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
    """A call under way.

    The thread is a daemon, unlike those of ``concurrent.futures``: a process that is told to stop does
    not wait for a slow answer.

    Args:
        call: What to do.

    Attributes:
        done: Set when the call has ended.

    Example:
        >>> Background(lambda: 6 * 7).result()
        42
    """

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call = call
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self.done = threading.Event()
        threading.Thread(target=self._run, name="tokshard-background", daemon=True).start()

    def result(self) -> Result:
        """Wait for the call to end; return what it returned, or raise what it raised."""
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
    """Yield what calls return, in their order, while the next ones are under way.

    Args:
        calls: What to do; taken one by one as there is room.
        at_once: How many calls may be under way, or done and not taken.

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
    """Call ``check`` while this thread waits; it raises an error if the work was stopped."""
    _stop_check.set(check)


def call_interruptibly(work: Callable[[], Result]) -> Result:
    """Return what ``work`` returns, or abandon the call when this thread's work is stopped."""
    if _stop_check.get() is None:
        return work()
    background = Background(work)
    wait_for(background.done)
    return background.result()


def wait_for(event: threading.Event) -> None:
    """Wait for an event; raise what the check of this thread raises."""
    check = _stop_check.get()
    if check is None:
        event.wait()
        return
    while not event.wait(_TICK_SECONDS):
        check()
