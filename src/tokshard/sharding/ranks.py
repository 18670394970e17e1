"""Manifests."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tokshard.errors import MissingFileError, TokshardError, UsageError
from tokshard.sharding.assignment import Assignment, Pass
from tokshard.sharding.fields import Fields
from tokshard.sharding.layouts import Blocked
from tokshard.sharding.order import ShardShuffle
from tokshard.sharding.plan import PLAN_NAME, Plan, Stream, read_plan
from tokshard.sharding.sources import DatasetReference, SampleSource
from tokshard.sharding.topology import Coordinates, Topology
from tokshard.storage.small_files import read_json_object


@dataclass(frozen=True, slots=True)
class SampleRange:
    """Neighbouring samples of a dataset.

    Attributes:
        dataset: The number of the dataset.
        first: The first sample.
        stop: One past the last sample.
    """

    dataset: int
    first: int
    stop: int


def positions_of(one: Pass, rank: int) -> dict[str, Any]:
    """Return the positions of an epoch that a data-parallel rank reads, as a formula.

    The ``i``-th of them, from 0 to ``count - 1``, is ``start + i // run * stride + i % run``; after these the
    rank reads ``repeated`` samples again, which others or itself have read.

    Example:
        >>> from tokshard.sharding.layouts import Striped
        >>> from tokshard.sharding.order import SampleOrder
        >>> whole = Pass(SampleOrder(100), Striped(100, ranks=2, width=4, samples_per_rank=48))
        >>> positions_of(whole, 1)["start"], positions_of(whole, 1)["stride"]
        (4, 8)
    """
    layout = one.layout
    run = layout.run if isinstance(layout, Blocked) else layout.width
    owned = layout.owned(rank)
    return {
        "first_epoch": one.first_epoch,
        "epochs": one.epochs,
        "start": rank * run,
        "run": run,
        "stride": run * layout.ranks,
        "count": owned,
        "repeated": one.per_epoch - owned,
    }


def ranges_of(assignment: Assignment, source: SampleSource, rank: int) -> tuple[SampleRange, ...] | None:
    """Return the samples that a data-parallel rank reads, where they are runs of neighbours.

    Returns:
        Ranges in the order in which they are read; None where what the rank reads is spread over all
        datasets: in a blend, in a random order of samples, and where the ranks read in turn.
    """
    one = assignment.passes[0]
    shards = _shard_order(one)
    spread = len(assignment.passes) > 1 or one.epochs != 1 or shards is None
    if spread or source.order is not None or not isinstance(one.layout, Blocked):
        return None
    if not assignment.samples_per_rank:
        return ()
    ends = (assignment.skipped, assignment.skipped + assignment.samples_per_rank - 1)
    first, last = (int(one.layout.positions(rank, end, 1)[0]) for end in ends)
    return _ranges(source, shards or tuple(range(len(source.datasets))), first, last + 1)


def _shard_order(one: Pass) -> tuple[int, ...] | None:
    """Return the shards in the order of a pass; empty for their own order, None where samples are mixed."""
    if not one.order.links:
        return ()
    if len(one.order.links) == 1 and isinstance(one.order.links[0], ShardShuffle):
        return tuple(one.order.links[0].order(one.first_epoch).tolist())
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


def bytes_of(reference: DatasetReference) -> Callable[[int, int], tuple[int, int]]:
    """Return the function from a range of samples to the bytes of ``.bin`` that hold them.

    Samples of an index lie anywhere in it, so theirs are all bytes. For documents the index file is opened.

    Raises:
        MissingFileError, IntegrityError: The dataset is not there, or has changed.
    """
    if reference.index is not None:
        return lambda _first, _stop: (0, reference.bin.size_bytes)
    table = reference.open_dataset().index
    itemsize = table.dtype.itemsize

    def found(first: int, stop: int) -> tuple[int, int]:
        edges = (int(table.document_indices[first]), int(table.document_indices[stop]))
        return table.first_token(edges[0]) * itemsize, table.first_token(edges[1]) * itemsize

    return found


SCHEMA = "tokshard.rank/1"
PACKED_SCHEMA = "tokshard.ranks/1"
PACKED_NAME = "ranks.json"

RANK_NAME = re.compile(r"rank-([0-9]{5,9})\.json")
OF_ALL = ("schema", "plan_id", "plan")
"""The fields that the packed file has once for all ranks."""


@dataclass(frozen=True, slots=True)
class RankView:
    """A plan as one rank sees it.

    Attributes:
        plan: The plan.
        rank: The rank in the whole job.
    """

    plan: Plan
    rank: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.plan.topology.world_size:
            raise UsageError(
                f"rank {self.rank} is not 0 to {self.plan.topology.world_size - 1}, the ranks of the plan"
            )

    @property
    def plan_id(self) -> str:
        """See :class:`~tokshard.sharding.plan.Plan`."""
        return self.plan.plan_id

    @property
    def topology(self) -> Topology:
        """The ranks of the job."""
        return self.plan.topology

    @property
    def coordinates(self) -> Coordinates:
        """Where the rank stands."""
        return self.plan.topology.coordinates(self.rank)

    @property
    def data_parallel_rank(self) -> int:
        """The rank among those that read different samples: what assignments call the rank."""
        return self.coordinates.dp

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The streams by their names."""
        return self.plan.streams

    def needs(self, stream: str = "train") -> tuple[str, ...]:
        """Return the fields of a stream that the rank reads itself, often none; see :class:`Topology`."""
        return self.plan.topology.needs(self.rank, boundaries=self.streams[stream].boundaries)

    def manifest(self) -> dict[str, Any]:
        """Return the rank's manifest, without byte ranges, which only the data tells."""
        return {
            "schema": SCHEMA,
            "plan_id": self.plan_id,
            "plan": PLAN_NAME,
            "rank": self.rank,
            "coordinates": asdict(self.coordinates),
            "streams": {name: self._stream(name) for name in self.streams},
        }

    def _stream(self, name: str) -> dict[str, Any]:
        stream, needs = self.streams[name], self.needs(name)
        ranges = ranges_of(stream.assignment, stream.source, self.data_parallel_rank) if needs else ()
        reads = None if ranges is None else [asdict(one) for one in ranges]
        return {
            "needs": list(needs),
            "data_parallel_rank": self.data_parallel_rank,
            "steps": stream.assignment.steps,
            "samples": stream.assignment.samples_per_rank,
            "positions": [positions_of(one, self.data_parallel_rank) for one in stream.assignment.passes],
            "reads": reads,
        }


