"""Remainder of an assignment that stops: the samples that no rank has read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tokshard.ranks.assignment import Assignment, EpochRange
from tokshard.ranks.intervals import Intervals
from tokshard.ranks.layouts import Blocked
from tokshard.ranks.order import ConsumptionOrder, SampleOrder


@dataclass(frozen=True, slots=True)
class Remainder:
    """Positions that are unread after some steps, for another number of ranks to continue with.

    Attributes:
        epoch: The epoch under way.
        seen: The positions of its order that were read already.
        unread: The others, also those that the plan was going to drop.
        order: The order of the unread ones; None where the epoch is complete.
        following: The epoch_ranges of whole epochs after it.
    """

    epoch: int
    seen: Intervals
    unread: Intervals
    order: SampleOrder | None
    following: tuple[EpochRange, ...]

    @classmethod
    def after(cls, assignment: Assignment, step: int, *, keep_order: bool = True) -> Self:
        """Return what is unread after the first ``step`` steps.

        Args:
            assignment: What was being read.
            step: 0 to the number of its steps.
            keep_order: Whether the unread samples keep the global order that they were going to have. In
                striped modes that is the order of positions, in blocked ones the order in which the ranks
                together read them. Without it blocked modes keep runs of neighbours together. Before the
                first step of an epoch nothing is kept: another world lays out the whole epoch again.

        Raises:
            IndexError: The step does not exist.
            UsageError: The order cannot be kept: see :class:`~tokshard.ranks.order.ConsumptionOrder`.

        Example:
            >>> from tokshard.ranks.layouts import Striped
            >>> from tokshard.ranks.schedule import BatchSchedule
            >>> layout = Striped(100, ranks=2, width=4, samples_per_rank=48, repeat="last")
            >>> whole = EpochRange(SampleOrder(100, ()), layout, first_epoch=0, epochs=1)
            >>> stopped = Remainder.after(Assignment((whole,), 4, BatchSchedule.constant(16), 6, 0, 0), 2)
            >>> stopped.seen.pairs(), stopped.unread.pairs(), stopped.order.samples
            (((0, 32),), ((32, 100),), 68)
        """
        number, one, epoch, within = _standing(assignment, step)
        order, seen = one.order, one.layout.consumed(within)
        if keep_order and within and isinstance(one.layout, Blocked):
            order = order.before(ConsumptionOrder(one.layout, assignment.micro_batch_size))
            seen = Intervals.of([(0, within * assignment.ranks)])
        unread = seen.complement(order.samples)
        following = assignment.epoch_ranges[number + 1 :]
        left = None if one.epochs is None else one.epochs - epoch - 1
        if left != 0:
            following = (EpochRange(one.order, one.layout, one.first_epoch + epoch + 1, left), *following)
        rest = order.rest(unread) if unread.count else None
        return cls(one.first_epoch + epoch, seen, unread, rest, following)


def _standing(assignment: Assignment, step: int) -> tuple[int, EpochRange, int, int]:
    local = assignment.first_local(step) + assignment.skipped
    for number, one in enumerate(assignment.epoch_ranges):
        last = number + 1 == len(assignment.epoch_ranges)
        if local < one.per_rank or last:
            break
        local -= one.per_rank
    epoch, within = divmod(local, one.per_epoch)
    if epoch == one.epochs:
        epoch, within = epoch - 1, one.per_epoch
    return number, one, epoch, within
