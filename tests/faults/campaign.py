"""The crash campaign: each command of the table fails in each way at its storage calls, and is run again.

A row is run once undisturbed, which gives its storage calls and the right files. Then, for each kind of
fault and each call that is drawn, the row is run in a fresh directory with this call disturbed. What is
left must be absent, old or complete, also for ``verify``; files of others are untouched; and the same
command ends with the files of a clean run, and none besides. ``tests/crash_table.py`` prints the table.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faults import children, damage, seam, small_disks
from faults.children import Command, Ended
from faults.scenarios import PENDING, SCENARIOS, Attempt, Scenario, Step, strangers
from faults.seam import Fault
from faults.verdicts import CACHED, SEALS, Tree, is_whole, judge

# How many points of each kind are drawn for a row. Kinds of seam.py, and of the whole run.
POINTS = {
    "kill": 4,
    "cut": 2,
    "power": 3,
    "ENOSPC": 2,
    "EIO": 3,
    "foreign": 2,
    "short": 1,
    "limit": 1,
    "disk": 1,
    "damage": 6,
}
ALL_SIZES = 24
_VARIABLE = re.compile(r"\b\d+(\.\d+)? m?s\b|[\d.,]+\w* \w*/s|\"seconds\": .*")
STORAGE_ERROR = 7
REFUSED = {4, 6}  # 6: a file that is no manifest, blend or plan


@dataclass(frozen=True)
class Point:
    """What is tried: a fault in one of the commands of a row."""

    command: int
    fault: Fault

    def __str__(self) -> str:
        return f"command {self.command}, {self.fault.kind}: {self.fault.k or ''} {self.fault.path}".rstrip()


@dataclass
class Cell:
    """The points of a row and a kind of fault that were tried, and what was wrong at which.

    ``pending`` are those that are known.
    """

    points: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    skipped: str = ""


class Row:
    """A row of the table, run in a world.

    Attributes:
        ends: How the commands end undisturbed.
        new, old: What is there at the end, and the files of the output that was there before.
        only: The storage calls that are disturbed; all, if there are none.

    Args:
        name: In :data:`~faults.scenarios.SCENARIOS`.
        world: A directory of :func:`~faults.scenarios.make_world`.
        control: ``module:function`` that breaks tokshard first, or None.
        scenario: The scenario, if it is not one of the table.
    """

    def __init__(
        self, name: str, world: Path, control: str | None = None, scenario: Scenario | None = None
    ) -> None:
        self.scenario = scenario or SCENARIOS[name]
        self.only: list[str] = []
        self.name, self.world, self.round = name, world, world / "round"
        self._log = world / "calls.txt"
        self._control: str | None = None
        self._start = world / f"start-{''.join(filter(str.isalnum, name))}"
        self.ends: dict[int, Ended] = {}
        self._prepare(control)

    def _prepare(self, control: str | None) -> None:
        """Find out what is there at the start, what a clean run makes, and the calls of each command."""
        steps, commands = self.scenario.start, self.scenario.commands
        users = [step for step in steps if not isinstance(step, Attempt)]
        self._walk(users)
        if not control and self.scenario.share > 0.5:  # the others start processes and threads
            verify = [("verify", product, "--quiet") for product in self.scenario.products]
            children.warm_up([*commands, *verify], self.round)
            self._walk(users)
        self.calls = self._undisturbed()
        self.new = self.tree()
        self.new_files = self.published(self.new)
        self.finals = [path for path, content in self.new_files.items() if content != "a directory"]
        for product in self.scenario.products:
            ended = self._run(("verify", product, "--level", "deep", "--quiet"))
            if ended.code not in {0, 1} or ended.defect:
                raise RuntimeError(f"{self.name}: verify {product}: {ended}")
        self._control = control
        if control or len(users) < len(steps):
            self._walk(steps)
            self.calls = self._undisturbed()
            if wrong := self.wrong_files("undisturbed"):
                raise RuntimeError(f"{self.name}: {wrong}")
        self.fresh()
        self.old = self.published(self.tree())
        self._unfinished: list[str] = []
        # Without a marker, or an index, there is no old output but unfinished work.
        if not any(path in self.old for path in self.finals if path.endswith((*SEALS, ".idx"))):
            self._unfinished = [path for path in self.old if os.path.isfile(path)]
            self.old = {}

    def _undisturbed(self) -> list[list[str]]:
        """Run the commands; return the calls of each."""
        shutil.rmtree(self._start, ignore_errors=True)
        shutil.copytree(self.round, self._start, symlinks=True)
        calls = []
        self.fresh()
        for number, command in enumerate(self.scenario.commands):
            ended = self.child(command, seam.COUNT)
            if not self.is_success(ended):
                raise RuntimeError(f"{self.name}: command {number} without a fault: {ended}")
            calls.append(self._log.read_text().split())
            self.ends[number] = ended
        return calls

    def _walk(self, steps: list[Step] | tuple[Step, ...]) -> None:
        """Take the steps to the start."""
        shutil.rmtree(self.round, ignore_errors=True)
        self.round.mkdir()
        os.chdir(self.round)
        for step in steps:
            if not isinstance(step, Attempt):
                step()
            elif step.killed_after:
                copy = self.world / "copy"
                shutil.copytree(self.round, copy, symlinks=True)
                children.run(step.command, copy, lambda: seam.install(seam.COUNT, self._log))
                shutil.rmtree(copy)
                k = int(step.killed_after * len(self._log.read_text().split()))
                fault = Fault("kill", k)
                children.run(step.command, self.round, lambda fault=fault: seam.install(fault, self._log))
            elif (ended := children.run(step.command, self.round)).code != step.code:
                raise RuntimeError(f"{self.name}: {step}: {ended}")

    def fresh(self) -> None:
        """Begin a round."""
        os.chdir(self.world)
        shutil.rmtree(self.round, ignore_errors=True)
        self.round.mkdir()
        self._fill()

    def _fill(self) -> None:
        shutil.copytree(self._start, self.round, symlinks=True, dirs_exist_ok=True)
        os.chdir(self.round)
        for path, content in self._strangers.items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if content is None:
                os.mkfifo(path)
            elif isinstance(content, str):
                os.symlink(content, path)
            else:
                Path(path).write_bytes(content)
                os.utime(path, (1, 1))

    @property
    def _strangers(self) -> dict[str, bytes | str | None]:
        return strangers(self.scenario.products[0]) if self.scenario.products else {}

    def tree(self) -> Tree:
        """Return the files below ``out``, and its directories."""
        found = {}
        for path in sorted((self.round / "out").rglob("*")):
            name = str(path.relative_to(self.round))
            if path.name == "lock" and name not in self._strangers:
                continue  # of a dead process: it locks nobody out
            if path.is_symlink():
                found[name] = f"link to {os.readlink(path)}"
            elif path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[name] = f"{digest} {path.stat().st_mtime}" if name in self._strangers else digest
            elif not path.is_dir():
                found[name] = "a pipe"
            elif path.suffix != ".tokshard":  # which may have held nothing but a lock
                found[name] = "a directory"
        return found

    def published(self, tree: Tree) -> Tree:
        """Return the files of a tree that are not of others."""
        return {name: content for name, content in tree.items() if name not in self._strangers}

    # Points.

    def draw(self, kind: str, count: int | None, seed: int = 1) -> list[Point]:
        """Draw points of a kind; all if there is no count. Rare calls are drawn as often as others."""
        chance = random.Random(f"{seed} {self.name} {kind}")
        if kind in {"short", "limit", "disk"}:
            return [Point(0, fault) for fault in self._whole_runs(kind, chance, count)]
        if kind == "damage":
            ways = [(way, path) for way in damage.WAYS for path in self._unfinished]
            points = [Point(0, Fault(kind, seed, f"{way}:{path}")) for way, path in ways]
            return chance.sample(points, min(len(points), count or len(points)))
        if kind == "foreign" and (not self.finals or self.old.keys() & {*self.finals}):
            return []  # it would be replaced
        # The sidecars of a dataset are ours, as its directory is, and the entries of a cache.
        ours = [path for path in self.finals if ".tokshard/" in path or CACHED.search(path)]
        exclusive = [path for path in self.finals if path not in ours or path.endswith("/manifest.json")]
        by_name: dict[str, list[Point]] = {}
        for number, calls in enumerate(self.calls):
            for k, name in enumerate(calls, 1):
                if seam.concerns(kind, name) and name in (self.only or calls):
                    path = chance.choice(exclusive) if kind == "foreign" else ""
                    by_name.setdefault(name, []).append(Point(number, Fault(kind, k, path)))
        for points in by_name.values():
            chance.shuffle(points)
        names = chance.sample(list(by_name), len(by_name))
        rounds = range(max(map(len, by_name.values()), default=0))
        if kind == "power" and not self.only:  # after the end
            by_name["end"] = [
                Point(number, Fault(kind, len(calls) + 1)) for number, calls in enumerate(self.calls)
            ]
            names.insert(0, "end")
        points = [by_name[name][turn] for turn in rounds for name in names if turn < len(by_name[name])]
        return points[:count]

    def _whole_runs(self, kind: str, chance: random.Random, count: int | None) -> Iterator[Fault]:
        if kind == "short":
            ways = ["half", "one", "random"]
            yield from (Fault(kind, number, way) for number, way in enumerate(ways[:count]))
            return
        size = sum(path.stat().st_size for path in self._start.rglob("*") if path.is_file())
        largest = max(size, 16 << 10) + (64 << 10 if kind == "disk" else 0)
        for _ in range(count or ALL_SIZES):
            yield Fault(kind, chance.randrange(0 if kind == "limit" else 4096, largest))

    def cell(self, kind: str, count: int | None, seed: int = 1, until: str | None = None) -> Cell:
        """Try the points of a kind; until one fails for a reason with this text, if there is one."""
        cell = Cell()
        if kind in self.scenario.without or (kind == "disk" and (reason := small_disks.reason_not_to())):
            cell.skipped = "not for this row" if kind in self.scenario.without else reason
            return cell
        encoded: dict[tuple[int, int], int] = {}
        for point in self.draw(kind, count, seed):
            cell.points += 1
            wrong, encoded_bytes = self.attempt(point)
            if encoded_bytes is not None:
                encoded[point.command, point.fault.k] = encoded_bytes
            if wrong and any(text in str(point) for text in PENDING):
                cell.pending[str(point)] = wrong
            elif wrong:
                cell.failures[str(point)] = wrong
                if until is not None and until in wrong:
                    return cell
        if kind == "kill" and (wrong := self._lost_units(encoded)):
            cell.failures["units"] = wrong
        return cell

    # One point.

    def attempt(self, point: Point) -> tuple[str | None, int | None]:
        """Run the row with a fault; return what is wrong, and how much text was encoded afterwards."""
        fault = point.fault
        self.fresh()
        if fault.kind == "disk":
            os.chdir(self.world)
            small_disks.mount(self.round)
            self._fill()
            small_disks.limit(self.round, fault.k)
        try:
            return (self._damaged(fault), None) if fault.kind == "damage" else self._attempt(point)
        finally:
            os.chdir(self.world)
            if fault.kind == "disk":
                small_disks.unmount(self.round)

    def _attempt(self, point: Point) -> tuple[str | None, int | None]:
        fault, commands = point.fault, self.scenario.commands
        for number, command in enumerate(commands):
            is_here = number == point.command or fault.kind in {"short", "disk", "limit"}
            ended = self.child(command, fault if is_here else None)
            if fault.kind == "short" and self.is_success(ended) and said(ended) != said(self.ends[number]):
                return (
                    f"command {number} printed {said(ended)}, and undisturbed {said(self.ends[number])}",
                    None,
                )
            if self.is_success(ended):
                continue
            later = {"power": {1}, "foreign": REFUSED}.get(fault.kind, set())  # a later command finds it
            if not is_here and ended.code not in later:
                return f"command {number}, undisturbed: {ended}", None
            break
        wrong = self._wrong_end(fault, ended) or self.wrong_state(fault)
        if wrong or self.is_success(ended):
            return wrong, None
        if fault.kind == "disk":
            small_disks.limit(self.round)
        # A task whose parts were lost without power has succeeded: --finish names them.
        for command in commands[0 if fault.kind == "power" else number :]:
            ended = self.child(command, None)
            if ended.code != 0 or ended.defect:
                return f"again: {ended}", None
        return self.wrong_files("again"), self._encoded(ended)

    def is_success(self, ended: Ended) -> bool:
        # A reader may report problems.
        return not ended.defect and ended.code in ({0} if self.scenario.products else {0, 1})

    def _damaged(self, fault: Fault) -> str | None:
        """P69: damage a file of unfinished work; the commands do this work again."""
        way, path = fault.path.split(":")
        damage.damage(Path(path), way, fault.k)
        for command in self.scenario.commands:
            ended = self.child(command, None)
            if ended.code == 4 and path.endswith(".json") and not callable(command):
                ended = self.child((*command, "--force"), None)  # it may be the job of other options now
            if ended.code != 0 or ended.defect:
                return str(ended)
        if (wrong := self.wrong_files("success")) and path.endswith(".bin") and way in damage.CONTENTS:
            # Tokens that were appended are trusted until the manifest is written, which has their digests.
            found = [self._run(("verify", product, "--quiet")) for product in self.scenario.products]
            return None if any(ended.code == 1 for ended in found) else wrong
        return wrong

    def _wrong_end(self, fault: Fault, ended: Ended) -> str | None:
        if ended.defect:
            return ended.defect
        if fault.kills and ended.code == -signal.SIGKILL:
            return None
        if fault.kind == "power" and ended.code == 1 and len(self.scenario.commands) > 1:
            return None
        if self.is_success(ended):
            if fault.kind == "power":  # of work that was removed, something may be there again
                files = self.published(self.tree())
                lost = [path for path in self.finals if files.get(path) != self.new[path]]
                return f"success, but after a power failure other files: {lost}" if lost else None
            happened = self._log.read_text() if fault.kind in {"EIO", "ENOSPC"} else ""
            is_lost = "happened" in happened and happened.split()[-1] not in self.scenario.tidies
            return f"the error is lost: {ended}" if is_lost else self.wrong_files("success")
        expected = {"foreign": REFUSED, "short": {0}}.get(fault.kind, {STORAGE_ERROR})
        if ended.code not in expected or "error: " not in ended.stderr:
            return f"unexpected {ended}"
        return None

    def wrong_state(self, fault: Fault) -> str | None:
        """Say what is wrong with what is left after a fault."""
        if fault.kind == "foreign" and "happened" in self._log.read_text():
            if not os.path.isfile(fault.path) or Path(fault.path).read_bytes() != seam.THEIRS:
                return f"{fault.path}, which another program created, was replaced"
            os.unlink(fault.path)
        found = self.tree()
        files = self.published(found)
        if wrong := judge(files, self.new_files, self.old, torn=fault.kind == "power"):
            return wrong
        for name in self._strangers:
            if found.get(name) != self.new[name]:
                return f"{name} is of others, and was touched"
        for product in self.scenario.products:
            ended = self._run(("verify", product, "--quiet"))
            if ended.defect:
                return f"verify {product}: {ended}"
            if ended.code == 0 and not is_whole(product, files, self.new_files, self.old):
                return f"verify takes {product} for whole: {sorted(files)}"
        return None

    def wrong_files(self, what: str) -> str | None:
        other = set(self.tree().items()) ^ set(self.new.items())
        if not self.scenario.sweeps:
            other = {(name, content) for name, content in other if not name.endswith("-tmp")}
        return f"{what}: other files: {sorted(other)[:6]}" if other else None

    def _encoded(self, ended: Ended) -> int | None:
        return int(json.loads(ended.stdout)["encoded_bytes"]) if self.scenario.resumes else None

    def _lost_units(self, encoded: dict[tuple[int, int], int]) -> str | None:
        """P3: the later a run was killed, the less is left to encode."""
        points = sorted(encoded.items())
        for ((command, k), before), ((later_command, later_k), after) in itertools.combinations(points, 2):
            is_much_later = command == later_command and later_k - k > len(self.calls[command]) / 3
            if after <= before and (after < before or after == 0 or not is_much_later):
                continue
            return f"bytes of finished units were encoded again: {dict(sorted(encoded.items()))}"
        return None

    def child(self, command: Command, fault: Fault | None) -> Ended:
        def before() -> None:
            if fault and fault.kind == "short":
                os.environ["TOKSHARD_SHORT"] = ""
                short = importlib.import_module("faults.short_counts.sitecustomize")
                short._install(short.LENGTHS[fault.path])
            elif fault and fault.kind == "limit":
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (fault.k, fault.k))
            elif fault and fault.kind != "disk":
                seam.install(fault, self._log)
            self._break()

        return children.run(command, self.round, before)

    def _run(self, command: Command) -> Ended:
        return children.run(command, self.round)

    def _break(self) -> None:
        if self._control:
            module, _, function = self._control.partition(":")
            control: Callable[[list[str]], None] = getattr(
                importlib.import_module(f"faults.{module}"), function
            )
            control(self.finals)


def said(ended: Ended) -> str:
    """Return what a command printed, without times and rates."""
    return _VARIABLE.sub("...", ended.stdout)
