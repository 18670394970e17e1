"""Samples of a rank by micro-batch, and the tokens that they consist of, looked up for many at once.

A sample of an index consists of pieces of sequences. To find those of one sample takes as long as to copy its
tokens; to find those of a hundred takes only a few times as long.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import IntegrityError, UsageError
from tokshard.ranks.consumption import ConsumptionOrder
from tokshard.ranks.links import Bucketing
from tokshard.ranks.locator import Locator
from tokshard.samples.index.samples import TOKENS_WORTH_A_COPY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.ranks.links import KeyOf
    from tokshard.samples.index.samples import GPTSamples

    Ranges = tuple[int, ...]
    """The begin and end of each range of the tokens of a sample; positions among the tokens of its dataset.
    Empty: the sample is read by itself."""

# Asking for this many samples costs hardly more than asking for one.
_CHUNK = 1024
# More ranges at once would read further ahead in files of the index, which takes long where these are not in
# memory.
_MOST_AT_ONCE = 128
# To find the ranges of this many one by one takes no longer.
_LEAST_AT_ONCE = 8


class Chunk:
    """Samples of a rank that follow each other; threads may share it.

    Attributes:
        first: The local index of the first sample.
        end: The local index after the last sample.
        ids: int64 of shape (samples,), their ids in the stream.
        datasets: int16 of shape (samples,), the number of the dataset of each.
        samples: int64 of shape (samples,), the number of each in its dataset.
    """

    def __init__(
        self, first: int, ids: NDArray[np.int64], datasets: NDArray[np.int16], samples: NDArray[np.int64]
    ) -> None:
        self.first = first
        self.end = first + len(ids)
        self.ids = ids
        self.datasets = datasets
        self.samples = samples
        self._owners: list[int] = datasets.tolist()
        # None is not looked up yet.
        unknown: Ranges | None = None if len(ids) >= _LEAST_AT_ONCE else ()
        self._ranges = [unknown] * len(ids)

    def by_dataset(self, rows: range) -> dict[int, Sequence[int]]:
        """Return some rows by the numbers of their datasets, in the order in which these first come."""
        owners = self._owners[rows.start : rows.stop]
        if owners.count(owners[0]) == len(owners):
            return {owners[0]: rows}
        found: dict[int, list[int]] = {}
        for row, owner in zip(rows, owners, strict=True):
            found.setdefault(owner, []).append(row)
        return dict(found)

    def ranges(self, row: int, samples: GPTSamples) -> Ranges:
        """Return the ranges of tokens of a row, whose dataset has these samples."""
        known = self._ranges[row]
        if known is None:
            known = self._look_up(row, samples)
        return known

    def _look_up(self, row: int, samples: GPTSamples) -> Ranges:
        same = np.flatnonzero(self.datasets[row:] == self._owners[row])[:_MOST_AT_ONCE] + row
        found: list[Ranges] = [()] * len(same)
        # A sample that does not fit its dataset raises its error when it is read by itself.
        with suppress(IntegrityError):
            found = _ranges(samples, self.samples[same])
        for other, ranges in zip(same.tolist(), found, strict=True):
            self._ranges[other] = ranges
        return found[0]


def _ranges(samples: GPTSamples, numbers: NDArray[np.int64]) -> list[Ranges]:
    spans = samples.spans.of_samples(numbers)
    if not spans.counts.all():
        spans = spans.nonempty()
    begins = spans.extents(samples.dataset.index)[0] // samples.dataset.dtype.itemsize
    ends = begins + spans.counts
    bounds = np.searchsorted(spans.owners, np.arange(len(numbers) + 1))
    tokens = np.diff(np.concatenate(([0], spans.counts.cumsum()))[bounds])
    sample_tokens = samples.index.plan.sample_tokens
    # Others are padded, or are gathered token by token.
    usable = (tokens == sample_tokens) & (np.diff(bounds) * TOKENS_WORTH_A_COPY <= sample_tokens)
    # Integers, no slices: objects that the garbage collector tracks would make it run often.
    flat = np.stack((begins, ends), axis=1).ravel().tolist()
    edges = (2 * bounds).tolist()
    return [
        tuple(flat[first:last]) if use else ()
        for use, first, last in zip(usable.tolist(), edges, edges[1:], strict=False)
    ]


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
        self._chunks: deque[Chunk] = deque(maxlen=2)

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

    def chunk(self, first: int, count: int) -> Chunk:
        """Return samples of the rank, among them ``count`` from local index ``first`` on."""
        with self._lock:
            for chunk in self._chunks:
                if chunk.first <= first and first + count <= chunk.end:
                    return chunk
            many = count
            if any(0 <= first - chunk.end < _CHUNK for chunk in self._chunks):
                many = min(max(self._chunk, count), self._end - first)
            ids = self.order.ids(self.order.numbers(self._rank, first, many), self._key_of)
            if self._locator is None:
                raise UsageError("a schedule without a source has no samples")
            chunk = Chunk(first, ids, *self._locator.locate(ids))
            self._chunks.append(chunk)
            return chunk

    def repeated(self, first: int, count: int) -> NDArray[np.bool_]:
        """Return which samples, from a local index on, were read before in their epoch and fill a batch.

        Returns:
            bool of shape ``(count,)``.
        """
        return self.order.repeated(self.order.numbers(self._rank, first, count))
