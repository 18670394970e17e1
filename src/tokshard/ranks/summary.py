"""Summary of a plan: what each stream is composed of, and what it reads, drops and repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from tokshard.core.codec import Count, Positive, Record
from tokshard.core.formatting import count, counted
from tokshard.errors import IntegrityError
from tokshard.ranks.assignment import ENDLESS, Assignment, EpochRange
from tokshard.ranks.layouts import Layout, Striped, repeats
from tokshard.ranks.order import Bucketing, ConsumptionOrder, Selection, Transform
from tokshard.ranks.plan import Stream
from tokshard.ranks.shuffles import BlockShuffle, ShardShuffle, Shuffle, TorchPermutation
from tokshard.samples.index.packing import pack_words

LISTED = 1000
"""More dropped or repeated samples than this are counted, but not listed by their ids."""

# A permutation by torch is a table: a longer one would take seconds for a few ids.
_LONGEST_TABLE = 1 << 20


@dataclass(frozen=True, slots=True)
class Composition(Record):
    """The steps that compose a stream, in their order: samples, blend, shuffle, bucketing, assignment.

    It describes the first epoch that is read; a plan that continues another one begins with the rest of an
    epoch.
    """

    sequence_length: Positive | None
    extra_token: bool
    samples: Positive
    datasets: Positive
    blend: str | None
    transforms: tuple[Transform, ...]
    sort_key: str | None
    mode: str
    tail: str
    layout: Layout
    packing: str | None = None

    @classmethod
    def of(cls, stream: Stream) -> Self:
        """Return the composition of a stream."""
        source, first = stream.source, stream.assignment.epoch_ranges[0]
        packings = [dataset.packing for dataset in source.datasets]
        return cls(
            sequence_length=source.sequence_length,
            extra_token=source.extra_token,
            samples=source.total,
            datasets=len(source.datasets),
            blend=None if source.order is None else source.order.hash,
            transforms=first.order.transforms[::-1],
            sort_key=stream.sort_key,
            mode=stream.mode,
            tail=stream.tail,
            layout=first.layout,
            packing=pack_words(packings) if any(packings) else None,
        )

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Return (step, description) for people."""
        buckets = [transform for transform in self.transforms if isinstance(transform, Bucketing)]
        others = [
            _transform(transform) for transform in self.transforms if not isinstance(transform, Bucketing)
        ]
        return (
            ("sample", self._sample()),
            ("blend", self._blend()),
            ("shuffle", ", then ".join(others) or "none"),
            *([("bucketing", f"{_transform(buckets[0])}, sorted by {self.sort_key}")] if buckets else []),
            ("assignment", f"{self.mode}: {_layout(self.layout)}; tail {self.tail}"),
        )

    def _sample(self) -> str:
        if self.sequence_length is None:
            return "one document"
        extra = " (+1 for the last label)" if self.extra_token else ""
        packing = "" if self.packing is None else f" ({self.packing})"
        return (
            f"{count(self.sequence_length)} tokens{extra}, from the sample indexes of the datasets{packing}"
        )

    def _blend(self) -> str:
        if self.blend is not None:
            datasets = counted(self.datasets, "dataset")
            return f"{count(self.samples)} samples of {datasets}, in the order of {self.blend}"
        noun = "dataset" if self.datasets == 1 else "datasets, concatenated"
        return f"none: {count(self.samples)} samples of {count(self.datasets)} {noun}"


def _transform(transform: Transform) -> str:
    if isinstance(transform, TorchPermutation):
        each = "all" if transform.blocks == 1 else f"each of {count(transform.blocks)} blocks of"
        return f"{each} {count(transform.length)} permuted by {transform.ALGORITHM}, seeded by the epoch"
    if isinstance(transform, Selection):
        intervals = counted(transform.kept.starts.size, "interval")
        return f"remaining: {count(transform.samples)} of {count(transform.of)} samples ({intervals})"
    if isinstance(transform, ConsumptionOrder):
        return "the reading order of the continued plan"
    each_epoch = ", different in each epoch" if transform.per_epoch else ", the same in each epoch"
    return f"{_seeded(transform)} by {transform.ALGORITHM}, seed {transform.seed}{each_epoch}"


