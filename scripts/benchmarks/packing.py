"""scripts/bench packing: fill, cut documents and speed of best-fit packing.

Four tables. "fill" packs the documents of files, of all files together, and of kinds of data that are drawn
(log-normal lengths): samples against the least number that the lengths allow and against first-fit
decreasing, and the documents that the indexes cut, counted in their rows. "speed" builds an index of one
epoch, at sizes ten times apart. "peers" compares it with best-fit decreasing in Python, a document at a time,
on a sorted list of packs (sortedcontainers). "extremes" measures lengths for which packing is slow: hardly
any two are equal. Every measured run is a process of its own on one core, with its kernels loaded before.
Ratios are those of CPU times: other load of the machine hardly counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import machine
from packers import first_fit, least_samples
from scaledata import spread_lengths

from tokshard import IndexedDataset
from tokshard.gpt_index.index import GPTDatasetIndex
from tokshard.gpt_index.packing import Packing

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
TOKSHARD = [sys.executable, "-c", "from tokshard.cli.main import main; main()"]
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
EXTREME_SIZES = (1 << 12, 1 << 17, 1 << 20, 1 << 24)


def show(*cells: object) -> None:
    """Print a row of a table in Markdown."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def header(*columns: str) -> None:
    """Print the header of a table whose first column is text."""
    print()
    show(*columns)
    print("|---|" + "---:|" * (len(columns) - 1))


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
    header(
        "data", "sequence length", "samples", "least possible", "first-fit decreasing", "fill",
        "highest possible", "cut by concat: documents, tokens", "cut by best-fit: documents, tokens",
    )  # fmt: skip
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
            show(
                name,
                *(f"{number:,}" for number in (size, len(packed), least, first_fit(lengths, size))),
                *(f"{tokens / (samples * size):.2%}" for samples in (len(packed), least)),
                *(f"{count / len(lengths):.1%}, {inside / tokens:.1%}" for count, inside in cuts),
            )


class Bench:
    """Measures packers in processes of their own.

    Args:
        directory: Where the lengths are written.
        rounds: How often each is measured; the medians count.
    """

    def __init__(self, directory: Path, rounds: int) -> None:
        self.path = directory / "lengths.npy"
        self.rounds = rounds

    def measure(
        self, lengths: np.ndarray, size: int, names: list[str], **options: int
    ) -> dict[str, dict[str, float]]:
        """Run the packers in turn; return the medians of times and the largest memories."""
        np.save(self.path, lengths)
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for number in range(self.rounds):
            for name in names:
                text = f"{len(lengths):,} documents, {size:,} tokens: {name}, round {number + 1}"
                print(f"\r{text:<75}", end="", file=sys.stderr, flush=True)
                program = [sys.executable, str(HERE / "packers.py"), name, str(self.path), str(size)]
                done = subprocess.run([*program, json.dumps(options)], stdout=subprocess.PIPE, check=True)
                runs[name].append(json.loads(done.stdout))
        print("\r" + " " * 75 + "\r", end="", file=sys.stderr)
        if len({run["samples"] for taken in runs.values() for run in taken}) > 1:
            sys.exit(f"the packers need different numbers of samples: {runs}")
        return {
            name: {key: statistics.median(run[key] for run in taken) for key in taken[0]}
            for name, taken in runs.items()
        }


def speed(bench: Bench, largest: int) -> None:
    """Print what an index of an epoch costs at three sizes."""
    header("documents", "samples", "s", "CPU, s", "of it packs, s", "CPU per document, ns", "peak, MB")
    for count in (largest // 100, largest // 10, largest):
        found = bench.measure(spread_lengths(count), SPEED_SIZE, ["tokshard"])["tokshard"]
        show(
            f"{count:,}",
            f"{found['samples']:,}",
            f"{found['seconds']:.2f}",
            f"{found['cpu_seconds']:.2f}",
            f"{found['plan_cpu_seconds']:.2f}",
            f"{found['cpu_seconds'] / count * 1e9:.0f}",
            f"{found['peak'] / 1e6:,.0f}",
        )


def peers(bench: Bench, count: int) -> None:
    """Print the speed of two packers on the same documents, in turn."""
    header("packer", "documents", "samples", "s", "CPU, s", "peak, MB", "times as fast")
    found = bench.measure(spread_lengths(count), SPEED_SIZE, ["sortedcontainers", "tokshard"])
    ours, theirs = found["tokshard"], found["sortedcontainers"]
    rows = {
        "sortedcontainers": (theirs, ""),
        "tokshard, the whole index": (ours, ""),
        "tokshard, packs only": (ours, "plan_"),
    }
    for name, (row, part) in rows.items():
        show(
            name,
            f"{count:,}",
            f"{row['samples']:,}",
            f"{row[part + 'seconds']:.2f}",
            f"{row[part + 'cpu_seconds']:.2f}",
            f"{row['peak'] / 1e6:,.0f}",
            f"{theirs['cpu_seconds'] / row[part + 'cpu_seconds']:.0f}",
        )


def extremes(bench: Bench, count: int) -> None:
    """Print what it costs to pack lengths hardly any two of which are equal, and the like."""
    header("lengths, options", "sequence length", "runs", "CPU, s", "of it packs, s", "peak, MB")
    for size in EXTREME_SIZES:
        for name, lengths, options in hard_cases(count, size):
            found = bench.measure(lengths, size, ["tokshard"], **options)["tokshard"]
            show(
                name,
                f"{size:,}",
                f"{found['runs']:,}",
                f"{found['cpu_seconds']:.2f}",
                f"{found['plan_cpu_seconds']:.2f}",
                f"{found['peak'] / 1e6:,.0f}",
            )


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


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="scripts/bench packing", description=__doc__)
    sample = ROOT / "sample_data"
    parser.add_argument("inputs", nargs="*", type=Path,
                        default=[sample / "stories.jsonl", sample / "manuals.jsonl"],
                        help="JSONL files, plain or compressed, for the table of fill")  # fmt: skip
    parser.add_argument("--tokenizer", default=str(sample / "tokenizer.json"))
    parser.add_argument("--seq-lengths", nargs="+", type=int, default=SIZES, metavar="TOKENS")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is 100 million documents")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES, metavar="TABLE",
                        help=f"some of {', '.join(TABLES)}")  # fmt: skip
    parser.add_argument("--directory", help="where the temporary directory is made")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Parse the arguments and print the tables."""
    options = parse(arguments)
    print(machine("tokshard", "numpy", "numba", "sortedcontainers"))
    print(f"medians of {options.rounds} rounds; load average at the beginning {os.getloadavg()[0]:.1f}")
    largest = max(100, round(DOCUMENTS * options.scale))
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        bench = Bench(Path(name), options.rounds)
        if "fill" in options.tables:
            data = tokenized(options.inputs, options.tokenizer, Path(name))
            for kind, (count, mean, spread) in KINDS.items():
                data[kind] = spread_lengths(count, mean=mean, spread=spread)
            fill(data, options.seq_lengths)
        if "speed" in options.tables:
            speed(bench, largest)
        if "peers" in options.tables:
            peers(bench, largest // 100)
        if "extremes" in options.tables:
            extremes(bench, largest // 100)
    print(f"\nload average at the end {os.getloadavg()[0]:.1f}")
