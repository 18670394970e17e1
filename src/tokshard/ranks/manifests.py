"""Rank manifests: the samples of a plan that one rank reads, as a formula in consumption order.

They are there for people and for programs without tokshard. Reading a rank requires ``plan.json`` and the
description of the samples alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Self

from tokshard.core.codec import Count, Document, Positive, Record, Sha256
from tokshard.dataset.products import PLAN_NAME, RANK_NAME, rank_name
from tokshard.errors import IntegrityError, MissingFileError, TokshardError, UsageError
from tokshard.ranks.plan import Plan, read_plan
from tokshard.ranks.topology import Coordinates
from tokshard.storage.reading import read_document


@dataclass(frozen=True, slots=True)
class RankStream(Record):
    """The samples of one stream that a rank reads.

    Sample ``i`` of the rank is number ``start + i // run * stride + i % run`` of all samples that the ranks
    consume, as Megatron counts ``consumed_samples``.

    Attributes:
        fields: Fields that the rank reads itself. Empty if other ranks send what it needs.
        steps: Number of steps, the same on every rank.
        samples: Number of samples in all steps. 0 if the rank reads no field.
        start: Number of its first sample.
        run: Samples of a run: a micro-batch.
        stride: Samples from the start of a run to the start of the next one.
        count: Number of runs.
    """

    fields: tuple[str, ...]
    steps: Count
    samples: Count
    start: Count
    run: Positive
    stride: Positive
    count: Count


@dataclass(frozen=True, slots=True)
class RankManifest(Document):
    """The manifest of one rank.

    Attributes:
        plan: File of the plan, in the same directory.
        plan_id: Id of the plan.
        rank: Rank in the whole job.
        coordinates: Place of the rank in each parallel dimension.
        streams: Streams, by name.
    """

    SCHEMA = "tokshard.rank/2"
    OLDER_HINT = Plan.OLDER_HINT

    plan: Literal["plan.json"]
    plan_id: Sha256
    rank: Count
    coordinates: Coordinates
    streams: dict[str, RankStream]

    @classmethod
    def of(cls, plan: Plan, rank: int) -> Self:
        """Return the manifest of a rank.

        Raises:
            UsageError: The rank does not exist.
        """
        check_rank(plan, rank)
        coordinates = plan.topology.coordinates(rank)
        streams = {}
        for name, stream in plan.streams.items():
            order = stream.order
            fields = plan.topology.needs(rank, boundaries=stream.document_boundaries)
            runs = order.samples // order.group if fields else 0
            streams[name] = RankStream(
                fields=fields,
                steps=order.steps,
                samples=runs * order.micro_batch_size,
                start=order.consumed_samples + coordinates.dp * order.micro_batch_size,
                run=order.micro_batch_size,
                stride=order.group,
                count=runs,
            )
        return cls(PLAN_NAME, plan.plan_id, rank, coordinates, streams)


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
    """Read a plan for one rank, and check that the manifest of the rank, if there is one, is of this plan.

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
    given = os.fspath(path)
    directory = given
    named = None if os.path.isdir(given) else RANK_NAME.fullmatch(os.path.basename(given))
    if named is not None:
        if rank is not None and rank != int(named[1]):
            raise UsageError(f"rank must be {int(named[1])}, the rank of the manifest {given}, got {rank}")
        rank = int(named[1])
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
        _read_manifest(plan, rank, directory)
    except MissingFileError:
        if named is not None:
            raise
    return plan, rank


def check_ranks(
    plan: Plan, directory: str, ranks: Iterable[int] | None = None
) -> Iterator[tuple[int, TokshardError]]:
    """Check the manifests of some ranks, by default all, against their plan.

    Yields:
        For each manifest that is missing, damaged, or does not follow from the plan: the rank and the error.
    """
    for rank in range(plan.topology.world_size) if ranks is None else ranks:
        try:
            if _read_manifest(plan, rank, directory) != RankManifest.of(plan, rank):
                path = os.path.join(directory, rank_name(rank))
                raise IntegrityError(f"{path} contradicts {PLAN_NAME} in its directory", path=path)
        except TokshardError as error:
            yield rank, error


def _read_manifest(plan: Plan, rank: int, directory: str) -> RankManifest:
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
    return manifest
