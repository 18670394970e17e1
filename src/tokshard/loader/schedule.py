"""The micro-batches of a rank."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.errors import ResumeMismatchError, UsageError
from tokshard.sharding.assignment import Assignment
from tokshard.sharding.layouts import Striped
from tokshard.sharding.locator import Locator
from tokshard.sharding.order import Bucketing
from tokshard.storage.digest import identity_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.sharding.order import KeyOf


@dataclass(frozen=True, slots=True)
class Course:
    """The micro-batches of a rank, numbered from 0 through all steps, equally many on every rank.

    Attributes:
        assignment: What all ranks read.

    Example:
        >>> from tokshard.sharding.layouts import Striped
        >>> from tokshard.sharding.order import SampleOrder
        >>> from tokshard.sharding.assignment import Pass
        >>> from tokshard.sharding.schedule import BatchSchedule
        >>> whole = Pass(SampleOrder(100), Striped(100, ranks=2, width=4, samples_per_rank=48))
        >>> course = Course(Assignment((whole,), 4, BatchSchedule.constant(16), steps=6))
        >>> len(course), course.micro_batches(1), course.step(3), course.consumed(3), course.at(24)
        (12, range(2, 4), 1, 24, 3)
    """

    assignment: Assignment

    def __len__(self) -> int:
        return self.assignment.samples_per_rank // self.assignment.micro_batch_size

    def micro_batches(self, step: int) -> range:
        """Return the numbers of the micro-batches of a step.

        Raises:
            IndexError: There is no such step.
        """
        if not 0 <= step < self.assignment.steps:
            raise IndexError(f"step {step} is not 0 to {self.assignment.steps - 1}")
        return range(self._first(step), self._first(step + 1))

    def step(self, position: int) -> int:
        """Return the step of a micro-batch; the number of steps for the end."""
        consumed = np.array([self.consumed(position)], dtype=np.int64)
        return min(int(self.assignment.timeline.step_of(consumed)[0]), self.assignment.steps)

    def start_of_step(self, step: int) -> int:
        """Return the first micro-batch of a step, or the end for the number of steps."""
        return self._first(step)

    def consumed(self, position: int) -> int:
        """Return what all ranks have consumed when each stands before a micro-batch."""
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
                f"no micro-batch of the plan starts at {consumed_samples} consumed samples: they start "
                f"every {group} from {self.consumed(0)} to {self.consumed(len(self))}"
            )
        return position

    def epoch(self, position: int) -> int:
        """Return the epoch of the first sample of a micro-batch; at the end, that of the last one."""
        last = min(position, len(self) - 1) * self.assignment.micro_batch_size + self.assignment.skipped
        epoch = 0
        for one in self.assignment.passes:
            epoch = one.first_epoch + max(min(last, one.per_rank - 1), 0) // one.per_epoch
            if last < one.per_rank:
                break
            last -= one.per_rank
        return epoch

    def _first(self, step: int) -> int:
        return self.assignment.first_local(step) // self.assignment.micro_batch_size


# Asking for this many samples costs hardly more than asking for one.
_CHUNK = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """The samples of a micro-batch, or of several: arrays of shape (samples,).

    Attributes:
        ids: int64, their ids in the stream.
        datasets: int16, the number of the dataset of each.
        samples: int64, the number of each in its dataset.
    """

    ids: NDArray[np.int64]
    datasets: NDArray[np.int16]
    samples: NDArray[np.int64]

    def part(self, first: int, last: int) -> Selected:
        """Return some of them."""
        return Selected(self.ids[first:last], self.datasets[first:last], self.samples[first:last])

    def by_dataset(self) -> dict[int, list[int]]:
        """Return the places of the samples of each dataset, in the order in which they first come."""
        places: dict[int, list[int]] = {}
        for place, number in enumerate(self.datasets.tolist()):
            places.setdefault(number, []).append(place)
        return places


class Route:
    """The micro-batches of a rank, numbered through all steps. Threads may share it.

    Who asks for one micro-batch after the other, or for every n-th as loading workers do, is answered from
    a chunk that was looked up at once; who jumps gets what was asked for alone.

    Args:
        assignment: What all ranks read.
        rank: The data-parallel rank.
        locator: Finds the datasets.
        key_of: The sort keys of samples, where the order needs them.
    """

    def __init__(self, assignment: Assignment, rank: int, locator: Locator, key_of: KeyOf | None) -> None:
        self.assignment = assignment
        self._rank = rank
        self._locator = locator
        self._key_of = key_of
        self._end = assignment.samples_per_rank
        self._length = self._end // assignment.micro_batch_size
        self._chunk = max(_CHUNK, _largest_buffer(assignment) // assignment.ranks)
        self._lock = threading.Lock()
        # Two: reading ahead is in the next chunk already while the last of this one is read.
        self._chunks: deque[tuple[int, Selected]] = deque(maxlen=2)

    def __len__(self) -> int:
        return self._length

    def micro_batch(self, number: int) -> Selected:
        """Return the samples of a micro-batch.

        Raises:
            IndexError: There is no such micro-batch.
        """
        if not 0 <= number < self._length:
            raise IndexError(f"micro-batch {number} is not 0 to {self._length - 1}")
        size = self.assignment.micro_batch_size
        return self.samples(number * size, size)

    def samples(self, first: int, count: int) -> Selected:
        """Return ``count`` samples from a local index on; see :class:`Assignment`."""
        with self._lock:
            for begin, chunk in self._chunks:
                if begin <= first and first + count <= begin + len(chunk.ids):
                    return chunk.part(first - begin, first - begin + count)
            many = count
            if any(0 <= first - begin - len(chunk.ids) < _CHUNK for begin, chunk in self._chunks):
                many = min(max(self._chunk, count), self._end - first)
            ids = self.assignment.ids(self._rank, first, many, self._key_of)
            chunk = Selected(ids, *self._locator.locate(ids))
            self._chunks.append((first, chunk))
            return chunk.part(0, count)

    def repeated(self, first: int, count: int) -> NDArray[np.bool_]:
        """Return which samples, from a local index on, were read before in their epoch and fill a batch.

        Returns:
            bool of shape ``(count,)``.
        """
        local = np.arange(first, first + count, dtype=np.int64)
        return self.assignment.repeated(np.full(count, self._rank, dtype=np.int64), local)


def _largest_buffer(assignment: Assignment) -> int:
    """Return the positions of the largest window that has to be sorted to look up one of them."""
    links = [link for one in assignment.passes for link in one.order.links]
    return max((link.buffer for link in links if isinstance(link, Bucketing)), default=0)


SCHEMA = "tokshard.loader/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """The position of all ranks in a stream; no rank, and no world size, is part of it.

    Attributes:
        plan_id: The plan.
        stream: The name of the stream.
        consumed_samples: What all ranks together have consumed, before this plan, too.
        epoch: The epoch of the next sample; for people.
        order: What identifies the order in which all ranks together consume samples, where that does not
            depend on how many there are (mode ``single``); None otherwise.
        start: The consumed samples at which that order begins.
        whole: How many samples its epochs have for all ranks; those of the first epoch first.
        schema: ``"tokshard.loader/1"``.
    """

    plan_id: str
    stream: str
    consumed_samples: int
    epoch: int
    order: str | None
    start: int
    whole: list[int]
    schema: str = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a dictionary of plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Return the state that :meth:`to_dict` gave.

        Raises:
            UsageError: It is none.
        """
        kinds = {one.name: str(one.type) for one in fields(cls)}
        if not isinstance(value, dict) or set(value) != set(kinds):
            raise UsageError(f"a loader's state has the fields {', '.join(kinds)}")
        wanted: dict[str, Any] = {"str": str, "int": int, "list[int]": list, "str | None": str | None}
        for name, kind in kinds.items():
            if not isinstance(value[name], wanted[kind]):
                raise UsageError(f"{name} of a loader's state is {value[name]!r}, not {kind}")
        if value["schema"] != SCHEMA:
            raise UsageError(
                f"the loader's state is {value['schema']!r}, this version of tokshard reads {SCHEMA!r}"
            )
        return cls(**value)


