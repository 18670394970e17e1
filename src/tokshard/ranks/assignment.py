"""Assignment of samples to ranks and steps: orders, layouts and batch sizes together.

An assignment is a few numbers and intervals, whatever the number of samples and ranks. All questions are
answered by formulas, for any index at any time, forwards and backwards.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.core.codec import Count, Positive, Record
from tokshard.errors import UsageError
from tokshard.ranks.intervals import Intervals
from tokshard.ranks.layouts import Layout, repeats, repeats_any
from tokshard.ranks.order import SampleOrder
from tokshard.ranks.schedule import BatchSchedule, Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.ranks.order import KeyOf

    Integers = NDArray[np.int64]

ENDLESS = 2**62
"""More samples than any rank will read."""


@dataclass(frozen=True, slots=True)
class EpochRange(Record):
    """A range of epochs, which have the same positions and the same assignment.

    Attributes:
        order: Order of the samples in each epoch.
        layout: Positions of the order that each rank reads.
        first_epoch: Number of the first epoch.
        epochs: Number of epochs. Null if it is unlimited.
    """

    order: SampleOrder
    layout: Layout
    first_epoch: Count
    epochs: Positive | None

    def _validate(self) -> None:
        if self.layout.samples != self.order.samples:
            raise UsageError(
                f"the layout must have {self.order.samples} positions, got {self.layout.samples}"
            )

    @property
    def per_epoch(self) -> int:
        """The samples that each rank reads in an epoch."""
        return self.layout.samples_per_rank

    @property
    def per_rank(self) -> int:
        """The samples that each rank reads in all epochs."""
        return ENDLESS if self.epochs is None else self.per_epoch * self.epochs

    def has_epoch(self, epoch: int) -> bool:
        """Tell whether an epoch is one of these."""
        return self.first_epoch <= epoch and (self.epochs is None or epoch < self.first_epoch + self.epochs)


@dataclass(frozen=True, slots=True)
class ReadPositions:
    """Ranks, steps and rows that read samples: int64 arrays, -1 for samples that are not read.

    Attributes:
        rank: The data-parallel rank.
        step: The step of the plan.
        row: The place within the rank's samples of the step; micro-batch ``row // b``.
    """

    rank: Integers
    step: Integers
    row: Integers


@dataclass(frozen=True, slots=True)
class Assignment(Record):
    """The samples of all ranks, starting at a number of consumed samples.

    Local indices number what a rank reads from the start of this assignment on; every rank has equally
    many, and step ``s`` is the same range of them on each.

    Raises:
        UsageError: The parts do not fit, or there are fewer samples than the steps need.

    Attributes:
        epoch_ranges: Ranges of epochs, in reading order.
        micro_batch_size: Samples of a micro-batch of one rank.
        schedule: Global batch size by consumed samples.
        steps: Number of steps.
        consumed_samples: Samples that all ranks have consumed before step 0.
        skipped: Samples of the epoch ranges that each rank has read before step 0.

    Example:
        >>> from tokshard.ranks.layouts import Striped
        >>> from tokshard.ranks.order import SampleOrder
        >>> layout = Striped(100, ranks=2, width=4, samples_per_rank=48, repeat="last")
        >>> whole = EpochRange(SampleOrder(100, ()), layout, first_epoch=0, epochs=1)
        >>> plan = Assignment((whole,), 4, BatchSchedule.constant(16), 6, 0, 0)
        >>> plan.ids(rank=1, first=0, count=8).tolist()
        [4, 5, 6, 7, 12, 13, 14, 15]
        >>> plan.locate(np.array([13]), epoch=0).step.tolist(), plan.tail(0).pairs()
        ([0], ((96, 100),))
    """

    epoch_ranges: tuple[EpochRange, ...]
    micro_batch_size: Positive
    schedule: BatchSchedule
    steps: Count
    consumed_samples: Count
    skipped: Count

    def _validate(self) -> None:
        if not self.epoch_ranges:
            raise UsageError("an assignment must have at least 1 epoch range")
        for epoch_range in self.epoch_ranges:
            if epoch_range.layout.ranks != self.ranks or epoch_range.per_epoch % self.micro_batch_size:
                raise UsageError(
                    f"{epoch_range.per_epoch} samples for each of {epoch_range.layout.ranks} ranks do "
                    f"not fit {self.ranks} ranks with micro-batches of {self.micro_batch_size}"
                )
        for epoch_range, following in zip(self.epoch_ranges, self.epoch_ranges[1:], strict=False):
            if (
                epoch_range.epochs is None
                or following.first_epoch < epoch_range.first_epoch + epoch_range.epochs
            ):
                raise UsageError("the epochs of an assignment must ascend")
        available = available_steps(
            self.epoch_ranges,
            self.micro_batch_size,
            self.schedule,
            self.consumed_samples,
            self.skipped,
            self.steps,
        )
        if self.steps > available:
            raise UsageError(f"steps must be at most {available} for these samples, got {self.steps}")

    @property
    def ranks(self) -> int:
        """The data-parallel size."""
        return self.epoch_ranges[0].layout.ranks

    @property
    def timeline(self) -> Timeline:
        """Steps and consumed samples."""
        group = self.ranks * self.micro_batch_size
        return _timeline(self.schedule, group, self.consumed_samples, self.steps)

    @property
    def samples_per_rank(self) -> int:
        """The samples that each rank reads in all steps, repeated ones counted again."""
        return self.first_local(self.steps)

    def first_local(self, step: int) -> int:
        """Return the first local index of a step, the same on every rank.

        Raises:
            IndexError: There is no such step (the one after the last counts, as an end).
        """
        if not 0 <= step <= self.steps:
            raise IndexError(f"step must be from 0 to {self.steps}, got {step}")
        consumed = int(self.timeline.consumed(np.array([step], dtype=np.int64))[0])
        return (consumed - self.consumed_samples) // self.ranks

    def consumed_after(self, step: int) -> int:
        """Return the consumed samples of all ranks after the first ``step`` steps."""
        return self.consumed_samples + self.first_local(step) * self.ranks

    def ids(self, rank: int, first: int, count: int, key_of: KeyOf | None = None) -> Integers:
        """Return the sample ids of ``count`` local indices of a rank from ``first`` on.

        One call for many indices costs hardly more than one for a few.

        Returns:
            int64 of shape ``(count,)``.

        Raises:
            IndexError: The rank does not exist, or an index is negative or past the end.
            UsageError: The order needs sort keys (``key_of``: ids to keys).
        """
        if not 0 <= rank < self.ranks:
            raise IndexError(f"the data-parallel rank must be from 0 to {self.ranks - 1}, got {rank}")
        if first < 0 or count < 0 or first + count > self.samples_per_rank:
            raise IndexError(
                f"local indices must be below {self.samples_per_rank}, got {first} to {first + count - 1}"
            )
        local = np.arange(first, first + count, dtype=np.int64)
        return self.at(np.full(count, rank, dtype=np.int64), local, key_of)

    def step_ids(self, rank: int, step: int, key_of: KeyOf | None = None) -> Integers:
        """Return what a rank reads in a step: int64 of shape (micro-batches, micro batch size)."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step must be from 0 to {self.steps - 1}, got {step}")
        first = self.first_local(step)
        return self.ids(rank, first, self.first_local(step + 1) - first, key_of).reshape(
            -1, self.micro_batch_size
        )

    def at(self, ranks: Integers, local: Integers, key_of: KeyOf | None = None) -> Integers:
        """Return the id at each local index of each rank (equal shapes ``(n,)``, trusted)."""
        result = np.empty(local.shape, dtype=np.int64)
        for epoch_range, epoch, which, within in self._epochs(local):
            result[which] = epoch_range.order.ids(epoch_range.layout.at(ranks[which], within), epoch, key_of)
        return result

    def repeated(self, ranks: Integers, local: Integers) -> NDArray[np.bool_]:
        """Return which local indices read again what was read in the same epoch, as padding."""
        result = np.zeros(local.shape, dtype=np.bool_)
        for epoch_range, _, which, within in self._epochs(local):
            if not repeats_any(epoch_range.layout):
                continue
            rank_found, local_found = epoch_range.layout.locate(epoch_range.layout.at(ranks[which], within))
            result[which] = (rank_found != ranks[which]) | (local_found != within)
        return result

    def locate(self, ids: Integers, epoch: int, key_of: KeyOf | None = None) -> ReadPositions:
        """Return where each id is read first in an epoch.

        Raises:
            IndexError: No pass has this epoch.
        """
        base = -self.skipped
        for epoch_range in self.epoch_ranges:
            if epoch_range.has_epoch(epoch):
                break
            base += epoch_range.per_rank
        else:
            raise IndexError(f"epoch {epoch} is not read")
        positions = epoch_range.order.positions(ids, epoch, key_of)
        ranks, within = epoch_range.layout.locate(np.maximum(positions, 0))
        local = base + (epoch - epoch_range.first_epoch) * epoch_range.per_epoch + within
        read = (positions >= 0) & (ranks >= 0) & (local >= 0) & (local < self.samples_per_rank)
        timeline = self.timeline
        steps = timeline.step_of(np.where(read, local, 0) * self.ranks + self.consumed_samples)
        firsts = (timeline.consumed(steps) - self.consumed_samples) // self.ranks
        return ReadPositions(
            np.where(read, ranks, -1), np.where(read, steps, -1), np.where(read, local - firsts, -1)
        )

    def tail(self, epoch: int) -> Intervals:
        """Return the ids that no rank reads in an epoch, were all of it read."""
        epoch_range = self._range_of(epoch)
        return Intervals.of_members(epoch_range.order.ids(_members(epoch_range.layout.dropped()), epoch))

    def repeats(self, epoch: int) -> tuple[Integers, Integers]:
        """Return the ids that are read again in an epoch, and how many times each, were all of it read."""
        epoch_range = self._range_of(epoch)
        again = [
            epoch_range.layout.positions(rank, first, count)
            for rank, first, count in repeats(epoch_range.layout)
        ]
        positions = np.concatenate([np.empty(0, dtype=np.int64), *again])
        ids, times = np.unique(epoch_range.order.ids(positions, epoch), return_counts=True)
        return ids, times.astype(np.int64)

    def _range_of(self, epoch: int) -> EpochRange:
        for epoch_range in self.epoch_ranges:
            if epoch_range.has_epoch(epoch):
                return epoch_range
        raise IndexError(f"epoch {epoch} is not read")

    def _epochs(self, local: Integers) -> Iterator[tuple[EpochRange, int, Integers | slice, Integers]]:
        # Yields (epoch range, epoch, which of the indices are in it, their local indices within the epoch).
        if not local.size:
            return
        local = local + self.skipped
        for epoch_range in self.epoch_ranges:
            least, most = int(local.min()), int(local.max())
            epoch = least // epoch_range.per_epoch
            if least >= 0 and most < min((epoch + 1) * epoch_range.per_epoch, epoch_range.per_rank):
                # All of them, as nearly always: nothing is looked for and nothing gathered.
                yield (
                    epoch_range,
                    epoch_range.first_epoch + epoch,
                    slice(None),
                    local - epoch * epoch_range.per_epoch,
                )
                return
            here = np.flatnonzero((local >= 0) & (local < epoch_range.per_rank))
            epochs, within = np.divmod(local[here], epoch_range.per_epoch)
            for epoch in np.unique(epochs):
                chosen = epochs == epoch
                yield epoch_range, epoch_range.first_epoch + int(epoch), here[chosen], within[chosen]
            local = local - epoch_range.per_rank


