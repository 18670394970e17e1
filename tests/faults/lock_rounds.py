"""Many processes that want one lock, some of which are killed while they hold it.

    python lock_rounds.py '{"directory": ..., "lock": "module:class", "rounds": 20, "kill_every": 3}'

This is a program because it forks. In each round all processes start at the same moment, and each tries
again and again until it has held the lock once. A second, independent lock of the kernel is the witness:
whoever holds the first lock must get the second at once. Prints one JSON object.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

VERDICTS = {0: "held", -signal.SIGKILL: "killed", 3: "stuck", 4: "two winners", 5: "another error"}


@dataclass
class Contest:
    """What to try.

    Attributes:
        directory: An empty directory; the lock is in ``x.tokshard`` in it.
        lock: The class of the lock, as ``module:class``.
        rounds: How often all start together.
        kill_every: Each so-manieth process kills itself while it holds the lock; 0 for none.
        processes: How many there are in a round.
        patience_seconds: How long a process tries before it says that it is stuck.
    """

    directory: str
    lock: str = "tokshard.storage.lock:WriterLock"
    rounds: int = 20
    kill_every: int = 3
    processes: int = 8
    patience_seconds: float = 240.0


def contend(contest: Contest, number: int) -> int:
    """Hold the lock once; return the exit status."""
    from tokshard.errors import LockedError

    module, _, name = contest.lock.partition(":")
    lock = getattr(importlib.import_module(module), name)
    path = os.path.join(contest.directory, "x.tokshard/lock")
    deadline = time.monotonic() + contest.patience_seconds
    while time.monotonic() < deadline:
        try:
            with lock(path):
                if not is_alone(contest.directory):
                    return 4
                if contest.kill_every and number % contest.kill_every == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        except LockedError:
            time.sleep(random.random() * 0.002)
        else:
            return 0
    return 3


def is_alone(directory: str) -> bool:
    """Hold the witness for a moment; False if another process holds it."""
    with Path(directory, "witness").open("a") as witness:
        try:
            fcntl.lockf(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        time.sleep(random.random() * 0.002)
        return True


def play(contest: Contest) -> Counter[str]:
    """Play one round; return how often each thing happened."""
    waiting, gate = os.pipe()
    children = []
    for number in range(contest.processes):
        if (pid := os.fork()) == 0:
            status = 5
            try:
                os.close(gate)
                os.read(waiting, 1)
                random.seed(os.getpid())
                status = contend(contest, number)
            except BaseException:  # a traceback is what the report needs
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(pid)
    os.close(gate)
    os.close(waiting)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    return Counter(VERDICTS[status] for status in statuses)


def main() -> None:
    contest = Contest(**json.loads(sys.argv[1]))
    sys.path.insert(0, str(Path(__file__).parent))
    import tokshard.storage.lock  # noqa: F401 - once, before the forks

    verdicts: Counter[str] = Counter()
    for _ in range(contest.rounds):
        verdicts += play(contest)
        if verdicts["stuck"] or verdicts["two winners"]:
            break
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
