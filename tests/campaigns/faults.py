"""Every system call of every command fails, or does less than it was asked for.

A case is COMMAND/CALL/K/FAULT/TIMES: the K-th call of this kind on a path of the command fails, once or
from there on (``always``). The command must end with a documented exit code and a message, and leave the
output absent, old or complete; without the fault it must then succeed, with the right bytes. It may not
notice a call that was interrupted or did less, and may not ignore a failed fsync. Unlike the table of
tests/faults, this reaches calls that read, and calls of libraries.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache

from campaigns import calls
from campaigns.calls import Calls
from campaigns.tally import Place, Result
from faults import children
from faults.campaign import Row, said
from faults.children import Ended
from faults.scenarios import READERS, SCENARIOS, Scenario, make_world
from faults.seam import COUNT

# Codes with which a command may end that cannot do its work: bad data or input, a storage error, a dead
# worker. 5 is for locks, which cannot be had when their calls fail.
_CODES = {3, 5, 6, 7, 8}
_CONTROLS = {"ignore_failed_fsync": ("fsync", "EIO"), "ignore_short_writes": ("write", "short")}
_ONCE_ONLY = {"EINTR"}  # it would be repeated for ever
# Readers that may leave out what they cannot read if they name the reason, or report it as a problem.
_PARTIAL = {"inspect a plan"}
_PROBLEMS = {"verify a dataset", "verify a plan", "doctor", "verify --adopt"}
_WRITERS = {name: row for name, row in SCENARIOS.items() if len(row.commands) == 1 and row.share > 0.7}
_ROWS = {**_WRITERS, **{name: Scenario((command,), ()) for name, command in READERS.items()}}


class FaultCampaign:
    """The cases, on inputs and products that it makes."""

    def __init__(self, place: Place) -> None:
        children.load()
        make_world(place.directory)
        self._world = place.directory
        self._calls = Calls()
        self._row = cache(self._make_row)

    def _make_row(self, name: str, control: str | None = None) -> Row:
        return Row(name, self._world, control, _ROWS[name])

    def cases(self, seed: int, worker: int, workers: int) -> Iterator[str]:
        # A case of each command in turn; of each command one of each group of cases in turn.
        chance = random.Random(f"{seed} faults {worker}")
        points = {
            name: self._points(name, random.Random(f"{seed} {name}"), worker, workers) for name in _ROWS
        }
        while True:
            for name in chance.sample(list(points), len(points)):
                yield next(points[name])

    def _points(self, name: str, chance: random.Random, worker: int, workers: int) -> Iterator[str]:
        groups = []
        for kind, count in self._counts(self._row(name)).items():
            for fault in calls.FAULTS[kind]:
                often = ("once",) if fault in _ONCE_ONLY else ("once", "always")
                groups += [(kind, fault, times, chance.sample(range(1, count + 1), count)) for times in often]
        chance.shuffle(groups)
        for turn in itertools.count():
            for kind, fault, times, order in groups[worker::workers]:
                yield f"{name}/{kind}/{order[turn % len(order)]}/{fault}/{times}"

    def run(self, case: str) -> Result:
        name, kind, k, fault, times = case.split("/")
        return self._try(self._row(name), kind, int(k), fault, None if times == "always" else 1)

    def _try(self, row: Row, kind: str, k: int, fault: str, times: int | None) -> Result:
        row.fresh()
        with self._calls.armed(str(self._world), calls.KINDS.index(kind), k, calls.action_of(fault), times):
            ended = row.child(row.scenario.commands[0], None)
        if not self._calls.fired:
            return Result("not reached", failure=self._unharmed(row, ended))
        where = f"{kind} of {self._calls.where}: "
        if "Fatal Python error" in ended.stderr:
            return Result("Python did not start")
        harmless = (kind, fault) in calls.HARMLESS
        if (wrong := self._wrong(row, ended, kind, harmless=harmless)) is None and row.finals:
            again = row.child(row.scenario.commands[0], None)
            wrong = row.wrong_files("again") if row.is_success(again) else f"again without the fault, {again}"
        if wrong is None and kind == "fsync" and ended.code == row.ends[0].code:
            wrong = "WRONG SUCCESS: the failure was ignored"
        outcome = "succeeded" if ended.code == row.ends[0].code else f"exit code {ended.code}"
        return Result(outcome, failure=wrong and where + wrong)

    def controls(self) -> Iterator[tuple[str, str | None]]:
        result = self._try(self._row("tokenize"), "write", 10**9, "EIO", 1)
        uncounted = None if self._calls.total > 100 else "no calls were counted"
        yield "negative: a fault that is never reached", result.failure or uncounted
        for control, (kind, fault) in _CONTROLS.items():
            row = self._make_row("tokenize", f"controls.broken_calls:{control}")
            count = self._counts(row)[kind]
            points = random.Random(control).sample(range(1, count + 1), count)
            caught = any(self._try(row, kind, k, fault, 1).failure for k in points)
            yield f"positive: {control}", None if caught else "was not caught"

    def _counts(self, row: Row) -> dict[str, int]:
        """Return how many calls of each kind a command makes."""
        row.fresh()
        with self._calls.armed(str(self._world)):
            ended = row.child(row.scenario.commands[0], None)
        if not row.is_success(ended):
            raise RuntimeError(f"{row.name} while its calls are counted: {ended}")
        return {kind: count for kind, count in self._calls.counts.items() if count}

    def _unharmed(self, row: Row, ended: Ended) -> str | None:
        is_right = ended.code == row.ends[0].code and said(ended) == said(row.ends[0])
        return row.wrong_files("undisturbed") if is_right else f"undisturbed, {ended}"

    def _wrong(self, row: Row, ended: Ended, kind: str, *, harmless: bool) -> str | None:
        """Say what is wrong with the end of a command, one of whose calls failed."""
        if ended.defect:
            return ended.defect
        if ended.code == row.ends[0].code and "error:" not in ended.stderr:
            reason = "cannot " if row.name in _PROBLEMS else "are unknown: cannot "
            named = kind == "stat" or reason in ended.stdout  # or taken for absent
            if said(ended) != said(row.ends[0]) and not (row.name in _PARTIAL | _PROBLEMS and named):
                return f"WRONG SUCCESS: it printed {ended.stdout[-1500:]}"
            # A command that succeeded may have left a temporary file that it could not remove.
            tree = row.tree()
            missing = [path for path, content in row.new.items() if tree.get(path) != content]
            return f"WRONG SUCCESS: other bytes of {missing}" if missing else None
        if harmless:
            return f"it did not continue, {ended}"
        if row.name in _PROBLEMS and ended.code == 1:
            return None
        if ended.code not in _CODES or "error: " not in ended.stderr:
            return f"unexpected, or no message: {ended}"
        return row.wrong_state(COUNT)


make = FaultCampaign