def available_steps(
    epoch_ranges: tuple[EpochRange, ...],
    micro_batch_size: int,
    schedule: BatchSchedule,
    consumed_samples: int = 0,
    skipped: int = 0,
    steps: int | None = None,
) -> int:
    """Return how many whole steps the epoch_ranges fill.

    Args:
        epoch_ranges: What is read.
        micro_batch_size: The samples of a micro-batch of one rank.
        schedule: The global batch size over time.
        consumed_samples: What all ranks had consumed before step 0.
        skipped: How many samples of each rank were read before step 0.
        steps: Batch sizes from this step on are not looked at; None for all that the samples reach.

    Raises:
        UsageError: A global batch size in use is not divisible by micro batch size x data-parallel size.
    """
    ranks = epoch_ranges[0].layout.ranks
    left = (
        min(sum(epoch_range.per_rank for epoch_range in epoch_ranges) - skipped, ENDLESS // (2 * ranks))
        * ranks
    )
    stop = consumed_samples + max(left, 0)
    group = ranks * micro_batch_size
    timeline = schedule.timeline(group, consumed_samples, stop=stop, steps=steps)
    return timeline.steps_within(max(left, 0))


@functools.lru_cache(maxsize=64)
def _timeline(schedule: BatchSchedule, group: int, consumed: int, steps: int) -> Timeline:
    return schedule.timeline(group, consumed, steps=steps)


def _members(intervals: Intervals) -> Integers:
    return intervals.nth(np.arange(intervals.count, dtype=np.int64))
