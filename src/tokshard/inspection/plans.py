"""Looking at a plan: who reads what, from a rank's index to the dataset and back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.errors import UsageError
from tokshard.sharding.assignment import Assignment
from tokshard.sharding.locator import Locator, open_sort_key
from tokshard.sharding.plan import Plan, Stream, read_plan
from tokshard.sharding.ranks import RANK_NAME, RankView, read_rank
from tokshard.sharding.summary import Coverage, coverage_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.sharding.order import KeyOf

    Integers = NDArray[np.int64]

PLAN_SCHEMA = "tokshard.inspect-plan/1"
RANK_SCHEMA = "tokshard.inspect-rank/1"
SAMPLE_SCHEMA = "tokshard.inspect-plan-sample/1"

# Entries of a blend's arrays that are searched at a time: 40 MB.
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What a plan is.

    Attributes:
        plan: The plan.
        coverage: What each stream reads, drops and repeats.
    """

    plan: Plan
    coverage: Mapping[str, Coverage]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the summary of a plan; no data is opened."""
        return cls(plan, {name: coverage_of(stream.assignment) for name, stream in plan.streams.items()})

    def coverage_json(self) -> dict[str, Any]:
        """Return the coverage of the streams as JSON values."""
        return {name: one.to_json() for name, one in self.coverage.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object with a ``schema`` field."""
        plan = self.plan
        streams = {
            name: {
                "samples": stream.source.total,
                "steps": stream.assignment.steps,
                "batch_sizes": [list(piece) for piece in stream.assignment.timeline.pieces],
                "composition": stream.composition,
                "shards": _shards(stream),
                "coverage": self.coverage[name].to_json(),
            }
            for name, stream in plan.streams.items()
        }
        return {
            "schema": PLAN_SCHEMA,
            "plan_id": plan.plan_id,
            "topology": {**plan.topology.to_json(), "data_parallel": plan.topology.data_parallel},
            "options": plan.options,
            "history": list(plan.history),
            "warnings": list(plan.warnings),
            "streams": streams,
        }


@dataclass(frozen=True, slots=True)
class SamplePlace:
    """A sample on its way from a dataset to a rank.

    Attributes:
        sample: Its id: the global index.
        dataset: The number of its dataset, the shard.
        prefix: The path prefix of that.
        dataset_sample: The sample of the dataset's index, or its document: the shard index.
        epoch: The epoch.
        data_parallel_rank: Who reads it; -1 where nobody does, as all below.
        index: Its place among what the rank reads from the start of the plan on.
        step: The step.
        micro_batch: The micro-batch of the step.
        row: Its row in the micro-batch.
    """

    sample: int
    dataset: int
    prefix: str
    dataset_sample: int
    epoch: int
    data_parallel_rank: int
    index: int
    step: int
    micro_batch: int
    row: int

    def to_json(self) -> dict[str, Any]:
        """Return the place as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RankSummary:
    """What one rank reads.

    Attributes:
        view: The rank.
        stream: The stream that was asked for.
        step: The step that was asked for, or None.
        places: What it reads at that step, in order; or the one index that was asked for.
    """

    view: RankView
    stream: str
    step: int | None
    places: tuple[SamplePlace, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object with a ``schema`` field."""
        manifest = self.view.manifest()
        return {
            **manifest,
            "schema": RANK_SCHEMA,
            "stream": self.stream,
            "step": self.step,
            "places": [one.to_json() for one in self.places],
        }


def inspect_plan(path: str) -> PlanSummary:
    """Summarise a plan.

    Raises:
        MissingFileError: There is none.
        IntegrityError: It is damaged.
    """
    return PlanSummary.of(read_plan(path))


def inspect_rank(
    path: str, rank: int | None, *, stream: str = "train", step: int | None = None, index: int | None = None
) -> RankSummary:
    """Say what a rank reads: of the whole plan, at a step, or at one of its indices.

    Raises:
        UsageError: There is no such rank, stream, step or index.
        MissingFileError, IntegrityError: See :func:`~tokshard.sharding.ranks.read_rank`.
    """
    view = read_rank(path, rank)
    one = _stream(view.plan, stream)
    assignment = one.assignment
    local = np.empty(0, dtype=np.int64)
    if step is not None:
        if not 0 <= step < assignment.steps:
            raise UsageError(f"step {step} is not 0 to {assignment.steps - 1}, the steps of {stream}")
        local = np.arange(assignment.first_local(step), assignment.first_local(step + 1), dtype=np.int64)
    if index is not None:
        if not 0 <= index < assignment.samples_per_rank:
            raise UsageError(f"index {index} is not 0 to {assignment.samples_per_rank - 1}")
        local = np.array([index], dtype=np.int64)
    return RankSummary(view, stream, step, _places_of_rank(one, view.data_parallel_rank, local))


