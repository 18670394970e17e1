"""Summaries of a plan, of one of its ranks, and of the way of single samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.checks.inspect.planned import count_planned
from tokshard.core.codec import Count, Document, Positive, Record
from tokshard.errors import TokshardError, UsageError, raise_exhaustion
from tokshard.ranks.assignment import Assignment
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import Plan, Stream, read_plan
from tokshard.ranks.ranks import RankManifest, RankStream, read_rank
from tokshard.ranks.summary import Composition, Coverage, coverage_of
from tokshard.ranks.topology import Coordinates, Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

# Entries of a blend's arrays that are searched at a time: 40 MB.
_CHUNK = 1 << 22

_GOLDEN = 0.6180339887498949
"""Its multiples, modulo 1, are spread evenly however many there are."""


@dataclass(frozen=True, slots=True)
class DatasetOfPlan(Record):
    """A dataset of a stream."""

    dataset: Count
    prefix: str
    samples: Count
    ids: tuple[Count, Count] | None
    planned: Count | None


@dataclass(frozen=True, slots=True)
class StreamSummary(Record):
    """A stream of a plan."""

    samples: Count
    steps: Count
    batch_sizes: tuple[tuple[Count, Count, Count], ...]
    composition: Composition
    datasets: tuple[DatasetOfPlan, ...]
    coverage: Coverage


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
            continues=parents_of(plan),
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
class RankSummary(Document):
    """Summary of the reads of one rank."""

    SCHEMA = "tokshard.inspect-rank/2"

    plan_id: str
    rank: Count
    world_size: Positive
    coordinates: Coordinates
    streams: dict[str, RankStream]
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
    path: str, rank: int | None, *, stream: str = "train", step: int | None = None, index: int | None = None
) -> RankSummary:
    """Summarize what a rank reads, at a step or at one of its indices.

    Raises:
        UsageError: There is no such rank, stream, step or index.
        MissingFileError, IntegrityError: See :func:`~tokshard.ranks.ranks.read_rank`.
    """
    plan, rank = read_rank(path, rank)
    found = _stream(plan, stream)
    assignment = found.assignment
    local = np.empty(0, dtype=np.int64)
    if step is not None:
        if not 0 <= step < assignment.steps:
            raise UsageError(f"the step of {stream} must be 0 to {assignment.steps - 1}, got {step}")
        local = np.arange(assignment.first_local(step), assignment.first_local(step + 1), dtype=np.int64)
    if index is not None:
        if not 0 <= index < assignment.samples_per_rank:
            raise UsageError(f"the index must be 0 to {assignment.samples_per_rank - 1}, got {index}")
        local = np.array([index], dtype=np.int64)
    manifest = RankManifest.of(plan, rank)
    return RankSummary(
        plan_id=plan.plan_id,
        rank=rank,
        world_size=plan.topology.world_size,
        coordinates=manifest.coordinates,
        streams=manifest.streams,
        stream=stream,
        step=step,
        places=_places_of_rank(found, manifest.coordinates.dp, local),
    )


def inspect_sample(
    path: str,
    *,
    stream: str = "train",
    sample: int | None = None,
    dataset_sample: tuple[int, int] | None = None,
    epoch: int | None = None,
) -> PlanSampleSummary:
    """Summarize the way of a sample, given by its id or by (dataset, sample of the dataset).

    Raises:
        UsageError: There is no such stream, dataset, sample or epoch.
        MissingFileError, IntegrityError: See :func:`~tokshard.ranks.plan.read_plan`.
    """
    plan = read_plan(path)
    ids = (sample or 0,) if dataset_sample is None else find_dataset_sample(plan, stream, *dataset_sample)
    places = tuple(find_sample(plan, stream, number, epoch=epoch) for number in ids)
    return PlanSampleSummary(plan.plan_id, stream, places)


def find_sample(plan: Plan, stream: str, sample: int, *, epoch: int | None = None) -> SamplePlace:
    """Return the dataset of a sample, and where it is read first in an epoch.

    Raises:
        UsageError: There is no such stream, sample or epoch.
    """
    found = _stream(plan, stream)
    if not 0 <= sample < found.source.total:
        raise UsageError(f"the sample of {stream} must be 0 to {found.source.total - 1}, got {sample}")
    chosen = found.assignment.epoch_ranges[0].first_epoch if epoch is None else epoch
    ids = np.array([sample], dtype=np.int64)
    try:
        location = found.assignment.locate(ids, chosen, found.open_sort_key())
    except IndexError as error:
        raise UsageError(f"{stream}: {error}") from error
    rank, step, row = (int(part[0]) for part in (location.rank, location.step, location.row))
    if rank < 0:
        return _place(found, sample, chosen, None)
    return _place(found, sample, chosen, (rank, found.assignment.first_local(step) + row))


def find_dataset_sample(plan: Plan, stream: str, dataset: int, dataset_sample: int) -> tuple[int, ...]:
    """Return the ids of a sample of a dataset: mostly one, none where no id stands for it.

    In a blend its arrays are searched through, 10 bytes for each sample.

    Raises:
        UsageError: There is no such stream, dataset or sample.
    """
    source = _stream(plan, stream).source
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
    locator, found = Locator(source), list[int]()
    for first in range(0, source.total, _CHUNK):
        ids = np.arange(first, min(first + _CHUNK, source.total), dtype=np.int64)
        datasets, samples = locator.locate(ids)
        found += ids[(datasets == dataset) & (samples == dataset_sample)].tolist()
    return tuple(found)


def parents_of(plan: Plan) -> tuple[str, ...]:
    """Return the ids of the plans that a plan continues, oldest first."""
    return tuple(parent.plan_id for parent in plan.history)


def epochs_of(assignment: Assignment, local: Integers) -> Integers:
    """Return the epoch of each local index: int64, the shape of ``local``."""
    result = np.full(local.shape, -1, dtype=np.int64)
    left = local + assignment.skipped
    for epoch_range in assignment.epoch_ranges:
        here = (left >= 0) & (left < epoch_range.per_rank)
        result[here] = epoch_range.first_epoch + left[here] // epoch_range.per_epoch
        left = left - epoch_range.per_rank
    return result


def _stream_summary(stream: Stream) -> StreamSummary:
    source = stream.source
    bounds = None if source.order is not None else source.bounds.tolist()
    planned = _planned(stream)
    return StreamSummary(
        samples=source.total,
        steps=stream.assignment.steps,
        batch_sizes=tuple((int(a), int(b), int(c)) for a, b, c in stream.assignment.timeline.pieces),
        composition=Composition.of(stream),
        datasets=tuple(
            DatasetOfPlan(
                number,
                dataset.path_prefix,
                dataset.samples,
                None if bounds is None else (bounds[number], bounds[number + 1]),
                None if planned is None else planned[number],
            )
            for number, dataset in enumerate(source.datasets)
        ),
        coverage=coverage_of(stream.assignment),
    )


def _planned(stream: Stream) -> tuple[int, ...] | None:
    try:
        found = count_planned(stream)
    except TokshardError as error:
        raise_exhaustion(error)
        return None
    return found.counts if found.exact else None


def _places_of_rank(stream: Stream, rank: int, local: Integers) -> tuple[SamplePlace, ...]:
    if not local.size:
        return ()
    ids = stream.assignment.at(np.full(local.shape, rank, dtype=np.int64), local, stream.open_sort_key())
    epochs = epochs_of(stream.assignment, local)
    rows = zip(ids.tolist(), epochs.tolist(), local.tolist(), strict=True)
    return tuple(_place(stream, sample, epoch, (rank, index)) for sample, epoch, index in rows)


def _place(stream: Stream, sample: int, epoch: int, read_by: tuple[int, int] | None) -> SamplePlace:
    assignment = stream.assignment
    datasets, samples = Locator(stream.source).locate(np.array([sample], dtype=np.int64))
    dataset = int(datasets[0])
    rank = index = step = micro_batch = row = None
    if read_by is not None:
        rank, index = read_by
        consumed = assignment.consumed_samples + index * assignment.ranks
        step = int(assignment.timeline.step_of(np.array([consumed], dtype=np.int64))[0])
        micro_batch, row = divmod(index - assignment.first_local(step), assignment.micro_batch_size)
    return SamplePlace(
        sample=sample,
        dataset=dataset,
        prefix=stream.source.datasets[dataset].path_prefix,
        dataset_sample=int(samples[0]),
        epoch=epoch,
        data_parallel_rank=rank,
        index=index,
        step=step,
        micro_batch=micro_batch,
        row=row,
    )


def _stream(plan: Plan, name: str) -> Stream:
    if name not in plan.streams:
        raise UsageError(f"the stream must be {' or '.join(plan.streams)}, got {name!r}")
    return plan.streams[name]


@dataclass(frozen=True, slots=True)
class ReadGrid:
    """The first sample of some ranks at some steps, spread over all of them.

    Attributes:
        ranks: The data-parallel ranks that are shown.
        steps: The steps that are shown.
        samples: For each of these ranks the ids of the samples, one for each step.
        datasets: Likewise the numbers of their datasets; None where the data cannot be opened.
        unknown: Why that is so, or None.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    samples: tuple[tuple[int, ...], ...]
    datasets: tuple[tuple[int, ...], ...] | None
    unknown: TokshardError | None


