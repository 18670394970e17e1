"""Every system call of every command fails, or does less than it was asked for.

A case is COMMAND/CALL/K/FAULT/TIMES: the K-th call of this kind on a path of the command fails, once or
from there on (``always``). The command must end with a documented exit code and a message, and leave the
output absent, old or complete; without the fault it must then succeed, with the right bytes. It may not
notice a call that was interrupted or did less, and may not ignore a failed fsync.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache

from campaigns import calls, forks
from campaigns.calls import Calls
from campaigns.commands import COMMANDS, Command, Expected, World, judge, said
from campaigns.forks import Ended
from campaigns.tally import Place, Result
from faults.campaign import apply_control

# Codes with which a command may end that cannot do its work: bad data or input, a storage error, a dead
# worker. 5 is for locks, which cannot be had when their calls fail.
_CODES = {3, 6, 7, 8}
_CODES_OF_LOCKS = {5}
_CONTROLS = {
    "broken_writers:ignore_failed_fsync": ("fsync", "EIO"),
    "careless_calls:ignore_short_writes": ("write", "short"),
}
_ONCE_ONLY = {"EINTR"}  # it would be repeated for ever


class FaultCampaign:
    """The cases, on inputs and products that it makes.

    Args:
        control: A function of tests/faults/controls that breaks the implementation first, or None.
    """

    def __init__(self, place: Place, control: str | None = None) -> None:
        forks.load()
        self._world = World(place.directory, place.logs)
        self._calls = Calls()
        self._control = control
        self._expected = cache(self._world.expect)

    def cases(self, seed: int, worker: int, workers: int) -> Iterator[str]:
        # A case of each command in turn; of each command one of each group of cases in turn.
        chance = random.Random(f"{seed} faults {worker}")
        points = {
            name: self._points(command, random.Random(f"{seed} {name}"), worker, workers)
            for name, command in COMMANDS.items()
        }
        while True:
            for name in chance.sample(list(points), len(points)):
                yield next(points[name])

    def _points(self, command: Command, chance: random.Random, worker: int, workers: int) -> Iterator[str]:
        groups = []
        for kind, count in self._counts(command).items():
            for fault in calls.FAULTS[kind]:
                often = ("once",) if fault in _ONCE_ONLY else ("once", "always")
                groups += [(kind, fault, times, chance.sample(range(1, count + 1), count)) for times in often]
        chance.shuffle(groups)
        for turn in itertools.count():
            for kind, fault, times, order in groups[worker::workers]:
                yield f"{command.name}/{kind}/{order[turn % len(order)]}/{fault}/{times}"

    def run(self, case: str) -> Result:
        name, kind, k, fault, times = case.split("/")
        command = COMMANDS[name]
        expected = self._expected(command)
        self._world.fresh(command.start)
        with self._calls.armed(
            str(self._world.directory),
            calls.KINDS.index(kind),
            int(k),
            calls.action_of(fault),
            None if times == "always" else 1,
        ):
            ended = command.run(self._world, lambda: apply_control(self._control))
        if not self._calls.fired:
            return self._unharmed(command, expected, ended, "not reached")
        where = f"{kind} of {self._calls.where}: "
        if "Fatal Python error" in ended.stderr:
            return Result("Python did not start")
        harmless = (kind, fault) in calls.HARMLESS
        if (wrong := self._wrong(command, expected, ended, kind, harmless=harmless)) is None:
            wrong = self._again(command, expected)
        if wrong is None and kind == "fsync" and ended.code == expected.code:
            wrong = "WRONG SUCCESS: the failure was ignored"
        outcome = "succeeded" if ended.code == expected.code else f"exit code {ended.code}"
        return Result(outcome, failure=wrong and where + wrong)

    def controls(self) -> Iterator[tuple[str, str | None]]:
        command = COMMANDS["tokenize-jsonl"]
        expected = self._expected(command)
        self._world.fresh()
        with self._calls.armed(str(self._world.directory), calls.KINDS.index("write"), 10**9, 5):
            ended = command.run(self._world)
        result = self._unharmed(command, expected, ended, "")
        yield (
            "negative: a fault that is never reached",
            result.failure or (None if self._calls.total > 100 else "no calls were counted"),
        )
        for control, (kind, fault) in _CONTROLS.items():
            self._control = f"controls.{control}"
            count = self._counts(command)[kind]
            points = random.Random(control).sample(range(1, count + 1), count)
            caught = any(self.run(f"{command.name}/{kind}/{k}/{fault}/once").failure for k in points)
            self._control = None
            yield f"positive: {control}", None if caught else "was not caught"

    def _counts(self, command: Command) -> dict[str, int]:
        """Return how many calls of each kind a command makes."""
        expected = self._expected(command)
        self._world.fresh(command.start)
        with self._calls.armed(str(self._world.directory)):
            ended = command.run(self._world)
        if ended.code != expected.code:
            raise RuntimeError(f"{command.name} while its calls are counted: {ended.text}")
        return {kind: count for kind, count in self._calls.counts.items() if count}

    def _unharmed(self, command: Command, expected: Expected, ended: Ended, outcome: str) -> Result:
        right = (ended.code, said(ended), self._world.tree()) == (
            expected.code,
            expected.stdout,
            expected.tree,
        )
        return Result(outcome, failure=None if right else f"undisturbed, {ended.text}")

    def _wrong(
        self, command: Command, expected: Expected, ended: Ended, kind: str, *, harmless: bool
    ) -> str | None:
        """Say what is wrong with the end of a command, one of whose calls failed."""
        if bad := bad_end(ended):
            return bad
        if ended.code == expected.code and (ended.code == 0 or "error:" not in ended.stderr):
            named = kind == "stat" or "are unknown: cannot " in ended.stdout  # or taken for absent
            if said(ended) != expected.stdout and not (command.partial and named):
                return f"WRONG SUCCESS: it printed {ended.stdout[-1500:]}"
            # A command that succeeded may have left a temporary file that it could not remove.
            missing = {
                path for path, digest in expected.tree.items() if self._world.tree().get(path) != digest
            }
            return f"WRONG SUCCESS: other bytes of {sorted(missing)}" if missing else None
        if harmless:
            return f"it did not continue, {ended.text}"
        problems = command.problems and ended.code == 1
        if ended.code not in _CODES | _CODES_OF_LOCKS and not problems:
            return f"unexpected {ended.text}"
        if not problems and "error: " not in ended.stderr:
            return f"no message, {ended.text}"
        return judge(self._world.tree(), expected.tree, expected.old)

    def _again(self, command: Command, expected: Expected) -> str | None:
        """Run a command again without a fault, after one with a fault."""
        if not expected.tree:
            return None
        ended = command.run(self._world, lambda: apply_control(self._control))
        if ended.code != 0 or bad_end(ended):
            return f"again without the fault, {ended.text}"
        if (found := self._world.tree()) != expected.tree:
            other = sorted(set(found.items()) ^ set(expected.tree.items()))
            return f"again without the fault, other files: {other}"
        return None


def bad_end(ended: Ended) -> str | None:
    """Say what is wrong with an end, whatever the command was asked to do."""
    if ended.code is None:
        return f"it hung, {ended.text}"
    for text in ("Traceback", "Exception ignored", "this is a bug", "Error in sys.excepthook"):
        if text in ended.stderr:
            return ended.text
    return f"unexpected {ended.text}" if ended.code < 0 or ended.code in {70, 99} else None


make = FaultCampaign
