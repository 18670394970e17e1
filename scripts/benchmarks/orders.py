"""scripts/bench orders: byte ranges and mixing of the shuffles of plans.

Synthetic datasets of documents are written to a temporary directory: two files of which the others are hard
links under other names, with sparse .bin files. Plans with each shuffle, and with other sizes of blocks and
windows, are simulated; so is one over a blend, whose documents Megatron's index has shuffled. The results
are exact, and nothing is timed: there are no rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from measure import TOKSHARD, parser, session, show_table
from scaledata import spread_lengths

from tracing import write_pair

RANKS, WINDOW = 64, 1 << 20
SIZES = [
    (64, 4096),
    (128, 8192),
    (256, 256),
    (256, 1024),
    (256, 4096),
    (256, 16384),
    (1024, 1024),
    (1024, 4096),
]
BATCHES = (64, 256, 1024, 4096)
"""Global batch sizes of the table of sizes."""

HEADER = ["plan", "ranges", "fewer", "size, GB", "of a node", "fewer", "size, GB", "datasets", "hundredths"]


def write_documents(directory: Path, documents: int) -> None:
    """Write 24 datasets with two thirds of the documents, and 24 with the others."""
    for name, count in (("a", documents // 36), ("b", documents // 72)):
        write_pair(directory / f"{name}00", spread_lengths(count, seed=count))
        for number in range(1, 24):
            for suffix in (".bin", ".idx"):
                os.link(directory / f"{name}00{suffix}", directory / f"{name}{number:02}{suffix}")


def simulate(directory: Path, *options: str, batch: int, window: int = WINDOW) -> dict[str, Any]:
    """Return the simulation of a plan."""
    steps = window // batch
    command = [*TOKSHARD, "shard-plan", *options, "--data-parallel", str(RANKS)]
    command += ["--global-batch-size", str(batch), "--no-digests", "--dry-run", "--json", "--quiet"]
    command += ["--simulate", "--simulate-steps", "1", "--simulate-window", str(steps), "-o", "plan"]
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)["simulation"]
    return found


def row(name: str, found: dict[str, Any]) -> list[str]:
    """Return the line of a table."""
    cells = [name]
    for which in ("all_nodes", "node"):
        ranges = found["window"][which]
        fewer = 1 - ranges["plan"]["ranges"] / ranges["full_shuffle"]["ranges"]
        cells += [f"{ranges['plan']['ranges']:,}", f"{fewer:.1%}", f"{ranges['plan']['bytes'] / 1e9:.1f}"]
    mixing = found["mixing"]
    return cells + [f"{mixing[name]['design_effect']:.2f}" for name in ("datasets", "hundredths")]


def main(arguments: list[str]) -> None:
    """Write the data and print the tables."""
    options = parser("orders", __doc__, rounds=None)
    options.add_argument(
        "--documents", type=int, default=144_000_000, help="documents of all datasets, about"
    )
    options.add_argument("--batch", type=int, default=256, help="global batch size of the table of shuffles")
    with session(options, arguments, "tokshard", "numpy") as bench:
        directory, batch = bench.directory, bench.options.batch
        write_documents(directory, bench.options.documents)
        documents = ["[ab]*", "--documents"]
        print(f"48 datasets, {RANKS} ranks, windows of {WINDOW:,} samples")
        contiguous = f"windows --mode contiguous --shuffle-window {4096 // RANKS}"
        rows = []
        for shuffle in ("none", "shards", "samples", "blocks", "windows", contiguous):
            found = simulate(directory, *documents, "--shuffle", *shuffle.split(), batch=batch)
            rows.append(row(f"`{shuffle}`", found))
        blend(directory)
        for shuffle in ("none", "windows"):
            # A whole window would read all of this small blend.
            found = simulate(directory, "mix", "--shuffle", shuffle, batch=batch, window=16 * batch)
            rows.append(row(f"`{shuffle}`, 16 steps of a blend of Megatron's indexes", found))
        show_table(HEADER, rows)
        header = ["block", "window", "samples", "fewer ranges", "size, GB", *map(str, BATCHES)]
        show_table(header, [sizes_row(directory, block, window) for block, window in SIZES])


def sizes_row(directory: Path, block: int, window: int) -> list[str]:
    """Return the line of a table of sizes: byte ranges, and the design effect for global batch sizes."""
    effects = []
    for batch in BATCHES:
        options = ["[ab]*", "--documents", "--shuffle", "windows"]
        options += ["--shuffle-block", str(block), "--shuffle-window", str(window)]
        found = simulate(directory, *options, batch=batch, window=max(block * window, batch))
        effects.append(f"{found['mixing']['datasets']['design_effect']:.2f}")
    ranges = found["window"]["all_nodes"]
    fewer = 1 - ranges["plan"]["ranges"] / ranges["full_shuffle"]["ranges"]
    sizes = [f"{number:,}" for number in (block, window, block * window)]
    return [*sizes, f"{fewer:.1%}", f"{ranges['plan']['bytes'] / 1e9:.1f}", *effects]


def blend(directory: Path) -> None:
    """Blend two of the datasets by Megatron's indexes."""
    command = [*TOKSHARD, "blend", "0.7", "a00", "0.3", "b00", "--seq-length", "4096", "--split", "1,0,0"]
    command += ["--num-samples", "1300000", "--cache-dir", "cache", "-o", "mix", "--quiet"]
    subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, check=True)
