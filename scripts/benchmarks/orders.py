"""scripts/bench orders: byte ranges and mixing of the shuffles of plans.

Synthetic datasets of documents are written to a temporary directory: two files of which the others are hard
links under other names, with sparse .bin files. Plans with each shuffle, and with other sizes of blocks and
windows, are followed through the byte ranges of a window and the mixing of steps; so is one over a blend,
whose documents Megatron's index has shuffled. The results are exact, and nothing is timed: there are no
rounds.

Byte ranges are distinct, with gaps of up to 64 KiB filled. The mixing is the design effect of survey sampling
(Kish, Survey Sampling, 1965): the variance of the groups' shares of a step, relative to that of a full
shuffle. It is Pearson's chi-squared of the table of steps and groups, divided by its mean over all ways to
distribute the same samples to the same steps (Haldane, Biometrika 31, 1940). Groups are the datasets, and
hundredths of all .bin files by the first byte of a sample.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from measure import TOKSHARD, parser, session, show_table
from scaledata import spread_lengths
from tracing import write_pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.ranks.plan import Stream
    from tokshard.samples.index.spans import SampleSpans

    Integers = NDArray[np.int64]

RANKS, RANKS_PER_NODE, WINDOW = 64, 8, 1 << 20
MIXING_SAMPLES, MIXING_STEPS = 1 << 18, 4096
GAP_BYTES = 1 << 16
# Larger than any .bin file here; 2**15 files of this size fit into int64.
BYTES_OF_A_FILE = 1 << 48
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


@dataclass(frozen=True)
class Ranges:
    """Byte ranges, and how many a full shuffle of as many samples reads."""

    count: int
    size_bytes: int
    of_full_shuffle: int

    @property
    def cells(self) -> list[str]:
        """Cells of a table: the number, the share that a full shuffle reads more, and the size."""
        return [
            f"{self.count:,}",
            f"{1 - self.count / self.of_full_shuffle:.1%}",
            f"{self.size_bytes / 1e9:.1f}",
        ]


@dataclass(frozen=True)
class Followed:
    """Byte ranges of the window of a plan, and the design effects of its steps."""

    all_nodes: Ranges
    node: Ranges
    datasets: float
    hundredths: float


class Reads:
    """Finder of the bytes that the steps of a stream read, each of ``batch`` samples."""

    def __init__(self, stream: Stream, batch: int) -> None:
        from tokshard.ranks.locator import Locator

        self.steps, self.samples = stream.order.steps, stream.source.total
        self._stream, self._batch = stream, batch
        self._locator = Locator(stream.source)
        sizes = [dataset.bin.size_bytes for dataset in stream.source.datasets]
        self._starts, self._size = np.cumsum([0, *sizes[:-1]]), sum(sizes)
        self._dataset = cache(self._open)

    def _open(self, number: int) -> tuple[Any, SampleSpans | None]:
        from tokshard.samples.index.spans import SampleSpans

        reference = self._stream.source.datasets[number]
        table = reference.open_dataset().index
        if reference.index is None:
            return table, None
        return table, SampleSpans(reference.open_index(), table.sequence_lengths)

    def ids(self, ranks: range, steps: Integers) -> Integers:
        """Return the ids that some ranks read in some steps, of shape (ranks, steps, samples)."""
        each = self._batch // RANKS
        shape = (len(ranks), steps.size, each)
        local = np.broadcast_to(steps[:, None] * each + np.arange(each), shape)
        order = self._stream.order
        micro_batch, row = np.divmod(local, order.micro_batch_size)
        of_rank = np.asarray(ranks)[:, None, None] * order.micro_batch_size
        numbers = micro_batch * order.group + of_rank + row
        return order.ids(numbers.ravel()).reshape(shape)

    def full_shuffle(self, count: int) -> Integers:
        """Return the first ids of a full shuffle of all samples."""
        from tokshard.ranks.shuffles import Shuffle

        return Shuffle(self.samples, self.samples, seed=0, per_epoch=True).forward(
            np.arange(count, dtype=np.int64), 0
        )

    def extents(self, ids: Integers) -> tuple[Integers, Integers, Integers, Integers]:
        """Return the index in ``ids``, the dataset, the first byte and the size of each piece of a sample."""
        from tokshard.samples.index.spans import document_extents

        datasets, samples = self._locator.locate(ids)
        found = []
        for number in np.unique(datasets).tolist():
            owners = np.flatnonzero(datasets == number)
            table, spans = self._dataset(number)
            if spans is None:
                first, size = document_extents(table, samples[owners])
            else:
                pieces = spans.of_samples(samples[owners])
                owners = owners[pieces.owners]
                first, size = pieces.extents(table)
            found.append((owners, np.full(first.size, number), first, size))
        return tuple(np.concatenate(column) for column in zip(*found, strict=True))  # type: ignore[return-value]

    def ranges(self, ids: Integers) -> tuple[int, int]:
        """Return the number of byte ranges that hold some samples, and their bytes."""
        _, dataset, first, size = self.extents(ids)
        first, size = (dataset * BYTES_OF_A_FILE + first)[size > 0], size[size > 0]
        order = np.argsort(first, kind="stable")
        starts, stops = first[order], np.maximum.accumulate((first + size)[order])
        apart = np.flatnonzero(starts[1:] > stops[:-1] + GAP_BYTES)
        sizes = np.append(stops[apart], stops[-1]) - np.insert(starts[apart + 1], 0, starts[0])
        return sizes.size, int(sizes.sum())

    def design_effects(self, ids: Integers) -> tuple[float, float]:
        """Return the design effects of the steps (columns of ``ids``) on datasets and on hundredths."""
        steps = np.broadcast_to(np.arange(ids.shape[1])[:, None], ids.shape).ravel()
        sample, dataset, first, _ = self.extents(ids.ravel())
        _, piece = np.unique(sample, return_index=True)
        hundredths = (self._starts[dataset[piece]] + first[piece]) * 100 // self._size
        return design_effect(steps, dataset[piece]), design_effect(steps, hundredths)


def design_effect(steps: Integers, groups: Integers) -> float:
    """Return the design effect of the steps of samples on the shares of their groups."""
    _, step, of_step = np.unique(steps, return_inverse=True, return_counts=True)
    _, group, of_group = np.unique(groups, return_inverse=True, return_counts=True)
    cells, counts = np.unique(step * of_group.size + group, return_counts=True)
    row, column = np.divmod(cells, of_group.size)
    chi_squared = steps.size * (
        float((counts.astype(float) ** 2 / of_step[row] / of_group[column]).sum()) - 1
    )
    return chi_squared / ((of_step.size - 1) * (of_group.size - 1) * steps.size / (steps.size - 1))


def follow(sources: str, *, batch: int, shuffle: str, window: int = WINDOW, **options: Any) -> Followed:
    """Plan samples of the current directory, and follow the plan through a window and through its steps."""
    import tokshard
    from tokshard.ranks.choices import Shuffling

    planning = tokshard.ShardPlanOptions(
        sources=(sources,),
        output="plan",
        data_parallel=RANKS,
        global_batch_size=batch,
        digests=False,
        shuffle=Shuffling.parse(shuffle),
        **options,
    )
    reads = Reads(tokshard.shard_plan(planning, dry_run=True).plan.streams["train"], batch)
    steps = np.arange(min(window // batch, reads.steps))

    def ranges(ids: Integers) -> Ranges:
        return Ranges(*reads.ranges(ids), reads.ranges(reads.full_shuffle(ids.size))[0])

    everything = reads.ids(range(RANKS), steps)
    nodes = [everything[first : first + RANKS_PER_NODE].ravel() for first in range(0, RANKS, RANKS_PER_NODE)]
    node = max(nodes, key=lambda ids: reads.ranges(ids)[0])
    chosen = min(reads.steps, max(2, MIXING_SAMPLES // batch), MIXING_STEPS)
    effects = reads.design_effects(reads.ids(range(RANKS), np.arange(chosen) * reads.steps // chosen))
    return Followed(ranges(everything.ravel()), ranges(node), *effects)


def row(name: str, found: Followed) -> list[str]:
    """Return the line of a table."""
    effects = [f"{effect:.2f}" for effect in (found.datasets, found.hundredths)]
    return [name, *found.all_nodes.cells, *found.node.cells, *effects]


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
        os.chdir(directory)
        print(f"48 datasets, {RANKS} ranks, windows of {WINDOW:,} samples")
        rows = []
        for shuffle in ("none", "datasets", "samples", "windows"):
            found = follow("[ab]*", documents=True, shuffle=shuffle, batch=batch)
            rows.append(row(f"`{shuffle}`", found))
        narrow = f"windows:256:{4096 // RANKS}"
        found = follow("[ab]*", documents=True, shuffle=narrow, batch=batch, mode="contiguous")
        rows.append(row(f"`{narrow} --mode contiguous`", found))
        blend(directory)
        for shuffle in ("none", "windows"):
            # A whole window would read all of this small blend.
            found = follow("mix", shuffle=shuffle, batch=batch, window=16 * batch)
            rows.append(row(f"`{shuffle}`, 16 steps of a blend of Megatron's indexes", found))
        show_table(HEADER, rows)
        header = ["block", "window", "samples", "fewer ranges", "size, GB", *map(str, BATCHES)]
        show_table(header, [sizes_row(block, window) for block, window in SIZES])


def sizes_row(block: int, window: int) -> list[str]:
    """Return the line of a table of sizes: byte ranges, and the design effect for global batch sizes."""
    shuffle = f"windows:{block}:{window}"
    effects = []
    for batch in BATCHES:
        samples = max(block * window, batch)
        found = follow("[ab]*", documents=True, shuffle=shuffle, batch=batch, window=samples)
        effects.append(f"{found.datasets:.2f}")
    return [
        *(f"{number:,}" for number in (block, window, block * window)),
        *found.all_nodes.cells[1:],
        *effects,
    ]


def blend(directory: Path) -> None:
    """Blend two of the datasets by Megatron's indexes."""
    command = [*TOKSHARD, "blend", "0.7", "a00", "0.3", "b00", "--seq-length", "4096", "--split", "1,0,0"]
    command += ["--num-samples", "1300000", "--cache-dir", "cache", "-o", "mix", "--quiet"]
    subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, check=True)
