"""Summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokshard.errors import IntegrityError
from tokshard.sharding.assignment import ENDLESS, Assignment, Pass
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.layouts import Layout, Striped, repeats
from tokshard.sharding.order import Bucketing, Link, ReadOrder, Selection, ShardShuffle, Shuffle, Torch
from tokshard.sharding.sources import SampleSource

COMPOSITION = ("pack", "blend", "shuffle", "bucket", "shard")
"""The order in which what makes a plan is composed; it is fixed."""


def composition(
    source: SampleSource, assignment: Assignment, mode: str, tail: str, sort_key: str | None
) -> list[dict[str, str]]:
    """Return one entry for each step of :data:`COMPOSITION`, in this order.

    It describes the first epoch that is read; a plan that goes on from another one begins with the rest of
    an epoch.
    """
    first = assignment.passes[0]
    buckets = [link for link in first.order.links if isinstance(link, Bucketing)]
    others = [_link(link) for link in reversed(first.order.links) if not isinstance(link, Bucketing)]
    texts = {
        "pack": _pack(source),
        "blend": _blend(source),
        "shuffle": ", then ".join(others) or "none",
        "bucket": f"{_bucket(buckets[0])} by {sort_key}" if buckets else "none",
        "shard": f"{mode}, tail {tail}: {_layout(first.layout)}",
    }
    return [{"step": step, "what": texts[step]} for step in COMPOSITION]


def _pack(source: SampleSource) -> str:
    if source.sequence_length is None:
        return "none: samples are documents"
    extra = " and one more as the last label" if source.extra_token else ""
    return f"samples of {source.sequence_length} tokens{extra}, by the indexes of the datasets"


def _blend(source: SampleSource) -> str:
    count = len(source.datasets)
    if source.order is not None:
        return f"{source.total} samples of {count} datasets, in the order of blend {source.order.hash}"
    noun = "dataset" if count == 1 else "datasets, one after the other"
    return f"none: {source.total} samples of {count} {noun}"


def _link(link: Link) -> str:
    if isinstance(link, Torch):
        each = "all" if link.blocks == 1 else f"each of {link.blocks} blocks of"
        return f"{each} {link.length} permuted by {link.algorithm}, seeded by the epoch"
    if isinstance(link, Shuffle):
        window = "all" if link.window >= link.samples else f"windows of {link.window}"
        return f"{window} shuffled by {link.algorithm}, seed {link.seed}{_per_epoch(link)}"
    if isinstance(link, ShardShuffle):
        shards = len(link.sizes)
        return f"{shards} shards in the order of {link.algorithm}, seed {link.seed}{_per_epoch(link)}"
    if isinstance(link, Selection):
        return f"{link.samples} of {link.of} positions in {link.kept.starts.size} intervals"
    if isinstance(link, ReadOrder):
        return "the order in which the ranks before were going to read"
    return _bucket(link)


def _bucket(link: Bucketing) -> str:
    return (
        f"windows of {link.buffer} in packs of {link.pack} by {link.algorithm}, "
        f"seed {link.seed}{_per_epoch(link)}"
    )


def _per_epoch(link: Shuffle | ShardShuffle | Bucketing) -> str:
    return ", anew in each epoch" if link.per_epoch else ", the same in each epoch"


def _layout(layout: Layout) -> str:
    size = f"{layout.width} in turn" if isinstance(layout, Striped) else f"runs of {layout.run}"
    return f"{layout.samples} positions over {layout.ranks} ranks by {size}, {layout.samples_per_rank} each"


LISTED = 1000
"""More dropped or repeated samples than this are counted, but not listed by their ids."""

# A permutation by torch is a table: a longer one would take seconds for a few ids.
_LONGEST_TABLE = 1 << 20


@dataclass(frozen=True, slots=True)
class PassCoverage:
    """What a pass reads in each of its epochs, were all of it read.

    Attributes:
        first_epoch: Its first epoch.
        epochs: How many there are; None for no end.
        positions: The positions of an epoch.
        read: How many of them are read.
        dropped: The positions that are left out.
        dropped_ids: Their sample ids in the first epoch; None where they are too many or need a table or
            sort keys.
        repeated: How many reads are repetitions.
        repeated_ids: Pairs (sample id, times) of the first epoch; None as above.
    """

    first_epoch: int
    epochs: int | None
    positions: int
    read: int
    dropped: Intervals
    dropped_ids: Intervals | None
    repeated: int
    repeated_ids: tuple[tuple[int, int], ...] | None

    def to_json(self) -> dict[str, Any]:
        """Return the coverage as JSON values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {
            "dropped": self.dropped.count,
            "dropped_positions": self.dropped.to_json(),
            "dropped_ids": None if self.dropped_ids is None else self.dropped_ids.to_json(),
            "repeated_ids": None if self.repeated_ids is None else [list(pair) for pair in self.repeated_ids],
        }