def rank_name(rank: int) -> str:
    """Return the name of a rank's manifest.

    Example:
        >>> rank_name(7)
        'rank-00007.json'
    """
    return f"rank-{rank:05d}.json"


def is_plan(path: str) -> bool:
    """Tell whether a path names a plan: its directory, or one of its files."""
    if os.path.isdir(path):
        return os.path.isfile(os.path.join(path, PLAN_NAME))
    name = os.path.basename(path)
    known = name in {PLAN_NAME, PACKED_NAME} or RANK_NAME.fullmatch(name) is not None
    return known and os.path.isfile(path)


def read_rank(
    path: str | os.PathLike[str], rank: int | None = None, *, roots: Mapping[str, str] | None = None
) -> RankView:
    """Read what one rank needs of a plan, strictly; no data is opened.

    Args:
        path: The directory of a plan, its ``plan.json`` or ``ranks.json``, or the manifest of a rank.
        rank: The rank; may be left out where ``path`` is a rank's manifest.
        roots: See :func:`~tokshard.sharding.plan.read_plan`.

    Raises:
        UsageError: The rank is not said, or there is no such rank.
        MissingFileError: There is no plan, or no manifest of the rank.
        IntegrityError: A file is damaged or was changed, or they do not belong together.
    """
    given = directory = os.fspath(path)
    named = None if os.path.isdir(given) else RANK_NAME.fullmatch(os.path.basename(given))
    if named is not None:
        rank = _same_rank(given, int(named[1]), rank)
    if named is not None or os.path.basename(given) in {PLAN_NAME, PACKED_NAME}:
        directory = os.path.dirname(given)
    if rank is None:
        raise UsageError(f"{given} is the plan of all ranks: say which rank", hint="for example rank=0")
    view = RankView(read_plan(os.path.join(directory, PLAN_NAME), roots=roots), rank)
    _check_manifest(view, *_manifest_of(directory, rank, _read_packed(directory)))
    return view


