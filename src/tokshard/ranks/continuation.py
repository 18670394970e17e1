"""Continuation of an order with another world size: the current epoch first, then those after it."""

from __future__ import annotations

from dataclasses import replace

from tokshard.errors import UsageError
from tokshard.ranks.consumption import AnyLink, ConsumptionOrder, EpochRange, available_steps
from tokshard.ranks.links import Interleave, Skip
from tokshard.ranks.modes import ReadingMode, order_after
from tokshard.ranks.schedule import BatchSchedule


def continue_order(
    stopped: ConsumptionOrder,
    point: tuple[int, int],
    consumed_samples: int,
    reading: ReadingMode,
    schedule: BatchSchedule,
    *,
    redistributes: bool = False,
    steps: int | None = None,
) -> ConsumptionOrder:
    """Return the order of what a stopped order has not read, for other ranks.

    The rest of the epoch under way comes first, its dropped tail included, then the epochs after it. A rest
    that does not fill a batch is left out where tails are dropped.

    Args:
        stopped: The order that was stopped.
        point: Epoch, and samples of it that were consumed; see :meth:`ConsumptionOrder.point`.
        consumed_samples: Samples that all ranks have consumed.
        reading: The ranks that continue. Their mode is that of the epochs after the one under way.
        schedule: Global batch size by consumed samples of the whole run.
        redistributes: Whether the mode distributes the rest of the epoch under way to the ranks, so that
            contiguous ranks read neighboring samples again. Otherwise the rest keeps its order: batches of
            the same size have the same samples for any number of ranks.
        steps: Number of steps; by default as many as fit the samples that ``stopped`` had left to read.

    Raises:
        UsageError: Nothing is left, there are fewer steps, sizes do not fit, or the order cannot be kept.

    Example:
        >>> epoch = EpochRange(100, (), read=96, first_epoch=0, epochs=1)
        >>> stopped = ConsumptionOrder(4, 2, BatchSchedule.constant(8), 12, 0, 0, (epoch,))
        >>> fours = BatchSchedule.constant(4)
        >>> after = continue_order(stopped, stopped.point(24), 24, ReadingMode(2, 2, 4), fours)
        >>> after.steps, after.consumed_samples, after.ids(after.numbers(rank=1, first=0, count=2)).tolist()
        (19, 24, [26, 27])
    """
    epoch, position = point
    ranges: list[EpochRange] = []
    skipped = 0
    for epochs in stopped.epoch_ranges:
        first = max(epochs.first_epoch, epoch)
        if epochs.has_epoch(epoch):
            begun = _epoch_under_way(epochs, stopped, point, reading, redistributes=redistributes)
            if begun is not None:
                ranges.append(begun[0])
                skipped = begun[1]
            first = epoch + 1
        end = None if epochs.epochs is None else epochs.first_epoch + epochs.epochs
        if end is None or first < end:
            links = _links_of_epoch(epochs, stopped)
            ranges.append(_whole_epochs(epochs.total, links, first, end and end - first, reading))
    if not ranges:
        under_way = [epochs.positions for epochs in stopped.epoch_ranges if epochs.has_epoch(epoch)]
        unread = max(sum(under_way) - position, 0)
        raise UsageError(
            f"the unread samples after {consumed_samples:,} consumed samples ({unread:,}) are fewer than one "
            f"batch of {reading.batch:,}",
            hint="pass a smaller --global-batch-size, or --tail pad to repeat samples",
        )
    limit = None if _reads_all(stopped) else stopped.consumed_after(stopped.steps) - consumed_samples
    return order_after(ranges, reading, schedule, consumed_samples, skipped, steps, limit)


def _epoch_under_way(
    epochs: EpochRange,
    stopped: ConsumptionOrder,
    point: tuple[int, int],
    reading: ReadingMode,
    *,
    redistributes: bool,
) -> tuple[EpochRange, int] | None:
    """Return the rest of an epoch and the samples of it to skip, or None if it does not fill a batch."""
    epoch, position = point
    links = _links_of_epoch(epochs, stopped)
    in_order = replace(reading, mode="single")
    if position == 0 and (not links or links[0].samples == epochs.total):
        if not in_order.fills(epochs.total):
            return None
        return _whole_epochs(epochs.total, links, epoch, 1, reading), 0
    owner = owner_of(epochs, stopped)
    if owner is not None and owner.run and position:
        if redistributes:
            # In ascending order all that this many rounds of the ranks have not read.
            links = (replace(owner, read=position), *links)
        elif epochs.repeated:
            raise UsageError(
                "a plan that repeats samples cannot be replanned",
                hint="pass --mode contiguous or --mode chunked, which distribute the unread samples",
            )
        else:
            links = epochs.links
    samples = links[0].samples if links else epochs.total
    if not in_order.fills(samples - position):
        return None
    if not redistributes and reading.mode != "sequential":
        return in_order.epochs(epochs.total, links, epoch, 1, position), position
    if position:
        links = (Skip(samples - position, position), *links)
    if reading.mode == "cyclic":
        links = (*reading.cyclic_links(links[0].samples, faithful=False), *links)
    return reading.epochs(epochs.total, links, epoch, 1), 0


def _whole_epochs(
    total: int, links: tuple[AnyLink, ...], first_epoch: int, epochs: int | None, reading: ReadingMode
) -> EpochRange:
    if reading.mode == "cyclic":
        links = reading.cyclic_links(total, faithful=False)
    return reading.epochs(total, links, first_epoch, epochs)


def owner_of(epochs: EpochRange, stopped: ConsumptionOrder) -> Interleave | None:
    """Return the link by which the ranks of an order own parts of an epoch."""
    first = epochs.links[0] if epochs.links else None
    if not isinstance(first, Interleave) or first.read != epochs.read:
        return None
    is_own = (first.ranks, first.micro_batch_size) == (stopped.ranks, stopped.micro_batch_size)
    return first if is_own else None


def _links_of_epoch(epochs: EpochRange, stopped: ConsumptionOrder) -> tuple[AnyLink, ...]:
    return epochs.links if owner_of(epochs, stopped) is None else epochs.links[1:]


def _reads_all(order: ConsumptionOrder) -> bool:
    return order.steps == available_steps(
        order.epoch_ranges, order.group, order.schedule, order.consumed_samples, order.skipped
    )
