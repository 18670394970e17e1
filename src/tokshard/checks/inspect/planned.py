"""Planned samples: the number of samples of each dataset that the steps of a plan read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import IntegrityError
from tokshard.ranks.assignment import Assignment, EpochRange
from tokshard.ranks.layouts import Striped, repeats_any
from tokshard.ranks.locator import Locator
from tokshard.ranks.order import Bucketing, SampleOrder
from tokshard.ranks.plan import Stream
from tokshard.ranks.sources import SampleSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

LOOKED_UP = 1 << 21
"""The most reads that are looked up one by one, which takes about a second."""

_CHUNK = 1 << 20
_MOST_EPOCHS = 1000
"""If a stream reads more epochs, they are not examined one by one: its reads are looked up or sampled."""


@dataclass(frozen=True, slots=True)
class PlannedSamples:
    """Number of samples of each dataset that all data-parallel ranks read in all steps.

    Attributes:
        counts: The reads of each dataset; a sample that is read twice counts twice.
        exact: False for an estimate from a random sample of the reads.
    """

    counts: tuple[int, ...]
    exact: bool

    @property
    def total(self) -> int:
        """The reads of all datasets."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class _EpochReads:
    # The reads of one epoch by each rank: local indices ``first`` to ``stop`` of the epoch, which begin at
    # ``start`` in the assignment.
    epoch_range: EpochRange
    epoch: int
    first: int
    stop: int
    start: int

    @property
    def local(self) -> range:
        return range(self.start, self.start + self.stop - self.first)

    @property
    def is_whole(self) -> bool:
        """True if every id is read once, except those that the layout drops."""
        order, layout = self.epoch_range.order, self.epoch_range.layout
        whole = (self.first, self.stop) == (0, self.epoch_range.per_epoch)
        return whole and order.samples == order.total and not repeats_any(layout)

    @property
    def id_range(self) -> tuple[int, int] | None:
        """The range of ids that all ranks read, or None if the ids are not contiguous or may not be."""
        layout, first, stop = self.epoch_range.layout, self.first, self.stop
        if self.epoch_range.order.transforms or not isinstance(layout, Striped):
            return None
        ids = first * layout.ranks, stop * layout.ranks
        cut = first % layout.width or stop % layout.width or ids[1] > layout.samples
        return None if cut else ids


def count_planned(stream: Stream, *, limit: int = LOOKED_UP) -> PlannedSamples:
    """Count the planned samples of each dataset.

    Whole epochs, and samples read in the order of their ids, are counted without looking up each read; for
    a blend this reads its ``dataset_index``, 2 bytes per sample. All other reads are looked up one by one.

    Args:
        stream: The stream.
        limit: The most reads to look up. If there are more, the counts are estimated from a random sample of
            this size, with the same result at every call.

    Raises:
        TokshardError: The arrays of a blend, or the lengths that samples are sorted by, cannot be read.
    """
    assignment, source, key_of = stream.assignment, stream.source, stream.open_sort_key()
    ranks = assignment.ranks
    if len(source.datasets) == 1:
        return PlannedSamples((assignment.samples_per_rank * ranks,), exact=True)
    tally, others = _DatasetCounts(source), list[range]()
    whole = 0
    if assignment.samples_per_rank > _MOST_EPOCHS * min(part.per_epoch for part in assignment.epoch_ranges):
        others.append(range(assignment.samples_per_rank))
    for piece in _pieces(assignment) if not others else ():
        dropped = piece.epoch_range.layout.dropped()
        if piece.id_range is not None:
            tally.add_range(*piece.id_range)
        elif piece.is_whole and dropped.count < limit:
            whole += 1
            if dropped.count:
                positions = dropped.nth(np.arange(dropped.count, dtype=np.int64))
                tally.add(piece.epoch_range.order.ids(positions, piece.epoch, key_of), times=-1)
        else:
            others.append(piece.local)
    if whole:
        tally.add_range(0, source.total, times=whole)
    reads = sum(map(len, others)) * ranks
    if reads <= limit:
        for local in others:
            for rank in range(ranks):
                indices = np.arange(local.start, local.stop, dtype=np.int64)
                tally.add(assignment.at(np.full(indices.shape, rank, dtype=np.int64), indices, key_of))
        return PlannedSamples(tally.counts(), exact=True)
    drawn = np.random.default_rng(0)
    some = drawn.choice(len(others), limit, p=np.array(list(map(len, others))) * ranks / reads)
    starts, sizes = (np.array(values) for values in zip(*((o.start, len(o)) for o in others), strict=True))
    indices = starts[some] + drawn.integers(sizes[some])
    ids = _without_sorting(assignment).at(drawn.integers(ranks, size=limit), indices)
    tally.add(ids, times=reads / limit)
    return PlannedSamples(tally.counts(), exact=False)


class _DatasetCounts:
    def __init__(self, source: SampleSource) -> None:
        self._source, self._locator = source, Locator(source)
        self._order: NDArray[np.int16] | None = None
        self._counts = np.zeros(len(source.datasets))  # exact up to 2**53

    def counts(self) -> tuple[int, ...]:
        return tuple(round(count) for count in self._counts.tolist())

    def add(self, ids: Integers, times: float = 1) -> None:
        found = np.bincount(self._locator.locate(ids)[0], minlength=self._counts.size)
        self._counts += times * found

    def add_range(self, first: int, stop: int, times: int = 1) -> None:
        if self._source.order is None:
            bounds = np.clip(self._source.bounds, first, stop)
            self._counts += times * (bounds[1:] - bounds[:-1])
            return
        if self._order is None:
            self._order = self._source.order.open()["dataset_index"]
        for place in range(first, stop, _CHUNK):
            block = self._order[place : min(place + _CHUNK, stop)]
            if block.min() < 0 or block.max() >= self._counts.size:
                path = self._source.order.path("dataset_index")
                raise IntegrityError(
                    f"{path} contains the number of a dataset that does not exist", path=path
                )
            self._counts += times * np.bincount(block, minlength=self._counts.size)


def _pieces(assignment: Assignment) -> Iterator[_EpochReads]:
    start, before = assignment.skipped, 0
    stop = start + assignment.samples_per_rank
    for epoch_range in assignment.epoch_ranges:
        first, last = max(start - before, 0), min(stop - before, epoch_range.per_rank)
        size = epoch_range.per_epoch
        for epoch in range(first // size, -(-last // size)):
            at = epoch * size
            inside = max(first - at, 0), min(last - at, size)
            yield _EpochReads(
                epoch_range, epoch_range.first_epoch + epoch, *inside, before + at + inside[0] - start
            )
        before += epoch_range.per_rank


def _without_sorting(assignment: Assignment) -> Assignment:
    # Sorting within windows hardly changes what is read, and looking it up at random places would be slow.
    def order(epochs: EpochRange) -> SampleOrder:
        kept = (transform for transform in epochs.order.transforms if not isinstance(transform, Bucketing))
        return SampleOrder(epochs.order.total, tuple(kept))

    ranges = tuple(replace(epochs, order=order(epochs)) for epochs in assignment.epoch_ranges)
    return replace(assignment, epoch_ranges=ranges)
