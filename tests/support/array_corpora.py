"""A small corpus of every kind of input, and what a run of one process makes of it."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.tokenize_runs import TOKENIZER, run_array_task, run_finish, run_tokenize
from tokshard import ArrayTask
from tokshard.text.tokenize.report import ArrayTaskReport, TokenizeReport

UNIT_BYTES = 2000
OPTIONS: dict[str, Any] = {"tokenizer": TOKENIZER, "unit_size": UNIT_BYTES}
WORDS = [
    "the",
    "a",
    "rank",
    "reads",
    "one",
    "sample",
    "of",
    "each",
    "batch",
    "and",
    "never",
    "two",
    "while",
    "losses",
    "fall",
]


def records(seed: int, size_bytes: int) -> list[dict[str, str]]:
    """Return records of about so many bytes as JSON lines, some longer than a unit."""
    chance = random.Random(seed)
    found: list[dict[str, str]] = []
    size = 0
    while size < size_bytes:
        words = chance.choices(WORDS, k=chance.choice([1, 5, 20, 60, 700 if len(found) % 9 == 8 else 9]))
        found.append({"text": " ".join(words), "title": words[0]})
        size += len(json.dumps(found[-1])) + 1
    return found


def lines(seed: int, size_bytes: int) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records(seed, size_bytes))


def write_corpus(directory: Path) -> list[str]:
    """Write plain files, compressed ones and a table; return their names, which are relative."""
    (directory / "a.jsonl").write_bytes(lines(1, 23_000))
    (directory / "b.jsonl.gz").write_bytes(gzip.compress(lines(2, 17_000), mtime=0))
    table = records(3, 9_000)
    columns = {name: [record[name] for record in table] for name in ("text", "title")}
    pq.write_table(pa.table(columns), directory / "c.parquet", row_group_size=8)
    (directory / "d.jsonl").write_bytes(lines(4, 300))
    (directory / "e.jsonl.gz").write_bytes(gzip.compress(lines(5, 200), mtime=0))
    (directory / "f.jsonl").write_bytes(b"")
    return ["a.jsonl", "b.jsonl.gz", "c.parquet", "d.jsonl", "e.jsonl.gz", "f.jsonl"]


def content(prefix: str | Path) -> dict[str, bytes]:
    """Return all files of an output."""
    sidecars = Path(f"{prefix}.tokshard")
    paths = [Path(f"{prefix}.bin"), Path(f"{prefix}.idx"), *sorted(sidecars.iterdir())]
    return {path.name.removeprefix(Path(prefix).name): path.read_bytes() for path in paths if path.is_file()}


def expected(inputs: list[str], prefix: str = "local", **options: Any) -> dict[str, bytes]:
    """Return what one process makes."""
    run_tokenize(inputs, prefix, **{**OPTIONS, **options})
    return content(prefix)


def run_task(inputs: list[str], index: int, count: int, prefix: str = "x", **options: Any) -> ArrayTaskReport:
    return run_array_task(inputs, prefix, task=ArrayTask(index, count), **{**OPTIONS, **options})


def run_tasks(inputs: list[str], count: int, prefix: str = "x", **options: Any) -> list[ArrayTaskReport]:
    return [run_task(inputs, index, count, prefix, **options) for index in range(count)]


def finish(inputs: list[str], prefix: str = "x", **options: Any) -> TokenizeReport:
    return run_finish(inputs, prefix, **{**OPTIONS, **options})
