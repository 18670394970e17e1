"""One numbering for the samples that two plans read, so that they can be compared read by read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.sharding.assignment import Assignment
from tokshard.sharding.history import history_of, reweighting_of, stops_of
from tokshard.sharding.locator import Locator, open_sort_key
from tokshard.sharding.plan import Plan, Stream
from tokshard.sharding.replan.reweighting import open_start
from tokshard.sharding.replan.source_progress import SourceEpochTable
from tokshard.sharding.sources import DatasetReference

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Reads:
    """Some steps of a stream, in the order of consumption.

    Attributes:
        step: The step of each read: int64 of shape ``(n,)``.
        dataset: The number of its dataset in the plan.
        lap: How often the dataset was begun anew before it.
        sample: The sample of the dataset.
    """

    step: Integers
    dataset: Integers
    lap: Integers
    sample: Integers


class StreamReader:
    """Lists what all ranks of a stream read, in blocks of whole steps.

    Args:
        plan: The plan.
        name: The name of the stream.
    """

    def __init__(self, plan: Plan, name: str) -> None:
        self.stream: Stream = plan.streams[name]
        self.assignment: Assignment = self.stream.assignment
        self._locator = Locator(self.stream.source)
        key = self.stream.sort_key
        self._key_of = None if key is None else open_sort_key(self.stream.source, key)
        record = reweighting_of(stops_of(history_of(plan), name))
        self._laps: SourceEpochTable | None = (
            None if record is None else open_start(self.stream.source, record)[1]
        )

    @property
    def datasets(self) -> tuple[DatasetReference, ...]:
        """The datasets of the stream."""
        return self.stream.source.datasets

    def last_laps(self) -> Integers:
        """Return the last lap of each dataset that is read: int64 of shape (datasets,)."""
        if self._laps is not None:
            last = np.zeros(len(self.datasets), dtype=np.int64)
            np.maximum.at(last, self._laps.rows[:, 0], self._laps.rows[:, 1])
            return last
        end = max(self.assignment.samples_per_rank - 1, 0)
        epoch = int(epochs_of(self.assignment, np.array([end], dtype=np.int64))[0])
        return np.full(len(self.datasets), epoch, dtype=np.int64)

    def blocks(self, first: int, stop: int) -> Iterator[Reads]:
        """Return the reads of steps, without samples that are read again as padding."""
        while first < stop:
            size = max(1, self.assignment.timeline.batch_size(first))
            last = min(stop, first + max(1, _BLOCK // size))
            yield self._reads(first, last)
            first = last

    def _reads(self, first: int, stop: int) -> Reads:
        one = self.assignment
        begin, end = one.first_local(first), one.first_local(stop)
        local = np.repeat(np.arange(begin, end, dtype=np.int64), one.ranks)
        ranks = np.tile(np.arange(one.ranks, dtype=np.int64), end - begin)
        sizes = np.diff(one.timeline.consumed(np.arange(first, stop + 1, dtype=np.int64)))
        steps = np.repeat(np.arange(first, stop, dtype=np.int64), sizes)
        again = one.repeated(ranks, local)
        if again.any():
            steps, local, ranks = steps[~again], local[~again], ranks[~again]
        ids = one.at(ranks, local, self._key_of)
        datasets, samples = self._locator.locate(ids)
        laps = epochs_of(one, local) if self._laps is None else self._laps.of(ids, datasets)
        return Reads(steps, datasets.astype(np.int64), laps, samples)


def epochs_of(assignment: Assignment, local: Integers) -> Integers:
    """Return the epoch of each local index."""
    epochs = np.full(local.shape, -1, dtype=np.int64)
    place = local + assignment.skipped
    for one in assignment.passes:
        here = (place >= 0) & (place < one.per_rank)
        epochs[here] = one.first_epoch + place[here] // one.per_epoch
        place = place - one.per_rank
    return epochs


@dataclass(frozen=True, slots=True)
class Numbering:
    """Numbers for the reads of two streams: equal where dataset, lap and sample are.

    Attributes:
        names: The path prefix of each dataset of either stream.
        starts: The first number of each dataset, and the end of all.
        sizes: The samples of each.
        of: For each of the two streams the place of each of its datasets in ``names``.
    """

    names: tuple[str, ...]
    starts: Integers
    sizes: Integers
    of: tuple[Integers, Integers]

    @classmethod
    def common(cls, a: StreamReader, b: StreamReader) -> Numbering:
        """Return the numbering of two streams. Datasets are the same if their bytes and indexes are."""
        references = list(a.datasets)
        first = np.arange(len(references), dtype=np.int64)
        second = np.array([_place(references, one) for one in b.datasets], dtype=np.int64)
        sizes = np.array([_samples(one) for one in references], dtype=np.int64)
        laps = np.zeros(len(references), dtype=np.int64)
        for places, reader in ((first, a), (second, b)):
            np.maximum.at(laps, places, reader.last_laps() + 1)
        starts = np.concatenate(([0], np.cumsum(sizes * laps)))
        return cls(tuple(one.prefix for one in references), starts, sizes, (first, second))

    def numbers(self, which: int, reads: Reads) -> Integers:
        """Return the number of each read of stream 0 or 1."""
        place = self.of[which][reads.dataset]
        numbers: Integers = self.starts[place] + reads.lap * self.sizes[place] + reads.sample
        return numbers

    def dataset_of(self, numbers: Integers) -> Integers:
        """Return the place in ``names`` of each number."""
        return np.searchsorted(self.starts, numbers, side="right") - 1


def _place(references: list[DatasetReference], one: DatasetReference) -> int:
    """Return the place of a dataset among others; it is put at the end where it is not there."""
    for place, other in enumerate(references):
        if _identity(one) == _identity(other):
            return place
    references.append(one)
    return len(references) - 1


def _identity(one: DatasetReference) -> tuple[object, ...]:
    files = None if one.index is None else (one.index.files.hash, one.index.files.split)
    return (one.bin, one.idx, files)


def _samples(one: DatasetReference) -> int:
    return one.first + one.samples if one.index is None else one.index.epochs.samples


def sums(places: Integers, count: int) -> Integers:
    """Return how often each of ``count`` places occurs."""
    return np.bincount(places, minlength=count).astype(np.int64)
