"""Waiting for slow answers in threads that can be told to stop.

A signal interrupts the main thread alone. Another thread that waits for a store must ask now and then whether
its work was stopped, or the program would not end before the store has answered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from tokshard.core.background import Background

Result = TypeVar("Result")

_TICK_SECONDS = 0.1
_asked: ContextVar[Callable[[], None] | None] = ContextVar("asked", default=None)


def heed(check: Callable[[], None]) -> None:
    """Have this thread call ``check`` while it waits, which raises an error if its work was stopped."""
    _asked.set(check)


def call_slowly(work: Callable[[], Result]) -> Result:
    """Return what ``work`` returns, or give it up to its fate when this thread's work is stopped."""
    if _asked.get() is None:
        return work()
    background = Background(work)
    wait_for(background.done)
    return background.result()


def wait_for(event: threading.Event) -> None:
    """Wait for an event; raise what the check of this thread raises."""
    check = _asked.get()
    if check is None:
        event.wait()
        return
    while not event.wait(_TICK_SECONDS):
        check()
