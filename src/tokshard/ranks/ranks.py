"""Rank manifests: the samples of a plan that one rank reads.

A manifest follows from the plan and is checked against it, so it can say nothing else; it is there for the
people and programs that move data to the rank's node. Reading a rank needs ``plan.json`` alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Self

from tokshard.core.codec import Count, Document, Positive, Record, Sha256, encode
from tokshard.dataset.products import PLAN_NAME, RANK_NAME, rank_name
from tokshard.errors import IntegrityError, MissingFileError, TokshardError, UsageError
from tokshard.ranks.assignment import Assignment, EpochRange
from tokshard.ranks.layouts import Blocked
from tokshard.ranks.plan import Plan, read_plan
from tokshard.ranks.shuffles import ShardShuffle
from tokshard.ranks.sources import SampleSource
from tokshard.ranks.topology import Coordinates
from tokshard.storage.reading import read_document


@dataclass(frozen=True, slots=True)
class SampleRange(Record):
    """Neighboring samples of a dataset."""

    dataset: Count
    first: Count
    stop: Count


@dataclass(frozen=True, slots=True)
class RankPositions(Record):
    """The positions of an epoch that a data-parallel rank reads, as a formula.

    The ``i``-th of them, from 0 to ``count - 1``, is ``start + i // run * stride + i % run``; after these the
    rank reads ``repeated`` samples again, which others or itself have read.
    """

    first_epoch: Count
    epochs: Positive | None
    start: Count
    run: Positive
    stride: Positive
    count: Count
    repeated: Count

    @classmethod
    def of(cls, epochs: EpochRange, rank: int) -> RankPositions:
        """Return the positions that a data-parallel rank reads.

        Example:
            >>> from tokshard.ranks.layouts import Striped
            >>> from tokshard.ranks.order import SampleOrder
            >>> layout = Striped(100, ranks=2, width=4, samples_per_rank=48, repeat="last")
            >>> whole = EpochRange(SampleOrder(100, ()), layout, first_epoch=0, epochs=1)
            >>> RankPositions.of(whole, 1).start, RankPositions.of(whole, 1).stride
            (4, 8)
        """
        layout = epochs.layout
        run = layout.run if isinstance(layout, Blocked) else layout.width
        owned = layout.owned(rank)
        return cls(
            first_epoch=epochs.first_epoch,
            epochs=epochs.epochs,
            start=rank * run,
            run=run,
            stride=run * layout.ranks,
            count=owned,
            repeated=epochs.per_epoch - owned,
        )


@dataclass(frozen=True, slots=True)
class RankStream(Record):
    """One stream as a rank reads it."""

    needs: tuple[str, ...]
    data_parallel_rank: Count
    steps: Count
    samples: Count
    positions: tuple[RankPositions, ...]
    reads: tuple[SampleRange, ...] | None


@dataclass(frozen=True, slots=True)
class RankManifest(Document):
    """Manifest of one rank: the samples that it reads."""

    SCHEMA = "tokshard.rank/2"
    OLDER_HINT = Plan.OLDER_HINT

    rank: Count
    coordinates: Coordinates
    streams: dict[str, RankStream]
    plan_id: Sha256
    plan: Literal["plan.json"]

    @classmethod
    def of(cls, plan: Plan, rank: int) -> Self:
        """Return the manifest of a rank.

        Raises:
            UsageError: The rank does not exist.
        """
        check_rank(plan, rank)
        place = plan.topology.coordinates(rank)
        streams = {}
        for name, stream in plan.streams.items():
            needs = plan.topology.needs(rank, boundaries=stream.document_boundaries)
            streams[name] = RankStream(
                needs=needs,
                data_parallel_rank=place.dp,
                steps=stream.assignment.steps,
                samples=stream.assignment.samples_per_rank,
                positions=tuple(
                    RankPositions.of(epochs, place.dp) for epochs in stream.assignment.epoch_ranges
                ),
                reads=ranges_of(stream.assignment, stream.source, place.dp) if needs else (),
            )
        return cls(rank, place, streams, plan.plan_id, PLAN_NAME)


def check_rank(plan: Plan, rank: int) -> None:
    """Check that a plan has a rank.

    Raises:
        UsageError: It does not.
    """
    if not 0 <= rank < plan.topology.world_size:
        raise UsageError(f"rank must be from 0 to {plan.topology.world_size - 1}, got {rank}")


def read_rank(
    path: str | os.PathLike[str], rank: int | None = None, *, roots: Mapping[str, str] | None = None
) -> tuple[Plan, int]:
    """Read a plan for one rank, strictly, and check the rank's manifest if there is one.

    Args:
        path: The directory of a plan, its ``plan.json``, or the manifest of a rank.
        rank: The rank; may be left out where ``path`` is a rank's manifest.
        roots: See :func:`~tokshard.ranks.plan.read_plan`.

    Returns:
        The plan and the rank. No data is opened.

    Raises:
        UsageError: The rank is not given, or there is no such rank.
        MissingFileError: There is no plan, or ``path`` does not exist.
        IntegrityError: A file is damaged or was changed, or they do not belong together.
    """
    given = directory = os.fspath(path)
    named = None if os.path.isdir(given) else RANK_NAME.fullmatch(os.path.basename(given))
    if named is not None:
        rank = _same_rank(given, int(named[1]), rank)
    if named is not None or os.path.basename(given) == PLAN_NAME:
        directory = os.path.dirname(given)
    if rank is None:
        raise UsageError(
            f"the rank is required: {given} is the plan of all ranks",
            hint="pass for example --rank 0, or rank=0 in Python",
        )
    plan = read_plan(os.path.join(directory, PLAN_NAME), roots=roots)
    check_rank(plan, rank)
    try:
        _check_manifest(plan, rank, directory)
    except MissingFileError:
        if named is not None:
            raise
    return plan, rank


def check_ranks(plan: Plan, directory: str) -> Iterator[tuple[int, TokshardError]]:
    """Check the manifests of all ranks against their plan.

    Args:
        plan: The plan.
        directory: Its directory.

    Yields:
        For each manifest that is missing, damaged, or does not follow from the plan: the rank and the error.
    """
    for rank in range(plan.topology.world_size):
        try:
            _check_manifest(plan, rank, directory)
        except TokshardError as error:
            yield rank, error


def _same_rank(path: str, named: int, asked: int | None) -> int:
    if asked is not None and asked != named:
        raise UsageError(f"rank must be {named}, the rank of the manifest {path}, got {asked}")
    return named


def _check_manifest(plan: Plan, rank: int, directory: str) -> None:
    path = os.path.join(directory, rank_name(rank))
    try:
        manifest = read_document(RankManifest, path)
    except FileNotFoundError:
        raise MissingFileError(
            f"rank manifest not found: {path} (rank {rank} of the plan)",
            path=path,
            hint="copy the complete directory of the plan, or run tokshard shard-plan again",
        ) from None
    if manifest.plan_id != plan.plan_id:
        raise IntegrityError(
            f"{path}: the manifest belongs to another plan than {PLAN_NAME} in its directory",
            path=path,
            field="plan_id",
        )
    expected = encode(RankManifest.of(plan, rank))
    for name, value in encode(manifest).items():
        if value != expected[name]:
            raise IntegrityError(
                f"{path}: {name} contradicts {PLAN_NAME} in its directory",
                path=path,
                field=name,
            )


def ranges_of(assignment: Assignment, source: SampleSource, rank: int) -> tuple[SampleRange, ...] | None:
    """Return the samples that a data-parallel rank reads, where they are runs of neighbors.

    Returns:
        Ranges in the order in which they are read; None where what the rank reads is spread over all
        datasets: in a blend, in a random order of samples, and where the ranks read in turn.
    """
    epochs = assignment.epoch_ranges[0]
    shards = _shard_order(epochs)
    spread = len(assignment.epoch_ranges) > 1 or epochs.epochs != 1 or shards is None
    if spread or source.order is not None or not isinstance(epochs.layout, Blocked):
        return None
    if not assignment.samples_per_rank:
        return ()
    ends = (assignment.skipped, assignment.skipped + assignment.samples_per_rank - 1)
    first, last = (int(epochs.layout.positions(rank, end, 1)[0]) for end in ends)
    return _ranges(source, shards or tuple(range(len(source.datasets))), first, last + 1)


def _shard_order(epochs: EpochRange) -> tuple[int, ...] | None:
    transforms = epochs.order.transforms
    if not transforms:
        return ()
    if len(transforms) == 1 and isinstance(transforms[0], ShardShuffle):
        return tuple(transforms[0].order(epochs.first_epoch).tolist())
    return None


def _ranges(source: SampleSource, shards: tuple[int, ...], first: int, stop: int) -> tuple[SampleRange, ...]:
    found, begin = [], 0
    for number in shards:
        reference = source.datasets[number]
        low, high = max(first, begin), min(stop, begin + reference.samples)
        if low < high:
            shift = reference.first - begin
            found.append(SampleRange(number, low + shift, high + shift))
        begin += reference.samples
    return tuple(found)
