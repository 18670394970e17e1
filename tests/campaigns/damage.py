"""Damaged inputs, products and unfinished work: only errors of tokshard, and no wrong answer.

A case is FILE/WAY/NUMBER. A file is flipped, cut, overwritten or changed as JSON, and commands that read it
run in turn. ``verify`` must report every change of a product; a tokenization that continues after a crash
with a damaged plan, journal, part, stream or publication must fail, or leave the right bytes. Only the stream
of tokens, to which parts are appended, is trusted up to the last checkpoint: its digests are in the manifest.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from campaigns import forks
from campaigns.commands import COMMANDS, Command, World, said
from campaigns.faults import bad_end
from campaigns.forks import Ended
from campaigns.tally import Place, Result
from faults.campaign import Job, failing_hook

_LAST_RENAME = 12  # of 24
_CODES = {0, 1, 3, 6, 7}
_MEMORY_BYTES = 8 << 30
_VERIFY = {
    name: Command(f"verify-{name}", ("verify", f"../made/{name}", *more, "--quiet"), problems=True)
    for name, more in (("web", ()), ("code", ()), ("mix", ("--recursive",)), ("plan", ("--recursive",)))
}
_OF_DATASETS = (
    "inspect-dataset",
    "inspect-document",
    "merge",
    "build-indices",
    "trace-source",
    "reader-mmap",
)
_OF_BLENDS = ("inspect-blend", "blend", "shard-plan", "loader", "trace-step")
_OF_PLANS = ("inspect-plan", "replan", "trace-step", "trace-source", "loader", "diff")
_OF_INPUTS = {
    "a.jsonl": ("tokenize-jsonl",),
    "b.jsonl": ("tokenize-jsonl", "trace-step"),
    "a.jsonl.gz": ("tokenize-gz",),
    "a.jsonl.zst": ("tokenize-zst",),
    "a.parquet": ("tokenize-parquet",),
    "tokenizer.json": ("tokenize-bpe", "inspect-document"),
}
_TRUSTED = ("0.bin",)
_VALUES = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**64,
    1e308,
    0.5,
    "",
    "x",
    "\0",
    "../x",
    "a" * 5000,
    [],
    {},
    [[]],
    [1],
)


def _flip(chance: random.Random, content: bytes, others: list[bytes]) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 3])):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(chance: random.Random, content: bytes, others: list[bytes]) -> bytes:
    return content[: chance.choice([0, 1, len(content) - 1, chance.randrange(len(content))])]


def _block(chance: random.Random, content: bytes, others: list[bytes]) -> bytes:
    begin = chance.randrange(len(content))
    size = min(len(content) - begin, chance.randint(1, 200))
    block = chance.choice([bytes(size), chance.randbytes(size), b"\xff" * size])
    return content[:begin] + block + content[begin + size :]


def _moved(chance: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Swap, repeat or remove a part."""
    one, two = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    first, middle, last = content[:one], content[one:two], content[two:]
    return chance.choice([middle + first + last, first + middle + middle + last, first + last])


def _longer(chance: random.Random, content: bytes, others: list[bytes]) -> bytes:
    return content + chance.choice(
        [bytes(chance.randint(1, 999)), chance.randbytes(50), content, b"\n", b"{}\n"]
    )


