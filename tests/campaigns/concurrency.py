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
from pathlib import Path

from campaigns import forks
from campaigns.commands import COMMANDS, Command, Tree, World, judge
from campaigns.faults import bad_end
from campaigns.forks import Ended, Process
from campaigns.tally import Place, Result
from faults import array_rounds, campaign, lock_rounds

_OPTIONS = ("--unit-size", "512", "--on-error", "skip", "--quiet")
_OLD = Command("old", ("tokenize", "../in/b.jsonl", "-o", "out/x", *_OPTIONS, "--force"))
_NEW = Command("new", ("tokenize", "../in/a.jsonl", "-o", "out/x", *_OPTIONS, "--force"))
_ARRAY = ["tokenize", "{in}/a.jsonl", "{in}/a.jsonl.gz", "{in}/b.jsonl", "-o", "out/x", *_OPTIONS[:-1]]
_SAME = ("tokenize-jsonl", "tokenize-gz", "merge", "build-indices", "blend", "shard-plan", "replan")
_LOCK_PROCESSES = 6
_READS = 40


class ConcurrencyCampaign:
    """The cases, on inputs and products that it makes."""

    def __init__(self, place: Place) -> None:
        forks.load()
        self._place = place
        self._world = World(place.directory, place.logs)
        self._expected = cache(self._world.expect)
        self._generations = cache(self._both_generations)
        self._array = cache(self._array_outputs)
        self._kinds: dict[str, Callable[[random.Random], Result]] = {
            "same": self._same,
            "other": self._other,
            "readers": self._readers,
            "lock": lambda chance: self._lock(chance, "tokshard.storage.lock:WriterLock"),
            "array": self._array_round,
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
        mixed = {"x.bin": "new", "x.idx": "old", "x.tokshard/manifest.json": "new"}
        new, old = dict.fromkeys(mixed, "new"), dict.fromkeys(mixed, "old")
        yield "positive: a mixture of two datasets", None if judge(mixed, new, old) else "was not caught"
        yield "negative: one process alone", self._round([COMMANDS["merge"]], {0}, "merge").failure

    def _same(self, chance: random.Random) -> Result:
        """Several processes run the same command."""
        name = chance.choice(_SAME)
        return self._round([COMMANDS[name]] * chance.randint(2, 5), {0, 5}, name, chance)

    def _round(
        self, commands: list[Command], codes: set[int], name: str, chance: random.Random | None = None
    ) -> Result:
        expected = self._expected(COMMANDS[name])
        self._world.fresh()
        ends = self._at_once(commands, chance)
        if wrong := _wrong_ends(ends, codes):
            return Result("wrong", failure=f"{name}: {wrong}")
        killed = sum(ended.code == -signal.SIGKILL for ended in ends)
        if killed:
            if wrong := judge(self._world.tree(), expected.tree, None):
                return Result("wrong", failure=f"{name}: {wrong}")
            ends.append(commands[0].run(self._world))
        if all(ended.code != 0 for ended in ends):
            return Result("wrong", failure=f"{name}: nobody succeeded: {[ended.text for ended in ends]}")
        if (found := self._world.tree()) != expected.tree:
            other = sorted(set(found.items()) ^ set(expected.tree.items()))
            return Result("wrong", failure=f"{name}: other files: {other}")
        return Result(_outcome(ends), failure=None if ends[-1].code in {0, 5} else ends[-1].text)

    def _other(self, chance: random.Random) -> Result:
        """Several processes write different data to one output."""
        old, new = self._generations()
        self._world.fresh()
        ends = self._at_once([chance.choice([_OLD, _NEW]) for _ in range(chance.randint(2, 4))], chance)
        if wrong := _wrong_ends(ends, {0, 5}):
            return Result("wrong", failure=wrong)
        if wrong := judge(self._world.tree(), new, old):
            return Result("wrong", failure=wrong)
        last = chance.choice([_OLD, _NEW])
        ended = last.run(self._world)
        right = old if last is _OLD else new
        if ended.code != 0 or self._world.tree() != right:
            return Result("wrong", failure=f"after {_outcome(ends)}: {ended.text}")
        return Result(_outcome(ends))

    def _readers(self, chance: random.Random) -> Result:
        """Readers run while the output is replaced."""
        old, new = self._generations()
        self._world.fresh()
        shutil.copytree(self._world.directory / "old", self._world.round / "out")
        readers = [chance.choice([read_all, verify_all]) for _ in range(chance.randint(1, 3))]
        commands = [_NEW, *(Command(reader.__name__, action=reader) for reader in readers)]
        ends = self._at_once(commands, None)
        if ends[0].code != 0 or self._world.tree() != new:
            return Result("wrong", failure=f"the writer: {ends[0].text}")
        seen = set()
        for ended in ends[1:]:
            if bad := bad_end(ended):
                return Result("wrong", failure=bad)
            for line in ended.stdout.splitlines():
                name = {f"tokens {old['x.bin']}": "old", f"tokens {new['x.bin']}": "new"}.get(line)
                if name is None and line.startswith("tokens "):
                    return Result("wrong", failure=f"a reader got a mixture: {ended.stdout}")
                seen.add(name or ("sound" if line.endswith(": sound") else "a reported change"))
        return Result(f"readers saw {', '.join(sorted(seen - {'sound'})) or 'sound data'}")

    def _lock(self, chance: random.Random, lock: str, *, killed: bool = True) -> Result:
        directory = self._world.directory / "lock"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        contest = lock_rounds.Contest(
            str(directory),
            lock,
            kill_every=chance.choice([0, 2, 3]) if killed else 0,
            processes=_LOCK_PROCESSES,
        )
        verdicts = lock_rounds.play(contest)
        wrong = set(verdicts) - {"held", "killed"}
        return Result("one at a time", failure=f"lock: {dict(verdicts)}" if wrong else None)

    def _array_round(self, chance: random.Random) -> Result:
        rounds = self._array_rounds()
        ends, wrong = array_rounds.play(rounds, chance, self._array())
        os.chdir("/")
        return Result("array published", failure=wrong and f"{wrong} {dict(ends)}")

    def _array_rounds(self) -> array_rounds.Rounds:
        directory = self._world.directory / "array"
        directory.mkdir(exist_ok=True)
        return array_rounds.Rounds(str(directory), str(self._world.directory / "in"), _ARRAY, 1, most_tasks=5)

    def _array_outputs(self) -> list[campaign.Output]:
        rounds = self._array_rounds()
        os.chdir(rounds.workdir)
        if campaign.run_command(_ARRAY, rounds.inputs) != 0:
            raise RuntimeError(Path("stderr.txt").read_text())
        return campaign.outputs(["out/x"])

    def _both_generations(self) -> tuple[Tree, Tree]:
        found = []
        for command, name in ((_OLD, "old"), (_NEW, "new")):
            expected = self._expected(command)
            shutil.copytree(self._world.round / "out", self._world.directory / name)
            found.append(expected.tree)
        return found[0], found[1]

    def _at_once(self, commands: list[Command], chance: random.Random | None) -> list[Ended]:
        """Run commands that start at the same moment; with ``chance``, some are killed."""
        gate = os.pipe()
        processes: list[Process] = []
        for command in commands:
            kill = chance is not None and len(commands) > 1 and chance.random() < 0.15
            seconds = chance.random() * 0.2 if chance and kill else None
            processes.append(command.begin(self._world, _killed_after(seconds), gate))
        for descriptor in gate:
            os.close(descriptor)
        return [process.wait() for process in processes]


def _killed_after(seconds: float | None) -> Callable[[], None]:
    def prepare() -> None:
        if seconds is not None:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))

    return prepare