@dataclass(frozen=True, slots=True)
class Coverage:
    """What an assignment reads.

    Attributes:
        steps: Its steps, the same on every rank.
        samples_per_rank: What each rank reads in them.
        reads: What all ranks read in them.
        left: How many reads are left when the steps end; None where epochs have no end.
        passes: Its passes.
    """

    steps: int
    samples_per_rank: int
    reads: int
    left: int | None
    passes: tuple[PassCoverage, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the coverage as JSON values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"passes": [one.to_json() for one in self.passes]}


def coverage_of(assignment: Assignment) -> Coverage:
    """Count what an assignment reads, drops and repeats, by formulas.

    Raises:
        IntegrityError: See :func:`check_partition`.
    """
    per_rank = sum(one.per_rank for one in assignment.passes)
    read = assignment.samples_per_rank
    endless = per_rank >= ENDLESS
    return Coverage(
        steps=assignment.steps,
        samples_per_rank=read,
        reads=read * assignment.ranks,
        left=None if endless else (per_rank - assignment.skipped - read) * assignment.ranks,
        passes=tuple(_pass_coverage(assignment, one) for one in assignment.passes),
    )


def check_partition(layout: Layout) -> tuple[int, int]:
    """Check that the ranks of a layout read every position once, and those that are dropped never.

    The positions of a rank are a formula, so it is enough to count them, and to ask for the first and the
    last one of each rank whether they are found again at their rank and place.

    Returns:
        How many positions are read, and how many are dropped.

    Raises:
        IntegrityError: They do not: a defect of tokshard.
    """
    owned = np.array([layout.owned(rank) for rank in range(layout.ranks)], dtype=np.int64)
    read, dropped = int(owned.sum()), layout.dropped().count
    filled = np.flatnonzero(owned)
    ranks = np.concatenate((filled, filled)).astype(np.int64)
    local = np.concatenate((np.zeros(filled.size, dtype=np.int64), owned[filled] - 1))
    found_rank, found_local = layout.locate(layout.at(ranks, local))
    if (
        read + dropped != layout.samples
        or not np.array_equal(found_rank, ranks)
        or not np.array_equal(found_local, local)
    ):
        raise IntegrityError(
            f"{layout.ranks} ranks would read {read} of {layout.samples} positions and drop {dropped}: "
            "not every sample exactly once",
            hint="this is a defect of tokshard: please report it with the command",
        )
    return read, dropped


def _pass_coverage(assignment: Assignment, one: Pass) -> PassCoverage:
    read, dropped = check_partition(one.layout)
    repeated = sum(count for _, _, count in repeats(one.layout))
    cheap = not any(
        isinstance(link, Bucketing) or (isinstance(link, Torch) and link.length > _LONGEST_TABLE)
        for link in one.order.links
    )
    epoch = one.first_epoch
    dropped_ids = assignment.tail(epoch) if cheap and dropped <= LISTED else None
    repeated_ids = None
    if cheap and repeated <= LISTED:
        ids, times = assignment.repeats(epoch)
        repeated_ids = tuple(zip(ids.tolist(), times.tolist(), strict=True))
    return PassCoverage(
        first_epoch=epoch,
        epochs=one.epochs,
        positions=one.layout.samples,
        read=read,
        dropped=one.layout.dropped(),
        dropped_ids=dropped_ids,
        repeated=repeated,
        repeated_ids=repeated_ids,
    )
