"""Difference of two plans: the first step that differs, and the samples of each dataset that moved.

Both are read in consumption order, step by step. Where both read one order, formulas suffice, whatever its
size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
from tokshard.ranks.consumption import ConsumptionOrder
from tokshard.ranks.links import Bucketing, Interleave, Skip
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import Plan, Stream
from tokshard.ranks.reweighting import source_epochs
from tokshard.ranks.sources import DatasetReference
from tokshard.samples.index.packing import pack_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

TABLE_ENTRIES = 1 << 28
"""Samples that are compared at a time: 4 bytes each, so 1 GiB. More samples take more passes."""

_UNREAD = -1
_FOUND = -2
_BLOCK = 1 << 18


def diff_plans(
    a: Plan, b: Plan, options: DiffOptions | None = None, *, entries: int = TABLE_ENTRIES
) -> DiffReport:
    """Compare what two plans read, from the consumed samples on at which the later one begins.

    Where both read one order, as before and after a change of the world size, formulas suffice. Otherwise
    both are read in blocks, and a table of 4 bytes a sample is held, of up to ``entries`` samples; where
    there are more, they are compared in several passes.

    Raises:
        MissingFileError, IntegrityError: The arrays of a blend do not exist or have changed.
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
    start = max(plan.streams[name].order.consumed_samples for plan in (a, b))
    first, second = (_StreamReader(plan, name, start, options.steps) for plan in (a, b))
    pair = _Pair(first, second)
    return StreamDifference(
        name=name,
        fields=different_fields(_stream_fields(a.streams[name]), _stream_fields(b.streams[name])),
        start=start,
        compared=(first.stop, second.stop),
        first_step=pair.first_difference(),
        sources=() if options.first_only else pair.count(entries),
    )


def _plan_fields(plan: Plan) -> dict[str, Any]:
    identity = None if plan.tokenizer is None else plan.tokenizer.identity
    return {**encode(plan.topology), "tokenizer": None if identity is None else tokenizer_name(identity)}


def _stream_fields(stream: Stream) -> dict[str, Any]:
    order = stream.order
    shuffles = [
        link.words
        for link in order.epoch_ranges[-1].links
        if not isinstance(link, Interleave | Skip | Bucketing)
    ]
    return {
        "source": stream.source_id,
        "samples": stream.source.total,
        "sequence_length": stream.source.sequence_length,
        "packing": pack_words(dataset.packing for dataset in stream.source.datasets),
        "mode": stream.mode,
        "tail": stream.tail,
        "shuffle": ", ".join(shuffles) or "none",
        "sort_key": stream.sort_key,
        "boundaries": stream.document_boundaries,
        "data_parallel": order.ranks,
        "micro_batch_size": order.micro_batch_size,
        "batch_size": order.schedule.text,
        "steps": order.steps,
        "consumed_samples": order.consumed_samples,
    }


def shared_order(order: ConsumptionOrder) -> tuple[object, ...] | None:
    """Return what determines the sample at each number of consumed samples.

    Two orders with the same value read the same samples where both read. None if samples are repeated, or
    there may be several epochs.
    """
    epochs = order.epoch_ranges[0]
    if len(order.epoch_ranges) > 1 or epochs.epochs != 1 or epochs.repeated:
        return None
    return epochs.total, epochs.links, epochs.first_epoch, order.skipped - order.consumed_samples


