"""Layouts of an order: the positions that each rank reads, in stripes or in blocks.

A layout deals the positions 0 to ``samples - 1`` of one epoch out to data-parallel ranks. A rank numbers
what it reads with local indices from 0 on, and micro-batch ``m`` is its local indices ``m * b`` to
``(m + 1) * b - 1``. With 3 ranks, positions in rank 0's, rank 1's and rank 2's local order::

    Striped(width=2)    0 1 6 7    | 2 3 8 9    | 4 5 10 11       Megatron's single sampler, b = 2
    Striped(width=1)    0 3 6 9    | 1 4 7 10   | 2 5 8 11        sequential: round robin
    Blocked(run=4)      0 1 2 3    | 4 5 6 7    | 8 9 10 11       contiguous, chunked

Every rank reads ``samples_per_rank`` of them. Positions beyond these are dropped; a rank that has fewer
reads some again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from tokshard.core.codec import Positive, Record
from tokshard.errors import UsageError
from tokshard.ranks.intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

Repeat = Literal["last", "first"]
"""The samples that pad a rank with too few: ``last``, the last sample of the rank's block, or of all samples
if ranks have no blocks; ``first``, the rank's own samples from its first one on."""


@dataclass(frozen=True, slots=True)
class Striped(Record):
    """The layout ``striped``: stripes of positions, which the ranks read in turn.

    Example:
        >>> layout = Striped(12, ranks=3, width=2, samples_per_rank=4, repeat="last")
        >>> layout.positions(1, 0, 4).tolist()
        [2, 3, 8, 9]

    Attributes:
        samples: Number of positions.
        ranks: Data-parallel size.
        width: Positions of a stripe.
        samples_per_rank: Samples that each rank reads in an epoch, a multiple of ``width``.
        repeat: Positions that a rank repeats after its own: ``last``, its last position (of its run, if it
            has one), or ``first``, its own positions, starting at the first.
    """

    TAG: ClassVar[tuple[str, str]] = ("layout", "striped")

    samples: Positive
    ranks: Positive
    width: Positive
    samples_per_rank: Positive
    repeat: Repeat

    def _validate(self) -> None:
        if self.samples_per_rank % self.width:
            raise UsageError(
                f"samples per rank must be a multiple of width {self.width}, got {self.samples_per_rank}"
            )

    def owned(self, rank: int) -> int:
        """Return how many of its positions a rank reads for the first time."""
        _check_rank(self, rank)
        rounds, rest = divmod(self.samples, self.ranks * self.width)
        own = rounds * self.width + min(max(rest - rank * self.width, 0), self.width)
        return min(own, self.samples_per_rank)

    def positions(self, rank: int, first: int, count: int) -> Integers:
        """Return the positions of ``count`` local indices from ``first`` on: int64 of shape ``(count,)``.

        Raises:
            IndexError: The rank does not exist, or an index is negative or past the end.
        """
        return _positions(self, rank, first, count)

    def at(self, ranks: Integers, local: Integers) -> Integers:
        """Return the position of each local index of each rank (arrays that broadcast, trusted)."""
        found = local // self.width * (self.width * self.ranks) + ranks * self.width + local % self.width
        if self.repeat == "last":
            last: Integers = np.minimum(found, self.samples - 1)
            return last
        again = self._first_again(ranks, local)
        result: Integers = np.where(found < self.samples, found, again)
        return result

    def _first_again(self, ranks: Integers, local: Integers) -> Integers:
        own = np.array([self.owned(rank) for rank in range(self.ranks)], dtype=np.int64)[ranks]
        again = (local - own) % np.maximum(own, 1)
        found = again // self.width * (self.width * self.ranks) + ranks * self.width + again % self.width
        # A rank without any sample reads those of the others.
        return found % self.samples

    def locate(self, positions: Integers) -> tuple[Integers, Integers]:
        """Return (rank, local index) where each position is read first; (-1, -1) where it is dropped."""
        rounds, rest = np.divmod(positions, self.width * self.ranks)
        local = rounds * self.width + rest % self.width
        return _if_read(self, rest // self.width, local)

    def consumed(self, local: int) -> Intervals:
        """Return the positions that were read once every rank has read its first ``local`` indices.

        Padding does not count: what is read again belongs to where it is read first.

        Raises:
            UsageError: Stripes would be cut.
        """
        if local % self.width:
            raise UsageError(
                f"samples of a rank must be divisible by the stripe width {self.width}, got {local}"
            )
        return Intervals.of([(0, min(self.samples, local * self.ranks))])

    def dropped(self) -> Intervals:
        """Return the positions that no rank reads."""
        return Intervals.of([(min(self.samples, self.samples_per_rank * self.ranks), self.samples)])


@dataclass(frozen=True, slots=True)
class Blocked(Record):
    """The layout ``blocked``: a run of consecutive positions for each rank.

    Example:
        >>> layout = Blocked(5, ranks=3, run=2, samples_per_rank=2, repeat="last")
        >>> [layout.positions(rank, 0, 2).tolist() for rank in range(3)]
        [[0, 1], [2, 3], [4, 4]]

    Attributes:
        samples: Number of positions.
        ranks: Data-parallel size.
        run: Positions of a run. The last runs may be shorter or empty.
        samples_per_rank: Samples that each rank reads in an epoch.
        repeat: Positions that a rank repeats after its own: ``last``, its last position (of its run, if it
            has one), or ``first``, its own positions, starting at the first.
    """

    TAG: ClassVar[tuple[str, str]] = ("layout", "blocked")

    samples: Positive
    ranks: Positive
    run: Positive
    samples_per_rank: Positive
    repeat: Repeat

    def _validate(self) -> None:
        if self.repeat != "last":
            raise UsageError(f"invalid layout: blocks of {self.run} samples with repeat {self.repeat!r}")

    def owned(self, rank: int) -> int:
        """Return how many of its positions a rank reads for the first time."""
        _check_rank(self, rank)
        own = min(self.samples, (rank + 1) * self.run) - min(self.samples, rank * self.run)
        return min(own, self.samples_per_rank)

    def positions(self, rank: int, first: int, count: int) -> Integers:
        """Return the positions of ``count`` local indices from ``first`` on: int64 of shape ``(count,)``.

        Raises:
            IndexError: The rank does not exist, or an index is negative or past the end.
        """
        return _positions(self, rank, first, count)

    def at(self, ranks: Integers, local: Integers) -> Integers:
        """Return the position of each local index of each rank (arrays that broadcast, trusted)."""
        found = np.minimum(ranks * self.run + local, (ranks + 1) * self.run - 1)
        result: Integers = np.minimum(found, self.samples - 1)
        return result

    def locate(self, positions: Integers) -> tuple[Integers, Integers]:
        """Return (rank, local index) where each position is read first; (-1, -1) where it is dropped."""
        ranks, local = np.divmod(positions, self.run)
        return _if_read(self, ranks, local)

    def consumed(self, local: int) -> Intervals:
        """Return the positions that were read once every rank has read its first ``local`` indices."""
        starts, stops = self._bounds()
        return Intervals.of_bounds(starts, np.minimum(starts + local, stops))

    def dropped(self) -> Intervals:
        """Return the positions that no rank reads."""
        return self.consumed(self.samples_per_rank).complement(self.samples)

    def _bounds(self) -> tuple[Integers, Integers]:
        starts = np.minimum(np.arange(self.ranks + 1, dtype=np.int64) * self.run, self.samples)
        return starts[:-1], starts[1:]


Layout = Striped | Blocked


def repeats_any(layout: Layout) -> bool:
    """Tell whether a rank reads something again; if so, the last one does, which has the fewest positions."""
    return layout.owned(layout.ranks - 1) < layout.samples_per_rank


def repeats(layout: Layout) -> list[tuple[int, int, int]]:
    """Return what ranks read again: triples (rank, first local index, count), only of ranks that do."""
    if not repeats_any(layout):
        return []
    own = [(rank, layout.owned(rank)) for rank in range(layout.ranks)]
    return [
        (rank, count, layout.samples_per_rank - count)
        for rank, count in own
        if count < layout.samples_per_rank
    ]


def _positions(layout: Layout, rank: int, first: int, count: int) -> Integers:
    _check_rank(layout, rank)
    length = layout.samples_per_rank
    if first < 0 or count < 0 or first + count > length:
        raise IndexError(
            f"local indices of rank {rank} must be from 0 to {length - 1}, got {first} to {first + count - 1}"
        )
    local = np.arange(first, first + count, dtype=np.int64)
    return layout.at(np.array(rank, dtype=np.int64), local)


def _if_read(layout: Layout, ranks: Integers, local: Integers) -> tuple[Integers, Integers]:
    read = (ranks < layout.ranks) & (local < layout.samples_per_rank)
    return np.where(read, ranks, -1), np.where(read, local, -1)


def _check_rank(layout: Layout, rank: int) -> None:
    if not 0 <= rank < layout.ranks:
        raise IndexError(f"the data-parallel rank must be from 0 to {layout.ranks - 1}, got {rank}")