def _swapped(chance: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Take the content of another file of the same kind."""
    return chance.choice(others) if others else content[::-1]


def _json(chance: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Change a value, a key or a line of JSON; other files are overwritten in part."""
    lines = content.splitlines() if content.count(b"\n}") == 0 and content.count(b"\n") > 1 else [content]
    number = chance.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except ValueError:
        return _block(chance, content, others)
    lines[number] = json.dumps(_changed(chance, value)).encode()
    return b"\n".join(lines) + (b"\n" if content.endswith(b"\n") else b"")


def _changed(chance: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(sorted(value))
        if chance.random() < 0.15:
            return {name: member for name, member in value.items() if name != key}
        return {**value, key: _changed(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.7:
        place = chance.randrange(len(value))
        return [*value[:place], _changed(chance, value[place]), *value[place + 1 :]]
    if isinstance(value, int) and chance.random() < 0.5:
        return value + chance.choice([-1, 1])
    return chance.choice(_VALUES)


WAYS: dict[str, Callable[[random.Random, bytes, list[bytes]], bytes]] = {
    "flip": _flip,
    "cut": _cut,
    "block": _block,
    "moved": _moved,
    "longer": _longer,
    "swapped": _swapped,
    "json": _json,
}


class DamageCampaign:
    """The cases, on inputs and products that it makes."""

    def __init__(self, place: Place) -> None:
        forks.load()
        self._world = World(place.directory, place.logs)
        self._expected = cache(self._world.expect)
        self._blind = False
        self._leave_unfinished_work()
        self._files = [
            path.relative_to(place.directory)
            for folder in ("made", "in", "starts/unfinished")
            for path in sorted((place.directory / folder).rglob("*"))
            if path.is_file() and path.stat().st_size and path.name not in {"c.jsonl", "lock", *_TRUSTED}
        ]

    def cases(self, seed: int, worker: int, workers: int) -> Iterator[str]:
        chance = random.Random(f"{seed} damage")
        ways = list(WAYS)
        number = 0
        while True:
            for file in chance.sample(self._files, len(self._files)):
                if number % workers == worker:
                    yield f"{file}:{ways[number % len(ways)]}:{seed}.{number}"
                number += 1

    def run(self, case: str) -> Result:
        file, way, _ = case.split(":")
        path = self._world.directory / file
        chance = random.Random(case)
        content = path.read_bytes()
        same_kind = [
            (self._world.directory / other).read_bytes()
            for other in self._files
            if other.suffix == path.suffix and str(other) != file
        ]
        damaged = WAYS[way](chance, content, same_kind)
        if damaged == content:
            return Result("unchanged", 0)
        if _same_json(damaged, content):
            return Result("the same JSON", 0)
        stat = path.stat()
        path.write_bytes(damaged)
        try:
            return self._used(Path(file), way, chance)
        finally:
            path.write_bytes(content)
            # The manifests of later commands have the time of their inputs.
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def controls(self) -> Iterator[tuple[str, str | None]]:
        self._blind = True
        caught = any(self.run(f"made/web.bin:flip:control.{number}").failure for number in range(3))
        self._blind = False
        yield "positive: verify reads no data", None if caught else "was not caught"
        command = _VERIFY["web"]
        self._world.fresh()
        ended = command.run(self._world)
        yield "negative: an undamaged dataset", None if ended.code == 0 else ended.text

    def _leave_unfinished_work(self) -> None:
        """Keep the files of a tokenization that was killed halfway."""
        command = COMMANDS["tokenize-jsonl"]
        expected = self._expected(command)
        job = Job("", [], "", [], only=["replace"])
        self._world.fresh()
        ended = command.run(self._world, failing_hook(job, _LAST_RENAME))
        if ended.code == expected.code or not (self._world.round / "out/x.tokshard/work/parts").is_dir():
            raise RuntimeError(f"the tokenization was not killed: {ended.text}")
        shutil.copytree(self._world.round / "out", self._world.directory / "starts/unfinished")

    def _used(self, file: Path, way: str, chance: random.Random) -> Result:
        """Run commands that read a damaged file."""
        if file.parts[0] == "starts":
            return self._continued()
        verifies = file.parts[0] == "made"
        outcomes: Counter[str] = Counter()
        if verifies:
            product = file.parts[1].partition(".")[0]
            verify = _VERIFY[product] if product in _VERIFY else _VERIFY["plan"]
            if self._blind:
                verify = Command("blind", (*verify.arguments, "--level", "structure"), problems=True)
            ended = self._run(verify)
            if wrong := _wrong(ended):
                return Result("wrong", failure=f"{verify.arguments}: {wrong}")
            # The counts that are recorded beside an index are not sealed.
            if ended.code == 0 and product != "plan2" and not file.name.endswith("-tokshard.json"):
                return Result("wrong", failure=f"{verify.arguments} found nothing")
            outcomes[f"exit code {ended.code}"] += 1
        command = COMMANDS[chance.choice(_commands_for(file))]
        ended = self._run(command)
        wrong = _wrong(ended)
        if not wrong and ended.code == 0 and file.suffix == ".gz" and way in {"flip", "cut", "block"}:
            # The checksum of gzip covers all but some bytes of its header.
            found, right = self._world.tree(), self._expected(command).tree
            names = ("x.bin", "x.idx", "x.tokshard/rejected.jsonl")
            changed = [name for name in names if found.get(name) != right[name]]
            wrong = "other tokens" if "x.bin" in changed and len(changed) < len(names) else None
        outcomes[f"exit code {ended.code}"] += 1
        return Result("", failure=wrong and f"{command.name}: {wrong}", counts=outcomes)

    def _continued(self) -> Result:
        """Resume damaged work; where it is refused, begin again."""
        command = COMMANDS["tokenize-jsonl"]
        expected = self._expected(command)
        ended = self._run(command, start="unfinished")
        outcome = f"exit code {ended.code}"
        if wrong := _wrong(ended):
            return Result(outcome, failure=wrong)
        if ended.code != 0:
            again = Command("again", (*command.arguments, "--no-resume"))
            if (ended := again.run(self._world)).code != 0:
                return Result(outcome, failure=f"--no-resume after it: {ended.text}")
        if (found := self._world.tree()) != expected.tree:
            return Result(
                outcome, failure=f"other files: {sorted(set(found.items()) ^ set(expected.tree.items()))}"
            )
        right = said(ended) == expected.stdout
        return Result(outcome, failure=None if right else f"it printed {ended.stdout}")

    def _run(self, command: Command, start: str | None = None) -> Ended:
        self._world.fresh(start)
        return command.run(self._world, _limit_memory)


def _commands_for(file: Path) -> tuple[str, ...]:
    if file.parts[0] == "in":
        return _OF_INPUTS[file.name]
    product = file.parts[1].partition(".")[0]
    return {"mix": _OF_BLENDS, "plan": _OF_PLANS, "plan2": ("diff",)}.get(product, _OF_DATASETS)


def _wrong(ended: Ended) -> str | None:
    if bad := bad_end(ended):
        return bad
    if ended.code not in _CODES:
        return f"unexpected {ended.text}"
    if ended.code not in {0, 1} and "error: " not in ended.stderr:
        return f"no message, {ended.text}"
    return None


def _same_json(one: bytes, other: bytes) -> bool:
    """Tell whether files differ in nothing but spaces and the version of tokshard that wrote them."""
    try:
        values = [json.loads(content) for content in (one, other)]
    except ValueError:
        return False
    for value in values:
        if isinstance(value, dict):
            value.pop("tool", None)
    return bool(values[0] == values[1])


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


make = DamageCampaign
