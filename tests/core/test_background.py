"""Threads: what waits for a slow answer ends when it is stopped; the order of results, and progress."""

from __future__ import annotations

import threading

import pytest

from tokshard.core.background import ThreadRunner, call_interruptibly
from tokshard.core.progress import SilentProgress
from tokshard.errors import Cancelled, InputError, UsageError


class Stopping(SilentProgress):
    """Stops the work as a signal does, once all threads are at it."""

    def __init__(self, begun):
        self.begun = begun

    def update(self, state):
        if self.begun.is_set():
            raise KeyboardInterrupt


def test_a_thread_runner_that_is_stopped_does_not_wait_for_slow_answers():
    never, ready = threading.Event(), threading.Event()
    begun = threading.Barrier(2, action=ready.set)

    def work(_):
        begun.wait(60)
        call_interruptibly(never.wait)

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


class Hearing(SilentProgress):
    """Keeps what it is told."""

    def __init__(self):
        self.heard = []

    def start(self, activity, bytes_total=None, bytes_resumed=0):
        self.heard.append(("start", activity, bytes_total, bytes_resumed))

    def update(self, state):
        self.heard.append((state.bytes_done, state.documents, state.tokens))

    def message(self, text):
        self.heard.append(text)

    def finish(self):
        self.heard.append("finish")


def test_the_first_failure_stops_those_who_wait():
    runner = ThreadRunner(2)
    waiting = threading.Event()

    def work(item):
        if item == 0:
            waiting.set()
            while True:  # until somebody stops this thread
                runner.wait(0.01, "waiting")
        waiting.wait()
        raise InputError("broken")

    with pytest.raises(InputError, match="broken"):
        runner.run(work, [0, 1])
    with pytest.raises(Cancelled):
        runner.tell(1)


def test_no_workers_are_refused():
    with pytest.raises(UsageError, match="workers must be at least 1, got 0"):
        ThreadRunner(0)


def test_the_listener_hears_the_totals_and_each_notice_once():
    runner, listener = ThreadRunner(3), Hearing()

    def work(item):
        runner.wait(0.001, "waiting")
        runner.tell(item, documents=1, tokens=2)
        return -item

    assert runner.run(work, [1, 2, 3], activity="counting", listener=listener, bytes_total=6) == [
        *(-1, -2, -3)
    ]
    assert listener.heard[0] == ("start", "counting", 6, 0)
    assert listener.heard.count("waiting") == 1
    assert listener.heard[-2:] == [(6, 3, 6), "finish"]


def test_nothing_to_do_is_not_announced():
    listener = Hearing()
    assert ThreadRunner(2).run(abs, [], listener=listener) == []
    assert listener.heard == []
