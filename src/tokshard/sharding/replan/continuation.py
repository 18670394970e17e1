"""Going on after a stop: what is unread, dealt out to another world."""

from __future__ import annotations

from dataclasses import dataclass

from tokshard.errors import UsageError
from tokshard.sharding.assignment import Assignment, Pass, Remainder, available_steps
from tokshard.sharding.order import SampleOrder
from tokshard.sharding.planning import World, cyclic_order, layout_of
from tokshard.sharding.schedule import BatchSchedule


@dataclass(frozen=True, slots=True)
class Dealing:
    """How epochs are dealt out to ranks; see :mod:`tokshard.sharding.planning`.

    Attributes:
        mode: The mode of whole epochs.
        tail: What happens to samples that do not fill a batch of all ranks.
        sharded: In mode ``cyclic``, whether each rank has its own block.
        keep_order: Whether the rest of the epoch under way keeps the order that it was going to be read
            in: batches of the same size then hold the same samples in any world. Without it the mode
            deals out what is unread: contiguous ranks get runs of neighbours again, and open fewer files.
    """

    mode: str = "single"
    tail: str = "drop"
    sharded: bool = True
    keep_order: bool = True


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a stream goes on.

    Attributes:
        assignment: What is read from now on.
        remainder: What was read and unread of the epoch under way.
    """

    assignment: Assignment
    remainder: Remainder


def go_on(
    stopped: Assignment,
    step: int,
    world: World,
    schedule: BatchSchedule,
    dealing: Dealing,
    *,
    steps: int | None = None,
) -> Continuation:
    """Deal out what is unread after some steps.

    The rest of the epoch under way comes first, also what was going to be its tail, then the epochs after
    it. A rest that fills no batch is left out where tails are dropped.

    Args:
        stopped: What was being read.
        step: How many of its steps were taken.
        world: Who goes on.
        schedule: The global batch size from now on, by the consumed samples of the whole run.
        dealing: How it is dealt out.
        steps: The number of steps; None for as many as fit the samples that ``stopped`` had left to read.

    Raises:
        UsageError: Nothing is left, the steps are more than the samples fill, or sizes do not fit.

    Example:
        >>> from tokshard.sharding.layouts import Striped
        >>> from tokshard.sharding.order import SampleOrder
        >>> whole = Pass(SampleOrder(100), Striped(100, ranks=4, width=2, samples_per_rank=24))
        >>> stopped = Assignment((whole,), 2, BatchSchedule.constant(8), steps=12)
        >>> after = go_on(stopped, 3, World(2, 2), BatchSchedule.constant(4), Dealing()).assignment
        >>> after.steps, after.consumed_samples, after.step_ids(rank=1, step=0).tolist()
        (19, 24, [[26, 27]])
    """
    remainder = Remainder.after(stopped, step, keep_order=dealing.keep_order)
    passes = _passes(remainder, world, dealing)
    if not passes:
        raise UsageError(
            f"{remainder.unread.count} unread samples after step {step} do not fill one batch of "
            f"{world.whole}: there is nothing to go on with",
            hint="use a smaller batch; with --tail pad samples are repeated to fill one",
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
        raise UsageError(f"no step is left after {consumed} consumed samples")
    return Continuation(Assignment(passes, world.micro_batch_size, schedule, steps, consumed), remainder)


def _passes(remainder: Remainder, world: World, dealing: Dealing) -> tuple[Pass, ...]:
    following = [
        deal_epochs(one.order, one.first_epoch, one.epochs, world, dealing) for one in remainder.following
    ]
    order = remainder.order
    if order is None or (dealing.tail == "drop" and order.samples < world.whole):
        return tuple(following)
    if remainder.seen.count or order.samples < order.total:
        return (_rest(order, remainder.epoch, world, dealing), *following)
    first = deal_epochs(order, remainder.epoch, 1, world, dealing)
    if following and following[0].order == first.order:
        epochs = following[0].epochs
        return (
            Pass(first.order, first.layout, first.first_epoch, None if epochs is None else epochs + 1),
            *following[1:],
        )
    return (first, *following)


def deal_epochs(order: SampleOrder, epoch: int, epochs: int | None, world: World, dealing: Dealing) -> Pass:
    """Deal out whole epochs, which nobody has begun.

    Raises:
        UsageError: They do not fill a batch, or the mode does not have this tail.
    """
    if dealing.mode == "cyclic":
        order = cyclic_order(order.total, world, sharded=dealing.sharded, faithful=False)
    layout = layout_of(dealing.mode, order.samples, world, tail=dealing.tail, sharded=dealing.sharded)
    return Pass(order, layout, epoch, epochs)


def _rest(order: SampleOrder, epoch: int, world: World, dealing: Dealing) -> Pass:
    """Deal out the rest of an epoch."""
    mode = dealing.mode
    if dealing.keep_order and mode != "sequential":
        # Stripes of micro-batches are the layout whose batches are runs of the order.
        mode = "single"
    if mode == "cyclic":
        random = cyclic_order(order.samples, world, sharded=dealing.sharded, faithful=False)
        order = SampleOrder(order.total, random.links + order.links)
    layout = layout_of(mode, order.samples, world, tail=dealing.tail, sharded=dealing.sharded)
    return Pass(order, layout, epoch)


def _reads_all(assignment: Assignment) -> bool:
    one = assignment
    return one.steps == available_steps(
        one.passes, one.micro_batch_size, one.schedule, one.consumed_samples, one.skipped
    )
