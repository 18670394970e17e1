"""Token spans of samples: the pieces of sequences that the samples of an index consist of.

Two adjacent rows of the sample index bound a sample: it begins at token ``offset`` of the sequence at
``position`` of the document index, and ends at the next row (including the token there, if samples have an
extra token). All other code that needs the tokens of a sample uses this module.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.errors import IntegrityError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.dataset.layout import IndexTable
    from tokshard.samples.index.index import GPTDatasetIndex

    Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Runs of tokens within sequences: int64 arrays of shape (spans,).

    Attributes:
        owners: The sample or row of each span; see the method that returned the spans.
        sequences: The sequence of each span, as numbered in the dataset.
        firsts: The first token of the span, counted from the beginning of its sequence.
        counts: The number of tokens; may be 0.
        labels: Whether the only token is the extra one: the last label of the sample and no input; bool.
    """

    owners: Integers
    sequences: Integers
    firsts: Integers
    counts: Integers
    labels: NDArray[np.bool_]

    @classmethod
    def whole(cls, owners: Integers, sequences: Integers, lengths: NDArray[Any]) -> Self:
        """Return the spans with tokens of whole sequences, given with their lengths."""
        zeros = np.zeros_like(owners)
        return cls(owners, sequences, zeros, lengths.astype(np.int64), zeros.astype(np.bool_)).nonempty()

    def __len__(self) -> int:
        return self.owners.size

    def nonempty(self) -> Self:
        """Return the spans with at least one token."""
        some = self.counts > 0
        return type(self)(*(getattr(self, field.name)[some] for field in fields(self)))

    def extents(self, table: IndexTable) -> tuple[Integers, Integers]:
        """Return the first byte in the ``.bin`` file and the number of bytes of each span."""
        itemsize = table.dtype.itemsize
        return table.sequence_pointers[self.sequences] + self.firsts * itemsize, self.counts * itemsize


