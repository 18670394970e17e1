"""Planned samples: the number of samples of each dataset that the steps of a plan read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tokshard.ranks.consumption import ConsumptionOrder, EpochRange
from tokshard.ranks.links import Bucketing
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import Stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

LOOKED_UP = 1 << 21
"""The most reads that are looked up one by one, which takes about a second."""

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


def count_planned(
    stream: Stream, first_number: int = 0, stop_number: int | None = None, *, limit: int = LOOKED_UP
) -> PlannedSamples:
    """Count the planned samples of each dataset.

    Samples read in the order of their ids are counted without looking up each read; for a blend this reads
    its ``dataset_index``, 2 bytes per sample. Of other epochs that are read nearly whole, the samples that
    are not read are looked up. All other reads are looked up one by one.

    Args:
        stream: The stream.
        first_number: The number of the first read that is counted.
        stop_number: The number after the last one; None for all.
        limit: The most reads to look up. If there are more, the counts are estimated from a random sample of
            this size, with the same result at every call.

    Raises:
        TokshardError: The arrays of a blend, or the lengths that samples are sorted by, cannot be read.
    """
    order = stream.order
    stop_number = order.samples if stop_number is None else stop_number
    reads = stop_number - first_number
    if len(stream.source.datasets) == 1:
        return PlannedSamples((reads,), exact=True)
    key_of = stream.open_sort_key()
    locator = Locator(stream.source)
    counts = np.zeros(len(stream.source.datasets), dtype=np.int64)
    is_long = reads > _MOST_EPOCHS * min(epochs.read for epochs in order.epoch_ranges)
    looked_up = [(first_number, reads)] if is_long else []
    whole = 0
    for start, epochs, epoch, first, stop in () if is_long else _parts(order, first_number, stop_number):
        unread = epochs.positions - (stop - first)
        is_bijective = first < epochs.positions and all(link.samples == link.of for link in epochs.links)
        if is_bijective and not unread:
            whole += 1
        elif is_bijective and not epochs.links:
            counts += locator.count(first, stop)
        elif is_bijective and unread <= min(limit, stop - first):
            whole += 1
            positions = np.append(np.arange(first), np.arange(stop, epochs.positions))
            counts -= _counts(locator, epochs.ids(positions, epoch, key_of))
        else:
            looked_up.append((start, stop - first))
    if whole:
        counts += whole * locator.count(0, stream.source.total)
    starts, sizes = np.array(looked_up, dtype=np.int64).reshape(-1, 2).T
    reads = int(sizes.sum())
    if reads <= limit:
        for start, size in looked_up:
            counts += _counts(locator, order.ids(np.arange(start, start + size), key_of))
        return PlannedSamples(tuple(counts.tolist()), exact=True)
    drawn = np.random.default_rng(0).integers(reads, size=limit)
    ends = np.cumsum(sizes)
    part = np.searchsorted(ends, drawn, side="right")
    numbers = drawn + (starts - (ends - sizes))[part]
    estimated = counts + _counts(locator, _without_sorting(order).ids(numbers)) * (reads / limit)
    return PlannedSamples(tuple(np.rint(estimated).astype(np.int64).tolist()), exact=False)


def count_by_rank(stream: Stream, ranks: Sequence[int], *, limit: int = LOOKED_UP) -> tuple[Integers, bool]:
    """Count the samples of each dataset that data-parallel ranks read in all steps.

    Args:
        stream: The stream.
        ranks: The data-parallel ranks.
        limit: The most reads to look up. If there are more, the counts of each rank are estimated from a
            random sample of its reads, with the same result at every call.

    Returns:
        int64 of shape (ranks, datasets), and whether the counts are exact.

    Raises:
        TokshardError: See :func:`count_planned`.
    """
    order = stream.order
    reads = order.samples_per_rank
    drawn = limit // max(1, len(ranks))
    locator = Locator(stream.source)
    counts = np.empty((len(ranks), len(stream.source.datasets)), np.int64)
    if reads <= drawn:
        key_of = stream.open_sort_key()
        for row, rank in zip(counts, ranks, strict=True):
            row[:] = _counts(locator, order.ids(order.numbers(rank, 0, reads), key_of))
        return counts, True
    unsorted = _without_sorting(order)
    for row, rank in zip(counts, ranks, strict=True):
        micro_batch, place = np.divmod(
            np.random.default_rng(rank).integers(reads, size=max(1, drawn)), order.micro_batch_size
        )
        numbers = micro_batch * order.group + rank * order.micro_batch_size + place
        row[:] = np.rint(_counts(locator, unsorted.ids(numbers)) * (reads / numbers.size))
    return counts, False


def _counts(locator: Locator, ids: Integers) -> Integers:
    """Return the number of samples of each dataset among some ids: int64 of shape (datasets,)."""
    datasets, _ = locator.locate(ids)
    return np.bincount(datasets, minlength=len(locator.source.datasets))


def _parts(
    order: ConsumptionOrder, start: int, stop_number: int
) -> Iterator[tuple[int, EpochRange, int, int, int]]:
    """Yield the reads of each epoch: their first number, the epoch, and their first position and the end.

    Positions that are read and those that repeat the last one are different parts.
    """
    while start < stop_number:
        epoch, first = order.point(start)
        epochs = next(epochs for epochs in order.epoch_ranges if epochs.has_epoch(epoch))
        end = min(epochs.read, epochs.positions) if first < epochs.positions else epochs.read
        stop = min(end, first + stop_number - start)
        yield start, epochs, epoch, first, stop
        start += stop - first


def _without_sorting(order: ConsumptionOrder) -> ConsumptionOrder:
    # Sorting within windows hardly changes what is read, and looking it up at random places would be slow.
    ranges = tuple(
        replace(epochs, links=tuple(link for link in epochs.links if not isinstance(link, Bucketing)))
        for epochs in order.epoch_ranges
    )
    return replace(order, epoch_ranges=ranges)
