"""Assignments that continue a stopped one: the rest of the epoch under way, then the epochs after it."""

from __future__ import annotations

from dataclasses import dataclass

from tokshard.errors import UsageError
from tokshard.ranks.assignment import Assignment, EpochRange, available_steps
from tokshard.ranks.choices import Mode, Tail
from tokshard.ranks.modes import World, cyclic_order, layout_of
from tokshard.ranks.order import SampleOrder
from tokshard.ranks.replan.remainder import Remainder
from tokshard.ranks.schedule import BatchSchedule


@dataclass(frozen=True, slots=True)
class ShardingPolicy:
    """Sharding of epochs over ranks; see :mod:`tokshard.ranks.planning`.

    Attributes:
        keep_order: Whether the rest of the epoch under way keeps the order that it was going to be read
            in: batches of the same size then hold the same samples for any world size. Without it the mode
            shards what is unread: contiguous ranks get runs of neighbours again, and open fewer files.
    """

    mode: Mode = "single"
    tail: Tail = "drop"
    sharded: bool = True
    keep_order: bool = True


def continue_assignment(
    stopped: Assignment,
    step: int,
    world: World,
    schedule: BatchSchedule,
    policy: ShardingPolicy,
    *,
    steps: int | None = None,
) -> Assignment:
    """Assign the samples that are unread after some steps to the ranks that continue.

    The rest of the epoch under way comes first, also what was going to be its tail, then the epochs after
    it. A rest that does not fill a batch is left out where tails are dropped.

    ``schedule`` follows the consumed samples of the whole run. Without ``steps`` there are as many as fit the
    samples that ``stopped`` had left to read.

    Raises:
        UsageError: Nothing is left, the steps are more than the samples fill, or sizes do not fit.

    Example:
        >>> from tokshard.ranks.layouts import Striped
        >>> layout = Striped(100, ranks=4, width=2, samples_per_rank=24, repeat="last")
        >>> whole = EpochRange(SampleOrder(100, ()), layout, first_epoch=0, epochs=1)
        >>> stopped = Assignment((whole,), 2, BatchSchedule.constant(8), 12, 0, 0)
        >>> fours = BatchSchedule.constant(4)
        >>> after = continue_assignment(stopped, 3, World(2, 2), fours, ShardingPolicy())
        >>> after.steps, after.consumed_samples, after.step_ids(rank=1, step=0).tolist()
        (19, 24, [[26, 27]])
    """
    remainder = Remainder.after(stopped, step, keep_order=policy.keep_order)
    passes = _passes(remainder, world, policy)
    if not passes:
        raise UsageError(
            f"the unread samples after step {step} ({remainder.unread.count:,}) are fewer than one batch of "
            f"{world.whole:,}",
            hint="pass a smaller --global-batch-size, or --tail pad to repeat samples",
        )
    consumed = stopped.consumed_after(step)
    available = available_steps(passes, world.micro_batch_size, schedule, consumed, steps=steps)
    if steps is None:
        steps = available
        if not _reads_all(stopped):
            group = world.group
            left = stopped.consumed_after(stopped.steps) - consumed
            timeline = schedule.timeline(group, consumed, stop=consumed + left)
            steps = min(available, timeline.steps_within(left))
    if not steps:
        raise UsageError(f"the plan has no steps after {consumed:,} consumed samples")
    return Assignment(passes, world.micro_batch_size, schedule, steps, consumed, 0)


def _passes(remainder: Remainder, world: World, policy: ShardingPolicy) -> tuple[EpochRange, ...]:
    following = [
        whole_epochs(epoch_range.order, epoch_range.first_epoch, epoch_range.epochs, world, policy)
        for epoch_range in remainder.following
    ]
    order = remainder.order
    if order is None or (policy.tail == "drop" and order.samples < world.whole):
        return tuple(following)
    if remainder.seen.count or order.samples < order.total:
        return (_rest(order, remainder.epoch, world, policy), *following)
    first = whole_epochs(order, remainder.epoch, 1, world, policy)
    if following and following[0].order == first.order:
        epochs = following[0].epochs
        return (
            EpochRange(first.order, first.layout, first.first_epoch, None if epochs is None else epochs + 1),
            *following[1:],
        )
    return (first, *following)


def whole_epochs(
    order: SampleOrder, epoch: int, epochs: int | None, world: World, policy: ShardingPolicy
) -> EpochRange:
    """Return epochs of which nothing was read, as the mode shards them."""
    if policy.mode == "cyclic":
        order = cyclic_order(order.total, world, sharded=policy.sharded, faithful=False)
    layout = layout_of(policy.mode, order.samples, world, tail=policy.tail, sharded=policy.sharded)
    return EpochRange(order, layout, epoch, epochs)


def _rest(order: SampleOrder, epoch: int, world: World, policy: ShardingPolicy) -> EpochRange:
    mode = policy.mode
    if policy.keep_order and mode != "sequential":
        # Stripes of micro-batches are the layout whose batches are runs of the order.
        mode = "single"
    if mode == "cyclic":
        random = cyclic_order(order.samples, world, sharded=policy.sharded, faithful=False)
        order = SampleOrder(order.total, random.transforms + order.transforms)
    layout = layout_of(mode, order.samples, world, tail=policy.tail, sharded=policy.sharded)
    return EpochRange(order, layout, epoch, 1)


def _reads_all(assignment: Assignment) -> bool:
    return assignment.steps == available_steps(
        assignment.epoch_ranges,
        assignment.micro_batch_size,
        assignment.schedule,
        assignment.consumed_samples,
        assignment.skipped,
    )
