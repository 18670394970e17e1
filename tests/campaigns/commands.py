"""The commands that are disturbed, their inputs, and what may be left when one of them fails."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaigns import forks
from campaigns.forks import Ended

OUTPUT = "out"
SAMPLE_DATA = Path(__file__).parents[2] / "sample_data"
Tree = dict[str, str]
"""The digests of all files of a directory by their paths in it."""


@dataclass(frozen=True)
class Command:
    """A command line.

    Attributes:
        name: How cases name it.
        arguments: After ``tokshard``; the current directory is a new one, whose ``out`` is compared.
        start: The name of an output that is there before, or None.
        action: What to do instead of the command line.
        partial: Whether it may leave out what it cannot read, if it names the reason.
        problems: Whether it may report problems of the data (exit code 1) when it cannot read them.
    """

    name: str
    arguments: tuple[str, ...] = ()
    start: str | None = None
    action: Callable[[], int] | None = None
    problems: bool = False
    partial: bool = False

    def run(self, world: World, prepare: Callable[[], object] | None = None) -> Ended:
        """Run it in the directory of the round."""
        return self.begin(world, prepare).wait()

    def begin(
        self, world: World, prepare: Callable[[], object] | None = None, gate: tuple[int, int] | None = None
    ) -> forks.Process:
        def before() -> None:
            _several_checkpoints()
            if self.name == "tokenize-pool":
                from tokshard.text.tokenize import run

                run.INLINE_BYTES = -1
            if prepare:
                prepare()

        def own() -> int:
            before()
            return _reported(self.action) if self.action else 0

        action = own if self.action else forks.tokshard(list(self.arguments), before)
        return forks.Process(action, world.round, world.next_log(), gate)


def _several_checkpoints() -> None:
    from tokshard.dataset.merge import staging
    from tokshard.text.tokenize import assembly

    assembly.CHECKPOINT_UNITS = 3
    staging.CHECKPOINT_BYTES = 700


def _reported(action: Callable[[], int]) -> int:
    """Do something with the errors of the command line."""
    import typer

    from tokshard.cli.failures import reported

    try:
        with reported():
            return action()
    except typer.Exit as end:
        return end.exit_code


def read_plan() -> int:
    """Print what all ranks of a plan read."""
    from tokshard.loader import RankLoader

    for rank in range(4):
        digest = hashlib.sha256()
        loader = RankLoader.open("../made/plan", rank=rank)
        for step in range(3):
            batch = loader.batch(step)
            digest.update(batch["tokens"].tobytes() + batch["labels"].tobytes())
        print(rank, digest.hexdigest())
    return 0


def read_dataset(*, mmap: bool) -> Callable[[], int]:
    """Print the tokens of a dataset."""

    def action() -> int:
        from tokshard.dataset.reader import IndexedDataset

        dataset = IndexedDataset("../made/web", mmap=mmap)
        for number in range(dataset.document_count):
            print(dataset.document_tokens(number).tolist())
        return 0

    return action


_TOKENIZE = ("-o", "out/x", "--unit-size", "512", "--on-error", "skip", "--quiet")
_SAMPLES = ("--seq-length", "32", "--num-samples", "60,8,0", "--split", "90,10,0", "--quiet")
_BLEND = ("blend", "0.7", "../made/web", "0.3", "../made/code", *_SAMPLES)
WRITERS = (
    Command("tokenize-jsonl", ("tokenize", "../in/a.jsonl", "../in/b.jsonl", *_TOKENIZE)),
    Command("tokenize-gz", ("tokenize", "../in/a.jsonl.gz", "../in/b.jsonl", *_TOKENIZE)),
    Command("tokenize-zst", ("tokenize", "../in/a.jsonl.zst", *_TOKENIZE)),
    Command("tokenize-parquet", ("tokenize", "../in/a.parquet", *_TOKENIZE)),
    Command("tokenize-bpe", ("tokenize", "../in/b.jsonl", *_TOKENIZE, "--tokenizer", "../in/tokenizer.json")),
    Command("tokenize-pool", ("tokenize", "../in/a.jsonl", *_TOKENIZE, "--workers", "2")),
    Command(
        "tokenize-fields", ("tokenize", "../in/b.jsonl", *_TOKENIZE, "--field", "text", "--field", "title")
    ),
    Command("tokenize-force", ("tokenize", "../in/a.jsonl", *_TOKENIZE, "--force"), start="older"),
    Command("merge", ("merge", "../made/web", "../made/code", "-o", "out/x", "--quiet")),
    Command("build-indices", ("build-indices", "../made/web", *_SAMPLES, "--cache-dir", "out/cache")),
    Command("blend", (*_BLEND, "-o", "out/mix")),
    Command("shard-plan", ("shard-plan", "../made/mix", "--world-size", "4", "-o", "out/plan", "--quiet")),
    Command(
        "replan",
        (
            *("replan", "../made/plan", "--consumed-samples", "20", "--world-size", "2"),
            *("-o", "out/plan", "--quiet"),
        ),
    ),
    Command("adopt", ("verify", "out/x", "--adopt", "--quiet"), start="foreign", problems=True),
)
READERS = (
    Command("verify-dataset", ("verify", "../made/web", "--level", "deep"), problems=True),
    Command("verify-plan", ("verify", "../made/plan", "--recursive"), problems=True),
    Command("inspect-dataset", ("inspect", "../made/web")),
    Command("inspect-document", ("inspect", "../made/web", "--document", "7")),
    Command("inspect-blend", ("inspect", "../made/mix")),
    Command("inspect-plan", ("inspect", "../made/plan"), partial=True),
    Command("trace-step", ("trace", "--plan", "../made/plan", "--step", "2")),
    Command("trace-source", ("trace", "--plan", "../made/plan", "--source", "../in/b.jsonl:3")),
    Command("diff", ("diff", "../made/plan", "../made/plan2"), problems=False),
    Command("loader", action=read_plan),
    Command("reader-mmap", action=read_dataset(mmap=True)),
    Command("reader-pread", action=read_dataset(mmap=False)),
)
COMMANDS = {command.name: command for command in (*WRITERS, *READERS)}


class World:
    """Inputs, products and the directory of a round, below one directory.

    Args:
        directory: An empty directory.
        logs: Another one, for what commands print.
    """

    def __init__(self, directory: Path, logs: Path) -> None:
        self.directory, self._logs, self._log = directory, logs, 0
        self.round = directory / "round"
        self.made = directory / "made"
        (directory / "starts").mkdir()
        _write_inputs(directory / "in")
        self._make()

    def next_log(self) -> str:
        self._log = (self._log + 1) % 100
        return str(self._logs / f"log-{self._log}")

    def fresh(self, start: str | None = None) -> None:
        """Begin a round: an empty directory, or with an output that is there before."""
        shutil.rmtree(self.round, ignore_errors=True)
        self.round.mkdir()
        if start:
            shutil.copytree(self.directory / "starts" / start, self.round / OUTPUT)

    def tree(self) -> Tree:
        """Return the files of the output; a lock file that a dead process left is no lock."""
        found = tree_of(self.round / OUTPUT)
        return {path: digest for path, digest in found.items() if not path.endswith("/lock")}

    def expect(self, command: Command) -> Expected:
        """Run a command undisturbed, twice.

        Raises:
            RuntimeError: It fails, or the results differ.
        """
        found = []
        for _ in range(2):
            self.fresh(command.start)
            old = self.tree() if command.start else None
            ended = command.run(self)
            found.append(Expected(ended.code, said(ended), self.tree(), old))
        if found[0] != found[1] or found[0].code not in {0, 1} or ended.stderr.count("Traceback"):
            raise RuntimeError(f"{command.name} without a disturbance: {ended.text} {found}")
        return found[0]

    def _make(self) -> None:
        """Make datasets, an index, a blend and plans; and the outputs that are there before some commands."""
        self.fresh()
        bpe = ("--tokenizer", "../in/tokenizer.json", "--quiet", "--on-error", "skip")
        self._do("tokenize", "../in/b.jsonl", "-o", "../made/web", *bpe)
        self._do("tokenize", "../in/c.jsonl", "-o", "../made/code", *bpe)
        self._do(*_BLEND, "-o", "../made/mix")
        self._do("shard-plan", "../made/mix", "--world-size", "4", "-o", "../made/plan", "--quiet")
        self._do("shard-plan", "../made/mix", "--world-size", "2", "-o", "../made/plan2", "--quiet")
        starts = self.directory / "starts"
        self._do("tokenize", "../in/b.jsonl", "-o", "../starts/older/x", "--quiet", "--on-error", "skip")
        (starts / "foreign").mkdir()
        for suffix in ("bin", "idx"):
            shutil.copy(self.made / f"web.{suffix}", starts / "foreign" / f"x.{suffix}")

    def _do(self, *arguments: str) -> None:
        ended = forks.run(forks.tokshard(list(arguments)), self.round, self.next_log())
        if ended.code != 0:
            raise RuntimeError(f"{arguments}: {ended.text}")


@dataclass(frozen=True)
class Expected:
    """What a command does when nothing disturbs it.

    Attributes:
        old: The files of the output before it, or None.
    """

    code: int | None
    stdout: str
    tree: Tree
    old: Tree | None


def tree_of(directory: Path) -> Tree:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def said(ended: Ended) -> str:
    """Return what a command printed, without the time that it took."""
    return re.sub(r" in [0-9.]+ s$", "", ended.stdout, flags=re.MULTILINE)


def judge(found: Tree, new: Tree, old: Tree | None) -> str | None:
    """Say what is wrong with what a failed or killed command left; None if it is absent, old or new.

    Every file has its final name only when it is whole. A manifest, the description of an index,
    ``blend.json`` or ``plan.json`` stands only beside all files that it is about; .bin and .idx are of one
    writing.
    """
    generations = [new, old or {}]
    for path, digest in found.items():
        known = [generation[path] for generation in generations if path in generation]
        if known and digest not in known:
            return f"{path} is neither the old nor the new file"
    published = {path: digest for path, digest in found.items() if any(path in one for one in generations)}
    for group in {_group_of(path) for path in new}:
        files = {path: digest for path, digest in published.items() if _group_of(path) == group}
        wholes = [
            {path: digest for path, digest in generation.items() if _group_of(path) == group}
            for generation in generations
        ]
        pair = [path for path in (f"{group}.bin", f"{group}.idx") if path in files]
        if len(pair) == 2 and not any(all(files[path] == one.get(path) for path in pair) for one in wholes):
            return f"{group}: .bin and .idx do not belong together"
        whole = any(one and {path: files.get(path) for path in one} == one for one in wholes)
        if any(path.endswith(_SEALS) for path in files) and not whole:
            return f"{group}: is sealed, and is neither the old nor the new output: {sorted(files)}"
    return None


_SEALS = ("manifest.json", "blend.json", "plan.json", "-description.txt")


def _group_of(path: str) -> str:
    """Return the name of the product that a file belongs to."""
    first = path.split("/", maxsplit=1)[0]
    if "-GPTDataset-" in path or "-BlendedDataset-" in path:  # HASH-KIND-SPLIT-NAME
        return path.rpartition("-")[0]
    return first.removesuffix(".bin").removesuffix(".idx").removesuffix(".tokshard")


def _write_inputs(directory: Path) -> None:
    directory.mkdir()
    rows = {
        name: [{"text": f"{name}{i} " + "word " * (i % 13), "title": f"t{i}"} for i in range(count)]
        for name, count in (("a", 24), ("b", 60), ("c", 40))
    }
    for name, lines in rows.items():
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (directory / "a.jsonl").open("a") as file:
        file.write('{"text": null, "title": "none"}\n{"text": "", "title": ""}\n')
    content = (directory / "a.jsonl").read_bytes()
    (directory / "a.jsonl.gz").write_bytes(gzip.compress(content, mtime=0))
    (directory / "a.jsonl.zst").write_bytes(zstd().compress(content))
    _write_parquet(directory / "a.parquet", rows["a"])
    shutil.copy(SAMPLE_DATA / "tokenizer.json", directory)


def zstd() -> Any:
    """Return the module of the standard library, or the package that brings it to earlier versions."""
    try:
        return importlib.import_module("compression.zstd")
    except ImportError:
        return importlib.import_module("backports.zstd")


def _write_parquet(path: Path, rows: list[dict[str, str]]) -> None:
    import pyarrow as pa

    pid = os.fork()  # the library starts threads
    if pid == 0:
        pa.parquet.write_table(pa.Table.from_pylist(rows), str(path), row_group_size=10)
        os._exit(0)
    os.waitpid(pid, 0)