def _wrong_ends(ends: list[Ended], codes: set[int]) -> str | None:
    for ended in ends:
        if ended.code == -signal.SIGKILL:
            continue
        if (bad := bad_end(ended)) or ended.code not in codes:
            return bad or f"unexpected {ended.text}"
    return None


def _outcome(ends: list[Ended]) -> str:
    names = {0: "succeeded", 5: "locked", -signal.SIGKILL: "killed"}
    return ", ".join(sorted({names.get(ended.code or 0, f"exit code {ended.code}") for ended in ends}))


def read_all() -> int:
    """Print the digest of all tokens of the output, several times."""
    from tokshard.dataset.reader import IndexedDataset
    from tokshard.errors import TokshardError

    for number in range(_READS):
        digest = hashlib.sha256()
        try:
            dataset = IndexedDataset("out/x", mmap=number % 2 == 0)
            for document in range(dataset.document_count):
                digest.update(dataset.document_tokens(document).tobytes())
        except TokshardError as error:
            print(f"reader: {type(error).__name__}")
        else:
            print("tokens", digest.hexdigest())
    return 0


def verify_all() -> int:
    """Verify the output several times."""
    from tokshard.checks.commands.verify import verify
    from tokshard.checks.verify.options import VerifyOptions
    from tokshard.errors import TokshardError

    for _ in range(_READS // 8):
        try:
            findings = verify(VerifyOptions(path="out/x", workers=1)).findings
        except TokshardError as error:
            print(f"verify: {type(error).__name__}")
        else:
            codes = sorted({finding.code for finding in findings if finding.is_problem})
            print(f"verify: {', '.join(codes) or 'sound'}")
    return 0


make = ConcurrencyCampaign
