"""What another process may do at any moment, done at every line that the one under test runs."""

import itertools
import sys


class _AtLine:
    def __init__(self, number, action, inside):
        self.left, self.action, self.inside = number, action, inside
        self.met = set()

    def __call__(self, frame, event, argument):
        found = [end for end in self.inside if frame.f_code.co_filename.endswith(end)]
        if event == "call" and not found:
            return None
        self.met.update(found)
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
        inside: The files whose lines count, by the ends of their paths: ``("samples/index/entry.py",)``. A
            line of each must be run: a test that disturbs nothing fails.
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
            missed = set(inside) - at_line.met
            assert not missed, f"no line of {sorted(missed)} was run, so nothing was disturbed there"
            return
        yield found