def check_ranks(plan: Plan, directory: str) -> Iterator[tuple[int, TokshardError]]:
    """Check the manifests of all ranks against their plan; a packed file is read once.

    Args:
        plan: The plan.
        directory: Its directory.

    Yields:
        For each manifest that is missing, damaged, or does not follow from the plan: the rank, and why.
        Where a packed file cannot be read, that is all.
    """
    try:
        packed = _read_packed(directory)
    except TokshardError as error:
        yield 0, error
        return
    for rank in range(plan.topology.world_size):
        try:
            _check_manifest(RankView(plan, rank), *_manifest_of(directory, rank, packed))
        except TokshardError as error:
            yield rank, error


def _same_rank(path: str, named: int, asked: int | None) -> int:
    if asked is not None and asked != named:
        raise UsageError(f"{path} is the manifest of rank {named}, but rank {asked} was asked for")
    return named


def _read_packed(directory: str) -> Fields | None:
    """Return the manifests of all ranks where they are in one file."""
    path = os.path.join(directory, PACKED_NAME)
    try:
        value = read_json_object(path)
    except FileNotFoundError:
        return None
    return Fields(value, path, "the ranks' manifests", (*OF_ALL, "ranks"))


def _manifest_of(directory: str, rank: int, packed: Fields | None) -> tuple[Any, str]:
    """Return (a rank's manifest as it was read, its path)."""
    if packed is not None:
        ranks = packed.array("ranks")
        if packed.value("schema") != PACKED_SCHEMA or rank >= len(ranks) or not isinstance(ranks[rank], dict):
            raise packed.wrong(f"has no manifest of rank {rank} that this version of tokshard reads")
        of_all = {name: packed.value(name) for name in OF_ALL[1:]}
        return {"schema": SCHEMA, **of_all, **ranks[rank]}, os.path.join(directory, PACKED_NAME)
    path = os.path.join(directory, rank_name(rank))
    try:
        return read_json_object(path), path
    except FileNotFoundError:
        if (packed := _read_packed(directory)) is not None:  # the plan has just been written in this form
            return _manifest_of(directory, rank, packed)
        raise MissingFileError(
            f"{path} is not there, though the plan has rank {rank}",
            path=path,
            hint="copy the whole directory of the plan, or make the plan again",
        ) from None


def _check_manifest(view: RankView, found: Any, path: str) -> None:
    """Check that a manifest is the one that follows from the plan.

    Raises:
        IntegrityError: It is not.
    """
    expected = view.manifest()
    record = Fields(found, path, "the manifest", tuple(expected))
    if record.value("plan_id") != view.plan_id:
        raise record.wrong(f"belongs to another plan than {PLAN_NAME} beside it", "plan_id")
    streams = {name: _without_bytes(one) for name, one in record.object("streams").items()}
    for name, value in {**found, "streams": streams}.items():
        if value != expected[name]:
            raise record.wrong(f"has {name} that do not follow from {PLAN_NAME} beside it", name)


def _without_bytes(stream: Any) -> Any:
    if not isinstance(stream, dict) or not isinstance(stream.get("reads"), list):
        return stream
    reads = [
        {name: value for name, value in one.items() if name != "bytes"} if isinstance(one, dict) else one
        for one in stream["reads"]
    ]
    return {**stream, "reads": reads}