def _seeded(transform: Bucketing | Shuffle | BlockShuffle | ShardShuffle) -> str:
    if isinstance(transform, Shuffle):
        window = (
            "all"
            if transform.window >= transform.samples
            else f"windows of {count(transform.window)} samples"
        )
        return f"{window} shuffled"
    if isinstance(transform, BlockShuffle):
        return f"blocks of {counted(transform.block, 'sample')} in random order"
    if isinstance(transform, ShardShuffle):
        return f"{counted(len(transform.sizes), 'dataset')} in random order"
    return f"windows of {count(transform.buffer)} samples in packs of {count(transform.pack)}"


def _layout(layout: Layout) -> str:
    runs = f"{count(layout.width)} in turn" if isinstance(layout, Striped) else f"runs of {count(layout.run)}"
    samples, each = counted(layout.samples, "sample"), count(layout.samples_per_rank)
    return f"{samples} over {counted(layout.ranks, 'data-parallel rank')}, {runs}, {each} per rank"


@dataclass(frozen=True, slots=True)
class EpochCoverage(Record):
    """Samples read in each epoch of a range, if all of it is read."""

    first_epoch: Count
    epochs: Positive | None
    positions: Positive
    read: Count
    dropped: Count
    dropped_positions: tuple[tuple[Count, Count], ...]
    dropped_ids: tuple[tuple[Count, Count], ...] | None
    repeated: Count
    repeated_ids: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True, slots=True)
class Coverage(Record):
    """Samples that an assignment reads."""

    steps: Count
    samples_per_rank: Count
    reads: Count
    left: Count | None
    epoch_ranges: tuple[EpochCoverage, ...]


def coverage_of(assignment: Assignment) -> Coverage:
    """Count what an assignment reads, drops and repeats, by formulas.

    Raises:
        IntegrityError: See :func:`check_partition`.
    """
    per_rank = sum(epoch_range.per_rank for epoch_range in assignment.epoch_ranges)
    read = assignment.samples_per_rank
    endless = per_rank >= ENDLESS
    return Coverage(
        steps=assignment.steps,
        samples_per_rank=read,
        reads=read * assignment.ranks,
        left=None if endless else (per_rank - assignment.skipped - read) * assignment.ranks,
        epoch_ranges=tuple(
            _epoch_coverage(assignment, epoch_range) for epoch_range in assignment.epoch_ranges
        ),
    )


def check_partition(layout: Layout) -> tuple[int, int]:
    """Check that the ranks of a layout read every position once, and those that are dropped never.

    The positions of a rank are a formula, so it is enough to count them, and to ask for the first and the
    last one of each rank whether they are found again at their rank and place.

    Returns:
        How many positions are read, and how many are dropped.

    Raises:
        IntegrityError: The counts do not add up, which is a defect of tokshard.
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


def _epoch_coverage(assignment: Assignment, epoch_range: EpochRange) -> EpochCoverage:
    read, dropped = check_partition(epoch_range.layout)
    repeated = sum(times for _, _, times in repeats(epoch_range.layout))
    cheap = not any(
        isinstance(transform, Bucketing)
        or (isinstance(transform, TorchPermutation) and transform.length > _LONGEST_TABLE)
        for transform in epoch_range.order.transforms
    )
    epoch = epoch_range.first_epoch
    dropped_ids = assignment.tail(epoch).pairs() if cheap and dropped <= LISTED else None
    repeated_ids = None
    if cheap and repeated <= LISTED:
        ids, times = assignment.repeats(epoch)
        repeated_ids = tuple(zip(ids.tolist(), times.tolist(), strict=True))
    return EpochCoverage(
        first_epoch=epoch,
        epochs=epoch_range.epochs,
        positions=epoch_range.layout.samples,
        read=read,
        dropped=dropped,
        dropped_positions=epoch_range.layout.dropped().pairs(),
        dropped_ids=dropped_ids,
        repeated=repeated,
        repeated_ids=repeated_ids,
    )