class SampleSpans:
    """Token spans of the samples of one index.

    It keeps views of the arrays and is safe to share between threads.

    Args:
        lengths: The tokens of all sequences of the dataset: int32 of shape (sequences,). It may be a view
            of a file, of which only the entries of the requested samples are read.

    Raises:
        IntegrityError: The shapes of the index's arrays contradict its plan.

    Example:
        >>> from tokshard.samples.index.index import GPTDatasetIndex
        >>> lengths = np.array([3, 5, 4], np.int32)
        >>> index = GPTDatasetIndex.build(lengths, range(3), sequence_length=4, seed=1, num_samples=None)
        >>> index.document_index.tolist(), index.shuffle_index.tolist()
        ([0, 2, 1], [1, 0])
        >>> spans = SampleSpans(index, lengths).of_samples(np.array([1]))
        >>> spans.sequences.tolist(), spans.firsts.tolist(), spans.counts.tolist()
        ([0, 2], [0, 0], [3, 2])
    """

    def __init__(
        self, index: GPTDatasetIndex, lengths: NDArray[np.int32], *, path: str | None = None
    ) -> None:
        plan = index.plan
        shapes = (index.document_index.shape, index.sample_index.shape, index.shuffle_index.shape)
        expected = ((plan.documents,), (plan.samples + 1, 2), (plan.samples,))
        self._path = path
        if shapes != expected:
            raise self._mismatch(f"the arrays of the index must have the shapes {expected}, got {shapes}")
        self._plan = plan
        self._extra = int(plan.extra_token)
        self._sample_tokens = plan.sample_tokens
        self._least_tokens = 0 if plan.has_padding else plan.sample_tokens
        # Indexing a memmap object takes several times as long as indexing its base array.
        # Unsigned, so that a negative entry of a damaged index is out of range and not counted from the end.
        self._documents = np.asarray(index.document_index, np.int32).view(np.uint32)
        self._rows: NDArray[Any] = np.asarray(index.sample_index)
        self._order = np.asarray(index.shuffle_index)
        self._lengths = np.asarray(lengths)

    def of_sample(self, sample: int) -> tuple[NDArray[np.uint32], int, list[int], int]:
        """Return the spans of one sample, about 20 times faster than :meth:`of_samples`.

        Returns:
            The sequences, uint32 of shape (spans,); the first token of the first span, counted from the
            beginning of its sequence (all others begin at 0); the number of tokens of each span; and their
            sum.

        Raises:
            IndexError: The sample does not exist.
            IntegrityError: The index does not fit the dataset.
        """
        if not 0 <= sample < self._plan.samples:
            raise self._missing(sample)
        try:
            row = int(self._order[sample])
            (begin, offset), (end, stop) = self._rows[row : row + 2].tolist()
            sequences = self._documents[begin : end + 1]
            counts: list[int] = self._lengths[sequences].tolist()
            stop += self._extra
            fits = 0 <= offset <= counts[0] and 0 <= stop <= counts[-1]
            fits = fits and row >= 0 and begin >= 0 and len(counts) == end + 1 - begin
        except (IndexError, ValueError) as error:
            raise self._misfit("sample", sample) from error
        counts[-1] = stop
        counts[0] -= offset
        tokens = sum(counts)
        if not (fits and counts[0] >= 0 and self._least_tokens <= tokens <= self._sample_tokens):
            raise self._misfit("sample", sample)
        return sequences, offset, counts, tokens

    def of_samples(self, samples: Integers) -> Spans:
        """Return the spans of samples in order, with each sample's spans in token order.

        A padded sample has fewer tokens than the others. An empty sequence that a sample skips has a span
        without tokens.

        Args:
            samples: Sample numbers, in any order: int64 of shape (n,).

        Returns:
            The spans; ``owners`` are positions in ``samples``.

        Raises:
            IndexError: A sample does not exist.
            IntegrityError: The index does not fit the dataset.
        """
        plan = self._plan
        if samples.size and not (samples.min() >= 0 and samples.max() < plan.samples):
            missing = next(sample for sample in samples.tolist() if not 0 <= sample < plan.samples)
            raise self._missing(missing)
        rows = self._order[samples].astype(np.int64)
        self._require((rows >= 0) & (rows < plan.samples), "sample", samples)
        begins, ends = self._rows[rows].astype(np.int64), self._rows[rows + 1].astype(np.int64)
        first, last = begins[:, 0], ends[:, 0]
        self._require((first >= 0) & (first <= last) & (last < plan.documents), "sample", samples)
        pieces = last - first + 1
        stops = pieces.cumsum()
        owners = np.arange(samples.size).repeat(pieces)
        positions = np.arange(owners.size) + (first - stops + pieces)[owners]
        sequences = self._documents[positions].astype(np.int64)
        spans, fits = self._cut(owners, sequences, positions, begins[owners], ends[owners])
        self._require(fits, "sample", samples[owners])
        if samples.size:
            tokens = np.add.reduceat(spans.counts, stops - pieces)
            fits = tokens == plan.sample_tokens
            if plan.has_padding:
                fits |= tokens < plan.sample_tokens
            self._require(fits, "sample", samples)
        return spans

    def of_positions(self, positions: Integers) -> Spans:
        """Return the spans of all samples that read the given entries of the document index.

        Args:
            positions: Positions in the document index: int64 of shape (n,).

        Returns:
            The spans with tokens, in order of position; ``owners`` are rows of the sample index: the sample
            of row ``r`` is the ``k`` with ``shuffle_index[k] == r``.

        Raises:
            IntegrityError: The index does not fit the dataset.
        """
        column = self._rows[:, 0]
        # Search keys of another dtype would make numpy copy the whole column.
        needles = positions.astype(column.dtype)
        first = np.searchsorted(column[1:], needles, side="left").astype(np.int64)
        stop = np.searchsorted(column[:-1], needles, side="right")
        pieces = np.maximum(stop - first, 0)
        which = np.arange(positions.size).repeat(pieces)
        rows = np.arange(which.size) + (first - pieces.cumsum() + pieces)[which]
        positions = positions[which]
        sequences = self._documents[positions].astype(np.int64)
        begins, ends = self._rows[rows].astype(np.int64), self._rows[rows + 1].astype(np.int64)
        spans, fits = self._cut(rows, sequences, positions, begins, ends)
        self._require(fits, "row", rows)
        return spans.nonempty()

    def _cut(
        self, owners: Integers, sequences: Integers, positions: Integers, begins: Integers, ends: Integers
    ) -> tuple[Spans, NDArray[np.bool_]]:
        # ``begins`` and ``ends`` are the two rows of the sample index that bound each span's sample.
        exists = (sequences >= 0) & (sequences < self._lengths.size)
        if not exists.all():
            return Spans(owners, sequences, sequences, sequences, exists), exists
        lengths = self._lengths[sequences]
        firsts = np.where(begins[:, 0] == positions, begins[:, 1], 0)
        stops = np.where(ends[:, 0] == positions, ends[:, 1] + self._extra, lengths)
        counts = stops - firsts
        fits = (firsts >= 0) & (counts >= 0) & (stops <= lengths)
        labels = (ends[:, 0] == positions) & (ends[:, 1] == firsts) & (counts == 1)
        return Spans(owners, sequences, firsts, counts, labels), fits

    def _require(self, fits: NDArray[np.bool_], what: str, numbers: Integers) -> None:
        if not fits.all():
            raise self._misfit(what, int(numbers[fits.argmin()]))

    def _missing(self, sample: int) -> IndexError:
        return IndexError(f"sample {sample} not found (the index has {self._plan.samples})")

    def _misfit(self, what: str, number: int) -> IntegrityError:
        dataset = "its dataset" if self._path is None else f"the sequences of {self._path}"
        return self._mismatch(f"{what} {number} of the index does not fit {dataset}")

    def _mismatch(self, problem: str) -> IntegrityError:
        return IntegrityError(
            problem,
            path=self._path,
            field="sample_index",
            hint="the index was built from other data, or is damaged: build it again",
        )


def document_extents(table: IndexTable, documents: Integers) -> tuple[Integers, Integers]:
    """Return the first byte in the ``.bin`` file and the number of bytes of each document.

    ``documents`` are numbers of existing documents: int64 of shape (n,).
    """
    edges = np.stack((table.document_indices[documents], table.document_indices[documents + 1]))
    sequences = table.sequence_lengths.size
    if not sequences:
        return np.zeros(documents.shape, np.int64), np.zeros(documents.shape, np.int64)
    last = np.minimum(edges, sequences - 1)
    # An edge after the last sequence is where that one ends.
    beyond = (edges == sequences) * table.sequence_lengths[last].astype(np.int64) * table.dtype.itemsize
    first, stop = table.sequence_pointers[last] + beyond
    return first, stop - first
