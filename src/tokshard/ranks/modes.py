"""Modes: how data-parallel ranks read the epochs of an order.

======================  ======================================================================
mode                    rank ``r`` of ``R`` reads
======================  ======================================================================
``single``              of each group of ``b * R`` positions, ``b`` is the micro-batch size, the
                        ``b`` that start at ``r * b``: Megatron's ``MegatronPretrainingSampler``
``cyclic``              its block of the ids in a random order of each epoch, or (``sharded=False``)
                        every ``R``-th of all in random order: ``MegatronPretrainingRandomSampler``
``contiguous``          ``samples // R`` consecutive positions
``sequential``          positions ``r, r + R, r + 2R, ...``
``chunked``             ``ceil(samples / R)`` consecutive positions
``full-validation``     ``r, r + R, ...`` one by one, all of them; ranks that run out begin again:
                        ``MegatronFullValidationSampler``
======================  ======================================================================

The tail is the incomplete final batch of all ranks. ``drop`` leaves it out, and ``pad`` fills it by reading
samples again. With ``drop``, chunks are as contiguous runs: blocks of the larger size would leave the
last rank, and so all ranks, with less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tokshard.errors import UsageError
from tokshard.ranks.choices import Mode, Tail
from tokshard.ranks.consumption import AnyLink, ConsumptionOrder, EpochRange, available_steps
from tokshard.ranks.links import Interleave
from tokshard.ranks.schedule import BatchSchedule
from tokshard.ranks.shuffles import TorchPermutation


@dataclass(frozen=True, slots=True)
class ReadingMode:
    """How the ranks of a world read epochs.

    Attributes:
        ranks: Data-parallel size.
        micro_batch_size: Samples of a micro-batch of one rank.
        batch: Samples of all ranks that the tail is measured by: the global batch size, or one micro-batch
            of all ranks.
        mode: Mode.
        tail: Treatment of an incomplete final batch.
        sharded: Whether each rank has its own block in mode ``cyclic``.

    Raises:
        UsageError: The batch is not divisible by micro-batch size x data-parallel size, or the mode does not
            support the tail.
    """

    ranks: int
    micro_batch_size: int
    batch: int
    mode: Mode = "single"
    tail: Tail = "drop"
    sharded: bool = True

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.micro_batch_size < 1:
            raise UsageError(
                f"data-parallel size and micro-batch size must be at least 1, "
                f"got {self.ranks} and {self.micro_batch_size}"
            )
        if self.batch < 1 or self.batch % self.group:
            raise UsageError(
                f"the global batch size must be divisible by micro-batch size x data-parallel size = "
                f"{self.micro_batch_size} x {self.ranks} = {self.group}, got {self.batch}",
                hint=f"pass a multiple of {self.group}, or another micro-batch size or data-parallel size",
            )
        if self.mode == "cyclic" and self.tail != "drop":
            raise UsageError(
                f"mode cyclic requires --tail drop (Megatron drops the tail of each epoch), got {self.tail}"
            )
        if self.mode == "full-validation" and self.batch != self.ranks:
            raise UsageError(
                f"full validation requires a batch of 1 sample per rank, got batches of {self.batch}"
            )

    @classmethod
    def of(
        cls,
        ranks: int,
        micro_batch_size: int,
        schedule: BatchSchedule,
        mode: Mode = "single",
        tail: Tail = "drop",
        *,
        sharded: bool = True,
    ) -> ReadingMode:
        """Return the reading whose tail is measured by the global batch size, if that never changes.

        Mode ``cyclic`` measures it by one micro-batch of each rank, as Megatron does.
        """
        sizes = {size for _, size in schedule.segments}
        if mode == "cyclic" or len(sizes) > 1 or schedule.round_down:
            sizes = {ranks * micro_batch_size}
        return cls(ranks, micro_batch_size, sizes.pop(), mode, tail, sharded)

    @property
    def group(self) -> int:
        """The samples of one micro-batch of all ranks."""
        return self.ranks * self.micro_batch_size

    def epochs(
        self, total: int, links: tuple[AnyLink, ...], first_epoch: int, epochs: int | None, skipped: int = 0
    ) -> EpochRange:
        """Return a range of epochs as the ranks read it.

        Args:
            total: Number of sample ids.
            links: Links of the order without its mode.
            first_epoch: Number of the first epoch.
            epochs: Number of epochs; unlimited if it is None.
            skipped: Samples of the epoch that were consumed before: batches are counted from there.

        Raises:
            UsageError: The samples do not fill a batch.
        """
        samples = links[0].samples if links else total
        read = self.read(samples, skipped)
        return EpochRange(total, (*self._interleave(samples, read), *links), read, first_epoch, epochs)

    def read(self, samples: int, skipped: int = 0) -> int:
        """Return how many of the samples of an epoch all ranks read, repeated ones included.

        Raises:
            UsageError: They do not fill a batch.
        """
        left = samples - skipped
        if self.mode == "full-validation" or self.tail == "pad":
            return skipped + -(-left // self.batch) * self.batch
        if left < self.batch:
            raise UsageError(
                f"{left:,} samples are fewer than one batch of {self.batch:,} "
                f"(micro-batch size {self.micro_batch_size}, data-parallel size {self.ranks})",
                hint="use more samples, a smaller --global-batch-size, or --tail pad",
            )
        return skipped + left // self.batch * self.batch

    def fills(self, samples: int) -> bool:
        """Return whether some remaining samples are read: they fill a batch, or are padded to one."""
        is_padded = self.tail == "pad" or self.mode == "full-validation"
        return samples >= (1 if is_padded else self.batch)

    def cyclic_links(self, samples: int, *, faithful: bool = True) -> tuple[TorchPermutation, ...]:
        """Return the order of Megatron's cyclic sampler, whose generator is seeded by the epoch alone.

        Args:
            samples: Number of samples.
            faithful: Whether the order must be Megatron's. Without sharding, Megatron's ranks read different
                numbers of micro-batches if the tail is ragged: this is refused, or else cut to the equal
                part.

        Raises:
            UsageError: The samples do not fill one micro-batch of all ranks, or the ragged case.
        """
        size = self.micro_batch_size
        micro_batches = self.read(samples) // self.group
        if self.sharded:
            return (TorchPermutation(samples, micro_batches * size, self.ranks),)
        full = samples // size * size
        most = -(-full // self.ranks) // size
        if faithful and most != micro_batches:
            raise UsageError(
                f"without data sharding Megatron gives some ranks {most} and others {micro_batches} "
                f"micro-batches of {samples} samples (micro-batch size {size}, data-parallel size "
                f"{self.ranks}) in an epoch: it hangs",
                hint="pass --equal-counts, or omit --no-data-sharding",
            )
        return (TorchPermutation(samples, full, 1),)

    def _interleave(self, samples: int, read: int) -> tuple[Interleave, ...]:
        padding: Literal["first", "last"] = "first" if self.mode == "full-validation" else "last"
        match self.mode, self.sharded:
            case "single", _:
                return ()
            case ("sequential" | "full-validation", _) | ("cyclic", False):
                run = 0
            case "cyclic", _:
                run = read // self.ranks
            case _:
                run = samples // self.ranks if self.tail == "drop" else -(-samples // self.ranks)
        return (Interleave(samples, self.ranks, self.micro_batch_size, run, read, padding),)


def order_after(
    ranges: list[EpochRange],
    reading: ReadingMode,
    schedule: BatchSchedule,
    consumed_samples: int,
    skipped: int,
    steps: int | None,
    limit: int | None = None,
) -> ConsumptionOrder:
    """Return the order of some steps of epoch ranges.

    Args:
        ranges: Ranges of epochs.
        reading: The ranks that read them.
        schedule: Global batch size by consumed samples of the whole run.
        consumed_samples: Samples that all ranks have consumed before step 0.
        skipped: Samples of the ranges that were consumed before step 0.
        steps: Number of steps; as many as the samples fill if it is None.
        limit: The most samples that all ranks read without ``steps``.

    Raises:
        UsageError: There are fewer steps, or sizes do not fit.
    """
    ranges = _merged(ranges)
    available = available_steps(tuple(ranges), reading.group, schedule, consumed_samples, skipped, steps)
    if steps is None:
        steps = available
        if limit is not None:
            stop = consumed_samples + limit
            timeline = schedule.timeline(reading.group, consumed_samples, stop=stop)
            steps = min(available, timeline.steps_within(limit))
    if not ranges or steps > available or not steps:
        epochs = sum(part.epochs or 0 for part in ranges)
        part = "an epoch" if epochs == 1 else f"{epochs} epochs"
        left = (
            f"{available:,} steps are left in {part} of {ranges[0].total:,} samples"
            if ranges
            else "0 steps are left"
        )
        raise UsageError(
            f"{left} after {consumed_samples:,} consumed samples (global batch size "
            f"{schedule.size_at(consumed_samples)}), fewer than the required {steps or 1:,}",
            hint="pass more --epochs or fewer --steps, or build a larger blend",
        )
    return ConsumptionOrder(
        reading.ranks,
        reading.micro_batch_size,
        schedule,
        steps,
        consumed_samples,
        skipped,
        tuple(ranges),
    )


def _merged(ranges: list[EpochRange]) -> list[EpochRange]:
    """Return the ranges, in which a first epoch that is read as the next ones is one of them."""
    if len(ranges) > 1:
        first, following, *others = ranges
        if first == replace(following, first_epoch=first.first_epoch, epochs=first.epochs):
            epochs = None if following.epochs is None else following.epochs + 1
            return [replace(first, epochs=epochs), *others]
    return ranges
