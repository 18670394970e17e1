"""Several processes that write one output at once, or read it while it is replaced.

A case is KIND/NUMBER. Of writers that start at the same moment at least one succeeds, the others may find
the output locked (exit code 5) or finished, and what is left is the output of an undisturbed run. A reader
gets the old data or the new data, or an error, and never a mixture. ``lock`` and ``array`` are rounds of
tests/faults.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache

from campaigns.tally import Place, Result
from faults import children, lock_rounds, rounds
from faults.campaign import Row
from faults.children import Child, Command, Ended
from faults.scenarios import OLDER, make_world
from faults.verdicts import judge

_SAME = ("tokenize", "tokenize gz", "merge", "build-indices", "blend", "shard-plan", "replan")
_KILLED = -signal.SIGKILL
_LOCK_PROCESSES = 6
_READS = 40


class ConcurrencyCampaign:
    """The cases, on inputs and products that it makes."""

    def __init__(self, place: Place) -> None:
        children.load()
        make_world(place.directory)
        self._world = place.directory
        self._row = cache(lambda name: Row(name, self._world))
        self._kinds: dict[str, Callable[[random.Random], Result]] = {
            "same": self._same,
            "other": self._other,
            "readers": self._readers,
            "lock": lambda chance: self._lock(chance, "tokshard.storage.lock:WriterLock"),
            "array": self._array,
        }

    def cases(self, seed: int, worker: int, workers: int) -> Iterator[str]:
        number = worker
        kinds = ["same", "other", "readers", "same", "lock", "readers", "same", "array"]
        while True:
            yield f"{kinds[number // workers % len(kinds)]}/{seed}.{number}"
            number += workers

    def run(self, case: str) -> Result:
        kind, _, seed = case.partition("/")
        return self._kinds[kind](random.Random(seed))

    def controls(self) -> Iterator[tuple[str, str | None]]:
        broken = "faults.controls.lock_by_existence:WriterLock"
        caught = any(self._lock(random.Random(n), broken, killed=False).failure for n in range(20))
        yield "positive: lock_by_existence", None if caught else "was not caught"
        mixed = {"out/x.bin": "new", "out/x.idx": "old", "out/x.tokshard/manifest.json": "new"}
        new, old = dict.fromkeys(mixed, "new"), dict.fromkeys(mixed, "old")
        yield "positive: a mixture of two datasets", None if judge(mixed, new, old) else "was not caught"
        yield "negative: one process alone", self._round(self._row("merge"), 1, None).failure

    def _same(self, chance: random.Random) -> Result:
        """Several processes run the same command."""
        return self._round(self._row(chance.choice(_SAME)), chance.randint(2, 5), chance)

    def _round(self, row: Row, count: int, chance: random.Random | None) -> Result:
        (command,) = row.scenario.commands
        row.fresh()
        ends = _at_once(row, [command] * count, chance)
        wrong = _wrong_ends(ends)
        if not wrong and any(ended.code == _KILLED for ended in ends):
            wrong = judge(row.published(row.tree()), row.new_files, {})
            ends.append(children.run(command, row.round))
        if not wrong and all(ended.code != 0 for ended in ends):
            wrong = f"nobody succeeded: {[str(ended) for ended in ends]}"
        wrong = wrong or _wrong_ends(ends) or row.wrong_files("after all")
        return Result(_outcome(ends), failure=wrong and f"{row.name}: {wrong}")

    def _other(self, chance: random.Random) -> Result:
        """Several processes write different data to one output."""
        row = self._row("tokenize --force")
        new, old = row.scenario.commands[0], _forced(OLDER.command)
        row.fresh()
        ends = _at_once(row, [chance.choice([old, new]) for _ in range(chance.randint(2, 4))], chance)
        wrong = _wrong_ends(ends) or judge(row.published(row.tree()), row.new_files, row.old)
        last = chance.choice([old, new])
        ended = children.run(last, row.round)
        found = row.published(row.tree())
        if not wrong and (ended.code != 0 or found != (row.old if last is old else row.new_files)):
            wrong = f"after {_outcome(ends)}: {ended}"
        return Result(_outcome(ends), failure=wrong)

    def _readers(self, chance: random.Random) -> Result:
        """Readers run while the output is replaced."""
        row = self._row("tokenize --force")
        row.fresh()
        readers: list[Command] = [chance.choice([read_all, verify_all]) for _ in range(chance.randint(1, 3))]
        ends = _at_once(row, [row.scenario.commands[0], *readers], None)
        if wrong := row.wrong_files("the writer") or next(filter(None, (end.defect for end in ends)), None):
            return Result("wrong", failure=wrong)
        names = {f"tokens {tree['out/x.bin']}": name for name, tree in (("old", row.old), ("new", row.new))}
        seen = set()
        for line in "".join(ended.stdout for ended in ends[1:]).splitlines():
            if line.startswith("tokens ") and line not in names:
                return Result("wrong", failure=f"a reader got a mixture: {line}")
            seen.add(names.get(line) or ("sound" if line.endswith(": sound") else "a reported change"))
        return Result(f"readers saw {', '.join(sorted(seen - {'sound'})) or 'sound data'}")

    def _lock(self, chance: random.Random, lock: str, *, killed: bool = True) -> Result:
        directory = self._world / "lock"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        kill_every = chance.choice([0, 2, 3]) if killed else 0
        contest = lock_rounds.Contest(str(directory), lock, kill_every=kill_every, processes=_LOCK_PROCESSES)
        verdicts = lock_rounds.play(contest)
        wrong = set(verdicts) - {"held", "killed"}
        return Result("one at a time", failure=f"lock: {dict(verdicts)}" if wrong else None)

    def _array(self, chance: random.Random) -> Result:
        _, wrong = rounds.arrays(self._row("tokenize --array-task"), chance)
        return Result("array published", failure=wrong)


def _forced(command: Command) -> Command:
    return command if callable(command) else (*command, "--force")


def _at_once(row: Row, commands: list[Command], chance: random.Random | None) -> list[Ended]:
    """Run commands that start at the same moment; with ``chance``, some are killed."""
    gate = os.pipe()
    processes = []
    for command in commands:
        kill = chance is not None and len(commands) > 1 and chance.random() < 0.15
        seconds = chance.random() * 0.2 if chance and kill else None
        processes.append(Child(command, row.round, _killed_after(seconds), gate))
    for descriptor in gate:
        os.close(descriptor)
    return [process.wait() for process in processes]


def _killed_after(seconds: float | None) -> Callable[[], None]:
    def prepare() -> None:
        if seconds is not None:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))

    return prepare


def _wrong_ends(ends: list[Ended]) -> str | None:
    for ended in ends:
        if ended.defect or ended.code not in {0, 5, _KILLED}:
            return f"unexpected {ended}"
    return None


def _outcome(ends: list[Ended]) -> str:
    names = {0: "succeeded", 5: "locked", _KILLED: "killed"}
    return ", ".join(sorted({names.get(ended.code or 0, f"exit code {ended.code}") for ended in ends}))


def read_all() -> None:
    """Print the digest of all tokens of the output, several times."""
    import tokshard
    from tokshard.errors import TokshardError

    for number in range(_READS):
        digest = hashlib.sha256()
        try:
            dataset = tokshard.IndexedDataset("out/x", mmap=number % 2 == 0)
            for document in range(dataset.document_count):
                digest.update(dataset.document_tokens(document).tobytes())
        except TokshardError as error:
            print(f"reader: {type(error).__name__}")
        else:
            print("tokens", digest.hexdigest())


def verify_all() -> None:
    """Verify the output several times."""
    import tokshard
    from tokshard.errors import TokshardError

    for _ in range(_READS // 8):
        try:
            findings = tokshard.verify(tokshard.VerifyOptions(path="out/x", workers=1)).findings
        except TokshardError as error:
            print(f"verify: {type(error).__name__}")
        else:
            codes = sorted({finding.code for finding in findings if finding.is_problem})
            print(f"verify: {', '.join(codes) or 'sound'}")


make = ConcurrencyCampaign
