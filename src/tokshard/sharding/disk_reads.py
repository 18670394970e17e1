"""Disk reads of a plan: which bytes of which files each step, rank and node reads, without reading tokens."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np

from tokshard.core.codec import Key
from tokshard.core.open_cache import OpenCache
from tokshard.errors import UsageError
from tokshard.gpt_index.spans import SampleSpans, document_extents
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.locator import Locator
from tokshard.sharding.plan import Plan, Stream
from tokshard.sharding.sources import DatasetReference, SampleSource
from tokshard.storage.paths import idx_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

PAGE_BYTES = 4096
"""The unit of the page cache."""

# Ranges that are closer than this are one: a request costs more than the bytes between them.
_GAP_BYTES = 1 << 16
# The two arrays of a blend; .bin and .idx of a dataset, and the three arrays of its index.
_BLEND_FILES, _DATASET_FILES, _INDEX_FILES = 2, 2, 3
# The .idx file of a dataset and the three arrays of its index. A map counts as an open file, and of maps
# Linux allows a process 65,530.
_MAPS_OF_A_DATASET = 4
_MOST_MAPS = 32_768
# Larger than any page number of a file.
_PAGES_OF_A_FILE = 1 << 44


@dataclass(frozen=True, slots=True)
class Extents:
    """Runs of bytes, one for each part of a sequence (of a document, where samples are documents).

    Attributes:
        dataset: The number of the dataset: int64 of shape ``(n,)``.
        first: The first byte in its ``.bin`` file.
        size: The number of bytes, 1 or more.
    """

    dataset: Integers
    first: Integers
    size: Integers

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the extents of several parts, in order."""
        nothing = np.empty(0, dtype=np.int64)
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([nothing, *(getattr(part, name) for part in parts)]) for name in names))

    def count_pages(self) -> int:
        """Count the pages that hold the bytes, each once.

        Example:
            >>> Extents(np.array([0, 0, 1]), np.array([0, 4000, 0]), np.array([10, 200, 1])).count_pages()
            3
        """
        if not self.size.size:
            return 0
        base = self.dataset * _PAGES_OF_A_FILE
        low = base + self.first // PAGE_BYTES
        high = base + (self.first + self.size - 1) // PAGE_BYTES
        order = np.argsort(low, kind="stable")
        low, high = low[order], high[order]
        reached = np.concatenate(([-1], np.maximum.accumulate(high)[:-1]))
        return int(np.maximum(high - np.maximum(low, reached + 1) + 1, 0).sum())


def merge_ranges(first: Integers, size: Integers) -> Intervals:
    """Return the ranges of bytes that hold all of some runs, with gaps of up to 64 KiB filled.

    Example:
        >>> merge_ranges(np.array([100_000, 0, 50]), np.array([1, 100, 70])).to_json_value()
        [[0, 120], [100000, 100001]]
    """
    order = np.argsort(first, kind="stable")
    starts, stops = first[order], np.maximum.accumulate((first + size)[order])
    apart = np.flatnonzero(starts[1:] > stops[:-1] + _GAP_BYTES)
    return Intervals(
        np.concatenate((starts[:1], starts[apart + 1])), np.concatenate((stops[apart], stops[-1:]))
    )


class ExtentReader:
    """Finder of the byte extents of samples of a source. Indexes and ``.idx`` files are mapped when needed.

    Args:
        source: The samples.
        capacity: How many datasets may be open at once; None for as many as fit into half of the files that
            this process may open. The least recently used one is closed.
    """

    def __init__(self, source: SampleSource, capacity: int | None = None) -> None:
        self._locator = Locator(source)
        self._open: OpenCache[int, _DatasetExtents] = OpenCache(
            lambda number: _DatasetExtents(source.datasets[number]),
            _capacity() if capacity is None else capacity,
        )

    def extents(self, ids: Integers) -> Extents:
        """Return the extents of samples, dataset by dataset.

        Args:
            ids: int64 of shape ``(n,)``.

        Raises:
            MissingFileError, IntegrityError: A file is missing or has changed.
        """
        datasets, samples = self._locator.locate(ids)
        parts = []
        for number in np.unique(datasets).tolist():
            first, size = self._open.get(number).of(samples[datasets == number])
            parts.append(Extents(np.full(first.shape, number, dtype=np.int64), first, size))
        return Extents.joined(parts)

    def starts(self, ids: Integers) -> tuple[Integers, Integers]:
        """Return where samples start: the number of the dataset of each, and a byte of its ``.bin`` file.

        Args:
            ids: int64 of shape ``(n,)``.

        Raises:
            MissingFileError, IntegrityError: A file is missing or has changed.
        """
        datasets, samples = self._locator.locate(ids)
        first = np.empty(ids.shape, dtype=np.int64)
        for number in np.unique(datasets).tolist():
            here = datasets == number
            first[here] = self._open.get(number).starts(samples[here])
        return datasets.astype(np.int64), first


