"""Consumption order: which sample each rank reads at each step, by formulas, forwards and backwards.

A *number* is a position in consumption order, counted from step 0: number ``n`` is the n-th sample that all
ranks together consume, micro-batch by micro-batch and in each rank by rank. With micro-batch size ``b`` and
data-parallel size ``R``, local index ``l`` of rank ``r`` is number ``l // b * b * R + r * b + l % b``, in
every mode. The links of an epoch lead from there to sample ids, and the schedule says where each step ends.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tokshard.core.codec import Count, Positive, Record
from tokshard.errors import UsageError
from tokshard.ranks.links import Bucketing, Interleave, Skip
from tokshard.ranks.schedule import BatchSchedule, Timeline
from tokshard.ranks.shuffles import ShuffleLink

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.ranks.links import KeyOf

    Integers = NDArray[np.int64]

ENDLESS = 2**62
"""More samples than all ranks will read."""

# A chain grows by two links with each replan that changes the mode.
_MAX_LINKS = 1000

AnyLink = Interleave | Skip | Bucketing | ShuffleLink


@dataclass(frozen=True, slots=True)
class EpochRange(Record):
    """A range of epochs that are read in the same way.

    Raises:
        UsageError: Two links that follow each other do not fit.

    Attributes:
        total: Number of sample ids.
        links: Links from consumption order to sample ids, in this direction.
        read: Samples that all ranks read in each epoch. The last position is repeated if there are fewer
            positions.
        first_epoch: Number of the first epoch.
        epochs: Number of epochs. Null if it is unlimited.
    """

    total: Positive
    links: tuple[AnyLink, ...]
    read: Positive
    first_epoch: Count
    epochs: Positive | None

    def _validate(self) -> None:
        if len(self.links) > _MAX_LINKS:
            raise UsageError(f"an order must have at most {_MAX_LINKS} links, got {len(self.links)}")
        samples = self.total
        for link in reversed(self.links):
            if link.of != samples:
                raise UsageError(f"the link {link.TAG[1]} must have {samples} samples, got {link.of}")
            samples = link.samples

    @property
    def positions(self) -> int:
        """The number of positions of an epoch, those that are not read included."""
        return self.links[0].samples if self.links else self.total

    @property
    def dropped(self) -> int:
        """The number of samples of an epoch that no rank reads."""
        return max(self.positions - self.read, 0)

    @property
    def repeated(self) -> int:
        """The number of samples of an epoch that are read again to fill batches."""
        first = self.links[0] if self.links else None
        inside = first.read - first.distinct if isinstance(first, Interleave) else 0
        return inside + max(self.read - self.positions, 0)

    @property
    def first_repeated(self) -> int:
        """A position of an epoch before which no sample is repeated."""
        first = self.links[0] if self.links else None
        if isinstance(first, Interleave) and first.distinct < first.read:
            return min(first.first_repeated, self.read)
        return min(self.positions, self.read)

    @property
    def size(self) -> int:
        """The samples that all ranks read in all epochs."""
        return ENDLESS if self.epochs is None else self.read * self.epochs

    def has_epoch(self, epoch: int) -> bool:
        """Tell whether an epoch is one of these."""
        return self.first_epoch <= epoch and (self.epochs is None or epoch < self.first_epoch + self.epochs)

    def ids(self, positions: Integers, epoch: int, key_of: KeyOf | None = None) -> Integers:
        """Return the sample id at each position of an epoch, repeated samples included.

        Args:
            positions: int64 of shape ``(n,)``, each at least 0 and less than ``read`` (trusted).
            epoch: The epoch.
            key_of: Returns the sort keys of an array of ids; required with bucketing.

        Raises:
            UsageError: Bucketing without ``key_of``.
        """
        return self._forward(np.minimum(positions, self.positions - 1), epoch, key_of, 0)

    def find(self, ids: Integers, epoch: int, key_of: KeyOf | None = None) -> Integers:
        """Return the position at which the owner of each id reads it, -1 if none does; see :meth:`ids`."""
        positions = ids
        for place in range(len(self.links) - 1, -1, -1):
            link = self.links[place]
            is_reached = positions >= 0
            reached = positions[is_reached]
            if isinstance(link, Bucketing):
                reached = link.by_keys(reached, epoch, self._keys(place, epoch, key_of), inverse=True)
            else:
                reached = link.inverse(reached, epoch)
            positions = np.full(ids.shape, -1, dtype=np.int64)
            positions[is_reached] = reached
        return np.where(positions < self.read, positions, -1)

    def _forward(self, positions: Integers, epoch: int, key_of: KeyOf | None, first: int) -> Integers:
        for place, link in enumerate(self.links[first:], first):
            if isinstance(link, Bucketing):
                positions = link.by_keys(positions, epoch, self._keys(place, epoch, key_of))
            else:
                positions = link.forward(positions, epoch)
        return positions

    def _keys(self, place: int, epoch: int, key_of: KeyOf | None) -> KeyOf:
        """Return the function from the positions behind a link to sort keys."""
        if key_of is None:
            raise UsageError("an order with bucketing requires the sort keys of the samples")
        return lambda positions: key_of(self._forward(positions, epoch, key_of, place + 1))


class ReadPositions(NamedTuple):
    """Steps, data-parallel ranks and rows within the samples of a rank in a step: int64 of one shape."""

    step: Integers
    rank: Integers
    row: Integers


@dataclass(frozen=True, slots=True)
class ConsumptionOrder(Record):
    """The samples of all ranks and steps, starting after a number of consumed samples.

    Raises:
        UsageError: The parts do not fit, or there are fewer samples than the steps need.

    Attributes:
        ranks: Data-parallel size.
        micro_batch_size: Samples of a micro-batch of one rank.
        schedule: Global batch size by consumed samples.
        steps: Number of steps.
        consumed_samples: Samples that all ranks have consumed before step 0, as Megatron counts them.
        skipped: Samples of the epoch ranges that were consumed before step 0.
        epoch_ranges: Ranges of epochs, in reading order.

    Example:
        >>> epoch = EpochRange(100, (), read=96, first_epoch=0, epochs=1)
        >>> order = ConsumptionOrder(2, 4, BatchSchedule.constant(16), 6, 0, 0, (epoch,))
        >>> numbers = order.numbers(rank=1, first=0, count=8)
        >>> numbers.tolist(), order.ids(numbers).tolist()
        ([4, 5, 6, 7, 12, 13, 14, 15], [4, 5, 6, 7, 12, 13, 14, 15])
        >>> order.find(np.array([13, 99]), epoch=0).tolist()
        [13, -1]
    """

    ranks: Positive
    micro_batch_size: Positive
    schedule: BatchSchedule
    steps: Count
    consumed_samples: Count
    skipped: Count
    epoch_ranges: tuple[EpochRange, ...]

    def _validate(self) -> None:
        if not self.epoch_ranges:
            raise UsageError("an order must have at least 1 epoch range")
        for epochs, following in zip(self.epoch_ranges, self.epoch_ranges[1:], strict=False):
            if epochs.epochs is None or following.first_epoch < epochs.first_epoch + epochs.epochs:
                raise UsageError("the epochs of an order must ascend")
        skipped = self.skipped
        for epochs in self.epoch_ranges:
            # Only the epoch under way may begin inside a group.
            if (epochs.read - skipped) % self.group or (epochs.epochs != 1 and skipped % self.group):
                raise UsageError(
                    f"{epochs.read - skipped} samples of an epoch do not fit {self.ranks} ranks with "
                    f"micro-batches of {self.micro_batch_size}"
                )
            skipped = 0
        available = available_steps(
            self.epoch_ranges, self.group, self.schedule, self.consumed_samples, self.skipped, self.steps
        )
        if self.steps > available:
            raise UsageError(f"steps must be at most {available} for these samples, got {self.steps}")

    @property
    def group(self) -> int:
        """The samples of one micro-batch of all ranks."""
        return self.ranks * self.micro_batch_size

    @property
    def timeline(self) -> Timeline:
        """Steps and consumed samples."""
        return _timeline(self.schedule, self.group, self.consumed_samples, self.steps)

    @property
    def samples(self) -> int:
        """The samples that all ranks read in all steps, repeated ones counted again."""
        return self.first_number(self.steps)

    @property
    def samples_per_rank(self) -> int:
        """The samples that each rank reads in all steps."""
        return self.samples // self.ranks

    @property
    def is_independent(self) -> bool:
        """True if any number of ranks reads the same order: no rank has its own part."""
        return not any(isinstance(link, Interleave) for epochs in self.epoch_ranges for link in epochs.links)

    def first_number(self, step: int) -> int:
        """Return the first number of a step.

        Raises:
            IndexError: There is no such step (the one after the last counts, as an end).
        """
        if not 0 <= step <= self.steps:
            raise IndexError(f"step must be from 0 to {self.steps}, got {step}")
        return int(self.timeline.consumed(step)) - self.consumed_samples

    def consumed_after(self, step: int) -> int:
        """Return the consumed samples of all ranks after the first ``step`` steps."""
        return self.consumed_samples + self.first_number(step)

    def step_at(self, consumed_samples: int) -> int:
        """Return the step before which all ranks have consumed exactly this many samples.

        Raises:
            UsageError: No step starts or ends there.
        """
        last = self.consumed_after(self.steps)
        if consumed_samples > last:
            raise UsageError(
                f"consumed samples must be at most {last}, the end of the plan, got {consumed_samples}"
            )
        return self.steps if consumed_samples == last else self.timeline.boundary(consumed_samples)

    def numbers(self, rank: int, first: int, count: int) -> Integers:
        """Return the numbers of ``count`` samples of a rank, starting at its local index ``first``.

        Returns:
            int64 of shape ``(count,)``.

        Raises:
            IndexError: The rank does not exist, or an index is negative or past the end.
        """
        if not 0 <= rank < self.ranks:
            raise IndexError(f"the data-parallel rank must be from 0 to {self.ranks - 1}, got {rank}")
        if first < 0 or count < 0 or first + count > self.samples_per_rank:
            raise IndexError(
                f"local indices must be below {self.samples_per_rank}, got {first} to {first + count - 1}"
            )
        local = np.arange(first, first + count, dtype=np.int64)
        micro_batch, row = np.divmod(local, self.micro_batch_size)
        return micro_batch * self.group + rank * self.micro_batch_size + row

    def ids(self, numbers: Integers, key_of: KeyOf | None = None) -> Integers:
        """Return the sample id at each number; one call for many costs hardly more than one for a few.

        Args:
            numbers: int64 of shape ``(n,)``, each at least 0 and less than ``samples`` (trusted).
            key_of: Returns the sort keys of an array of ids; required with bucketing.
        """
        result = np.empty(numbers.shape, dtype=np.int64)
        for epochs, epoch, chosen, positions in self._epochs(numbers):
            result[chosen] = epochs.ids(positions, epoch, key_of)
        return result

    def repeated(self, numbers: Integers) -> NDArray[np.bool_]:
        """Return which numbers read again, as padding, what was read before in the same epoch."""
        result = np.zeros(numbers.shape, dtype=np.bool_)
        for epochs, epoch, chosen, positions in self._epochs(numbers):
            if not epochs.repeated:
                continue
            is_repeated = positions >= epochs.positions
            owner = epochs.links[0] if epochs.links else None
            if isinstance(owner, Interleave):
                inside = np.minimum(positions, epochs.positions - 1)
                is_repeated |= owner.inverse(owner.forward(inside, epoch), epoch) != inside
            result[chosen] = is_repeated
        return result

    def epochs(self, numbers: Integers) -> Integers:
        """Return the epoch of each number."""
        result = np.empty(numbers.shape, dtype=np.int64)
        for _, epoch, chosen, _ in self._epochs(numbers):
            result[chosen] = epoch
        return result

    def point(self, number: int) -> tuple[int, int]:
        """Return the epoch of a number, and its position: the samples of the epoch that were read before.

        At the end of an epoch this is the start of the next one, if there is one.
        """
        position = number + self.skipped
        for epochs in self.epoch_ranges:
            last = epochs
            if position < epochs.size:
                break
            position -= epochs.size
        else:
            return last.first_epoch + (last.epochs or 1) - 1, last.read
        epoch, position = divmod(position, epochs.read)
        return epochs.first_epoch + epoch, position

    def find(self, ids: Integers, epoch: int, key_of: KeyOf | None = None) -> Integers:
        """Return the number at which the rank that owns each id reads it, -1 if the plan does not read it.

        Args:
            ids: int64 of shape ``(n,)``.
            epoch: The epoch.
            key_of: See :meth:`ids`.

        Raises:
            IndexError: The plan does not have this epoch.
        """
        before = -self.skipped
        for epochs in self.epoch_ranges:
            if epochs.has_epoch(epoch):
                break
            before += epochs.size
        else:
            raise IndexError(f"epoch {epoch} is not read")
        positions = epochs.find(ids, epoch, key_of)
        numbers = before + (epoch - epochs.first_epoch) * epochs.read + positions
        return np.where((positions >= 0) & (numbers >= 0) & (numbers < self.samples), numbers, -1)

    def reads(self, numbers: Integers) -> ReadPositions:
        """Return the step, rank and row of each number, which the plan reads."""
        timeline = self.timeline
        consumed = numbers + self.consumed_samples
        steps = timeline.step_of(consumed)
        micro_batch, within = np.divmod(consumed - timeline.consumed(steps), self.group)
        ranks, row = np.divmod(within, self.micro_batch_size)
        return ReadPositions(steps, ranks, micro_batch * self.micro_batch_size + row)

    def _epochs(self, numbers: Integers) -> Iterator[tuple[EpochRange, int, Integers | slice, Integers]]:
        """Yield ranges, epochs, the indices of the numbers in them, and their positions in the epoch."""
        if not numbers.size:
            return
        behind = numbers + self.skipped
        for epochs in self.epoch_ranges:
            least, most = int(behind.min()), int(behind.max())
            epoch = least // epochs.read
            if least >= 0 and most < min((epoch + 1) * epochs.read, epochs.size):
                # Nearly always all of them: nothing needs to be gathered.
                yield epochs, epochs.first_epoch + epoch, slice(None), behind - epoch * epochs.read
                return
            inside = np.flatnonzero((behind >= 0) & (behind < epochs.size))
            epoch_of, positions = np.divmod(behind[inside], epochs.read)
            for epoch in np.unique(epoch_of).tolist():
                chosen = epoch_of == epoch
                yield epochs, epochs.first_epoch + epoch, inside[chosen], positions[chosen]
            behind = behind - epochs.size


def available_steps(
    epoch_ranges: tuple[EpochRange, ...],
    group: int,
    schedule: BatchSchedule,
    consumed_samples: int = 0,
    skipped: int = 0,
    steps: int | None = None,
) -> int:
    """Return how many whole steps the epoch ranges fill after the samples that were consumed or skipped.

    With ``steps``, batch sizes from this step on are not checked.

    Raises:
        UsageError: A global batch size in use is not divisible by ``group``, the samples of one micro-batch
            of all ranks.
    """
    left = min(sum(epochs.size for epochs in epoch_ranges) - skipped, ENDLESS // 2)
    left = max(left, 0)
    stop = consumed_samples + left
    return schedule.timeline(group, consumed_samples, stop=stop, steps=steps).steps_within(left)


@functools.lru_cache(maxsize=64)
def _timeline(schedule: BatchSchedule, group: int, consumed: int, steps: int) -> Timeline:
    return schedule.timeline(group, consumed, steps=steps)
