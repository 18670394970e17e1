"""scripts/bench packing: fill, cut documents and speed of best-fit packing.

Four tables. "fill" packs the documents of files, of all files together, and of kinds of data that are drawn
(log-normal lengths): samples against the least number that the lengths allow and against first-fit
decreasing, and the documents that the indexes cut, counted in their rows. "speed" builds an index of one
epoch, at sizes ten times apart. "peers" compares it with best-fit decreasing in Python, a document at a time,
on a sorted list of packs (sortedcontainers). "extremes" measures lengths for which packing is slow: hardly
any two are equal. Every measured run uses one core, and its kernels are loaded before. Ratios are those of
CPU times: other load of the machine hardly counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import (
    CPU,
    ELAPSED,
    PEAK,
    ROOT,
    TOKSHARD,
    Contender,
    Figure,
    Rounds,
    Session,
    parser,
    session,
    show_table,
    yardstick,
)
from packers import first_fit, least_samples
from scaledata import spread_lengths

from tokshard import IndexedDataset
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.packing import Packing

HERE = Path(__file__).parent
TABLES = ("fill", "speed", "peers", "extremes")
SIZES = (2048, 4096, 8192, 32768)
SPEED_SIZE = 4096
DOCUMENTS = 100_000_000
# Documents, and mean and spread of their tokens.
KINDS = {
    "drawn short texts": (1_000_000, 100, 1.0),
    "drawn web pages": (1_000_000, 1000, 1.2),
    "drawn code": (300_000, 2000, 1.5),
    "drawn books": (10_000, 100_000, 1.0),
}
EXTREME_SIZES = (1 << 12, 1 << 17, 1 << 20)

SAMPLES = Figure("samples", lambda run: run["samples"])
RUNS = Figure("runs", lambda run: run["runs"])
CPU_SECONDS = Figure("CPU s", lambda run: run["cpu_seconds"], "lower")
EACH = Figure("CPU ns per document", lambda run: run["cpu_seconds"] / run["work"] * 1e9)
PACKS = Figure("of it packs, CPU s", lambda run: run["plan_cpu_seconds"])
RATE = Figure("M documents per CPU s", lambda run: run["work"] / run["cpu_seconds"] / 1e6, "higher")


def tokenized(inputs: list[Path], tokenizer: str, directory: Path) -> dict[str, np.ndarray]:
    """Return the lengths of the documents of each file, and of all together."""
    found = {}
    for path in map(Path, inputs):
        name = path.name.split(".")[0]
        prefix = directory / name
        command = [*TOKSHARD, "tokenize", str(path), "-o", str(prefix), "--tokenizer", tokenizer, "--quiet"]
        subprocess.run(command, check=True)
        found[name] = np.array(IndexedDataset(prefix).sequence_lengths)
    return found | {"all files": np.concatenate(list(found.values()))}


def cut(index: GPTDatasetIndex, lengths: np.ndarray) -> tuple[int, int]:
    """Return how many documents lie in several samples or are not read whole, and their tokens."""
    rows = index.sample_index[1:]
    documents = index.document_index[np.unique(rows[rows[:, 1] > 0, 0])]
    return len(documents), int(lengths[documents].sum(dtype=np.int64))


def fill(data: dict[str, np.ndarray], sizes: list[int]) -> None:
    """Print samples, fill and cut documents of each data at each sequence length."""
    header = (
        "data", "sequence length", "samples", "least possible", "first-fit decreasing", "fill",
        "highest possible", "cut by concat: documents, tokens", "cut by best-fit: documents, tokens",
    )  # fmt: skip
    rows = []
    for name, lengths in data.items():
        tokens = int(lengths.sum(dtype=np.int64))
        for size in sizes:
            concat, packed = (
                GPTDatasetIndex.build(
                    lengths,
                    range(len(lengths)),
                    sequence_length=size,
                    seed=1,
                    num_samples=None,
                    packing=packing,
                )
                for packing in (None, Packing())
            )
            cuts = [cut(index, lengths) for index in (concat, packed)]
            if cuts[1][0] != (lengths > size).sum():
                sys.exit(f"{name}, {size}: best-fit packing cuts a document that fits into a sample")
            least = least_samples(lengths, size)
            rows.append(
                [
                    name,
                    *(f"{number:,}" for number in (size, len(packed), least, first_fit(lengths, size))),
                    *(f"{tokens / (samples * size):.2%}" for samples in (len(packed), least)),
                    *(f"{count / len(lengths):.1%}, {inside / tokens:.1%}" for count, inside in cuts),
                ]
            )
    show_table(header, rows)


def packer(
    bench: Session, lengths: np.ndarray, size: int, name: str, row: str = "", **options: int
) -> Contender:
    """Return a packer of documents of these lengths, named as its row."""
    path = bench.directory / f"{len([*bench.directory.iterdir()])}.npy"
    np.save(path, lengths)
    command = [sys.executable, str(HERE / "packers.py"), name, str(path), str(size), json.dumps(options)]
    return Contender(row or name, command, len(lengths), is_peer=name != "tokshard")


def speed(bench: Session, largest: int) -> None:
    """Print what an index of an epoch costs at three sizes."""
    base, counts = yardstick(), (largest // 100, largest // 10, largest)
    packers = [packer(bench, spread_lengths(n), SPEED_SIZE, "tokshard", f"{n:,} documents") for n in counts]
    figures = [CPU_SECONDS, EACH, PACKS, ELAPSED, PEAK, SAMPLES]
    bench.compare([base, *packers], title="speed", base=base.name, figures=figures)


def peers(bench: Session, count: int) -> None:
    """Print the speed of two packers on the same documents."""
    lengths, theirs = spread_lengths(count), "sortedcontainers"
    packers = [packer(bench, lengths, SPEED_SIZE, name) for name in (theirs, "tokshard")]
    found = bench.run(packers, equal=["samples"])
    whole = found.pop("tokshard")
    found["tokshard, the whole index"] = whole
    packs = [
        {**run, "seconds": run["plan_seconds"], "cpu_seconds": run["plan_cpu_seconds"]} for run in whole.runs
    ]
    found["tokshard, packs only"] = Rounds(whole.contender, packs)
    figures = [RATE, CPU, ELAPSED, PEAK, SAMPLES]
    bench.show(found, title=f"{count:,} documents", base=theirs, figures=figures)


def extremes(bench: Session, count: int) -> None:
    """Print what it costs to pack lengths hardly any two of which are equal, and the like."""
    for size in EXTREME_SIZES:
        base, packers = yardstick(), []
        for name, lengths, options in hard_cases(count, size):
            packers.append(packer(bench, lengths, size, "tokshard", name, **options))
        figures = [CPU_SECONDS, PACKS, PEAK, RUNS]
        bench.compare([base, *packers], title=f"samples of {size:,} tokens", base=base.name, figures=figures)


def hard_cases(count: int, size: int) -> Iterator[tuple[str, np.ndarray, dict[str, int]]]:
    """Yield names, lengths and options."""
    draw = np.random.RandomState(5)
    uniform = draw.randint(1, size + 1, count).astype(np.int32)
    yield "log-normal, mean 1,000", spread_lengths(count), {}
    yield "log-normal, mean 100,000", spread_lengths(count, mean=100_000, spread=1.5), {}
    yield "uniform", uniform, {}
    yield "uniform, at most 3 documents per sample", uniform, {"max_documents": 3}
    yield "uniform, room in multiples of 64", uniform, {"pad_multiple": 64}
    yield "uniform up to 4 samples", draw.randint(1, 4 * size + 1, count).astype(np.int32), {}
    yield (
        "uniform, a quarter to half a sample",
        draw.randint(size // 4, size // 2 + 1, count).astype(np.int32),
        {},
    )
    short = draw.randint(1, size // 50 + 2, count // 2)
    long = draw.randint(size // 2, size + 1, count - count // 2)
    yield "half short, half of more than half a sample", np.concatenate([short, long]).astype(np.int32), {}


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = parser("packing", __doc__)
    sample = ROOT / "sample_data"
    found.add_argument("inputs", nargs="*", type=Path,
                       default=[sample / "stories.jsonl", sample / "manuals.jsonl"],
                       help="JSONL files, plain or compressed, for the table of fill")  # fmt: skip
    found.add_argument("--tokenizer", default=str(sample / "tokenizer.json"))
    found.add_argument("--seq-lengths", nargs="+", type=int, default=SIZES, metavar="TOKENS")
    found.add_argument("--scale", type=float, default=1.0, help="1 is 100 million documents")
    found.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES, metavar="TABLE",
                       help=f"some of {', '.join(TABLES)}")  # fmt: skip
    return found


def main(arguments: list[str]) -> None:
    """Parse the arguments and print the tables."""
    with session(options(), arguments, "tokshard", "numpy", "numba", "sortedcontainers") as bench:
        tables, largest = bench.options.tables, max(100, round(DOCUMENTS * bench.options.scale))
        if "fill" in tables:
            data = tokenized(bench.options.inputs, bench.options.tokenizer, bench.directory)
            for kind, (count, mean, spread) in KINDS.items():
                data[kind] = spread_lengths(count, mean=mean, spread=spread)
            fill(data, bench.options.seq_lengths)
        if "speed" in tables:
            speed(bench, largest)
        if "peers" in tables:
            peers(bench, largest // 100)
        if "extremes" in tables:
            extremes(bench, largest // 100)
