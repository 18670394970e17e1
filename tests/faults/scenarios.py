"""The table of the crash campaign: commands, what is there before they start, and what they make.

A row knows the command line and the Python API of tokshard, and nothing of how they work. Paths are
relative to the directory of a round, in a world (:func:`make_world`) with inputs in ``../in`` and products
in ``../made``.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faults.children import Command, run_all

SAMPLE_DATA = Path(__file__).parents[2] / "sample_data"


@dataclass(frozen=True)
class Attempt:
    """A command of the past: it ended by itself, or it was killed after a share of its storage calls."""

    command: Command
    code: int = 0
    killed_after: float = 0.0


Step = Attempt | Callable[[], object]
"""A step to the start of a row: an attempt, or a function that makes or changes files of the user."""


@dataclass(frozen=True)
class Scenario:
    """A row of the table.

    Attributes:
        commands: The commands, one after the other; each of their storage calls is disturbed.
        products: The paths that ``verify`` checks.
        start: What happened before. A clean run starts after the user's steps alone.
        resumes: Whether the last command uses finished units, and prints as JSON how much it encoded (P3).
        without: The kinds of faults that the row leaves out, with the reason in a comment.
        share: Points per kind of fault, relative to other rows: fewer for slow commands.
        tidies: Calls that may fail without an error: they remove directories that may be empty.
        sweeps: Whether the command removes what a killed one has left.
    """

    commands: tuple[Command, ...]
    products: tuple[str, ...] = ("out/x",)
    start: tuple[Step, ...] = ()
    resumes: bool = False
    without: tuple[str, ...] = ()
    share: float = 1.0
    sweeps: bool = True
    tidies: tuple[str, ...] = ()


def words(text: str, *more: str) -> tuple[str, ...]:
    return (*text.split(), *more)


# Inputs and products that are only read.


def records(name: str, count: int) -> list[bytes]:
    rows = [{"text": f"{name}{i} " + "word " * (i % 13), "title": f"t{i}"} for i in range(count)]
    return [json.dumps(row).encode() for row in rows]


def write_lines(path: str | Path, lines: list[bytes]) -> None:
    """Write an input; its time, which is recorded, depends on nothing but the number of lines."""
    content = b"".join(line + b"\n" for line in lines)
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_bytes(gzip.compress(content, mtime=0) if str(path).endswith(".gz") else content)
    os.utime(path, (len(lines), len(lines)))


def make_world(directory: Path) -> None:
    """Make the inputs and products of all rows in an empty directory."""
    a = [*records("a", 24), b'{"text": null, "title": "none"}', b'{"text": "", "title": ""}']
    inputs = {"a.jsonl": a, "a.jsonl.gz": a, "b.jsonl": records("b", 30), "c.jsonl": records("c", 40)}
    for name, lines in inputs.items():
        write_lines(directory / "in" / name, lines)
    write_lines(directory / "in" / "many.jsonl", records("m", 300))
    write_lines(directory / "in" / "large.jsonl", [*records("large", 100), *records("l", 1)] * 800)
    shutil.copy(SAMPLE_DATA / "tokenizer.json", directory / "in")
    (directory / "in" / "launch.sh").write_text(_LAUNCH)
    (directory / "round").mkdir()
    bpe = "--tokenizer ../in/tokenizer.json --quiet"
    commands = [
        words(f"tokenize ../in/b.jsonl -o ../made/web {bpe}"),
        words(f"tokenize ../in/c.jsonl -o ../made/code {bpe}"),
        words(f"{BLEND} -o ../made/mix"),
        words("shard-plan ../made/mix --world-size 4 --global-batch-size 8 -o ../made/plan --quiet"),
        words("shard-plan ../made/mix --world-size 2 --global-batch-size 8 -o ../made/plan2 --quiet"),
        words(f"export ../made/web {EXPORTS['nanogpt']} -o ../made/nanogpt"),
        words(f"export ../made/web {EXPORTS['olmo']} -o ../made/olmo"),
        words(f"export ../made/web {EXPORTS['datatrove']} -o ../made/datatrove"),
    ]
    run_all(commands, directory / "round")
    for suffix in ("bin", "idx"):
        shutil.copy2(directory / f"made/code.{suffix}", directory / f"made/bare.{suffix}")


_LAUNCH = (
    "torchrun pretrain_gpt.py --data-path 0.7 ../made/web 0.3 ../made/code --split 90,10,0 --seq-length 32 "
    "--train-iters 6 --global-batch-size 10 --eval-iters 0 --data-cache-path ../made/mix/cache "
    "--tokenizer-type NullTokenizer --vocab-size 5000\n"
)
SAMPLES = "--seq-length 32 --num-samples 60,8,0 --split 90,10,0 --quiet"
BLEND = f"blend 0.7 ../made/web 0.3 ../made/code {SAMPLES}"
EXPORTS = {
    "olmo": "--to olmo --shard-tokens 200 --quiet",
    "nanogpt": "--to nanogpt --shard-tokens 150 --quiet",
    "datatrove": "--to datatrove --shard-tokens 180 --quiet",
    "parquet": "--to parquet --samples --shard-tokens 300 --quiet",
}


# What does not hold yet: the failures whose texts have these parts, and why.
PENDING: dict[str, str] = {}

# Steps of users, in the directory of a round.


def copy_inputs(**lines: list[bytes]) -> Callable[[], None]:
    """Write inputs that are changed later."""

    def step() -> None:
        for name, content in lines.items():
            write_lines(f"in/{name}.jsonl", content)

    return step


def touch(path: str) -> Callable[[], None]:
    return lambda: os.utime(path, (10**6, 10**6))


def copy_of(source: str, target: str) -> Callable[[], None]:
    """Copy a dataset without its manifest."""

    def step() -> None:
        Path(target).parent.mkdir(exist_ok=True)
        for suffix in (".bin", ".idx"):
            shutil.copy2(source + suffix, target + suffix)

    return step


def remove(path: str) -> Callable[[], None]:
    return lambda: os.unlink(path)


def build_dataset() -> None:
    """Write a dataset with the builder."""
    import numpy as np

    import tokshard

    os.makedirs("out", exist_ok=True)
    with tokshard.IndexedDatasetBuilder("out/x.bin", dtype=np.uint16) as builder:
        for number in range(40):
            builder.add_document(np.arange(number * 20) % 5000, [number * 20])
        builder.finalize("out/x.idx")


UNITS = "--unit-size 512 --on-error skip"
PLAIN = f"tokenize ../in/a.jsonl ../in/b.jsonl -o out/x {UNITS} --quiet"
OLDER = Attempt(words(f"tokenize ../in/b.jsonl -o out/x {UNITS} --quiet"))
BAD = b'{"text": 7}'
# A run of these inputs ends at the last record.
BROKEN = copy_inputs(a=records("a", 24), b=[*records("b", 20), BAD])
STRICT = "--unit-size 512 --workers 1 --json"
FAILED = Attempt(words(f"tokenize in/a.jsonl in/b.jsonl -o out/x {STRICT}"), code=3)
FIXED = copy_inputs(b=records("b", 20))
HALF = Attempt(words(f"tokenize in/a.jsonl in/b.jsonl -o out/x {STRICT}"), killed_after=0.6)
BOTH = words(f"tokenize in/a.jsonl in/b.jsonl -o out/x {STRICT}")
ARRAY = f"tokenize ../in/a.jsonl ../in/a.jsonl.gz ../in/b.jsonl -o out/x {UNITS} --quiet"
MERGE = "merge ../made/web ../made/bare ../made/code -o out/x --allow-tokenizer-mismatch --quiet"
PLAN = "shard-plan ../made/mix --world-size 4 --global-batch-size 8 -o out/plan --quiet"
REPLAN = "replan ../made/plan --consumed-samples 16 -o out/plan --quiet"
CONVERT = "-o out/x --quiet"


def read_plan() -> None:
    """Print what all ranks of a plan read."""
    from tokshard.loader import RankLoader

    for rank in range(4):
        digest = hashlib.sha256()
        loader = RankLoader.open("../made/plan", rank=rank)
        for step in range(3):
            batch = loader.batch(step)
            digest.update(batch["tokens"].tobytes() + batch["labels"].tobytes())
        print(rank, digest.hexdigest())


def read_dataset(*, mmap: bool) -> None:
    """Print the digest of the tokens of a dataset."""
    import tokshard

    dataset = tokshard.IndexedDataset("../made/web", mmap=mmap)
    tokens = [dataset.document_tokens(number).tobytes() for number in range(dataset.document_count)]
    print(hashlib.sha256(b"".join(tokens)).hexdigest())


READERS: dict[str, Command] = {
    "verify a dataset": words("verify ../made/web --level deep"),
    "verify a plan": words("verify ../made/plan --recursive"),
    "inspect a dataset": words("inspect ../made/web"),
    "inspect a document": words("inspect ../made/web --document 7"),
    "inspect a blend": words("inspect ../made/mix"),
    "inspect a plan": words("inspect ../made/plan"),
    "trace a step": words("trace ../made/plan --step 2"),
    "trace a line": words("trace ../made/plan ../in/b.jsonl:3"),
    "diff plans": words("diff ../made/plan ../made/plan2"),
    "doctor": words("doctor ../in/launch.sh"),
    "RankLoader": read_plan,
    "IndexedDataset": functools.partial(read_dataset, mmap=True),
    "IndexedDataset without mmap": functools.partial(read_dataset, mmap=False),
}


def fields(*names: str) -> tuple[str, ...]:
    return tuple(f"out/x_{name}" for name in names)


# An entry of a cache is made anew if its description is not there, whatever else is.
CACHE = {"products": ("out/cache",), "without": ("foreign",)}
TIDIES = ("remove_directory",)
SCENARIOS = {
    "tokenize": Scenario((words(PLAIN),)),
    "tokenize gz": Scenario((words(f"tokenize ../in/a.jsonl.gz ../in/b.jsonl -o out/x {UNITS} --quiet"),)),
    "tokenize --field twice": Scenario(
        (words(f"tokenize ../in/a.jsonl -o out/x {UNITS} --quiet --field text --field title"),),
        fields("text_document", "title_document"),
    ),
    "tokenize --holdout": Scenario(
        (words(f"{PLAIN} --holdout 40% --sample 80% --limit 17"),), fields("train", "valid")
    ),
    "tokenize many units": Scenario(
        (words("tokenize ../in/many.jsonl -o out/x --unit-size 64 --workers 1 --json"),),
        resumes=True,
        share=0.7,
    ),
    "tokenize --workers 2": Scenario(
        (words("tokenize ../in/large.jsonl -o out/x --unit-size 2MiB --workers 2 --quiet"),),
        share=0.2,
        without=("cut", "EIO", "foreign", "short", "limit", "disk"),  # as without workers, at 2 s a point
    ),
    "tokenize --force": Scenario((words(f"{PLAIN} --force"),), start=(OLDER,)),
    "tokenize again": Scenario(
        (BOTH,), start=(copy_inputs(a=records("a", 24), b=records("b", 20)), HALF), resumes=True
    ),
    "tokenize, input fixed": Scenario((BOTH,), start=(BROKEN, FAILED, FIXED), resumes=True),
    "tokenize, input added": Scenario(
        (words(f"tokenize in/a.jsonl in/c.jsonl in/b.jsonl -o out/x {STRICT}"),),
        start=(BROKEN, FAILED, FIXED, copy_inputs(c=records("c", 12))),
    ),
    "tokenize, input touched": Scenario((BOTH,), start=(BROKEN, FAILED, FIXED, touch("in/a.jsonl"))),
    "tokenize, input removed": Scenario(
        (words(f"tokenize in/a.jsonl -o out/x {STRICT}"),), start=(BROKEN, FAILED, remove("in/b.jsonl"))
    ),
    "tokenize, options changed": Scenario(
        ((*BOTH, "--no-append-eod", "--force"),),
        start=(BROKEN, FAILED, FIXED, Attempt((*BOTH, "--no-append-eod"), code=4)),
        without=("foreign",),
    ),
    "tokenize --no-resume": Scenario(((*BOTH, "--no-resume"),), start=(BROKEN, FAILED, FIXED)),
    "tokenize --array-task": Scenario(
        (
            *(words(f"{ARRAY} --array-task {task}/3") for task in (2, 0, 1)),
            words(f"{ARRAY} --finish"),
        ),
        share=0.7,
    ),
    "merge": Scenario((words(MERGE),)),
    "merge --force": Scenario((words(f"{MERGE} --force"),), start=(OLDER,)),
    "merge --shuffle": Scenario((words(f"{MERGE} --shuffle 7"),)),
    "merge killed": Scenario((words(MERGE),), start=(Attempt(words(MERGE), killed_after=0.5),)),
    **{
        f"export --to {to}": Scenario((words(f"export ../made/web {options} -o out/x"),), tidies=TIDIES)
        for to, options in EXPORTS.items()
        if to != "parquet"
    },
    "export --samples": Scenario(
        (words(f"export ../made/mix {EXPORTS['parquet']} -o out/x"),), tidies=TIDIES
    ),
    "export --force": Scenario(
        (words(f"export ../made/web {EXPORTS['olmo']} -o out/x --force"),),
        tidies=TIDIES,
        start=(Attempt(words("export ../made/web --to olmo --shard-tokens 90 --quiet -o out/x")),),
    ),
    "convert nanogpt": Scenario((words(f"convert ../made/nanogpt --from nanogpt --split all {CONVERT}"),)),
    "convert olmo": Scenario((words(f"convert ../made/olmo --from olmo {CONVERT}"),)),
    "convert datatrove": Scenario((words(f"convert ../made/datatrove --from datatrove {CONVERT}"),)),
    "convert --force": Scenario(
        (words(f"convert ../made/datatrove --from datatrove {CONVERT} --force"),), start=(OLDER,)
    ),
    "build-indices": Scenario(
        (words(f"build-indices ../made/web {SAMPLES} --cache-dir out/cache"),), **CACHE
    ),
    "build-indices --pack": Scenario(
        (words(f"build-indices ../made/web {SAMPLES} --pack best-fit --cache-dir out/cache"),), **CACHE
    ),
    "blend": Scenario((words(f"{BLEND} -o out/mix"),), ("out/mix",)),
    "shard-plan": Scenario((words(PLAN),), ("out/plan",)),
    "shard-plan --force": Scenario(
        (words(f"{PLAN} --force"),),
        ("out/plan",),
        start=(
            Attempt(words("shard-plan ../made/mix --world-size 8 --global-batch-size 8 -o out/plan --quiet")),
        ),
    ),
    "replan": Scenario(
        (words(f"{REPLAN} --world-size 2 --global-batch-size 8"),),
        ("out/plan",),
    ),
    "replan --blend": Scenario(
        (
            words(
                f"{REPLAN} --world-size 4",
                *("--blend", "0.2 ../made/web 0.8 ../made/code"),
            ),
        ),
        ("out/plan",),
    ),
    "verify --adopt": Scenario(
        (words("verify out/x --adopt --quiet"),), start=(copy_of("../made/bare", "out/x"),)
    ),
    "inspect --html": Scenario(
        (words("inspect ../made/web --html out/page.html --quiet"),),
        (),
        start=(lambda: os.mkdir("out"),),
        without=("foreign",),  # a page is replaced
        sweeps=False,
    ),
    "readers": Scenario(tuple(READERS.values()), (), without=("limit", "disk")),
    "IndexedDatasetBuilder": Scenario((build_dataset,), sweeps=False),
}


@functools.cache
def strangers(product: str) -> dict[str, bytes | str | None]:
    """Return files of others near a product: their content, the target of a link; None for a pipe."""
    names = [
        *("out/x.tmp", "out/x.bin~", "out/.x.bin.swp", "out/download.part", "out/lock", "out/work/0.bin"),
        *("out/.x.bin.tokshard-tmp", "out/.y.bin.4711-0.tokshard-tmp", "out/.x2.bin.4711-0.tokshard-tmp"),
        *("out/x2.tokshard/work/plan.json", "out/x2.tokshard/lock", "out/000000-000000000.part"),
    ]
    found: dict[str, bytes | str | None] = dict.fromkeys(names, b"not yours")
    found |= {
        "out/link.part": "../../in",
        "out/pipe.part": None,
        "out/.x.idx.4711-1.tokshard-tmp": "../../in",
    }
    if product == "out/x":
        inside = ("notes.txt", "notes.tmp", "x.part", "manifest.json~", "work.bak/plan.json", "parts/x.part")
        found |= {f"out/x.tokshard/{name}": b"not yours" for name in inside}
        found["out/x.tokshard/link.tmp"] = "../../../in"
    return found