def _capacity() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_MAPS if soft == resource.RLIM_INFINITY else min(soft // 2, _MOST_MAPS)
    return max(1, files // _MAPS_OF_A_DATASET)


class _DatasetExtents:
    def __init__(self, reference: DatasetReference) -> None:
        self._table = reference.open_dataset().index
        self._spans: SampleSpans | None = None
        if reference.index is not None:
            path = idx_path(reference.prefix)
            self._spans = SampleSpans(reference.open_index(), self._table.sequence_lengths, path=path)

    def of(self, samples: Integers) -> tuple[Integers, Integers]:
        if self._spans is not None:
            return self._spans.of_samples(samples).nonempty().extents(self._table)
        first, size = document_extents(self._table, samples)
        return first[size > 0], size[size > 0]

    def starts(self, samples: Integers) -> Integers:
        if self._spans is None:
            return document_extents(self._table, samples)[0]
        spans = self._spans.of_samples(samples)
        return spans.extents(self._table)[0][np.flatnonzero(np.diff(spans.owners, prepend=-1))]


@dataclass(frozen=True, slots=True)
class DiskReads:
    """Disk reads of one or more ranks in a step."""

    samples: Annotated[
        int, Key("samples", "Samples read; those that several ranks read count for each.", minimum=0)
    ]
    pieces: Annotated[int, Key("pieces", "Parts of documents that they consist of.", minimum=0)]
    size_bytes: Annotated[int, Key("bytes", "Bytes of tokens of these.", minimum=0)]
    pages: Annotated[int, Key("pages", "Distinct pages of 4 KiB of `.bin` files that hold them.", minimum=0)]
    files: Annotated[
        int,
        Key("files", "Open files: datasets and their indexes, and the arrays of the blend.", minimum=0),
    ]
    seconds: Annotated[
        float | None,
        Key("seconds", "Time to read the pages at the bandwidth; null without one.", minimum=0),
    ]


@dataclass(frozen=True, slots=True)
class StepReads:
    """Disk reads of a step."""

    step: Annotated[int, Key("step", "The step.", minimum=0)]
    ranks: Annotated[
        tuple[DiskReads, ...],
        Key(
            "data_parallel_ranks",
            "By data-parallel rank. All ranks of one that read anything read the same.",
        ),
    ]
    nodes: Annotated[tuple[DiskReads, ...], Key("nodes", "By node.")]


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The smallest, the mean and the largest of some numbers."""

    least: Annotated[float, Key("least", "Smallest.", minimum=0)]
    mean: Annotated[float, Key("mean", "Mean.", minimum=0)]
    most: Annotated[float, Key("most", "Largest.", minimum=0)]


@dataclass(frozen=True, slots=True)
class ReadSummary:
    """Summary of disk reads: a range for each number of :class:`DiskReads`."""

    samples: Annotated[ReadRange, Key("samples", "Samples.")]
    pieces: Annotated[ReadRange, Key("pieces", "Parts of documents.")]
    size_bytes: Annotated[ReadRange, Key("bytes", "Bytes of tokens.")]
    pages: Annotated[ReadRange, Key("pages", "Distinct pages.")]
    files: Annotated[ReadRange, Key("files", "Open files.")]
    seconds: Annotated[ReadRange | None, Key("seconds", "Seconds; null without a bandwidth.")]

    @classmethod
    def of(cls, reads: Sequence[DiskReads]) -> Self | None:
        """Return the summary of some reads; None of none."""
        if not reads:
            return None
        ranges = {}
        for field in fields(cls):
            values = [getattr(read, field.name) for read in reads]
            present = [value for value in values if value is not None]
            ranges[field.name] = (
                ReadRange(min(present), sum(present) / len(present), max(present)) if present else None
            )
        return cls(**ranges)  # type: ignore[arg-type]


class Simulation:
    """Follows a stream step by step, without reading any token.

    Args:
        plan: The plan.
        stream: The name of the stream.
        ranks_per_node: The neighboring ranks on a node.
        bandwidth: Bytes per second that a node, or a rank by itself, gets from storage; None for no times.

    Attributes:
        stream: The stream.
        reader: The reader of the extents of its samples.
        nodes: For each node the data-parallel ranks of those of its ranks that read, once for each rank.

    Raises:
        UsageError: The stream does not exist.
    """

    def __init__(
        self, plan: Plan, stream: str, *, ranks_per_node: int = 8, bandwidth: float | None = None
    ) -> None:
        if stream not in plan.streams:
            raise UsageError(
                f"the plan has no stream {stream!r}", hint=f"available: {', '.join(plan.streams)}"
            )
        self.stream = plan.streams[stream]
        self.nodes = _readers_of_nodes(plan, self.stream, ranks_per_node)
        self._bandwidth = bandwidth
        self.reader = ExtentReader(self.stream.source)
        self._key_of = self.stream.open_sort_key()

    def steps(self, first: int, stop: int) -> Iterator[StepReads]:
        """Yield the reads of each step from ``first`` to ``stop - 1``.

        Raises:
            MissingFileError, IntegrityError: A file is missing or has changed.
        """
        for step in range(first, min(stop, self.stream.assignment.steps)):
            yield self._step(step)

    def extents(self, rank: int, step: int) -> tuple[int, Extents]:
        """Return (samples, extents) that a data-parallel rank reads in a step."""
        ids = self.stream.assignment.step_ids(rank, step, self._key_of).ravel()
        return ids.size, self.reader.extents(ids)

    def reads(self, ranks: Sequence[int], steps: Integers) -> tuple[Integers, Integers]:
        """Return the step and the id of each sample that some data-parallel ranks read in some steps."""
        assignment = self.stream.assignment
        first, stop = (
            (assignment.timeline.consumed(bound) - assignment.consumed_samples) // assignment.ranks
            for bound in (steps, steps + 1)
        )
        counts = stop - first
        local = np.arange(counts.sum(), dtype=np.int64) + (first - counts.cumsum() + counts).repeat(counts)
        of_rank = np.array(ranks, dtype=np.int64).repeat(local.size)
        ids = assignment.at(of_rank, np.tile(local, len(ranks)), self._key_of)
        return np.tile(steps.repeat(counts), len(ranks)), ids

    def _step(self, step: int) -> StepReads:
        extents = [self.extents(rank, step) for rank in range(self.stream.assignment.ranks)]
        ranks = tuple(self._reads(samples, of_rank) for samples, of_rank in extents)
        nodes = []
        for readers in self.nodes:
            distinct = self._reads(0, Extents.joined([extents[rank][1] for rank in sorted(set(readers))]))
            nodes.append(
                replace(
                    distinct,
                    samples=sum(ranks[rank].samples for rank in readers),
                    pieces=sum(ranks[rank].pieces for rank in readers),
                    size_bytes=sum(ranks[rank].size_bytes for rank in readers),
                )
            )
        return StepReads(step, ranks, tuple(nodes))

    def _reads(self, samples: int, extents: Extents) -> DiskReads:
        pages = extents.count_pages()
        datasets = np.unique(extents.dataset).size
        source = self.stream.source
        each = _DATASET_FILES + (0 if source.sequence_length is None else _INDEX_FILES)
        blend = _BLEND_FILES if source.order is not None and datasets else 0
        return DiskReads(
            samples=samples,
            pieces=extents.size.size,
            size_bytes=int(extents.size.sum()),
            pages=pages,
            files=datasets * each + blend,
            seconds=None if self._bandwidth is None else pages * PAGE_BYTES / self._bandwidth,
        )


def _readers_of_nodes(plan: Plan, stream: Stream, ranks_per_node: int) -> tuple[tuple[int, ...], ...]:
    topology = plan.topology
    nodes = []
    for first in range(0, topology.world_size, ranks_per_node):
        ranks = range(first, min(first + ranks_per_node, topology.world_size))
        readers = [rank for rank in ranks if topology.needs(rank, boundaries=stream.boundaries)]
        nodes.append(tuple(topology.coordinates(rank).dp for rank in readers))
    return tuple(nodes)
