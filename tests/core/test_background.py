"""Work in threads that waits for a slow answer ends when it is stopped, and not when the answer comes."""

import threading

import pytest

from tokshard.core.background import call_interruptibly, wait_for
from tokshard.core.progress import SilentProgress
from tokshard.core.thread_runner import ThreadRunner


class Stopping(SilentProgress):
    """Stops the work as a signal does, once all threads are at it."""

    def __init__(self, begun):
        self.begun = begun

    def update(self, state):
        if self.begun.is_set():
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    "wait", [wait_for, lambda never: call_interruptibly(never.wait)], ids=["event", "call"]
)
def test_a_thread_runner_that_is_stopped_does_not_wait_for_slow_answers(wait):
    never, ready = threading.Event(), threading.Event()
    begun = threading.Barrier(2, action=ready.set)

    def work(_):
        begun.wait(60)
        wait(never)

    try:
        with pytest.raises(KeyboardInterrupt):
            ThreadRunner(2).run(work, [1, 2], listener=Stopping(ready))
        assert not never.is_set()
    finally:
        never.set()


def test_a_slow_call_gives_its_result_and_its_error():
    def divide(by):
        return call_interruptibly(lambda: 12 // by)

    assert divide(4) == 3
    assert ThreadRunner(2).run(divide, [4, 3]) == [3, 4]
    with pytest.raises(ZeroDivisionError):
        divide(0)
    with pytest.raises(ZeroDivisionError):
        ThreadRunner(2).run(divide, [4, 0])
