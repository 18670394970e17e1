"""Input tokens of an index: the pieces of sequences that some of its samples read as inputs.

The *stream* of an index is the tokens of its sequences, in the order of the document index. The inputs of
row k of the sample index are the tokens of the stream from row k up to row k + 1. The extra token of a
sample, its last label, is the first input of the next row and counts there. Tokens after the last row are
inputs of no sample: they are the *remainder* of the index, and are numbered here as one more row. Packed
samples have none: after their last row comes one entry of the document index, for the last label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.errors import IntegrityError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.gpt_index.index import GPTDatasetIndex

    Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TokenPieces:
    """Runs of tokens within sequences: int32 arrays of shape (pieces,).

    Attributes:
        sequences: The sequence of each piece, as numbered in the dataset.
        firsts: The first token of the piece, counted from the beginning of its sequence.
        counts: The number of tokens, 1 or more.
    """

    sequences: NDArray[np.int32]
    firsts: NDArray[np.int32]
    counts: NDArray[np.int32]

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """Return the pieces of several parts, one part after the other."""
        empty = np.empty(0, np.int32)
        return cls(
            np.concatenate([empty, *(part.sequences for part in parts)]),
            np.concatenate([empty, *(part.firsts for part in parts)]),
            np.concatenate([empty, *(part.counts for part in parts)]),
        )

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def tokens(self) -> int:
        """The tokens of all pieces."""
        return int(self.counts.sum(dtype=np.int64))

    def pointers(self, sequence_pointers: NDArray[np.int64], itemsize: int) -> Integers:
        """Return the byte position of each piece, given the positions of the sequences."""
        positions: Integers = sequence_pointers[self.sequences] + self.firsts.astype(np.int64) * itemsize
        return positions


class InputTokens:
    """The input tokens of the rows of one index.

    Args:
        index: The index.
        lengths: The tokens of all sequences of the dataset: int32 of shape (sequences,).
        path: The dataset, for messages.

    Example:
        >>> from tokshard.gpt_index.index import GPTDatasetIndex
        >>> lengths = np.array([3, 5, 4], np.int32)
        >>> index = GPTDatasetIndex.build(lengths, range(3), sequence_length=4, seed=1, num_samples=None)
        >>> index.document_index.tolist(), index.sample_index.tolist()
        ([0, 2, 1], [[0, 0], [1, 1], [2, 1]])
        >>> inputs = InputTokens(index, lengths)
        >>> inputs.of_rows().tolist()
        [4, 4, 4]
        >>> pieces = inputs.pieces(np.array([0, 1, 1]))
        >>> pieces.sequences.tolist(), pieces.firsts.tolist(), pieces.counts.tolist()
        ([2, 1], [1, 0], [3, 5])
    """

    def __init__(
        self, index: GPTDatasetIndex, lengths: NDArray[np.int32], *, path: str | None = None
    ) -> None:
        self._path = path
        self._plan = index.plan
        self._documents = np.asarray(index.document_index)
        self._lengths = np.asarray(lengths)
        self._order = np.asarray(index.shuffle_index)
        end = len(self._documents) - (self._plan.packed is not None)
        self._bounds = np.concatenate((np.asarray(index.sample_index, np.int64), [[end, 0]]))
        shapes = (len(self._documents), self._bounds.shape, self._order.shape)
        expected = (self._plan.documents, (self._plan.samples + 2, 2), (self._plan.samples,))
        least, most = (self._documents.min(), self._documents.max()) if shapes[0] else (0, -1)
        if shapes != expected or least < 0 or most >= self._lengths.size:
            raise self._misfit()
        positions, offsets = self._bounds.T
        outside = (positions < 0) | (positions > shapes[0]) | (offsets < 0)
        if outside.any() or (np.diff(positions) < 0).any():
            raise self._misfit()

    @property
    def rows(self) -> int:
        """The number of rows: one for each sample, and one for the remainder."""
        return self._plan.samples + 1

    def of_rows(self) -> Integers:
        """Return the number of input tokens of each row: int64 of shape (samples + 1,)."""
        before = np.concatenate(([0], np.cumsum(self._lengths[self._documents], dtype=np.int64)))
        tokens: Integers = np.diff(before[self._bounds[:, 0]] + self._bounds[:, 1])
        if (tokens < 0).any():
            raise self._misfit()
        return tokens

    def by_row(self, times: NDArray[Any], remainder: int = 0) -> NDArray[Any]:
        """Return numbers that belong to samples in the order of the rows, and that of the remainder last.

        Args:
            times: A number for each sample: integers of shape (samples,).
            remainder: The number of the remainder.

        Raises:
            IntegrityError: The shuffle index is no permutation.
        """
        found = np.full(self.rows, -1, times.dtype)
        if self._order.size and (self._order.min() < 0 or self._order.max() >= self._plan.samples):
            raise self._misfit()
        found[self._order] = times
        found[-1] = remainder
        if (found < 0).any():
            raise self._misfit()
        return found

    def pieces(self, times: NDArray[Any]) -> TokenPieces:
        """Return the input tokens of rows as pieces, in the order of the stream.

        A piece is a run of tokens in one sequence that is as long as possible. Where rows are wanted several
        times, those that are wanted once or more come first, then those that are wanted twice or more, and so
        on.

        Args:
            times: How often each row is wanted: integers of shape (samples + 1,).

        Raises:
            IntegrityError: The index does not fit the dataset.
        """
        most = int(times.max(initial=0))
        return TokenPieces.joined([self._pieces(times >= level) for level in range(1, most + 1)])

    def _pieces(self, wanted: NDArray[np.bool_]) -> TokenPieces:
        edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
        (first, offset), (last, stop) = self._bounds[edges[::2]].T, self._bounds[edges[1::2]].T
        # A run that ends at token 0 of a sequence has nothing of it.
        sizes = last - first + (stop > 0)
        filled = sizes > 0
        first, offset, stop, sizes = first[filled], offset[filled], stop[filled], sizes[filled]
        ends = np.cumsum(sizes)
        positions = np.repeat(first - (ends - sizes), sizes)
        positions += np.arange(len(positions))
        if positions.size and positions.max() >= len(self._documents):
            raise self._misfit()
        sequences = self._documents[positions]
        del positions
        lengths = self._lengths[sequences]
        firsts, counts = np.zeros(len(lengths), np.int32), lengths.copy()
        firsts[ends - sizes] = offset
        cut = stop > 0
        counts[ends[cut] - 1] = stop[cut]
        if (counts > lengths).any() or (counts < firsts).any():
            raise self._misfit()
        counts -= firsts
        some = counts > 0
        return TokenPieces(sequences[some], firsts[some], counts[some])

    def _misfit(self) -> IntegrityError:
        dataset = "its dataset" if self._path is None else f"the sequences of {self._path}"
        return IntegrityError(
            f"the index does not fit {dataset}",
            path=self._path,
            field="sample_index",
            hint="the index was built from other data, or is damaged: build it again",
        )
