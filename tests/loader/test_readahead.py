import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard.errors import MissingFileError
from tokshard.loader.reader import Readahead


class Advice:
    """Collects what is advised, and can wait for it."""

    def __init__(self, fails=()):
        self.seen, self.fails, self.changed = [], set(fails), threading.Condition()

    def __call__(self, numbers):
        with self.changed:
            self.seen += numbers
            self.changed.notify_all()
        if self.fails & set(numbers):
            raise MissingFileError("gone", path="x")

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= count, 240), self.seen


@settings(max_examples=60, deadline=None)
@given(jumps=st.lists(st.integers(0, 30), min_size=1, max_size=4), ahead=st.integers(1, 4))
def test_what_comes_next_is_advised_once_and_in_order(jumps, ahead):
    advice = Advice()
    readahead = Readahead(advice, ahead, 30)
    expected, reached = [], 0
    for start in jumps:
        for number in range(start, min(start + 5, 30)):
            if not number + 1 <= reached <= number + 1 + ahead:
                reached = number + 1
            if reached - number - 1 <= ahead // 2:
                expected += range(reached, min(number + 1 + ahead, 30))
                reached = number + 1 + ahead
            readahead.follow(number)
            assert ahead // 2 <= len([one for one in expected if one > number]) or number + ahead >= 30
    advice.wait_for(len(expected))
    assert advice.seen == expected


def test_a_failure_ahead_is_left_to_the_reader():
    advice = Advice(fails=[1, 2])
    readahead = Readahead(advice, 3, 10)
    readahead.follow(0)
    advice.wait_for(3)
    readahead.follow(2)
    advice.wait_for(5)
    assert advice.seen == [1, 2, 3, 4, 5]


def test_nothing_is_started_for_nothing_ahead():
    before = set(threading.enumerate())
    readahead = Readahead(Advice(), 0, 10)
    readahead.follow(0)
    assert set(threading.enumerate()) <= before
