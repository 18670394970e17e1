"""Commands are killed at a random system call, in the middle of a write, or at a random moment.

A case is COMMAND/NUMBER, which is the seed of all choices. What is left must be absent, old or complete,
and the same command must then finish with the right bytes. Of a pool, any process is killed: the one that
makes the call, or some worker at some moment; then the command ends with exit code 8, or the parent
process, and the workers end by themselves.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from campaigns import calls, forks
from campaigns.calls import Calls
from campaigns.commands import COMMANDS, WRITERS, Command, Expected, World, judge, said
from campaigns.faults import bad_end
from campaigns.forks import Ended
from campaigns.tally import Place, Result
from faults.campaign import apply_control

_CONTROLS = {
    "broken_writers:manifest_first": ("tokenize-bpe", "rename", calls.KILL_AFTER),
    "broken_writers:trust_every_part": ("tokenize-bpe", "write", calls.HALF),
    "broken_writers:new_tokens_beside_the_old_index": ("tokenize-force", "rename", calls.KILL_AFTER),
}
_KILLED = {-signal.SIGKILL, -signal.SIGALRM}
_MOST_KILLS = 3


class KillCampaign:
    """The cases, on inputs and products that it makes."""

    def __init__(self, place: Place) -> None:
        forks.load()
        self._world = World(place.directory, place.logs)
        self._calls = Calls()
        self._control: str | None = None
        self._expected = cache(self._world.expect)
        self._sizes = cache(self._size)

    def cases(self, seed: int, worker: int, workers: int) -> Iterator[str]:
        number = worker
        while True:
            # A pool takes ten times as long as the others, and only there is more than one process to kill.
            command = WRITERS[number // workers % len(WRITERS)]
            yield f"{command.name}/{seed}.{number}"
            number += workers

    def run(self, case: str) -> Result:
        name, _, seed = case.partition("/")
        return self._kill(COMMANDS[name], random.Random(seed))

    def controls(self) -> Iterator[tuple[str, str | None]]:
        for control, (name, kind, action) in _CONTROLS.items():
            self._control = f"controls.{control}"
            command = COMMANDS[name]
            self._size(command)
            points = reversed(range(1, self._calls.counts[kind] + 1))
            caught = any(self._kill_at(command, kind, k, action).failure for k in points)
            self._control = None
            yield f"positive: {control}", None if caught else "was not caught"
        command = COMMANDS["merge"]
        expected = self._expected(command)
        self._world.fresh()
        with self._calls.armed(str(self._world.directory), calls.ANY, 10**9, calls.KILL):
            ended = command.run(self._world)
        right = ended.code == 0 and self._world.tree() == expected.tree and self._calls.total > 100
        yield "negative: a kill that is never reached", None if right else f"it did something: {ended.text}"

    def _size(self, command: Command) -> tuple[int, float]:
        """Return how many calls a command makes, and how long it takes."""
        self._world.fresh(command.start)
        start = time.monotonic()
        with self._calls.armed(str(self._world.directory)):
            command.run(self._world)
        return self._calls.total, time.monotonic() - start

    def _kill(self, command: Command, chance: random.Random) -> Result:
        expected = self._expected(command)
        self._world.fresh(command.start)
        outcomes: Counter[str] = Counter()
        wrong = None
        for _ in range(chance.randint(1, _MOST_KILLS)):
            how, ended = self._killed(command, chance)
            if ended.code in _KILLED:
                outcomes[how] += 1
            elif (wrong := self._wrong_end(command, expected, ended)) is None:
                outcomes["too late" if ended.code == 0 else f"{how}: a worker"] += 1
            wrong = wrong or judge(self._world.tree(), expected.tree, expected.old)
            if wrong:
                return Result("wrong", failure=f"{how}: {wrong}")
        if wrong := self._again(command, expected):
            return Result("wrong", failure=f"{', '.join(outcomes)}, and then {wrong}")
        return Result("", outcomes.total() - outcomes["too late"], counts=outcomes)

    def _kill_at(self, command: Command, kind: str, k: int, action: int) -> Result:
        """Kill a command at the k-th call of a kind."""
        expected = self._expected(command)
        self._world.fresh(command.start)
        with self._calls.armed(str(self._world.directory), calls.KINDS.index(kind), k, action):
            command.run(self._world, self._break)
        wrong = judge(self._world.tree(), expected.tree, expected.old)
        return Result("at a call", failure=wrong or self._again(command, expected))

    def _again(self, command: Command, expected: Expected) -> str | None:
        """Run a command again after kills; say what is wrong then."""
        ended = command.run(self._world, self._break)
        if ended.code != expected.code or bad_end(ended):
            return ended.text
        if (found := self._world.tree()) != expected.tree:
            return f"other files: {sorted(set(found.items()) ^ set(expected.tree.items()))}"
        return None

    def _killed(self, command: Command, chance: random.Random) -> tuple[str, Ended]:
        """Run a command that is killed; return how, and its end."""
        total, seconds = self._sizes(command)
        below = str(self._world.directory)
        how = chance.choice(["at a call", "after a call", "in a write", "at a moment"])
        if how == "at a moment":
            moment = chance.random() ** 2 * seconds
            if command.name == "tokenize-pool" and chance.random() < 0.5:
                process = command.begin(self._world, self._break)
                time.sleep(moment)
                while not _kill_a_worker(process.pid, chance) and not process.has_ended():
                    time.sleep(0.001)
                return "a worker at a moment", process.wait()
            return how, command.run(self._world, lambda: self._break(moment))
        action = {"at a call": calls.KILL, "after a call": calls.KILL_AFTER, "in a write": calls.HALF}[how]
        kind, count = calls.ANY, total
        if how == "in a write":
            kind, count = calls.KINDS.index("write"), max(1, total // 5)
        k = 1 + int(chance.random() ** 2 * count)  # what continues after a kill makes fewer calls
        with self._calls.armed(below, kind, k, action):
            return how, command.run(self._world, self._break)

    def _break(self, moment: float | None = None) -> None:
        apply_control(self._control)
        if moment is not None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process, whatever it is doing
            signal.setitimer(signal.ITIMER_REAL, max(moment, 0.0001))

    def _wrong_end(self, command: Command, expected: Expected, ended: Ended) -> str | None:
        if bad := bad_end(ended):
            return bad
        if ended.code == 0:
            right = said(ended) == expected.stdout and self._world.tree() == expected.tree
            return None if right else "it succeeded with other bytes"
        is_answer = (
            command.name == "tokenize-pool" and ended.code == 8 and "killed by SIGKILL" in ended.stderr
        )
        return None if is_answer else f"unexpected {ended.text}"


def _kill_a_worker(parent: int, chance: random.Random) -> bool:
    """Kill a process of the group of another one, but not that one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == parent and int(path.parent.name) != parent:
                found.append(int(path.parent.name))
    if not found:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(found), signal.SIGKILL)
    return True


make = KillCampaign
