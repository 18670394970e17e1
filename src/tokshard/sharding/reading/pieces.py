"""Which bytes samples are made of: pieces of sequences in ``.bin`` files, found without reading any token."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.core.open_cache import OpenCache
from tokshard.sharding.locator import Locator
from tokshard.sharding.sources import DatasetReference, SampleSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

# The .idx file of a dataset and the three arrays of its index. A map counts as an open file, and of maps
# Linux allows a process 65,530.
_FILES_OF_A_DATASET = 4
_MOST_FILES = 32_768


@dataclass(frozen=True, slots=True)
class Pieces:
    """Runs of bytes, one for each piece of a sequence (of a document, where samples are documents).

    Attributes:
        dataset: The number of the dataset: int64 of shape ``(n,)``.
        first: The first byte in its ``.bin`` file.
        size: The number of bytes, 1 or more.
    """

    dataset: Integers
    first: Integers
    size: Integers

    @classmethod
    def joined(cls, parts: list[Pieces]) -> Pieces:
        """Return the pieces of several parts, in order."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(
            *(
                np.concatenate([nothing, *(getattr(one, name) for one in parts)])
                for name in ("dataset", "first", "size")
            )
        )


class PieceReader:
    """Finds the pieces of any ids of a source. Indexes and ``.idx`` files are mapped when they are needed.

    Args:
        source: The samples.
        capacity: How many datasets may be open at once; None for as many as fit into half of the files that
            this process may open. The one that was used least recently is closed.
    """

    def __init__(self, source: SampleSource, capacity: int | None = None) -> None:
        self._locator = Locator(source)
        self._open: OpenCache[int, _DatasetPieces] = OpenCache(
            lambda number: _DatasetPieces(source.datasets[number]),
            _capacity() if capacity is None else capacity,
        )

    def pieces(self, ids: Integers) -> Pieces:
        """Return the pieces of samples, dataset by dataset.

        Args:
            ids: int64 of shape ``(n,)``.

        Raises:
            MissingFileError, IntegrityError: A file is not there or has changed.
        """
        datasets, samples = self._locator.locate(ids)
        parts = []
        for number in np.unique(datasets).tolist():
            first, size = self._open.get(number).find(samples[datasets == number])
            parts.append(Pieces(np.full(first.shape, number, dtype=np.int64), first, size))
        return Pieces.joined(parts)


def _capacity() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if soft == resource.RLIM_INFINITY else min(soft // 2, _MOST_FILES)
    return max(1, files // _FILES_OF_A_DATASET)


class _DatasetPieces:
    """The pieces of the samples of one dataset."""

    def __init__(self, reference: DatasetReference) -> None:
        self._table = reference.open_dataset().index
        self._itemsize = self._table.dtype.itemsize
        self._index = None if reference.index is None else reference.open_index()

    def find(self, samples: Integers) -> tuple[Integers, Integers]:
        """Return (first byte, number of bytes) of each piece that is not empty."""
        first, size = self._of_documents(samples) if self._index is None else self._of_samples(samples)
        filled = size > 0
        return first[filled], size[filled]

    def _of_documents(self, documents: Integers) -> tuple[Integers, Integers]:
        edges = self._table.document_indices
        first = self._first_bytes(edges[documents])
        return first, self._first_bytes(edges[documents + 1]) - first

    def _first_bytes(self, sequences: NDArray[np.int64]) -> Integers:
        """Return where sequences begin; the one after the last begins at the end."""
        end = self._table.token_count * self._itemsize
        inside = np.minimum(sequences, max(self._table.sequence_count - 1, 0))
        result: Integers = np.where(
            sequences < self._table.sequence_count, self._table.sequence_pointers[inside], end
        )
        return result

    def _of_samples(self, samples: Integers) -> tuple[Integers, Integers]:
        if self._index is None:
            raise IndexError("documents are no samples of an index")
        rows = np.asarray(self._index.sample_index)
        places = np.asarray(self._index.shuffle_index)[samples].astype(np.int64)
        begin, offset = rows[places].astype(np.int64).T
        end, stop = rows[places + 1].astype(np.int64).T
        counts = end - begin + 1
        ends = np.cumsum(counts)
        within = np.arange(counts.sum(), dtype=np.int64) - np.repeat(ends - counts, counts)
        sequences = np.asarray(self._index.document_index)[np.repeat(begin, counts) + within]
        lengths = np.asarray(self._table.sequence_lengths)[sequences].astype(np.int64)
        first = np.where(within == 0, np.repeat(offset, counts), 0)
        extra = int(self._index.plan.extra_token)
        last = within == np.repeat(counts, counts) - 1
        until = np.where(last, np.minimum(np.repeat(stop, counts) + extra, lengths), lengths)
        pointers = np.asarray(self._table.sequence_pointers)[sequences]
        return pointers + first * self._itemsize, (until - first) * self._itemsize
