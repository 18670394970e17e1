"""The proof that a plan goes on where another one stopped: what was seen, is planned and is left, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.sharding.assignment import Assignment, Remainder
from tokshard.sharding.fields import Fields
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.locator import Locator
from tokshard.sharding.order import SampleOrder
from tokshard.sharding.replan.counting import count_datasets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.sharding.order import KeyOf


@dataclass(frozen=True, slots=True)
class SourceCount:
    """The samples of one dataset in the epoch, or the laps, that were under way at the stop.

    Attributes:
        samples: All of them.
        before: Those that plans before the stopped one read.
        seen: Those that the stopped plan read.
        planned: Those that the new plan reads.
        left: Those that nobody reads, because they do not fill a batch or the steps end before.
        later: What the new plan reads of laps that begin after the stop.
    """

    samples: int
    before: int
    seen: int
    planned: int
    left: int
    later: int = 0

    @property
    def adds_up(self) -> bool:
        """Whether what was and will be read and what is left is everything."""
        return self.samples == self.before + self.seen + self.planned + self.left

    def to_json(self) -> dict[str, int]:
        """Return the counts as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the counts that :meth:`to_json` gave.

        Raises:
            IntegrityError: They are none.
        """
        record = Fields(value, path, "the counts of a dataset", cls.__slots__)
        return cls(**{name: record.count(name) for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class StreamProof:
    """What was counted of a stream.

    Attributes:
        epoch: The epoch under way at the stop; None for a blend that was weighted anew, whose sources have
            laps of their own.
        sources: One for each dataset of the new plan's stream, in order.
    """

    epoch: int | None
    sources: tuple[SourceCount, ...]

    @property
    def total(self) -> SourceCount:
        """The sums over all datasets."""
        names = SourceCount.__slots__
        return SourceCount(**{name: sum(getattr(one, name) for one in self.sources) for name in names})

    def to_json(self) -> dict[str, Any]:
        """Return the proof as JSON values."""
        return {"epoch": self.epoch, "sources": [one.to_json() for one in self.sources]}

    @classmethod
    def from_json(cls, value: Any, path: str) -> Self:
        """Return the proof that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none.
        """
        record = Fields(value, path, "a proof", cls.__slots__)
        epoch = None if record.value("epoch") is None else record.count("epoch")
        return cls(epoch, tuple(SourceCount.from_json(one, path) for one in record.array("sources")))


def prove_remainder(
    stopped: Assignment,
    step: int,
    after: Assignment,
    locator: Locator,
    before: Sequence[int] | None = None,
    key_of: KeyOf | None = None,
) -> StreamProof:
    """Count what was seen, is planned and is left of the epoch under way.

    The samples are counted by intervals of the ids, or in blocks where an order shuffles them; seen and
    planned ones are counted each from its own plan.

    Args:
        stopped: What was being read.
        step: How many of its steps were taken.
        after: What is read from then on.
        locator: What the ids mean, in both.
        before: The samples of each dataset that plans before ``stopped`` read in this epoch; None for all
            that its order leaves out.
        key_of: The sort keys, with bucketing.
    """
    remainder = Remainder.after(stopped, step, keep_order=False)
    epoch = remainder.epoch
    order = next(one.order for one in stopped.passes if one.has_epoch(epoch))
    seen = count_datasets(locator, order, remainder.seen, epoch, key_of)
    planned, left = _planned(after, remainder, locator, key_of)
    everything = Intervals.of([(0, locator.source.total)])
    samples = count_datasets(locator, SampleOrder(order.total), everything, epoch)
    if before is None:
        own = Intervals.of([(0, order.samples)])
        earlier = samples - count_datasets(locator, order, own, epoch, key_of) if order.links else samples * 0
    else:
        earlier = np.array(before, dtype=np.int64)
    table = np.stack((samples, earlier, seen, planned, left), axis=1).tolist()
    return StreamProof(epoch, tuple(SourceCount(*row) for row in table))


def _planned(
    after: Assignment, remainder: Remainder, locator: Locator, key_of: KeyOf | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many unread samples of each dataset are planned, and how many are left."""
    one = after.passes[0]
    if one.first_epoch != remainder.epoch:
        nothing = np.zeros(len(locator.source.datasets), dtype=np.int64)
        if remainder.order is None:
            return nothing, nothing
        rest = Intervals.of([(0, remainder.order.samples)])
        return nothing, count_datasets(locator, remainder.order, rest, remainder.epoch, key_of)
    planned = read_positions(after)
    left = planned.complement(one.order.samples)
    epoch = remainder.epoch
    return (
        count_datasets(locator, one.order, planned, epoch, key_of),
        count_datasets(locator, one.order, left, epoch, key_of),
    )


def read_positions(assignment: Assignment) -> Intervals:
    """Return the positions of the first epoch of an assignment that its steps read."""
    one = assignment.passes[0]
    local = min(assignment.skipped + assignment.samples_per_rank, one.per_epoch)
    return one.layout.consumed(local)