class _StreamReader:
    """The steps of a stream that are compared. They are counted from the first one.

    Attributes:
        first: Number of the first step that is compared.
        steps: Number of steps.
    """

    def __init__(self, plan: Plan, name: str, start: int, steps: int | None) -> None:
        self.stream = plan.streams[name]
        self.order = self.stream.order
        self.first = self.order.steps
        if start < self.order.consumed_after(self.order.steps):
            timeline = self.order.timeline
            self.first = int(timeline.step_of(np.array([start], dtype=np.int64))[0])
            self.first += self.order.consumed_after(self.first) < start
        self.steps = self.order.steps - self.first
        if steps is not None:
            self.steps = min(self.steps, steps)
        self.locator = Locator(self.stream.source)
        self._key_of = self.stream.open_sort_key()
        self._reweighting = plan.reweighting_of(name)

    @property
    def start(self) -> int:
        """The consumed samples before the first step."""
        return self.order.consumed_after(self.first)

    @property
    def stop(self) -> int:
        """The consumed samples after the last step."""
        return self.order.consumed_after(self.first + self.steps)

    def edges(self, steps: Integers) -> tuple[Integers, Integers]:
        """Return the consumed samples before and after each step."""
        timeline = self.order.timeline
        return timeline.consumed(self.first + steps), timeline.consumed(self.first + steps + 1)

    def count(self, start: int, stop: int) -> Integers:
        """Count the samples of each dataset between two numbers of consumed samples of one epoch."""
        first = start - self.order.consumed_samples
        end = stop - self.order.consumed_samples
        if not self.order.epoch_ranges[0].links:
            return self.locator.count(first + self.order.skipped, end + self.order.skipped)
        counts = np.zeros(len(self.stream.source.datasets), dtype=np.int64)
        for begin in range(first, end, _BLOCK):
            numbers = np.arange(begin, min(begin + _BLOCK, end), dtype=np.int64)
            datasets, _ = self.locator.locate(self.order.ids(numbers, self._key_of))
            counts += np.bincount(datasets, minlength=counts.size)
        return counts

    def blocks(self, steps: int) -> Iterator[tuple[Integers, Integers, Integers, Integers]]:
        """Yield the step, dataset, source epoch and sample of each read that does not repeat another."""
        order = self.order
        first = self.first
        stop = first + steps
        while first < stop:
            end = min(stop, first + max(1, _BLOCK // order.timeline.batch_size(first)))
            numbers = np.arange(order.first_number(first), order.first_number(end), dtype=np.int64)
            numbers = numbers[~order.repeated(numbers)]
            ids = order.ids(numbers, self._key_of)
            datasets, samples = self.locator.locate(ids)
            epochs = order.epochs(numbers)
            if self._source_epochs is not None:
                epochs = self._source_epochs[ids].astype(np.int64)
            steps_of = order.timeline.step_of(numbers + order.consumed_samples) - self.first
            yield steps_of, datasets.astype(np.int64), epochs, samples
            first = end

    def source_epoch_counts(self) -> Integers:
        """Return the number of source epochs of each dataset, those that are not read included."""
        datasets = self.stream.source.datasets
        order = self.stream.source.order
        if self._source_epochs is None or order is None:
            last = self.order.epochs(np.array([max(self.order.samples - 1, 0)], dtype=np.int64))
            return np.repeat(last + 1, len(datasets))
        counts = np.zeros(len(datasets), dtype=np.int64)
        np.maximum.at(counts, order.open()["dataset_index"], self._source_epochs + 1)
        return counts

    @cached_property
    def _source_epochs(self) -> NDArray[np.int32] | None:
        """The source epoch of each id of a re-weighted blend."""
        record = self._reweighting
        return None if record is None else source_epochs(self.stream.source, record)


class _Pair:
    """The steps of two streams that are compared: pairs of steps, and samples that only one has.

    Attributes:
        steps: Number of steps that both have.
    """

    def __init__(self, first: _StreamReader, second: _StreamReader) -> None:
        self.readers = (first, second)
        self.steps = min(first.steps, second.steps)

    def first_difference(self) -> StepDifference | None:
        step = self.aligned if self._share_order else self._first_other_samples()
        if step == self.steps:
            return None
        first, second = (reader.first + step for reader in self.readers)
        return StepDifference(first, second, self.readers[0].order.consumed_after(first))

    @cached_property
    def aligned(self) -> int:
        """The number of steps at the beginning that have the same consumed samples in both."""
        # Consumed samples are straight lines between the changes of batch sizes: two that agree at a change
        # and one step later agree until the next change.
        changes = {0, self.steps}
        for reader in self.readers:
            changes |= {step - reader.first for step, _, _ in reader.order.timeline.pieces}
        edges = sorted(changes | {change + 1 for change in changes})
        steps = np.array([edge for edge in edges if 0 <= edge <= self.steps], dtype=np.int64)
        first, second = (reader.edges(steps)[0] for reader in self.readers)
        unequal = steps[first != second]
        return max(int(unequal[0]) - 1, 0) if unequal.size else self.steps

    @cached_property
    def _share_order(self) -> bool:
        first, second = (reader.stream for reader in self.readers)
        order = shared_order(first.order)
        is_equal = order == shared_order(second.order) and first.source_id == second.source_id
        return order is not None and is_equal

    @cached_property
    def _numbering(self) -> _ReadNumbering:
        return _ReadNumbering(*self.readers)

    def _first_other_samples(self) -> int:
        """Return the first step with other samples, or else the number of aligned steps."""
        # Aligned steps have equal batch sizes, so blocks have the same steps.
        blocks = (self._sorted_reads(reader) for reader in (0, 1))
        for first, second in zip(*blocks, strict=True):
            shorter = min(len(first), len(second))
            unequal = np.flatnonzero((first[:shorter] != second[:shorter]).any(axis=1))
            if unequal.size:
                return int(min(first[unequal[0], 0], second[unequal[0], 0]))
            if len(first) != len(second):
                return int(max(first, second, key=len)[shorter, 0])
        return self.aligned

    def _sorted_reads(self, reader: int) -> Iterator[Integers]:
        """Yield (step, number) of the reads of aligned steps, sorted, block by block."""
        for steps, numbers in self._reads(reader, self.aligned):
            yield np.stack((steps, numbers), axis=1)[np.lexsort((numbers, steps))]

    def _reads(self, reader: int, steps: int) -> Iterator[tuple[Integers, Integers]]:
        for step, *sample in self.readers[reader].blocks(steps):
            yield step, self._numbering.numbers(reader, *sample)

    def count(self, entries: int) -> tuple[SourceDifference, ...]:
        """Count the samples of each dataset that are the same, moved, added and removed."""
        if self._share_order and self.aligned == self.steps:
            names = [dataset.path_prefix for dataset in self.readers[0].stream.source.datasets]
            counts = self._count_shared()
        else:
            names = self._numbering.names
            counts = np.zeros((4, len(names)), dtype=np.int64)
            total = int(self._numbering.starts[-1])
            for low in range(0, total, entries):
                counts += self._count_range(low, min(low + entries, total))
        return tuple(SourceDifference(*row) for row in zip(names, *counts.tolist(), strict=True))

    def _count_shared(self) -> Integers:
        # Samples that both read are the same, and one may read on where the other ends.
        first, second = self.readers
        end = min(first.stop, second.stop)
        same = first.count(max(first.start, second.start), end)
        removed = first.count(max(first.start, end), first.stop)
        added = second.count(max(second.start, end), second.stop)
        return np.stack((same, np.zeros_like(same), added, removed))

    def _count_range(self, low: int, high: int) -> Integers:
        # The table has the step of A that reads each number.
        table = np.full(high - low, _UNREAD, dtype=np.int32)
        for steps, numbers in self._reads_between(0, low, high):
            table[numbers - low] = steps
        counts = np.zeros((4, len(self._numbering.names)), dtype=np.int64)
        for steps, numbers in self._reads_between(1, low, high):
            first_steps = table[numbers - low].astype(np.int64)
            is_in_both = first_steps >= 0
            kinds = np.full(steps.shape, 2)
            is_same = self._within(first_steps[is_in_both], steps[is_in_both])
            kinds[is_in_both] = np.where(is_same, 0, 1)
            counts += self._count(kinds, numbers)
            table[numbers[is_in_both] - low] = _FOUND
        removed = np.flatnonzero(table >= 0) + low
        return counts + self._count(np.full(removed.shape, 3), removed)

    def _count(self, kinds: Integers, numbers: Integers) -> Integers:
        """Count reads by their kind (same, moved, added, removed) and dataset."""
        count = len(self._numbering.names)
        datasets = self._numbering.datasets_of(numbers)
        return np.bincount(kinds * count + datasets, minlength=4 * count).reshape(4, count)

    def _reads_between(self, reader: int, low: int, high: int) -> Iterator[tuple[Integers, Integers]]:
        for steps, numbers in self._reads(reader, self.readers[reader].steps):
            is_between = (numbers >= low) & (numbers < high)
            yield steps[is_between], numbers[is_between]

    def _within(self, first: Integers, second: Integers) -> NDArray[np.bool_]:
        """Return whether the consumed samples of one step are all within those of the other."""
        begins, ends = self.readers[0].edges(first)
        other_begins, other_ends = self.readers[1].edges(second)
        is_inside: NDArray[np.bool_] = (begins >= other_begins) & (ends <= other_ends)
        return is_inside | ((other_begins >= begins) & (other_ends <= ends))


class _ReadNumbering:
    """Numbers of reads, which are equal where dataset, source epoch and sample are.

    Attributes:
        names: Path prefix of each dataset of either stream. Datasets are the same if their bytes and indexes
            are.
        starts: First number of each dataset, and the end.
    """

    def __init__(self, *readers: _StreamReader) -> None:
        numbered: dict[tuple[object, int], int] = {}
        references: list[DatasetReference] = []
        self._numbers_of = []
        for reader in readers:
            numbers = []
            occurrences: Counter[object] = Counter()
            for reference in reader.stream.source.datasets:
                identity = _identity(reference)
                occurrences[identity] += 1
                # A dataset that a blend has again is another one.
                number = numbered.setdefault((identity, occurrences[identity]), len(references))
                if number == len(references):
                    references.append(reference)
                numbers.append(number)
            self._numbers_of.append(np.array(numbers, dtype=np.int64))
        self.names = [reference.path_prefix for reference in references]
        self._sizes = np.array([_samples(reference) for reference in references], dtype=np.int64)
        epochs = np.zeros(len(references), dtype=np.int64)
        for reader, datasets in zip(readers, self._numbers_of, strict=True):
            np.maximum.at(epochs, datasets, reader.source_epoch_counts())
        self.starts = np.concatenate(([0], np.cumsum(self._sizes * epochs)))

    def numbers(self, reader: int, datasets: Integers, epochs: Integers, samples: Integers) -> Integers:
        """Return the numbers of reads of the first stream or the second."""
        common = self._numbers_of[reader][datasets]
        numbers: Integers = self.starts[common] + epochs * self._sizes[common] + samples
        return numbers

    def datasets_of(self, numbers: Integers) -> Integers:
        """Return the number of the dataset of each read."""
        return np.searchsorted(self.starts, numbers, side="right") - 1


def _identity(reference: DatasetReference) -> tuple[object, ...]:
    """Return an identity of the bytes and the index of a dataset, whatever its paths."""
    stem = None if reference.index is None else reference.index.stem
    return (reference.bin, reference.idx, stem, reference.packing)  # the hash does not contain the packing


def _samples(reference: DatasetReference) -> int:
    return reference.first + reference.samples if reference.epochs is None else reference.epochs.samples
