"""What another process may do at any moment, done at every line that the one under test runs."""

import itertools
import sys


class _AtLine:
    def __init__(self, number, action, inside):
        self.left, self.action, self.inside = number, action, inside

    def __call__(self, frame, event, argument):
        if event == "call" and not frame.f_code.co_filename.endswith(self.inside):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.action()
        return self


def interleaved(work, action, *, inside, prepare=lambda: None):
    """Yield what some work returns, again and again, each time with an action at another line of it.

    Args:
        work: What is tried.
        action: What is done before its first line, in the next round before its second, and so on.
        inside: The files whose lines count, by the ends of their paths: ``("index_cache/cache.py",)``.
        prepare: Done before each round.
    """
    for number in itertools.count(1):
        prepare()
        at_line = _AtLine(number, action, tuple(inside))
        before = sys.gettrace()
        sys.settrace(at_line)
        try:
            found = work()
        finally:
            sys.settrace(before)
        if at_line.left > 0:
            return
        yield found
