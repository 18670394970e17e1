"""Which samples a rank reads in each of its micro-batches, looked up for many at once."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.sharding.assignment import Assignment
from tokshard.sharding.bucketing import Bucketing
from tokshard.sharding.sources.locator import Locator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.sharding.bucketing import KeyOf

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
