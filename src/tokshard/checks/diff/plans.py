"""Difference of two plans: the first step whose samples differ, and the reads of each dataset in both.

Where both read one order, formulas find the step, whatever the size of the plans.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.checks.diff.options import DiffOptions
from tokshard.checks.diff.report import (
    DifferentRead,
    DiffReport,
    StepDifference,
    StreamDifference,
    dataset_differences,
    different_fields,
    report_of,
)
from tokshard.checks.inspect.planned import count_planned
from tokshard.core.codec import encode
from tokshard.dataset.tokenizer_identity import tokenizer_name
from tokshard.ranks.consumption import ConsumptionOrder
from tokshard.ranks.links import Bucketing, Interleave, Skip
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import Plan, Stream
from tokshard.ranks.sources import DatasetReference
from tokshard.samples.index.packing import pack_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_BLOCK = 1 << 18


def diff_plans(a: Plan, b: Plan, options: DiffOptions | None = None) -> DiffReport:
    """Compare what two plans read, from the consumed samples on at which the later one begins.

    Where both read one order, as before and after a change of the world size, formulas suffice. Otherwise
    both are read in blocks, up to the first step that differs.

    Raises:
        MissingFileError, IntegrityError: The arrays of a blend do not exist or have changed.
    """
    options = options or DiffOptions()
    parts = tuple(
        _diff_stream(a.streams[name], b.streams[name], name, options)
        for name in a.streams
        if name in b.streams
    )
    return report_of(
        "plan",
        different_fields(_plan_fields(a), _plan_fields(b)),
        parts,
        (a.streams, b.streams),
        same_plan=a.plan_id == b.plan_id,
        mismatches=(*(a.tokenizer_mismatches or ()), *(b.tokenizer_mismatches or ())),
    )


def _diff_stream(a: Stream, b: Stream, name: str, options: DiffOptions) -> StreamDifference:
    start = max(a.order.consumed_samples, b.order.consumed_samples)
    names, numbers = _common_datasets(a, b)
    first, second = (
        _ComparedSteps(stream, start, options.steps, datasets)
        for stream, datasets in zip((a, b), numbers, strict=True)
    )
    counts = np.zeros((2, len(names)), np.int64)
    is_exact = True
    for row, steps in zip(counts, (first, second), strict=True):
        planned = count_planned(steps.stream, *steps.numbers(0, steps.steps))
        np.add.at(row, steps.datasets, planned.counts)
        is_exact &= planned.exact
    return StreamDifference(
        name=name,
        fields=different_fields(_stream_fields(a), _stream_fields(b)),
        start=start,
        compared=(first.stop, second.stop),
        first_step=_first_difference(first, second),
        datasets=dataset_differences(names, *counts),
        is_exact=is_exact,
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


def _common_datasets(*streams: Stream) -> tuple[list[str], list[Integers]]:
    """Return the path prefixes of the datasets of both streams, and of each stream the numbers of its own.

    Datasets are the same if their bytes and indexes are, whatever their paths.
    """
    numbered: dict[tuple[object, int], int] = {}
    names: list[str] = []
    numbers_of = []
    for stream in streams:
        numbers = []
        occurrences: Counter[object] = Counter()
        for reference in stream.source.datasets:
            identity = _identity(reference)
            occurrences[identity] += 1
            # A dataset that a blend has again is another one.
            number = numbered.setdefault((identity, occurrences[identity]), len(names))
            if number == len(names):
                names.append(reference.path_prefix)
            numbers.append(number)
        numbers_of.append(np.array(numbers, dtype=np.int64))
    return names, numbers_of


def _identity(reference: DatasetReference) -> tuple[object, ...]:
    stem = None if reference.index is None else reference.index.stem
    return (reference.bin, reference.idx, stem, reference.packing)  # the hash does not contain the packing


def shared_order(order: ConsumptionOrder) -> tuple[object, ...] | None:
    """Return what determines the sample at each number of consumed samples.

    Two orders with the same value read the same samples where both read. None if samples are repeated, or
    there may be several epochs.
    """
    epochs = order.epoch_ranges[0]
    if len(order.epoch_ranges) > 1 or epochs.epochs != 1 or epochs.repeated:
        return None
    return epochs.total, epochs.links, epochs.first_epoch, order.skipped - order.consumed_samples


class _ComparedSteps:
    """The steps of a stream that are compared. They are counted from the first one.

    Args:
        datasets: The number of each dataset among those of both streams.

    Attributes:
        first: Number of the first step that is compared.
        steps: Number of steps.
    """

    def __init__(self, stream: Stream, start: int, steps: int | None, datasets: Integers) -> None:
        self.stream = stream
        self.order = stream.order
        self.datasets = datasets
        self.first = self.order.steps
        if start < self.order.consumed_after(self.order.steps):
            self.first = int(self.order.timeline.step_of(np.array([start], dtype=np.int64))[0])
            self.first += self.order.consumed_after(self.first) < start
        self.steps = self.order.steps - self.first
        if steps is not None:
            self.steps = min(self.steps, steps)
        self._locator = Locator(stream.source)
        self._key_of = stream.open_sort_key()

    @property
    def stop(self) -> int:
        """The consumed samples after the last step."""
        return self.order.consumed_after(self.first + self.steps)

    def begins(self, steps: Integers) -> Integers:
        """Return the consumed samples before each step."""
        return self.order.timeline.consumed(self.first + steps)

    def numbers(self, first: int, stop: int) -> tuple[int, int]:
        """Return the number of the first read of some steps, and the end."""
        return self.order.first_number(self.first + first), self.order.first_number(self.first + stop)

    def reads(self, first: int, stop: int) -> Integers:
        """Return step, dataset and sample of each read of some steps: int64 of shape (reads, 3)."""
        numbers = np.arange(*self.numbers(first, stop), dtype=np.int64)
        datasets, samples = self._locator.locate(self.order.ids(numbers, self._key_of))
        steps = self.order.timeline.step_of(numbers + self.order.consumed_samples) - self.first
        return np.stack((steps, self.datasets[datasets], samples), axis=1)

    def read_without(self, step: int, others: Integers) -> DifferentRead | None:
        """Return the first read of a step that other reads do not have; None if there is none."""
        remaining = Counter(map(tuple, others[:, 1:].tolist()))
        first, _ = self.numbers(step, step + 1)
        for number, sample in enumerate(map(tuple, self.reads(step, step + 1)[:, 1:].tolist()), first):
            remaining[sample] -= 1
            if remaining[sample] < 0:
                return self._read(number)
        return None

    def _read(self, number: int) -> DifferentRead:
        numbers = np.array([number], dtype=np.int64)
        _, rank, row = self.order.reads(numbers)
        ids = self.order.ids(numbers, self._key_of)
        datasets, samples = self._locator.locate(ids)
        return DifferentRead(
            data_parallel_rank=int(rank[0]),
            row=int(row[0]),
            sample=int(ids[0]),
            dataset=self.stream.source.datasets[int(datasets[0])].path_prefix,
            dataset_sample=int(samples[0]),
        )


def _first_difference(a: _ComparedSteps, b: _ComparedSteps) -> StepDifference | None:
    """Return the first step that has other samples in A than in B; None if both begin with equal steps."""
    order = shared_order(a.order)
    is_shared = order == shared_order(b.order) and a.stream.source_id == b.stream.source_id
    step = _aligned(a, b)
    if order is None or not is_shared:
        step = _first_other_samples(a, b, step)
    if step == min(a.steps, b.steps):
        return None
    return StepDifference(
        a=a.first + step,
        b=b.first + step,
        consumed_samples=a.order.consumed_after(a.first + step),
        read_a=a.read_without(step, b.reads(step, step + 1)),
        read_b=b.read_without(step, a.reads(step, step + 1)),
    )


def _aligned(a: _ComparedSteps, b: _ComparedSteps) -> int:
    """Return the number of steps at the beginning that have the same consumed samples in both."""
    # Consumed samples are straight lines between the changes of batch sizes: two that agree at a change
    # and one step later agree until the next change.
    shorter = min(a.steps, b.steps)
    changes = {0, shorter}
    for compared in (a, b):
        changes |= {step - compared.first for step, _, _ in compared.order.timeline.pieces}
    edges = sorted(changes | {change + 1 for change in changes})
    steps = np.array([edge for edge in edges if 0 <= edge <= shorter], dtype=np.int64)
    unequal = steps[a.begins(steps) != b.begins(steps)]
    return max(int(unequal[0]) - 1, 0) if unequal.size else shorter


def _first_other_samples(a: _ComparedSteps, b: _ComparedSteps, aligned: int) -> int:
    """Return the first of the aligned steps with other samples, or else their number."""
    first = 0
    while first < aligned:
        stop = min(aligned, first + max(1, _BLOCK // a.order.timeline.batch_size(a.first + first)))
        of_a, of_b = (_sorted(compared.reads(first, stop)) for compared in (a, b))
        unequal = np.flatnonzero((of_a != of_b).any(axis=1))
        if unequal.size:
            return int(min(of_a[unequal[0], 0], of_b[unequal[0], 0]))
        first = stop
    return aligned


def _sorted(reads: Integers) -> Integers:
    return reads[np.lexsort(reads.T[::-1])]