def read_grid(stream: Stream, *, ranks: int, steps: int) -> ReadGrid | None:
    """Return what the ranks of a stream begin with at its steps; None where nothing is read.

    Args:
        stream: The stream.
        ranks: The largest number of ranks, 2 or more.
        steps: The largest number of steps.

    Raises:
        TokshardError: The stream sorts samples by something that cannot be read.
    """
    assignment = stream.assignment
    rows, columns = _spread(assignment.ranks, ranks), _spread(assignment.steps, steps)
    if not columns:
        return None
    first = np.array([assignment.first_local(step) for step in columns], dtype=np.int64)
    local = np.tile(first, len(rows))
    ids = assignment.at(
        np.repeat(np.array(rows, dtype=np.int64), len(columns)), local, stream.open_sort_key()
    )
    datasets, unknown = None, None
    try:
        datasets = _rows(Locator(stream.source).locate(ids)[0], len(rows))
    except TokshardError as error:
        raise_exhaustion(error)
        unknown = error
    return ReadGrid(rows, columns, _rows(ids, len(rows)), datasets, unknown)


def _spread(total: int, shown: int) -> tuple[int, ...]:
    """Return at most ``shown`` of the numbers below ``total``, with the first and the last.

    They are one of each of equal parts, and not equally far apart: of an order that repeats itself, as that
    of a blend, numbers at equal distances can show one source alone.

    Example:
        >>> _spread(3, 5), _spread(100, 4)
        ((0, 1, 2), (0, 40, 55, 99))
    """
    if total <= shown:
        return tuple(range(total))
    edges = [part * total // shown for part in range(shown + 1)]
    inner = [
        edges[part] + int(part * _GOLDEN % 1 * (edges[part + 1] - edges[part]))
        for part in range(1, shown - 1)
    ]
    return (0, *inner, total - 1)


def _rows(values: np.ndarray, rows: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in values.reshape(rows, -1).tolist())
