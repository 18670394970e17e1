"""The blend of docs/consumers.md: its blocks of code, run with stops, and its samples by brute force."""

from __future__ import annotations

import gzip
import importlib.metadata
import itertools
import json
import math
import os
import re
import shlex
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from support import slow_samplers
from support.blends import greedy
from support.command_line import SAMPLE, tokshard
from support.hub_server import hub_server, parquet_of
from support.index_twins import slow_document_index, slow_epochs, slow_shuffle_index, slow_text

PAGE = Path(__file__).parents[2] / "docs/consumers.md"
SOURCES = {"data/stories": 0.5, "data/manuals": 0.3, "data/notes": 0.2}
SEQUENCE_LENGTH = 64
SAMPLES = 240
SEED = 1234
RANKS, MICRO_BATCH_SIZE = 2, 4
STEPS = SAMPLES // (RANKS * MICRO_BATCH_SIZE)
STOPS = (4, 9, 1, None)
"""The micro-batches of four runs: three are stopped, and the last one reads to the end."""


def needed(*modules: str) -> None:
    """Skip a module of tests where a package is not installed; fail where it is required."""
    for name in modules:
        if os.environ.get("TOKSHARD_ORACLE") == "required":
            importlib.import_module(name)
        pytest.importorskip(
            name, reason=f"{name} is not installed here: scripts/test --consumers installs and tests it"
        )


def blocks(heading: str, language: str = "python") -> list[str]:
    """Return the blocks of code of a section of the page."""
    text = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert section, f"the page has no section {heading!r}"
    found = re.findall(rf"```{language}\n(.*?)```", section[1], re.DOTALL)
    assert found, f"section {heading!r} has no block of {language}"
    return found


def commands(block: str) -> list[str]:
    """Return the commands of a block of sh, or those that follow a prompt in a block of console output."""
    found = re.findall(r"^\$ (.*(?:(?<=\\)\n.*)*)", block, re.MULTILINE)
    return found or re.findall(r"^.+(?:(?<=\\)\n.*)*", block, re.MULTILINE)