def global_order(source_id: str, assignment: Assignment) -> tuple[str | None, int, list[int]]:
    """Return the fields ``order``, ``start`` and ``whole`` of a state of an assignment."""
    start = assignment.consumed_samples - assignment.skipped * assignment.ranks
    whole = [one.per_epoch * assignment.ranks for one in assignment.passes]
    for one in assignment.passes:
        if not isinstance(one.layout, Striped) or one.layout.width != assignment.micro_batch_size:
            return None, start, whole
    passes = [[one.order.to_json(), one.first_epoch, one.epochs] for one in assignment.passes]
    return identity_digest([source_id, passes]), start, whole


def position_of(
    state: LoaderState, own: LoaderState, course: Course, history: Sequence[dict[str, Any]]
) -> int:
    """Return the micro-batch at which a loader goes on from a state.

    Args:
        state: Where a loader stood: of the same plan; of the one that this plan was made from; or, in mode
            ``single``, of any other that reads the same samples in the same order.
        own: A state of the loader itself.
        course: Its micro-batches.
        history: The plans that its plan goes on from, oldest first; each has its ``plan_id``.

    Raises:
        ResumeMismatchError: The state is of another plan, or of another stream.
        UsageError: No step of this plan starts there.
    """
    if state.stream != own.stream:
        raise ResumeMismatchError(
            f"the state is that of the stream {state.stream!r}, and not of {own.stream!r}",
            differences=("stream",),
        )
    if state.plan_id == own.plan_id:
        return course.at(state.consumed_samples)
    if history and history[-1].get("plan_id") == state.plan_id:
        if state.consumed_samples != course.consumed(0):
            raise ResumeMismatchError(
                f"the plan goes on from {course.consumed(0)} consumed samples, but the state is at "
                f"{state.consumed_samples}",
                differences=("consumed_samples",),
                hint=f"make the plan again with --consumed-samples {state.consumed_samples}",
            )
        return 0
    _check_same_order(state, own)
    position = course.at(state.consumed_samples)
    if position < len(course):
        course.assignment.timeline.boundary(state.consumed_samples)
    return position


def _check_same_order(state: LoaderState, own: LoaderState) -> None:
    if own.order is None or state.order is None:
        difference = "only in mode single is the order of samples the same for every world size"
    elif (state.order, state.start) != (own.order, own.start):
        difference = "the plans do not read the same samples in the same order"
    elif state.whole != own.whole and state.consumed_samples - own.start > min(state.whole[0], own.whole[0]):
        difference = (
            f"the first epoch, which is over, had {state.whole[0]} samples there and {own.whole[0]} here"
        )
    else:
        return
    raise ResumeMismatchError(
        f"the state at {state.consumed_samples} consumed samples is that of plan {state.plan_id[:12]}, and "
        f"not of {own.plan_id[:12]}: {difference}",
        differences=(difference,),
        hint=f"make the plan that goes on there: tokshard shard-plan --from OLD_PLAN "
        f"--consumed-samples {state.consumed_samples} -o NEW_PLAN",
    )
