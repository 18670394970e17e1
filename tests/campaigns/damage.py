"""Damaged inputs and products: only errors of tokshard, and no wrong answer.

A case is FILE:WAY:NUMBER. A file is flipped, cut, overwritten or changed as JSON, and commands that read it
run in turn. ``verify`` must report every change of a product. Unfinished work is damaged by ``crashes``.
"""

from __future__ import annotations

import json
import os
import random
import resource
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from campaigns.tally import Place, Result
from faults import children
from faults.campaign import Row
from faults.children import Ended
from faults.damage import CONTENTS, damage
from faults.scenarios import READERS, SCENARIOS, make_world

_CODES = {0, 1, 3, 6, 7}
_MEMORY_BYTES = 8 << 30
_VERIFIED = {
    "web": (),
    "code": (),
    "mix": ("--recursive",),
    "plan": ("--recursive",),
    "plan2": ("--recursive",),
}
_OF_DATASETS = (
    *("inspect a dataset", "inspect a document", "merge", "build-indices", "trace a line"),
    "IndexedDataset",
)
_OF_BLENDS = ("inspect a blend", "blend", "shard-plan", "RankLoader", "trace a step")
_OF_PLANS = ("inspect a plan", "replan", "trace a step", "trace a line", "RankLoader", "diff plans")
_OF_INPUTS = {
    "a.jsonl": ("tokenize",),
    "b.jsonl": ("tokenize", "trace a step"),
    "a.jsonl.gz": ("tokenize gz",),
    "tokenizer.json": ("inspect a document",),
}


class DamageCampaign:
    """The cases, on inputs and products that it makes."""

    def __init__(self, place: Place) -> None:
        children.load()
        make_world(place.directory)
        self._world = place.directory
        self._row = cache(lambda name: Row(name, self._world))
        self._blind = False
        self._files = [
            path.relative_to(self._world)
            for folder in (*(f"made/{name}*" for name in _VERIFIED), *(f"in/{name}" for name in _OF_INPUTS))
            for top in sorted(self._world.glob(folder))
            for path in ([top] if top.is_file() else sorted(top.rglob("*")))
            if path.is_file() and path.stat().st_size and path.name != "lock"
        ]

    def cases(self, seed: int, worker: int, workers: int) -> Iterator[str]:
        chance = random.Random(f"{seed} damage")
        ways = list(CONTENTS)
        number = 0
        while True:
            for file in chance.sample(self._files, len(self._files)):
                if number % workers == worker:
                    yield f"{file}:{ways[number % len(ways)]}:{seed}.{number}"
                number += 1

    def run(self, case: str) -> Result:
        file, way, seed = case.split(":")
        path = self._world / file
        content, stat = path.read_bytes(), path.stat()
        chance = random.Random(case)
        command = chance.choice(_commands_for(Path(file)))
        if command in SCENARIOS:
            self._row(command)  # made of undamaged files
        try:
            if not damage(path, way, seed):
                return Result("unchanged", 0)
            if _same_json(path.read_bytes(), content):
                return Result("the same JSON", 0)
            return self._used(Path(file), way, command)
        finally:
            path.write_bytes(content)
            # The manifests of later commands have the time of their inputs.
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def controls(self) -> Iterator[tuple[str, str | None]]:
        self._blind = True
        caught = any(self.run(f"made/web.bin:flip:control.{number}").failure for number in range(3))
        self._blind = False
        yield "positive: verify reads no data", None if caught else "was not caught"
        ended = self._verify("web")
        yield "negative: an undamaged dataset", None if ended.code == 0 else str(ended)

    def _verify(self, product: str) -> Ended:
        more = ("--level", "structure") if self._blind else ()
        command = ("verify", f"../made/{product}", *_VERIFIED[product], *more, "--quiet")
        return children.run(command, self._world / "round", _limit_memory)

    def _used(self, file: Path, way: str, name: str) -> Result:
        """Run commands that read a damaged file."""
        outcomes: Counter[str] = Counter()
        if file.parts[0] == "made":
            product = file.parts[1].partition(".")[0]
            ended = self._verify(product)
            # The counts that are recorded beside an index are not sealed.
            is_blind = ended.code == 0 and not file.name.endswith("-tokshard.json")
            if wrong := _wrong(ended) or ("found nothing" if is_blind else None):
                return Result("wrong", failure=f"verify {product}: {wrong}")
            outcomes[f"exit code {ended.code}"] += 1
        if name in READERS:
            ended = children.run(READERS[name], self._world / "round", _limit_memory)
            wrong = _wrong(ended)
        else:
            row = self._row(name)
            row.fresh()
            ended = children.run(row.scenario.commands[0], row.round, _limit_memory)
            wrong = _wrong(ended)
            if not wrong and ended.code == 0 and file.suffix == ".gz" and way in {"flip", "cut", "block"}:
                # The checksum of gzip covers all but some bytes of its header.
                names = ("out/x.bin", "out/x.idx", "out/x.tokshard/rejected.jsonl")
                changed = [path for path in names if row.tree().get(path) != row.new[path]]
                wrong = "other tokens" if names[0] in changed and len(changed) < len(names) else None
        outcomes[f"exit code {ended.code}"] += 1
        return Result("", failure=wrong and f"{name}: {wrong}", counts=outcomes)


def _commands_for(file: Path) -> tuple[str, ...]:
    if file.parts[0] == "in":
        return _OF_INPUTS[file.name]
    product = file.parts[1].partition(".")[0]
    return {"mix": _OF_BLENDS, "plan": _OF_PLANS, "plan2": ("diff plans",)}.get(product, _OF_DATASETS)


def _wrong(ended: Ended) -> str | None:
    if ended.defect or ended.code not in _CODES:
        return f"unexpected {ended}"
    return f"no message, {ended}" if ended.code not in {0, 1} and "error: " not in ended.stderr else None


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
