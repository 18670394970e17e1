"""Summaries of a plan, of one of its ranks, and of the way of single samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tokshard.checks.inspect.planned import count_by_rank, count_planned
from tokshard.core.codec import Count, Document, Positive, Record
from tokshard.errors import TokshardError, UsageError, raise_exhaustion
from tokshard.ranks.choices import Mode, Tail
from tokshard.ranks.consumption import ENDLESS, ConsumptionOrder
from tokshard.ranks.continuation import owner_of
from tokshard.ranks.links import Bucketing
from tokshard.ranks.locator import Locator
from tokshard.ranks.manifests import RankManifest, RankStream, read_rank
from tokshard.ranks.plan import Plan, Stream, read_plan
from tokshard.ranks.topology import Coordinates, Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

CountT = TypeVar("CountT")

_MOST_RANKS = 1024
"""With more data-parallel ranks, a summary has no counts of each."""

# Entries of a blend's arrays that are searched at a time: 40 MB.
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class DatasetOfPlan(Record):
    """A dataset of a stream."""

    dataset: Count
    prefix: str
    samples: Count
    ids: tuple[Count, Count] | None
    planned: Count | None
    planned_by_rank: tuple[Count, ...] | None


@dataclass(frozen=True, slots=True)
class EpochSummary(Record):
    """Samples of each epoch of a range that all ranks read, do not read, and read again to fill batches."""

    first_epoch: Count
    epochs: Positive | None
    read: Positive
    dropped: Count
    repeated: Count


@dataclass(frozen=True, slots=True)
class StreamSummary(Record):
    """A stream of a plan."""

    samples: Count
    steps: Count
    batch_sizes: tuple[tuple[Count, Count, Count], ...]
    sequence_length: Positive | None
    datasets: tuple[DatasetOfPlan, ...]
    shuffle: tuple[str, ...]
    sort_key: str | None
    mode: Mode
    tail: Tail
    epoch_ranges: tuple[EpochSummary, ...]
    remaining: Count | None


@dataclass(frozen=True, slots=True)
class PlanSummary(Document):
    """Summary of a plan."""

    SCHEMA = "tokshard.inspect-plan/2"

    plan_id: str
    topology: Topology
    data_parallel: Positive
    continues: tuple[str, ...]
    warnings: tuple[str, ...]
    streams: dict[str, StreamSummary]

    @classmethod
    def of(cls, plan: Plan) -> PlanSummary:
        """Return the summary of a plan; the arrays of blends are opened if they are there."""
        return cls(
            plan_id=plan.plan_id,
            topology=plan.topology,
            data_parallel=plan.topology.data_parallel,
            continues=tuple(stopped.plan_id for stopped in plan.history),
            warnings=plan.messages,
            streams={name: _stream_summary(stream) for name, stream in plan.streams.items()},
        )


@dataclass(frozen=True, slots=True)
class SamplePlace(Record):
    """A sample on its way from a dataset to a rank. What follows ``epoch`` is null if no rank reads it."""

    sample: Count
    dataset: Count
    prefix: str
    dataset_sample: Count
    epoch: Count
    data_parallel_rank: Count | None
    index: Count | None
    step: Count | None
    micro_batch: Count | None
    row: Count | None


@dataclass(frozen=True, slots=True)
class DatasetReads(Record):
    """Number of samples of a dataset that a rank reads."""

    prefix: str
    samples: Count


@dataclass(frozen=True, slots=True)
class RankReads(Record):
    """The samples of one stream that a rank reads: the boundaries of its shard.

    Attributes:
        manifest: What its manifest says of the stream.
        first: Its first sample; None if it reads nothing, or if the data cannot be read.
        last: Its last sample, or None in the same cases.
        datasets: The samples that it reads of each dataset, in the order of the plan; None if the data cannot
            be read.
        exact: False if these are estimated from a random sample of its reads.
        problem: The reason why the data cannot be read.
    """

    manifest: RankStream
    first: SamplePlace | None
    last: SamplePlace | None
    datasets: tuple[DatasetReads, ...] | None
    exact: bool
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RankSummary(Document):
    """Summary of the reads of one rank."""

    SCHEMA = "tokshard.inspect-rank/2"

    plan_id: str
    rank: Count
    world_size: Positive
    coordinates: Coordinates
    streams: dict[str, RankReads]
    stream: str
    step: Count | None
    places: tuple[SamplePlace, ...]


@dataclass(frozen=True, slots=True)
class PlanSampleSummary(Document):
    """The way of a sample of a plan: mostly one place, none if no id stands for a sample of a dataset."""

    SCHEMA = "tokshard.inspect-plan-sample/2"

    plan_id: str
    stream: str
    places: tuple[SamplePlace, ...]


def inspect_rank(
    path: str,
    rank: int | None,
    *,
    stream: str = "train",
    step: int | None = None,
    index: int | None = None,
    roots: Mapping[str, str] | None = None,
) -> RankSummary:
    """Summarize what a rank reads, at a step or at one of its indices.

    Raises:
        UsageError: There is no such rank, stream, step or index.
        MissingFileError, IntegrityError: See :func:`~tokshard.ranks.manifests.read_rank`.
    """
    plan, rank = read_rank(path, rank, roots=roots)
    found = plan.stream(stream)
    order = found.order
    first = 0
    count = 0
    if step is not None:
        if not 0 <= step < order.steps:
            raise UsageError(f"the step of {stream} must be 0 to {order.steps - 1}, got {step}")
        first = order.first_number(step) // order.ranks
        count = order.first_number(step + 1) // order.ranks - first
    if index is not None:
        if not 0 <= index < order.samples_per_rank:
            raise UsageError(f"the index must be 0 to {order.samples_per_rank - 1}, got {index}")
        first = index
        count = 1
    manifest = RankManifest.of(plan, rank)
    numbers = order.numbers(manifest.coordinates.dp, first, count)
    return RankSummary(
        plan_id=plan.plan_id,
        rank=rank,
        world_size=plan.topology.world_size,
        coordinates=manifest.coordinates,
        streams={
            name: _rank_reads(plan.streams[name], part, manifest.coordinates.dp)
            for name, part in manifest.streams.items()
        },
        stream=stream,
        step=step,
        places=_places(found, order.ids(numbers, found.open_sort_key()), order.epochs(numbers), numbers),
    )


def _rank_reads(stream: Stream, manifest: RankStream, data_parallel_rank: int) -> RankReads:
    prefixes = [dataset.path_prefix for dataset in stream.source.datasets]
    if not manifest.samples:
        nothing = tuple(DatasetReads(prefix, 0) for prefix in prefixes)
        return RankReads(manifest, None, None, nothing, exact=True)
    order = stream.order
    boundaries = [order.numbers(data_parallel_rank, index, 1) for index in (0, order.samples_per_rank - 1)]
    numbers = np.concatenate(boundaries)
    try:
        counts, exact = count_by_rank(stream, (data_parallel_rank,))
        ids = order.ids(numbers, stream.open_sort_key())
        first, last = _places(stream, ids, order.epochs(numbers), numbers)
    except TokshardError as error:
        raise_exhaustion(error)
        return RankReads(manifest, None, None, None, exact=False, problem=error.message)
    datasets = tuple(map(DatasetReads, prefixes, counts[0].tolist()))
    return RankReads(manifest, first, last, datasets, exact)


def inspect_sample(
    path: str,
    *,
    stream: str = "train",
    sample: int | None = None,
    dataset_sample: tuple[int, int] | None = None,
    epoch: int | None = None,
    roots: Mapping[str, str] | None = None,
) -> PlanSampleSummary:
    """Summarize the way of a sample, given by its id or by (dataset, sample of the dataset).

    Raises:
        UsageError: There is no such stream, dataset, sample or epoch.
        MissingFileError, IntegrityError: See :func:`~tokshard.ranks.plan.read_plan`.
    """
    plan = read_plan(path, roots=roots)
    ids = (sample or 0,) if dataset_sample is None else find_dataset_sample(plan, stream, *dataset_sample)
    places = tuple(find_sample(plan, stream, number, epoch=epoch) for number in ids)
    return PlanSampleSummary(plan.plan_id, stream, places)


def find_sample(plan: Plan, stream: str, sample: int, *, epoch: int | None = None) -> SamplePlace:
    """Return the dataset of a sample, and where it is read first in an epoch.

    Raises:
        UsageError: There is no such stream, sample or epoch.
    """
    found = plan.stream(stream)
    if not 0 <= sample < found.source.total:
        raise UsageError(f"the sample of {stream} must be 0 to {found.source.total - 1}, got {sample}")
    chosen = found.order.epoch_ranges[0].first_epoch if epoch is None else epoch
    ids = np.array([sample], dtype=np.int64)
    try:
        numbers = found.order.find(ids, chosen, found.open_sort_key())
    except IndexError as error:
        raise UsageError(f"{stream}: {error}") from error
    return _places(found, ids, np.full_like(ids, chosen), numbers)[0]


def find_dataset_sample(plan: Plan, stream: str, dataset: int, dataset_sample: int) -> tuple[int, ...]:
    """Return the ids of a sample of a dataset: mostly one, none where no id stands for it.

    In a blend its arrays are searched through, 10 bytes for each sample.

    Raises:
        UsageError: There is no such stream, dataset or sample.
    """
    source = plan.stream(stream).source
    if not 0 <= dataset < len(source.datasets):
        raise UsageError(f"the dataset must be 0 to {len(source.datasets) - 1}, got {dataset}")
    reference = source.datasets[dataset]
    place = dataset_sample - reference.first
    if not 0 <= place < reference.samples:
        last = reference.first + reference.samples - 1
        raise UsageError(
            f"the sample of {reference.path_prefix} must be {reference.first} to {last}, got {dataset_sample}"
        )
    if source.order is None:
        return (int(source.bounds[dataset]) + place,)
    locator = Locator(source)
    found: list[int] = []
    for first in range(0, source.total, _CHUNK):
        ids = np.arange(first, min(first + _CHUNK, source.total), dtype=np.int64)
        datasets, samples = locator.locate(ids)
        found += ids[(datasets == dataset) & (samples == dataset_sample)].tolist()
    return tuple(found)


def shuffle_words(stream: Stream) -> tuple[str, ...]:
    """Return what moves the samples of the first epoch, from the data to the ranks, for people.

    It has neither the bucketing nor the part of each rank.
    """
    epochs = stream.order.epoch_ranges[0]
    links = epochs.links if owner_of(epochs, stream.order) is None else epochs.links[1:]
    return tuple(link.words for link in reversed(links) if not isinstance(link, Bucketing))


def remaining_samples(order: ConsumptionOrder) -> int | None:
    """Return how many samples could be read after the last step, or None if epochs are unlimited."""
    size = sum(epochs.size for epochs in order.epoch_ranges)
    return None if size >= ENDLESS else size - order.skipped - order.samples


def _stream_summary(stream: Stream) -> StreamSummary:
    source = stream.source
    order = stream.order
    bounds = None if source.order is not None else source.bounds.tolist()
    planned = _known(count_planned, stream)
    total = None if planned is None or not planned.exact else planned.counts
    ranks = range(order.ranks)
    is_listed = total is not None and order.ranks <= _MOST_RANKS
    by_rank = _known(partial(count_by_rank, ranks=ranks), stream) if is_listed else None
    return StreamSummary(
        samples=source.total,
        steps=order.steps,
        batch_sizes=order.timeline.pieces,
        sequence_length=source.sequence_length,
        datasets=tuple(
            DatasetOfPlan(
                number,
                dataset.path_prefix,
                dataset.samples,
                None if bounds is None else (bounds[number], bounds[number + 1]),
                None if total is None else total[number],
                None if by_rank is None or not by_rank[1] else tuple(by_rank[0][:, number].tolist()),
            )
            for number, dataset in enumerate(source.datasets)
        ),
        shuffle=shuffle_words(stream),
        sort_key=stream.sort_key,
        mode=stream.mode,
        tail=stream.tail,
        epoch_ranges=tuple(
            EpochSummary(epochs.first_epoch, epochs.epochs, epochs.read, epochs.dropped, epochs.repeated)
            for epochs in order.epoch_ranges
        ),
        remaining=remaining_samples(order),
    )


def _known(count: Callable[[Stream], CountT], stream: Stream) -> CountT | None:
    """Return the counts of a stream, or None if its data cannot be read."""
    try:
        return count(stream)
    except TokshardError as error:
        raise_exhaustion(error)
        return None


def _places(stream: Stream, ids: Integers, epochs: Integers, numbers: Integers) -> tuple[SamplePlace, ...]:
    """Return the places of samples; a number below 0 is a sample that no rank reads."""
    if not ids.size:
        return ()  # no file is opened
    order = stream.order
    datasets, samples = Locator(stream.source).locate(ids)
    reads = order.reads(np.maximum(numbers, 0))
    indices = numbers // order.group * order.micro_batch_size + numbers % order.micro_batch_size
    places = []
    for place, number in enumerate(numbers.tolist()):
        dataset = int(datasets[place])
        is_read = number >= 0
        micro_batch, row = divmod(int(reads.row[place]), order.micro_batch_size)
        places.append(
            SamplePlace(
                sample=int(ids[place]),
                dataset=dataset,
                prefix=stream.source.datasets[dataset].path_prefix,
                dataset_sample=int(samples[place]),
                epoch=int(epochs[place]),
                data_parallel_rank=int(reads.rank[place]) if is_read else None,
                index=int(indices[place]) if is_read else None,
                step=int(reads.step[place]) if is_read else None,
                micro_batch=micro_batch if is_read else None,
                row=row if is_read else None,
            )
        )
    return tuple(places)