def run(command: str, cwd: Path) -> str:
    """Run a command; return its output."""
    program, *words = shlex.split(command.replace("\\\n", " "))
    assert program == "tokshard"
    done = tokshard(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stderr + done.stdout


def files_of_the_dataset() -> dict[str, bytes | str]:
    """Return a small dataset: two shards of Parquet, a compressed and a plain file."""
    stories, manuals = (
        (SAMPLE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        for name in ("stories", "manuals")
    )
    files: dict[str, bytes | str] = {
        "manuals/part-0.jsonl.gz": gzip.compress("".join(manuals[:25]).encode(), mtime=0),
        "notes.jsonl": "".join(stories[100:110]),
    }
    for shard, lines in enumerate((stories[:40], stories[40:60])):
        texts = [json.loads(line)["text"] for line in lines]
        files[f"stories/train-{shard:05}-of-00002.parquet"] = parquet_of(texts)
    return files


def prepare(directory: Path) -> str:
    """Run the commands of the page, with a stand-in for the Hub; return them with their output."""
    (directory / "tokenizer.json").symlink_to(SAMPLE / "tokenizer.json")
    with hub_server(directory / "home") as hub:
        hub.dataset("example/library", files_of_the_dataset())
        transcript = ""
        for command in commands(blocks("Prepare", "console")[0]):
            installed = command.replace("--megatron 0.19", f"--megatron {megatron_version()}")
            transcript += f"$ {command}\n{run(installed, directory)}"
        return transcript


def megatron_version() -> str:
    """Return the installed release of Megatron Core, or that of the page."""
    try:
        return ".".join(importlib.metadata.version("megatron-core").split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        return "0.19"


# The samples, from the definitions of the formats and of Megatron's indexes: no code of tokshard runs here.


def read_documents(prefix: Path) -> list[list[int]]:
    """Return the tokens of all sequences of a dataset of uint16: its documents that are not empty."""
    index = Path(f"{prefix}.idx").read_bytes()
    magic, version, code, sequences = struct.unpack_from("<9sQBQ", index)
    assert (magic, version, code) == (b"MMIDIDX\x00\x00", 1, 8)
    lengths = np.frombuffer(index, "<i4", sequences, 34).tolist()
    tokens = np.frombuffer(Path(f"{prefix}.bin").read_bytes(), "<u2").tolist()
    rest = iter(tokens)
    return [list(itertools.islice(rest, length)) for length in lengths]


def samples_of(documents: list[list[int]], count: int) -> list[list[int]]:
    """Return the samples of one dataset in the order in which Megatron reads them."""
    per_epoch = sum(map(len, documents))
    epochs = slow_epochs(per_epoch, count, SEQUENCE_LENGTH, 1)
    total = (epochs * per_epoch - 1) // SEQUENCE_LENGTH
    whole = ((epochs - 1) * per_epoch - 1) // SEQUENCE_LENGTH
    separate = epochs > 1 and count - whole < int(0.8 * ((per_epoch - 1) // SEQUENCE_LENGTH))
    random = np.random.RandomState(SEED)
    order = slow_document_index(range(len(documents)), epochs, random, separate=separate)
    shuffled = slow_shuffle_index(total, random, whole if separate else total)
    stream = [token for number in order for token in documents[number]]
    return [slow_text(stream, sample, SEQUENCE_LENGTH, 1, -1) for sample in shuffled]


def samples_of_the_blend(directory: Path) -> list[list[int]]:
    """Return the samples of the blend: 64 tokens and the last label each."""
    drawn = [math.ceil(SAMPLES * weight) for weight in SOURCES.values()]
    parts = [
        samples_of(read_documents(directory / prefix), math.ceil(count * 1.005))
        for prefix, count in zip(SOURCES, drawn, strict=True)
    ]
    order, numbers = greedy(list(SOURCES.values()), sum(drawn))
    return [parts[source][number] for source, number in zip(order, numbers, strict=True)]


def batches_of_a_rank(samples: list[list[int]], rank: int) -> list[np.ndarray]:
    """Return the micro-batches that Megatron's sampler gives a rank, with the last label of each sample."""
    numbers = slow_samplers.single_sampler(len(samples), 0, MICRO_BATCH_SIZE, rank, RANKS)
    return [np.array([samples[number] for number in batch]) for batch in numbers]


# Training with stops.


class Stopped(BaseException):
    """The process is gone."""


class Trained:
    """A training step for the blocks of the page, which records what it gets, and stops the run.

    A stop comes with the next micro-batch in the hands of the trainer: it has been read and not been trained.
    """

    def __init__(self, stop: int | None, then: Callable[..., None] | None = None) -> None:
        self.batches: list[np.ndarray] = []
        self.stop = stop
        self.then = then

    def __call__(self, batch: dict, *arguments: object) -> None:
        if len(self.batches) == self.stop:
            raise Stopped
        if self.then is not None:
            self.then(batch, *arguments)
        self.batches.append(content(batch))


def content(batch: dict) -> np.ndarray:
    """Return a copy of the tokens of a micro-batch, with the last labels if there are labels."""
    if "input_ids" in batch:
        return np.asarray(batch["input_ids"]).copy()
    tokens, labels = (np.asarray(batch[name]) for name in ("tokens", "labels"))
    assert np.array_equal(tokens[:, 1:], labels[:, :-1])
    return np.concatenate([tokens, labels[:, -1:]], axis=1)


def trained(
    code: str, stop: int | None = None, then: Callable[..., None] | None = None, **names: object
) -> list[np.ndarray]:
    """Run a block of the page, as a new process would; return the micro-batches that it trained on."""
    step = Trained(stop, then)
    try:
        exec(compile(code, str(PAGE), "exec"), {"__name__": "page", "train_step": step, **names})
    except Stopped:
        assert stop is not None
    return step.batches


def check(runs: Iterable[list[np.ndarray]], expected: list[np.ndarray]) -> None:
    """Compare what all runs trained on with the micro-batches of a rank: none is lost, none is repeated."""
    found = [batch for batches in runs for batch in batches]
    assert len(found) == len(expected)
    for number, (batch, right) in enumerate(zip(found, expected, strict=True)):
        assert np.array_equal(batch, right), f"micro-batch {number}"
