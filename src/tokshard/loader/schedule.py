"""Schedule of a rank's micro-batches: their samples, and the loader state that finds one of them again."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.codec import Count, Document, encode
from tokshard.errors import IntegrityError, ResumeMismatchError, UsageError
from tokshard.ranks.assignment import Assignment
from tokshard.ranks.layouts import Striped
from tokshard.ranks.locator import Locator
from tokshard.ranks.order import Bucketing
from tokshard.storage.digest import identity_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokshard.ranks.history import StoppedPlan
    from tokshard.ranks.order import KeyOf

# Asking for this many samples costs hardly more than asking for one.
_CHUNK = 1024


@dataclass(frozen=True, slots=True, eq=False)
class SampleRefs:
    """The samples of a micro-batch, or of several: arrays of shape (samples,).

    Attributes:
        ids: int64, their ids in the stream.
        datasets: int16, the number of the dataset of each.
        samples: int64, the number of each in its dataset.
    """

    ids: NDArray[np.int64]
    datasets: NDArray[np.int16]
    samples: NDArray[np.int64]

    def part(self, first: int, last: int) -> SampleRefs:
        """Return some of them."""
        return SampleRefs(self.ids[first:last], self.datasets[first:last], self.samples[first:last])

    def by_dataset(self) -> dict[int, list[int]]:
        """Return the rows of the samples of each dataset, in the order in which they first come."""
        rows: dict[int, list[int]] = {}
        for row, number in enumerate(self.datasets.tolist()):
            rows.setdefault(number, []).append(row)
        return rows


class MicroBatchSchedule:
    """The micro-batches of a rank, numbered from 0 through all steps; threads may share it.

    Every rank has equally many. Requests for one micro-batch after the other, or for every n-th as from
    loading workers, are answered from a chunk that was looked up at once; a jump looks up only what it
    needs.

    Args:
        assignment: What all ranks read.
        rank: The data-parallel rank.
        locator: Finds the datasets.
        key_of: The sort keys of samples, if the order needs them.

    Example:
        >>> from tokshard.ranks.assignment import EpochRange
        >>> from tokshard.ranks.order import SampleOrder
        >>> from tokshard.ranks.schedule import BatchSchedule
        >>> layout = Striped(100, ranks=2, width=4, samples_per_rank=48, repeat="last")
        >>> whole = EpochRange(SampleOrder(100, ()), layout, first_epoch=0, epochs=1)
        >>> schedule = MicroBatchSchedule(Assignment((whole,), 4, BatchSchedule.constant(16), 6, 0, 0), 0)
        >>> len(schedule), schedule.of_step(1), schedule.step(3), schedule.consumed(3), schedule.at(24)
        (12, range(2, 4), 1, 24, 3)
    """

    def __init__(
        self,
        assignment: Assignment,
        rank: int,
        locator: Locator | None = None,
        key_of: KeyOf | None = None,
    ) -> None:
        self.assignment = assignment
        self._rank = rank
        self._locator = locator
        self._key_of = key_of
        self._end = assignment.samples_per_rank
        self._length = self._end // assignment.micro_batch_size
        self._chunk = max(_CHUNK, _largest_buffer(assignment) // assignment.ranks)
        self._lock = threading.Lock()
        # Two: reading ahead is in the next chunk already while the last of this one is read.
        self._chunks: deque[tuple[int, SampleRefs]] = deque(maxlen=2)

    def __len__(self) -> int:
        return self._length

    # Counting.

    def of_step(self, step: int) -> range:
        """Return the numbers of the micro-batches of a step.

        Raises:
            IndexError: The step does not exist.
        """
        if not 0 <= step < self.assignment.steps:
            raise IndexError(f"step must be from 0 to {self.assignment.steps - 1}, got {step}")
        return range(self.start_of_step(step), self.start_of_step(step + 1))

    def start_of_step(self, step: int) -> int:
        """Return the first micro-batch of a step, or the end for the number of steps."""
        return self.assignment.first_local(step) // self.assignment.micro_batch_size

    def step(self, position: int) -> int:
        """Return the step of a micro-batch; the number of steps for the end."""
        consumed = np.array([self.consumed(position)], dtype=np.int64)
        return min(int(self.assignment.timeline.step_of(consumed)[0]), self.assignment.steps)

    def consumed(self, position: int) -> int:
        """Return the samples that all ranks have consumed before a micro-batch."""
        local = position * self.assignment.micro_batch_size
        return self.assignment.consumed_samples + local * self.assignment.ranks

    def at(self, consumed_samples: int) -> int:
        """Return the micro-batch before which all ranks have consumed this many samples.

        Raises:
            UsageError: None starts there, or the plan does not reach it.
        """
        group = self.assignment.ranks * self.assignment.micro_batch_size
        position, rest = divmod(consumed_samples - self.assignment.consumed_samples, group)
        if rest or not 0 <= position <= len(self):
            raise UsageError(
                f"consumed_samples must be the start of a micro-batch, got {consumed_samples}: they start "
                f"every {group} from {self.consumed(0)} to {self.consumed(len(self))}"
            )
        return position

    def epoch(self, position: int) -> int:
        """Return the epoch of the first sample of a micro-batch; at the end, that of the last one."""
        last = min(position, len(self) - 1) * self.assignment.micro_batch_size + self.assignment.skipped
        epoch = 0
        for epochs in self.assignment.epoch_ranges:
            epoch = epochs.first_epoch + max(min(last, epochs.per_rank - 1), 0) // epochs.per_epoch
            if last < epochs.per_rank:
                break
            last -= epochs.per_rank
        return epoch

    # Samples.

    def check(self, number: int) -> None:
        """Check that a micro-batch exists.

        Raises:
            IndexError: It does not.
        """
        if not 0 <= number < self._length:
            raise IndexError(f"micro-batch must be from 0 to {self._length - 1}, got {number}")

    def micro_batch(self, number: int) -> SampleRefs:
        """Return the samples of a micro-batch.

        Raises:
            IndexError: The micro-batch does not exist.
        """
        self.check(number)
        size = self.assignment.micro_batch_size
        return self.samples(number * size, size)

    def samples(self, first: int, count: int) -> SampleRefs:
        """Return ``count`` samples from a local index on; see :class:`Assignment`."""
        begin, chunk = self.chunk(first, count)
        return chunk.part(first - begin, first - begin + count)

    def chunk(self, first: int, count: int) -> tuple[int, SampleRefs]:
        """Return a chunk that contains ``count`` samples from a local index on, and its first local index.

        It is the same object for all requests that it answers.
        """
        with self._lock:
            for begin, chunk in self._chunks:
                if begin <= first and first + count <= begin + len(chunk.ids):
                    return begin, chunk
            many = count
            if any(0 <= first - begin - len(chunk.ids) < _CHUNK for begin, chunk in self._chunks):
                many = min(max(self._chunk, count), self._end - first)
            ids = self.assignment.ids(self._rank, first, many, self._key_of)
            chunk = SampleRefs(ids, *self._located(ids))
            self._chunks.append((first, chunk))
            return first, chunk

    def _located(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        if self._locator is None:
            raise UsageError("a schedule without a source has no samples")
        return self._locator.locate(ids)

    def repeated(self, first: int, count: int) -> NDArray[np.bool_]:
        """Return which samples, from a local index on, were read before in their epoch and fill a batch.

        Returns:
            bool of shape ``(count,)``.
        """
        local = np.arange(first, first + count, dtype=np.int64)
        return self.assignment.repeated(np.full(count, self._rank, dtype=np.int64), local)


def _largest_buffer(assignment: Assignment) -> int:
    transforms = [transform for epochs in assignment.epoch_ranges for transform in epochs.order.transforms]
    return max((transform.buffer for transform in transforms if isinstance(transform, Bucketing)), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState(Document):
    """The position of all ranks in a stream; no rank, and no world size, is part of it."""

    SCHEMA = "tokshard.loader/2"
    OLDER_HINT = "resume with the tokshard that saved it, or call seek() with the samples consumed so far"

    plan_id: str
    stream: str
    consumed_samples: Count
    epoch: Count
    order: str | None
    order_start: int
    epoch_samples: tuple[int, ...]

    @classmethod
    def of_dict(cls, value: Any) -> LoaderState:
        """Return the state of a dictionary of plain values that ``to_json`` gave.

        Raises:
            UsageError: It is no state of a loader.
        """
        try:
            return cls.from_json(value, "the loader's state")
        except IntegrityError as error:
            raise UsageError(error.message, hint=error.hint) from error


def consumption_order(source_id: str, assignment: Assignment) -> tuple[str | None, int, tuple[int, ...]]:
    """Return the fields ``order``, ``order_start`` and ``epoch_samples`` of a state of an assignment."""
    start = assignment.consumed_samples - assignment.skipped * assignment.ranks
    samples = tuple(epochs.per_epoch * assignment.ranks for epochs in assignment.epoch_ranges)
    for epochs in assignment.epoch_ranges:
        if not isinstance(epochs.layout, Striped) or epochs.layout.width != assignment.micro_batch_size:
            return None, start, samples
    orders = [[encode(epochs.order), epochs.first_epoch, epochs.epochs] for epochs in assignment.epoch_ranges]
    return identity_digest([source_id, orders]), start, samples


def position_of(
    state: LoaderState, own: LoaderState, schedule: MicroBatchSchedule, history: Sequence[StoppedPlan]
) -> int:
    """Return the micro-batch at which a loader resumes from a state.

    Args:
        state: Where a loader stood: of the same plan; of the one that this plan was made from; or, in mode
            ``single``, of any other that reads the same samples in the same order.
        own: A state of the loader itself.
        schedule: The micro-batches of the loader.
        history: The plans that its plan continues, oldest first.

    Raises:
        ResumeMismatchError: The state is of another plan, or of another stream.
        UsageError: No step of this plan starts there.
    """
    if state.stream != own.stream:
        raise ResumeMismatchError(
            f"the state must be of the stream {own.stream!r}, got {state.stream!r}",
            differences=("stream",),
        )
    if state.plan_id == own.plan_id:
        return schedule.at(state.consumed_samples)
    if history and history[-1].plan_id == state.plan_id:
        if state.consumed_samples != schedule.consumed(0):
            raise ResumeMismatchError(
                f"the plan starts at {schedule.consumed(0)} consumed samples, but the state is at "
                f"{state.consumed_samples}",
                differences=("consumed_samples",),
                hint=_continuing(state),
            )
        return 0
    _check_same_order(state, own)
    position = schedule.at(state.consumed_samples)
    if position < len(schedule):
        schedule.assignment.timeline.boundary(state.consumed_samples)
    return position


def _check_same_order(state: LoaderState, own: LoaderState) -> None:
    if own.order is None or state.order is None:
        difference = "the order of samples is independent of the world size only in mode single"
    elif (state.order, state.order_start) != (own.order, own.order_start):
        difference = "the plans do not read the same samples in the same order"
    elif state.epoch_samples != own.epoch_samples and state.consumed_samples - own.order_start > min(
        state.epoch_samples[0], own.epoch_samples[0]
    ):
        difference = (
            f"the first epoch is complete and had {state.epoch_samples[0]} samples in that plan, but has "
            f"{own.epoch_samples[0]} in this one"
        )
    else:
        return
    raise ResumeMismatchError(
        f"the state at {state.consumed_samples} consumed samples belongs to plan {state.plan_id[:12]}, "
        f"not to {own.plan_id[:12]}: {difference}",
        differences=(difference,),
        hint=_continuing(state),
    )


def _continuing(state: LoaderState) -> str:
    return (
        "build the continuing plan: tokshard replan OLD_PLAN "
        f"--consumed-samples {state.consumed_samples} -o NEW_PLAN"
    )