def find_sample(plan: Plan, stream: str, sample: int, *, epoch: int | None = None) -> SamplePlace:
    """Say which dataset a sample comes from, and where it is read first in an epoch.

    Args:
        plan: The plan.
        stream: The stream.
        sample: The id of the sample.
        epoch: The epoch; None for the first one that is read.

    Raises:
        UsageError: There is no such stream, sample or epoch.
    """
    one = _stream(plan, stream)
    if not 0 <= sample < one.source.total:
        raise UsageError(f"sample {sample} is not 0 to {one.source.total - 1}, the samples of {stream}")
    chosen = one.assignment.passes[0].first_epoch if epoch is None else epoch
    ids = np.array([sample], dtype=np.int64)
    try:
        found = one.assignment.locate(ids, chosen, _key_of(one))
    except IndexError as error:
        raise UsageError(f"{stream}: {error}") from error
    rank, step, slot = (int(part[0]) for part in (found.rank, found.step, found.slot))
    index = -1 if rank < 0 else one.assignment.first_local(step) + slot
    return _place(one, sample, chosen, rank, index)


def find_shard_sample(plan: Plan, stream: str, dataset: int, dataset_sample: int) -> tuple[int, ...]:
    """Return the ids of a sample of a dataset: mostly one, none where no id stands for it.

    In a blend its arrays are searched through, 10 bytes for each sample.

    Raises:
        UsageError: There is no such stream, dataset or sample.
    """
    one = _stream(plan, stream)
    source = one.source
    if not 0 <= dataset < len(source.datasets):
        raise UsageError(f"dataset {dataset} is not 0 to {len(source.datasets) - 1}")
    reference = source.datasets[dataset]
    place = dataset_sample - reference.first
    if not 0 <= place < reference.samples:
        last = reference.first + reference.samples - 1
        raise UsageError(
            f"{dataset_sample} is not {reference.first} to {last}, the samples of {reference.prefix}"
        )
    if source.order is None:
        return (int(source.bounds[dataset]) + place,)
    locator, found = Locator(source), list[int]()
    for first in range(0, source.total, _CHUNK):
        ids = np.arange(first, min(first + _CHUNK, source.total), dtype=np.int64)
        datasets, samples = locator.locate(ids)
        found += ids[(datasets == dataset) & (samples == dataset_sample)].tolist()
    return tuple(found)


def samples_json(plan: Plan, stream: str, places: Sequence[SamplePlace]) -> dict[str, Any]:
    """Return the places of samples as a JSON object with a ``schema`` field."""
    return {
        "schema": SAMPLE_SCHEMA,
        "plan_id": plan.plan_id,
        "stream": stream,
        "places": [one.to_json() for one in places],
    }


def names_rank(path: str) -> bool:
    """Tell whether a path is the manifest of one rank."""
    return RANK_NAME.fullmatch(os.path.basename(path)) is not None and os.path.isfile(path)


def epochs_of(assignment: Assignment, local: Integers) -> Integers:
    """Return the epoch of each local index: int64, the shape of ``local``."""
    result = np.full(local.shape, -1, dtype=np.int64)
    left = local + assignment.skipped
    for one in assignment.passes:
        here = (left >= 0) & (left < one.per_rank)
        result[here] = one.first_epoch + left[here] // one.per_epoch
        left = left - one.per_rank
    return result


def _places_of_rank(stream: Stream, rank: int, local: Integers) -> tuple[SamplePlace, ...]:
    if not local.size:
        return ()
    ids = stream.assignment.at(np.full(local.shape, rank, dtype=np.int64), local, _key_of(stream))
    epochs = epochs_of(stream.assignment, local)
    rows = zip(ids.tolist(), epochs.tolist(), local.tolist(), strict=True)
    return tuple(_place(stream, sample, epoch, rank, index) for sample, epoch, index in rows)


def _place(stream: Stream, sample: int, epoch: int, rank: int, index: int) -> SamplePlace:
    assignment = stream.assignment
    datasets, samples = Locator(stream.source).locate(np.array([sample], dtype=np.int64))
    dataset = int(datasets[0])
    step = micro_batch = row = -1
    if rank >= 0:
        consumed = assignment.consumed_samples + index * assignment.ranks
        step = int(assignment.timeline.step_of(np.array([consumed], dtype=np.int64))[0])
        micro_batch, row = divmod(index - assignment.first_local(step), assignment.micro_batch_size)
    return SamplePlace(
        sample=sample,
        dataset=dataset,
        prefix=stream.source.datasets[dataset].prefix,
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
        raise UsageError(f"the plan has no stream {name!r}, but {', '.join(plan.streams)}")
    return plan.streams[name]


def _key_of(stream: Stream) -> KeyOf | None:
    return None if stream.sort_key is None else open_sort_key(stream.source, stream.sort_key)


def _shards(stream: Stream) -> list[dict[str, Any]]:
    """Return the datasets with the ids at which each begins and ends, where ids are numbered through."""
    source = stream.source
    bounds = None if source.order is not None else source.bounds.tolist()
    return [
        {
            "dataset": number,
            "prefix": one.prefix,
            "samples": one.samples,
            "ids": None if bounds is None else bounds[number : number + 2],
        }
        for number, one in enumerate(source.datasets)
    ]
