"""Schedule of a rank's micro-batches: their samples, and the loader state that continues in any world."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tokshard.core.codec import Count, Document, Sha256, encode
from tokshard.errors import IntegrityError, ResumeMismatchError, UsageError
from tokshard.ranks.consumption import ConsumptionOrder
from tokshard.ranks.links import Bucketing
from tokshard.ranks.locator import Locator
from tokshard.storage.digest import identity_digest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokshard.ranks.links import KeyOf
    from tokshard.ranks.plan import Plan, Stream

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
        order: What all ranks read.
        rank: The data-parallel rank.
        locator: Finds the datasets.
        key_of: The sort keys of samples, if the order needs them.

    Example:
        >>> from tokshard.ranks.consumption import EpochRange
        >>> from tokshard.ranks.schedule import BatchSchedule
        >>> epoch = EpochRange(100, (), read=96, first_epoch=0, epochs=1)
        >>> order = ConsumptionOrder(2, 4, BatchSchedule.constant(16), 6, 0, 0, (epoch,))
        >>> schedule = MicroBatchSchedule(order, 0)
        >>> len(schedule), schedule.start_of_step(1), schedule.step(3), schedule.consumed(3), schedule.at(24)
        (12, 2, 1, 24, 3)
    """

    def __init__(
        self,
        order: ConsumptionOrder,
        rank: int,
        locator: Locator | None = None,
        key_of: KeyOf | None = None,
    ) -> None:
        self.order = order
        self._rank = rank
        self._locator = locator
        self._key_of = key_of
        self._end = order.samples_per_rank
        self._length = self._end // order.micro_batch_size
        links = (link for epochs in order.epoch_ranges for link in epochs.links)
        buffers = (link.buffer for link in links if isinstance(link, Bucketing))
        self._chunk = max(_CHUNK, max(buffers, default=0) // order.ranks)
        self._lock = threading.Lock()
        # Two: reading ahead is in the next chunk already while the last of this one is read.
        self._chunks: deque[tuple[int, SampleRefs]] = deque(maxlen=2)

    def __len__(self) -> int:
        return self._length

    def start_of_step(self, step: int) -> int:
        """Return the first micro-batch of a step, or the end for the number of steps.

        Raises:
            IndexError: The step does not exist.
        """
        return self.order.first_number(step) // self.order.group

    def step(self, position: int) -> int:
        """Return the step of a micro-batch; the number of steps for the end."""
        return min(int(self.order.timeline.step_of(self.consumed(position))), self.order.steps)

    def consumed(self, position: int) -> int:
        """Return the samples that all ranks have consumed before a micro-batch."""
        return self.order.consumed_samples + position * self.order.group

    def at(self, consumed_samples: int) -> int:
        """Return the micro-batch before which all ranks have consumed this many samples.

        Raises:
            UsageError: No micro-batch starts there, or the plan does not reach it.
        """
        position, partial = divmod(consumed_samples - self.order.consumed_samples, self.order.group)
        if partial or not 0 <= position <= len(self):
            raise UsageError(
                f"consumed_samples must be the start of a micro-batch, got {consumed_samples}: they start "
                f"every {self.order.group} from {self.consumed(0)} to {self.consumed(len(self))}"
            )
        return position

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
        size = self.order.micro_batch_size
        return self.samples(number * size, size)

    def samples(self, first: int, count: int) -> SampleRefs:
        """Return ``count`` samples of the rank, starting at a local index."""
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
            ids = self.order.ids(self.order.numbers(self._rank, first, many), self._key_of)
            if self._locator is None:
                raise UsageError("a schedule without a source has no samples")
            chunk = SampleRefs(ids, *self._locator.locate(ids))
            self._chunks.append((first, chunk))
            return first, chunk

    def repeated(self, first: int, count: int) -> NDArray[np.bool_]:
        """Return which samples, from a local index on, were read before in their epoch and fill a batch.

        Returns:
            bool of shape ``(count,)``.
        """
        return self.order.repeated(self.order.numbers(self._rank, first, count))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState(Document):
    """The position of all ranks in a stream; no rank, and no world size, is part of it.

    Attributes:
        plan_id: Id of the plan.
        stream: Name of the stream.
        consumed_samples: Samples that all ranks have consumed.
        step_start: Consumed samples at the start of the step under way.
        epoch: Number of the epoch under way.
        position: Samples of this epoch that were read; all others were read in finished epochs.
        order: SHA-256 of the order of an epoch. Null where it depends on the world size.
    """

    SCHEMA = "tokshard.loader/2"
    OLDER_HINT = "resume with the tokshard that saved it, or call seek() with the samples consumed so far"

    plan_id: str
    stream: str
    consumed_samples: Count
    step_start: Count
    epoch: Count
    position: Count
    order: Sha256 | None

    @classmethod
    def of(cls, plan_id: str, name: str, stream: Stream, order: ConsumptionOrder, number: int) -> LoaderState:
        """Return the state at a number of an order of a stream."""
        epoch, position = order.point(number)
        consumed = order.consumed_samples + number
        step = min(int(order.timeline.step_of(consumed)), order.steps)
        return cls(
            plan_id=plan_id,
            stream=name,
            consumed_samples=consumed,
            step_start=order.consumed_after(step),
            epoch=epoch,
            position=position,
            order=_order_digest(stream),
        )

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


def _order_digest(stream: Stream) -> str | None:
    if not stream.order.is_independent:
        return None
    links = stream.order.epoch_ranges[-1].links
    return identity_digest([stream.source_id, [encode(link) for link in links], stream.sort_key])


def resume(
    state: LoaderState, plan: Plan, name: str, order: ConsumptionOrder
) -> tuple[ConsumptionOrder, int]:
    """Return the order in which a loader continues from a state, and the number of the next sample.

    A state of the same plan, or at the start of the plan that continues it, continues in ``order``. So does
    any state of the same samples in the same order whose step starts in ``order``. Otherwise the epoch under
    way goes on with the batches of this plan, whose steps are counted from the state.

    Args:
        state: Where a loader stopped.
        plan: The plan of the loader that continues.
        name: Name of its stream.
        order: Its order.

    Raises:
        ResumeMismatchError: The state belongs to another order or stream.
        UsageError: No micro-batch of this plan starts there, or nothing is left.
    """
    if state.stream != name:
        raise ResumeMismatchError(
            f"the state must be of the stream {name!r}, got {state.stream!r}",
            differences=("stream",),
        )
    stream = plan.streams[name]
    number = state.consumed_samples - order.consumed_samples
    digest = _order_digest(stream)
    is_same = state.plan_id == plan.plan_id or (digest is not None and digest == state.order)
    if is_same and 0 <= number <= order.samples and number % order.group == 0:
        own = LoaderState.of(state.plan_id, name, stream, order, number)
        if own == replace(state, order=own.order):
            return order, number
    if plan.history and plan.history[-1].plan_id == state.plan_id:
        if number:
            raise _mismatch(
                f"the plan starts at {order.consumed_samples} consumed samples, but the state is at "
                f"{state.consumed_samples}",
                "consumed_samples",
                state,
            )
        return order, 0
    if digest is None or not is_same:
        difference = "the plans do not read the same samples in the same order"
        if digest is None or state.order is None:
            difference = "the order of samples is independent of the world size only in mode single"
        raise _mismatch(
            f"the state at {state.consumed_samples} consumed samples belongs to plan {state.plan_id[:12]}, "
            f"not to {plan.plan_id[:12]}: {difference}",
            difference,
            state,
        )
    return _continued(state, stream, order)


def _continued(state: LoaderState, stream: Stream, order: ConsumptionOrder) -> tuple[ConsumptionOrder, int]:
    from tokshard.ranks.continuation import continue_order
    from tokshard.ranks.modes import ReadingMode

    # Steps start where the step under way has started.
    number = state.consumed_samples - state.step_start
    point = (state.epoch, state.position - number)
    if number % order.group or point[1] < 0:
        raise UsageError(
            f"the state at {state.consumed_samples} consumed samples is inside a step, and no micro-batch of "
            f"{order.group} samples on all ranks starts there",
            hint="resume from a state that was saved at the end of a step",
        )
    if state.step_start < order.consumed_samples or point < order.point(0):
        raise _mismatch(
            f"the plan starts at {order.consumed_samples} consumed samples, but the state is at "
            f"{state.consumed_samples}",
            "consumed_samples",
            state,
        )
    reading = ReadingMode.of(order.ranks, order.micro_batch_size, order.schedule, stream.mode, stream.tail)
    try:
        return continue_order(order, point, state.step_start, reading, order.schedule), number
    except UsageError as error:
        raise UsageError(error.message, hint=_replan_hint(state)) from error


def _mismatch(message: str, difference: str, state: LoaderState) -> ResumeMismatchError:
    return ResumeMismatchError(message, differences=(difference,), hint=_replan_hint(state))


def _replan_hint(state: LoaderState) -> str:
    return (
        "build the continuing plan: tokshard replan OLD_PLAN "
        f"--consumed-samples {state.consumed_samples} -o NEW_PLAN"
    )
