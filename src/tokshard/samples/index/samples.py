"""Samples as token arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.reader import IndexedDataset
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.spans import SampleSpans

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_PAD_ID = -1
"""Padding if the tokenizer has no pad token: tokens of datasets are never negative."""

# Copying a piece costs about as much as gathering this many tokens one by one: if pieces are shorter
# than that, all tokens of a sample are gathered in one call.
TOKENS_WORTH_A_COPY = 96


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A sample and its origin.

    Attributes:
        tokens: int64 of shape (sequence_length + extra,), padded at the end of the data.
        document_ids: int64 of shape (pieces,): the sequences of the sample, in order. A sequence occurs
            several times if the sample spans two epochs.
        lengths: int64 of shape (pieces,): the tokens of each piece. Their sum is smaller than the sample
            if it is padded; the last may be the extra token alone. In a packed sample, the pieces are its
            documents: a last label that belongs to the next pack is none.
    """

    tokens: NDArray[np.int64]
    document_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]


class GPTSamples:
    """The samples of a dataset, in the order of its shuffle index.

    It needs only numpy, keeps only the arrays, and is safe to share between threads.

    Args:
        dataset: The dataset; preferably mapped, which reads several times faster.
        index: An index built for it. Each sample is checked as it is read: an index of another dataset
            raises sooner or later, and never reads outside the sequences that it names.
        pad_id: The padding token. Equal tokens in the data count as padding too, as in Megatron.

    Attributes:
        mapped: All tokens of the dataset as a view of its map; None if it is not mapped.
        may_hold_padding: False if the dtype of the tokens cannot hold the padding token.

    Raises:
        IntegrityError: The shapes of the index contradict its plan.
    """

    def __init__(self, dataset: IndexedDataset, index: GPTDatasetIndex, *, pad_id: int = NO_PAD_ID) -> None:
        self.dataset = dataset
        self.index = index
        self.pad_id = pad_id
        self.spans = SampleSpans(index, dataset.sequence_lengths, path=dataset.path_prefix)
        self._pointers = dataset.index.sequence_pointers
        self._itemsize = dataset.dtype.itemsize
        self.mapped = dataset.mapped_tokens
        self.may_hold_padding = dataset.dtype.kind != "u" or pad_id >= 0

    def __repr__(self) -> str:
        return f"GPTSamples({self.dataset!r}, {self.index!r})"

    def __len__(self) -> int:
        return self.index.plan.samples

    def read(self, sample: int) -> Sample:
        """Return a sample.

        Args:
            sample: From 0 to ``len(self) - 1``.

        Raises:
            IndexError: The sample does not exist.
            IntegrityError: The index does not fit the dataset.
        """
        plan = self.index.plan
        tokens = np.empty(plan.sample_tokens, np.int64)
        sequences, counts = self._fill(tokens, sample)
        if plan.packed is not None and plan.extra_token and len(counts) > 1:
            # The next row begins another pack: the sample has one piece if the document continues there.
            sequences, counts = sequences[:-1], counts[:-1]
        return Sample(tokens, sequences.astype(np.int64), np.array(counts, np.int64))

    def read_batch(self, samples: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """Return the tokens of several samples.

        Args:
            samples: Sample numbers, in any order.

        Returns:
            int64 of shape (samples, sequence_length + extra).

        Raises:
            IndexError: The sample does not exist.
            IntegrityError: The index does not fit the dataset.
        """
        numbers = samples.tolist() if isinstance(samples, np.ndarray) else samples
        batch = np.empty((len(numbers), self.index.plan.sample_tokens), np.int64)
        for row, sample in zip(batch, numbers, strict=True):
            self._fill(row, sample)
        return batch

    def _fill(self, row: NDArray[np.int64], sample: int) -> tuple[NDArray[np.uint32], list[int]]:
        # Returns the sequences that the tokens come from and the pieces' lengths.
        sequences, first, counts, filled = self.spans.of_sample(sample)
        if filled < len(row):
            row[filled:] = self.pad_id
        if self.mapped is None:
            self._read_pieces(row, sequences, first, counts)
        elif filled >= TOKENS_WORTH_A_COPY * len(counts):
            self._copy_pieces(self.mapped, row[:filled], sequences, first, counts)
        else:
            self._pick_tokens(self.mapped, row[:filled], sequences, first, counts)
        return sequences, counts

    def _read_pieces(
        self, row: NDArray[np.int64], sequences: NDArray[np.uint32], first: int, counts: list[int]
    ) -> None:
        written = 0
        for sequence, count in zip(sequences.tolist(), counts, strict=True):
            row[written : written + count] = self.dataset.get(sequence, first, count)
            written, first = written + count, 0

    def _copy_pieces(
        self,
        source: NDArray[Any],
        row: NDArray[np.int64],
        sequences: NDArray[np.uint32],
        first: int,
        counts: list[int],
    ) -> None:
        begins = [pointer // self._itemsize for pointer in self._pointers[sequences].tolist()]
        begins[0] += first
        pieces = [source[begin : begin + count] for begin, count in zip(begins, counts, strict=True)]
        np.concatenate(pieces, out=row)

    def _pick_tokens(
        self,
        source: NDArray[Any],
        row: NDArray[np.int64],
        sequences: NDArray[np.uint32],
        first: int,
        counts: list[int],
    ) -> None:
        begins = self._pointers[sequences] // self._itemsize
        begins[0] += first
        sizes = np.array(counts)
        begins[1:] -= sizes[:-1].cumsum()
        row[:] = source[np.repeat(begins, sizes) + np.arange(len(row))]
