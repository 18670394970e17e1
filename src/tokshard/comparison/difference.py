"""What two plans read differently: the first step, and the samples of each source that move, come or go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.comparison.numbering import Numbering, StreamReader, sums
from tokshard.comparison.straight import Straight
from tokshard.sharding.plan import Plan, Stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

TABLE_ENTRIES = 1 << 28
"""How many samples are compared at a time: 4 bytes each, so 1 GiB. More of them take more passes."""

_UNREAD, _FOUND = -1, -2
_STEPS = 1 << 20

Setting = tuple[str, Any, Any]


@dataclass(frozen=True, slots=True)
class SourceDifference:
    """The samples of one dataset that are read from the common start on.

    Attributes:
        prefix: The dataset.
        same: Those that both plans read at the same time: within the same consumed samples.
        moved: Those that both read, at other times.
        added: Those that only the second plan reads.
        removed: Those that only the first plan reads.
    """

    prefix: str
    same: int
    moved: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class StreamDifference:
    """How two streams differ.

    Attributes:
        name: The name of the stream.
        start: The consumed samples from which on both are compared.
        first_step: The first step of each plan whose samples differ, and the samples consumed before it;
            None where none does in the steps that both have.
        compared: Up to which consumed samples each was looked at.
        sources: One for each dataset of either; empty where only the first step was asked for.
        settings: What was asked for differently.
    """

    name: str
    start: int
    first_step: tuple[int, int, int] | None
    compared: tuple[int, int]
    sources: tuple[SourceDifference, ...]
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """How two plans differ.

    Attributes:
        same: Whether they are the same plan.
        topology: What differs of the ranks.
        streams: The streams that both have.
        only_first: The names of streams that only the first has.
        only_second: The names of streams that only the second has.
    """

    same: bool
    topology: tuple[Setting, ...]
    streams: tuple[StreamDifference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]

    @property
    def reads_same(self) -> bool:
        """Whether all steps that were compared hold the same samples, and both plans end together."""
        alone = self.only_first or self.only_second
        return not alone and all(
            one.first_step is None and one.compared[0] == one.compared[1] for one in self.streams
        )


def diff_plans(
    a: Plan, b: Plan, *, steps: int | None = None, first_only: bool = False, entries: int = TABLE_ENTRIES
) -> PlanDifference:
    """Compare what two plans read, from the consumed samples on at which the later one begins.

    Where both read one order straight through, as before and after a change of the world, formulas tell
    everything. Otherwise both are read in blocks, and a table of 4 bytes a sample is held, of up to
    ``entries`` samples; where there are more, they are looked at in several passes.

    Args:
        a: The first plan.
        b: The second plan.
        steps: How many steps to compare; None for all.
        first_only: Whether to stop at the first step that differs.
        entries: The entries of the table.

    Raises:
        MissingFileError, IntegrityError: The arrays of a blend are not there or have changed.
    """
    common = [name for name in a.streams if name in b.streams]
    return PlanDifference(
        same=a.plan_id == b.plan_id,
        topology=_settings(a.topology.to_json(), b.topology.to_json()),
        streams=tuple(_diff_stream(a, b, name, steps, entries, first_only=first_only) for name in common),
        only_first=tuple(name for name in a.streams if name not in b.streams),
        only_second=tuple(name for name in b.streams if name not in a.streams),
    )


def _diff_stream(
    a: Plan, b: Plan, name: str, steps: int | None, entries: int, *, first_only: bool
) -> StreamDifference:
    readers = (StreamReader(a, name), StreamReader(b, name))
    start = max(one.assignment.consumed_samples for one in readers)
    ranges = tuple(_steps(one, start, steps) for one in readers)
    numbering = Numbering.common(*readers)
    pair = _Pair(readers, (ranges[0], ranges[1]), numbering)
    return StreamDifference(
        name=name,
        start=start,
        first_step=pair.first_difference(),
        compared=tuple(
            one.assignment.consumed_after(found.stop) for one, found in zip(readers, ranges, strict=True)
        ),  # type: ignore[arg-type]
        sources=() if first_only else pair.count(entries),
        settings=_settings(_asked(a.streams[name]), _asked(b.streams[name])),
    )


def _steps(reader: StreamReader, start: int, steps: int | None) -> range:
    """Return the steps that begin at or after a number of consumed samples."""
    one = reader.assignment
    if start >= one.consumed_after(one.steps):
        return range(one.steps, one.steps)
    first = int(one.timeline.step_of(np.array([start]))[0])
    if one.consumed_after(first) < start:
        first += 1
    return range(first, one.steps if steps is None else min(one.steps, first + steps))


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two streams and the steps of each that are compared."""

    readers: tuple[StreamReader, StreamReader]
    ranges: tuple[range, range]
    numbering: Numbering

    def first_difference(self) -> tuple[int, int, int] | None:
        """Return the first steps with other samples, and the samples consumed before them."""
        first, second = self.ranges
        if self.is_straight:
            return self._first_other_size()
        done, block = 0, 1
        shorter = min(len(first), len(second))
        while done < shorter:
            count = min(block, shorter - done)
            found = self._differing(done, count)
            if found is not None:
                consumed = self.readers[0].assignment.consumed_after(first[found])
                return first[found], second[found], consumed
            done += count
            block = min(block * 2, self._most_steps(done))
        return None

    @property
    def is_straight(self) -> bool:
        """Whether both read one order straight through, from the same place."""
        one, other = (Straight.of(reader.stream) for reader in self.readers)
        return one is not None and one == other

    def _first_other_size(self) -> tuple[int, int, int] | None:
        """Return the first steps that begin or end elsewhere, and the samples consumed before them."""
        first, second = self.ranges
        shorter = min(len(first), len(second))
        for done in range(0, shorter, _STEPS):
            count = min(_STEPS, shorter - done)
            other = self._other_sizes(done, count)
            if other.size:
                place = done + int(other[0])
                return first[place], second[place], self.readers[0].assignment.consumed_after(first[place])
        return None

    def _other_sizes(self, done: int, count: int) -> Integers:
        """Return which of some pairs of steps, counted from ``done``, begin or end elsewhere."""
        edges = [
            one.assignment.timeline.consumed(np.arange(all_steps[done], all_steps[done] + count + 1))
            for one, all_steps in zip(self.readers, self.ranges, strict=True)
        ]
        return np.flatnonzero((edges[0][:-1] != edges[1][:-1]) | (edges[0][1:] != edges[1][1:]))

    def _most_steps(self, done: int) -> int:
        index = min(done, len(self.ranges[0]) - 1)
        size = self.readers[0].assignment.timeline.batch_size(self.ranges[0][index])
        return max(1, (1 << 20) // max(size, 1))

    def _differing(self, done: int, count: int) -> int | None:
        """Return which of some pairs of steps is the first that differs, counted from the common start."""
        other = self._other_sizes(done, count)
        count = int(other[0]) if other.size else count
        sorted_reads = [self._sorted(which, done, count) for which in (0, 1)]
        shorter = min(one[0].size for one in sorted_reads)
        wrong = np.zeros(shorter, dtype=np.bool_)
        for column in (0, 1):
            wrong |= sorted_reads[0][column][:shorter] != sorted_reads[1][column][:shorter]
        if wrong.any():
            place = int(np.argmax(wrong))
            return done + int(min(one[0][place] for one in sorted_reads))
        longer = max(sorted_reads, key=lambda one: one[0].size)
        if longer[0].size > shorter:
            return done + int(longer[0][shorter])
        return done + count if other.size else None

    def _sorted(self, which: int, done: int, count: int) -> tuple[Integers, Integers]:
        """Return (step, number) of all reads of some steps, sorted; steps are counted from the first one."""
        first = self.ranges[which].start + done
        steps, numbers = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for reads in self.readers[which].blocks(first, first + count):
            steps.append(reads.step - first)
            numbers.append(self.numbering.numbers(which, reads))
        step, number = np.concatenate(steps), np.concatenate(numbers)
        order = np.lexsort((number, step))
        return step[order], number[order]

    def count(self, entries: int) -> tuple[SourceDifference, ...]:
        """Count what is the same, moved, added and removed of each dataset."""
        if self.is_straight and self._first_other_size() is None:
            return self._count_straight()
        counts = np.zeros((4, len(self.numbering.names)), dtype=np.int64)
        total = int(self.numbering.starts[-1])
        for low in range(0, total, entries):
            counts += self._count_range(low, min(low + entries, total))
        rows = zip(self.numbering.names, *counts.tolist(), strict=True)
        return tuple(SourceDifference(*row) for row in rows)

    def _count_straight(self) -> tuple[SourceDifference, ...]:
        """Count runs of one order: what both read is the same, and one may read on where the other ends."""
        stream = self.readers[0].stream
        run = Straight.of(stream)
        if run is None:
            return ()
        start, *ends = (
            one.assignment.consumed_after(step)
            for one, step in (
                (self.readers[0], self.ranges[0].start),
                (self.readers[0], self.ranges[0].stop),
                (self.readers[1], self.ranges[1].stop),
            )
        )
        same = run.count(stream, start, min(ends))
        added, removed = run.count(stream, ends[0], ends[1]), run.count(stream, ends[1], ends[0])
        rows = np.stack((same, same * 0, added, removed), axis=1).tolist()
        return tuple(
            SourceDifference(one.prefix, *row) for one, row in zip(stream.source.datasets, rows, strict=True)
        )

    def _count_range(self, low: int, high: int) -> Integers:
        """Count the reads whose numbers are in a range, with a table of the first plan's steps."""
        table = np.full(high - low, _UNREAD, dtype=np.int32)
        places = len(self.numbering.names)
        for steps, numbers in self._reads(0, low, high):
            table[numbers - low] = steps - self.ranges[0].start
        same, moved, added = (np.zeros(places, dtype=np.int64) for _ in range(3))
        for steps, numbers in self._reads(1, low, high):
            found = table[numbers - low].astype(np.int64)
            both = found >= 0
            dataset = self.numbering.dataset_of(numbers)
            together = both.copy()
            together[both] = self._together(found[both] + self.ranges[0].start, steps[both])
            same += sums(dataset[together], places)
            moved += sums(dataset[both & ~together], places)
            added += sums(dataset[~both], places)
            table[numbers[both] - low] = _FOUND
        left = np.flatnonzero(table >= 0) + low
        return np.stack((same, moved, added, sums(self.numbering.dataset_of(left), places)))

    def _reads(self, which: int, low: int, high: int) -> Iterator[tuple[Integers, Integers]]:
        steps = self.ranges[which]
        for reads in self.readers[which].blocks(steps.start, steps.stop):
            numbers = self.numbering.numbers(which, reads)
            here = (numbers >= low) & (numbers < high)
            yield reads.step[here], numbers[here]

    def _together(self, first: Integers, second: Integers) -> NDArray[np.bool_]:
        """Tell whether steps of the two plans overlap in consumed samples, one within the other."""
        a, b = (one.assignment.timeline for one in self.readers)
        a_from, a_to = a.consumed(first), a.consumed(first + 1)
        b_from, b_to = b.consumed(second), b.consumed(second + 1)
        within: NDArray[np.bool_] = ((a_from >= b_from) & (a_to <= b_to)) | (
            (b_from >= a_from) & (b_to <= a_to)
        )
        return within


def _asked(stream: Stream) -> dict[str, Any]:
    one = stream.assignment
    return {
        "source": stream.source.id,
        "samples": stream.source.total,
        "sequence_length": stream.source.sequence_length,
        "mode": stream.mode,
        "tail": stream.tail,
        "shuffle": stream.shuffle,
        "sort_key": stream.sort_key,
        "boundaries": stream.boundaries,
        "data_parallel": one.ranks,
        "micro_batch_size": one.micro_batch_size,
        "batch_size": one.schedule.text,
        "steps": one.steps,
        "consumed_samples": one.consumed_samples,
    }


def _settings(a: dict[str, Any], b: dict[str, Any]) -> tuple[Setting, ...]:
    return tuple((name, a[name], b[name]) for name in a if a[name] != b[name])
