"""Difference of two plans: the first step that differs, and the samples of each source that moved.

Streams that read one order straight through, as most do, are compared by formulas, whatever their size.
Others are read in blocks, and the reads of both get common numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.checks.diff.options import DiffOptions
from tokshard.checks.diff.report import (
    DiffReport,
    SourceDifference,
    StepDifference,
    StreamDifference,
    different_fields,
    report_of,
)
from tokshard.core.codec import encode
from tokshard.dataset.tokenizer_identity import tokenizer_name
from tokshard.errors import IntegrityError
from tokshard.ranks.assignment import Assignment
from tokshard.ranks.history import reweighting_of, stops_of
from tokshard.ranks.intervals import Intervals
from tokshard.ranks.layouts import Striped
from tokshard.ranks.locator import Locator
from tokshard.ranks.order import SampleOrder, Selection
from tokshard.ranks.plan import Plan, Stream
from tokshard.ranks.replan.reweighting import open_start
from tokshard.ranks.sources import DatasetReference, SampleSource
from tokshard.samples.index.packing import pack_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.ranks.order import KeyOf

    Integers = NDArray[np.int64]

TABLE_ENTRIES = 1 << 28
"""Samples that are compared at a time: 4 bytes each, so 1 GiB. More samples take more passes."""

_UNREAD, _FOUND = -1, -2
_STEPS = 1 << 20
_BLOCK = 1 << 20


def diff_plans(
    a: Plan, b: Plan, options: DiffOptions | None = None, *, entries: int = TABLE_ENTRIES
) -> DiffReport:
    """Compare what two plans read, from the consumed samples on at which the later one begins.

    Where both read one order straight through, as before and after a change of the world size, formulas
    suffice. Otherwise both are read in blocks, and a table of 4 bytes a sample is held, of up to ``entries``
    samples; where there are more, they are compared in several passes.

    Raises:
        MissingFileError, IntegrityError: The arrays of a blend are not there or have changed.
    """
    options = options or DiffOptions()
    parts = tuple(_diff_stream(a, b, name, options, entries) for name in a.streams if name in b.streams)
    return report_of(
        "plan",
        different_fields(_plan_fields(a), _plan_fields(b)),
        parts,
        (a.streams, b.streams),
        same_plan=a.plan_id == b.plan_id,
        mismatches=(*(a.tokenizer_mismatches or ()), *(b.tokenizer_mismatches or ())),
    )


def _diff_stream(a: Plan, b: Plan, name: str, options: DiffOptions, entries: int) -> StreamDifference:
    readers = (_StreamReader(a, name), _StreamReader(b, name))
    start = max(reader.assignment.consumed_samples for reader in readers)
    ranges = (_steps(readers[0], start, options.steps), _steps(readers[1], start, options.steps))
    pair = _Pair(readers, ranges, _ReadNumbering.common(*readers))
    return StreamDifference(
        name=name,
        fields=different_fields(_stream_fields(a.streams[name]), _stream_fields(b.streams[name])),
        start=start,
        compared=(
            readers[0].assignment.consumed_after(ranges[0].stop),
            readers[1].assignment.consumed_after(ranges[1].stop),
        ),
        first_step=pair.first_difference(),
        sources=() if options.first_only else pair.count(entries),
    )


def _steps(reader: _StreamReader, start: int, steps: int | None) -> range:
    assignment = reader.assignment
    if start >= assignment.consumed_after(assignment.steps):
        return range(assignment.steps, assignment.steps)
    first = int(assignment.timeline.step_of(np.array([start]))[0])
    if assignment.consumed_after(first) < start:
        first += 1
    return range(first, assignment.steps if steps is None else min(assignment.steps, first + steps))


@dataclass(frozen=True, slots=True)
class _Pair:
    readers: tuple[_StreamReader, _StreamReader]
    ranges: tuple[range, range]
    numbering: _ReadNumbering

    def first_difference(self) -> StepDifference | None:
        if self.is_straight:
            return self._first_other_size()
        done, block = 0, 1
        shorter = min(map(len, self.ranges))
        while done < shorter:
            count = min(block, shorter - done)
            found = self._differing(done, count)
            if found is not None:
                return self._at(found)
            done += count
            block = min(block * 2, self._most_steps(done))
        return None

    @property
    def is_straight(self) -> bool:
        first, second = (StraightRun.of(reader.stream) for reader in self.readers)
        return first is not None and first == second

    def _at(self, place: int) -> StepDifference:
        first, second = self.ranges[0][place], self.ranges[1][place]
        return StepDifference(first, second, self.readers[0].assignment.consumed_after(first))

    def _first_other_size(self) -> StepDifference | None:
        shorter = min(map(len, self.ranges))
        for done in range(0, shorter, _STEPS):
            count = min(_STEPS, shorter - done)
            other = self._other_sizes(done, count)
            if other.size:
                return self._at(done + int(other[0]))
        return None

    def _other_sizes(self, done: int, count: int) -> Integers:
        # Pairs are counted from ``done``.
        edges = [
            reader.assignment.timeline.consumed(np.arange(all_steps[done], all_steps[done] + count + 1))
            for reader, all_steps in zip(self.readers, self.ranges, strict=True)
        ]
        return np.flatnonzero((edges[0][:-1] != edges[1][:-1]) | (edges[0][1:] != edges[1][1:]))

    def _most_steps(self, done: int) -> int:
        index = min(done, len(self.ranges[0]) - 1)
        size = self.readers[0].assignment.timeline.batch_size(self.ranges[0][index])
        return max(1, (1 << 20) // max(size, 1))

    def _differing(self, done: int, count: int) -> int | None:
        other = self._other_sizes(done, count)
        count = int(other[0]) if other.size else count
        sorted_reads = [self._sorted(which, done, count) for which in (0, 1)]
        shorter = min(reads[0].size for reads in sorted_reads)
        wrong = np.zeros(shorter, dtype=np.bool_)
        for column in (0, 1):
            wrong |= sorted_reads[0][column][:shorter] != sorted_reads[1][column][:shorter]
        if wrong.any():
            place = int(np.argmax(wrong))
            return done + int(min(reads[0][place] for reads in sorted_reads))
        longer = max(sorted_reads, key=lambda reads: reads[0].size)
        if longer[0].size > shorter:
            return done + int(longer[0][shorter])
        return done + count if other.size else None

    def _sorted(self, which: int, done: int, count: int) -> tuple[Integers, Integers]:
        # (step, number) of all reads; steps are counted from the first one.
        first = self.ranges[which].start + done
        steps, numbers = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for reads in self.readers[which].blocks(first, first + count):
            steps.append(reads.step - first)
            numbers.append(self.numbering.numbers(which, reads))
        step, number = np.concatenate(steps), np.concatenate(numbers)
        order = np.lexsort((number, step))
        return step[order], number[order]

    def count(self, entries: int) -> tuple[SourceDifference, ...]:
        if self.is_straight and self._first_other_size() is None:
            return self._count_straight()
        counts = np.zeros((4, len(self.numbering.names)), dtype=np.int64)
        total = int(self.numbering.starts[-1])
        for low in range(0, total, entries):
            counts += self._count_range(low, min(low + entries, total))
        rows = zip(self.numbering.names, *counts.tolist(), strict=True)
        return tuple(SourceDifference(*row) for row in rows)

    def _count_straight(self) -> tuple[SourceDifference, ...]:
        # Samples that both read are equal, and one may read on where the other ends.
        stream = self.readers[0].stream
        run = StraightRun.of(stream)
        if run is None:
            return ()
        start, *ends = (
            reader.assignment.consumed_after(step)
            for reader, step in (
                (self.readers[0], self.ranges[0].start),
                (self.readers[0], self.ranges[0].stop),
                (self.readers[1], self.ranges[1].stop),
            )
        )
        same = run.count(stream, start, min(ends))
        added, removed = run.count(stream, ends[0], ends[1]), run.count(stream, ends[1], ends[0])
        rows = np.stack((same, same * 0, added, removed), axis=1).tolist()
        return tuple(
            SourceDifference(reference.path_prefix, *row)
            for reference, row in zip(stream.source.datasets, rows, strict=True)
        )

    def _count_range(self, low: int, high: int) -> Integers:
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
            same += _sums(dataset[together], places)
            moved += _sums(dataset[both & ~together], places)
            added += _sums(dataset[~both], places)
            table[numbers[both] - low] = _FOUND
        left = np.flatnonzero(table >= 0) + low
        return np.stack((same, moved, added, _sums(self.numbering.dataset_of(left), places)))

    def _reads(self, which: int, low: int, high: int) -> Iterator[tuple[Integers, Integers]]:
        steps = self.ranges[which]
        for reads in self.readers[which].blocks(steps.start, steps.stop):
            numbers = self.numbering.numbers(which, reads)
            here = (numbers >= low) & (numbers < high)
            yield reads.step[here], numbers[here]

    def _together(self, first: Integers, second: Integers) -> NDArray[np.bool_]:
        # Consumed samples of one step are within those of the other.
        a, b = (reader.assignment.timeline for reader in self.readers)
        a_from, a_to = a.consumed(first), a.consumed(first + 1)
        b_from, b_to = b.consumed(second), b.consumed(second + 1)
        within: NDArray[np.bool_] = ((a_from >= b_from) & (a_to <= b_to)) | (
            (b_from >= a_from) & (b_to <= a_to)
        )
        return within


def _plan_fields(plan: Plan) -> dict[str, Any]:
    identity = None if plan.tokenizer is None else plan.tokenizer.identity
    return {**encode(plan.topology), "tokenizer": None if identity is None else tokenizer_name(identity)}


def _stream_fields(stream: Stream) -> dict[str, Any]:
    assignment = stream.assignment
    return {
        "source": stream.source.id,
        "samples": stream.source.total,
        "sequence_length": stream.source.sequence_length,
        "packing": pack_words(dataset.packing for dataset in stream.source.datasets),
        "mode": stream.mode,
        "tail": stream.tail,
        "shuffle": stream.shuffle,
        "sort_key": stream.sort_key,
        "boundaries": stream.document_boundaries,
        "data_parallel": assignment.ranks,
        "micro_batch_size": assignment.micro_batch_size,
        "batch_size": assignment.schedule.text,
        "steps": assignment.steps,
        "consumed_samples": assignment.consumed_samples,
    }


@dataclass(frozen=True, slots=True)
class _StepReads:
    # Reads in the order of consumption, all int64 of shape (reads,); ``epoch`` is the source epoch of the
    # dataset, ``sample`` a sample of its index.
    step: Integers
    dataset: Integers
    epoch: Integers
    sample: Integers


class _StreamReader:
    def __init__(self, plan: Plan, name: str) -> None:
        self.stream: Stream = plan.streams[name]
        self.assignment: Assignment = self.stream.assignment
        self._locator = Locator(self.stream.source)
        self._key_of = self.stream.open_sort_key()
        record = reweighting_of(stops_of(plan.history, name))
        self._source_epochs = None if record is None else open_start(self.stream.source, record)[1]

    @property
    def datasets(self) -> tuple[DatasetReference, ...]:
        return self.stream.source.datasets

    def last_epochs(self) -> Integers:
        # int64 of shape (datasets,).
        if self._source_epochs is not None:
            last = np.zeros(len(self.datasets), dtype=np.int64)
            np.maximum.at(last, self._source_epochs.rows[:, 0], self._source_epochs.rows[:, 1])
            return last
        end = max(self.assignment.samples_per_rank - 1, 0)
        epoch = int(_epochs_of(self.assignment, np.array([end], dtype=np.int64))[0])
        return np.full(len(self.datasets), epoch, dtype=np.int64)

    def blocks(self, first: int, stop: int) -> Iterator[_StepReads]:
        # Without samples that are read again as padding.
        while first < stop:
            size = max(1, self.assignment.timeline.batch_size(first))
            last = min(stop, first + max(1, _BLOCK // size))
            yield self._reads(first, last)
            first = last

    def _reads(self, first: int, stop: int) -> _StepReads:
        assignment = self.assignment
        begin, end = assignment.first_local(first), assignment.first_local(stop)
        local = np.repeat(np.arange(begin, end, dtype=np.int64), assignment.ranks)
        ranks = np.tile(np.arange(assignment.ranks, dtype=np.int64), end - begin)
        sizes = np.diff(assignment.timeline.consumed(np.arange(first, stop + 1, dtype=np.int64)))
        steps = np.repeat(np.arange(first, stop, dtype=np.int64), sizes)
        first_time = ~assignment.repeated(ranks, local)
        steps, local, ranks = steps[first_time], local[first_time], ranks[first_time]
        ids = assignment.at(ranks, local, self._key_of)
        datasets, samples = self._locator.locate(ids)
        table = self._source_epochs
        epochs = _epochs_of(assignment, local) if table is None else table.of(ids, datasets)
        return _StepReads(steps, datasets.astype(np.int64), epochs, samples)


def _epochs_of(assignment: Assignment, local: Integers) -> Integers:
    epochs = np.full(local.shape, -1, dtype=np.int64)
    place = local + assignment.skipped
    for epoch_range in assignment.epoch_ranges:
        here = (place >= 0) & (place < epoch_range.per_rank)
        epochs[here] = epoch_range.first_epoch + place[here] // epoch_range.per_epoch
        place = place - epoch_range.per_rank
    return epochs


@dataclass(frozen=True, slots=True)
class _ReadNumbering:
    # Numbers are equal where dataset, source epoch and sample are. ``starts`` holds the first number of each
    # dataset and the end of all; ``of`` maps the datasets of either stream to their places in ``names``.
    names: tuple[str, ...]
    starts: Integers
    sizes: Integers
    of: tuple[Integers, Integers]

    @classmethod
    def common(cls, a: _StreamReader, b: _StreamReader) -> _ReadNumbering:
        # Datasets are the same if their bytes and indexes are.
        references = list(a.datasets)
        first = np.arange(len(references), dtype=np.int64)
        second = np.array([_place(references, reference) for reference in b.datasets], dtype=np.int64)
        sizes = np.array([_samples(reference) for reference in references], dtype=np.int64)
        epochs = np.zeros(len(references), dtype=np.int64)
        for places, reader in ((first, a), (second, b)):
            np.maximum.at(epochs, places, reader.last_epochs() + 1)
        starts = np.concatenate(([0], np.cumsum(sizes * epochs)))
        return cls(tuple(reference.path_prefix for reference in references), starts, sizes, (first, second))

    def numbers(self, which: int, reads: _StepReads) -> Integers:
        place = self.of[which][reads.dataset]
        numbers: Integers = self.starts[place] + reads.epoch * self.sizes[place] + reads.sample
        return numbers

    def dataset_of(self, numbers: Integers) -> Integers:
        return np.searchsorted(self.starts, numbers, side="right") - 1


def _place(references: list[DatasetReference], reference: DatasetReference) -> int:
    # A dataset that is not among the others is appended.
    for place, other in enumerate(references):
        if _data_identity(reference) == _data_identity(other):
            return place
    references.append(reference)
    return len(references) - 1


def _data_identity(reference: DatasetReference) -> tuple[object, ...]:
    """Return an identity of the bytes and the index of a dataset, whatever its paths."""
    files = None if reference.index is None else (reference.index.files.hash, reference.index.files.split)
    return (reference.bin, reference.idx, files, reference.packing)  # the hash does not contain the packing


def _samples(reference: DatasetReference) -> int:
    return reference.first + reference.samples if reference.index is None else reference.index.epochs.samples


def _sums(places: Integers, count: int) -> Integers:
    return np.bincount(places, minlength=count).astype(np.int64)


@dataclass(frozen=True, slots=True)
class StraightRun:
    """Reads of a stream as one run of positions in an order.

    Attributes:
        shift: What is added to a number of consumed samples to get a position.
    """

    source: str
    order: SampleOrder
    epoch: int
    shift: int

    @classmethod
    def of(cls, stream: Stream) -> Self | None:
        """Return the run of a stream; None where ranks read in blocks, again, or several epochs."""
        assignment = stream.assignment
        first = assignment.epoch_ranges[0]
        once = len(assignment.epoch_ranges) == 1 and first.epochs == 1 and isinstance(first.layout, Striped)
        if not once or first.per_epoch * assignment.ranks > first.order.samples:
            return None
        order, offset = first.order, 0
        if order.transforms and isinstance(order.transforms[0], Selection):
            kept = order.transforms[0].kept
            if kept.starts.size > 1:
                return None
            order, offset = SampleOrder(order.total, order.transforms[1:]), int(kept.starts[0])
        shift = offset + assignment.skipped * assignment.ranks - assignment.consumed_samples
        return cls(stream.source.id, order, first.first_epoch, shift)

    def count(self, stream: Stream, start: int, stop: int) -> NDArray[np.int64]:
        """Count the samples of each dataset between two numbers of consumed samples."""
        key_of = stream.open_sort_key()
        run = Intervals.of([(start + self.shift, max(start, stop) + self.shift)])
        return _count_datasets(Locator(stream.source), self.order, run, self.epoch, key_of)


def _count_datasets(
    locator: Locator, order: SampleOrder, positions: Intervals, epoch: int, key_of: KeyOf | None
) -> Integers:
    """Count the samples of each dataset at some positions of an order.

    If nothing shuffles the ids, this is arithmetic with intervals, or for a blend a count over runs of its
    dataset index. Otherwise the samples are looked up block by block.

    Returns:
        int64 of shape (datasets,).
    """
    source = locator.source
    ids = _ids_in_order(order, positions)
    if ids is not None and source.order is None:
        return np.diff(ids.count_below(source.bounds))
    counts = np.zeros(len(source.datasets), dtype=np.int64)
    if ids is not None and source.order is not None:
        dataset_index = source.order.open()["dataset_index"]
        for start, stop in zip(ids.starts.tolist(), ids.stops.tolist(), strict=True):
            for begin in range(start, stop, _BLOCK):
                counts += _bincount(dataset_index[begin : min(begin + _BLOCK, stop)], counts.size, source)
        return counts
    for block in positions.blocks():
        datasets, _ = locator.locate(order.ids(block, epoch, key_of))
        counts += np.bincount(datasets, minlength=counts.size)
    return counts


def _bincount(datasets: NDArray[Any], count: int, source: SampleSource) -> Integers:
    if datasets.size and (datasets.min() < 0 or datasets.max() >= count):
        path = source.order.path("dataset_index") if source.order else ""
        raise IntegrityError(f"{path} contains a dataset that is not in the blend", path=path)
    return np.bincount(datasets, minlength=count).astype(np.int64)


def _ids_in_order(order: SampleOrder, positions: Intervals) -> Intervals | None:
    """Return the ids at some positions, or None if the order shuffles them."""
    for link in order.transforms:
        if not isinstance(link, Selection):
            return None
        positions = link.kept.select(positions)
    return positions
