"""Samples as tokens: the index of a dataset applied to its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.reader import IndexedDataset
from tokshard.gpt_index.index import GPTDatasetIndex
from tokshard.gpt_index.spans import SampleSpans

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_PAD_ID = -1
"""Stands for padding where the tokenizer has no token for it: no token of a dataset is negative."""

# Copying a piece costs about as much as picking this many tokens one by one: where pieces are shorter
# than that, all tokens of a sample are picked in one go.
_TOKENS_WORTH_A_COPY = 96


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One sample and where it comes from.

    Attributes:
        tokens: int64 of shape (sequence_length + extra,), padded at the end where the data ran out.
        document_ids: int64 of shape (pieces,): the sequences that the sample is made of, in order. One
            comes several times where the sample goes from one epoch into the next.
        lengths: int64 of shape (pieces,): the tokens of each piece. They sum to less than the sample
            where it is padded; the last may be the extra token alone.
    """

    tokens: NDArray[np.int64]
    document_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Training inputs of one sample; all of shape (sequence_length,).

    Attributes:
        tokens: int64, with 0 for padding.
        labels: int64, the token that follows each, with 0 for padding.
        loss_mask: float32, 0 where the label is padding, else 1.
        position_ids: int64, from 0.
    """

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    loss_mask: NDArray[np.float32]
    position_ids: NDArray[np.int64]


class GPTSamples:
    """The samples of a dataset, in the order of its shuffle index.

    It needs numpy alone, keeps nothing but the arrays, and may be used by several threads at once.

    Args:
        dataset: The dataset; mapped, unless there is a reason against it, because reading is then
            several times as fast.
        index: An index that was built for it. Each sample is checked as it is read: an index of another
            dataset raises sooner or later, and never reads outside the sequences that it names.
        pad_id: The token to fill up with. Tokens of the data that equal it count as padding too, as in
            Megatron.

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
        self._mapped = _all_tokens(dataset) if dataset.mmap else None

    def __len__(self) -> int:
        return self.index.plan.samples

    def read(self, sample: int) -> Sample:
        """Return one sample.

        Args:
            sample: From 0 to ``len(self) - 1``.

        Raises:
            IndexError: There is no such sample.
            IntegrityError: The index does not fit the dataset.
        """
        tokens = np.empty(self.index.plan.sample_tokens, np.int64)
        sequences, counts = self._fill(tokens, sample)
        return Sample(tokens, sequences.astype(np.int64), np.array(counts, np.int64))

    def read_batch(self, samples: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """Return the tokens of several samples.

        Args:
            samples: Numbers of samples, in any order.

        Returns:
            int64 of shape (samples, sequence_length + extra).

        Raises:
            IndexError: There is no such sample.
            IntegrityError: The index does not fit the dataset.
        """
        numbers = samples.tolist() if isinstance(samples, np.ndarray) else samples
        batch = np.empty((len(numbers), self.index.plan.sample_tokens), np.int64)
        for row, sample in zip(batch, numbers, strict=True):
            self._fill(row, sample)
        return batch

    def inputs(self, sample: int) -> Inputs:
        """Return what Megatron Core's ``GPTDataset`` gives for a sample, apart from the attention mask.

        Args:
            sample: From 0 to ``len(self) - 1``.

        Raises:
            IndexError: There is no such sample.
            IntegrityError: The index does not fit the dataset.
        """
        text = self.read(sample).tokens
        if self.index.plan.extra_token:
            tokens, labels = text[:-1].copy(), text[1:].copy()
        else:
            tokens, labels = text, np.append(text[1:], self.pad_id)
        loss_mask = (labels != self.pad_id).astype(np.float32)
        for values in (tokens, labels):
            values[values == self.pad_id] = 0
        return Inputs(tokens, labels, loss_mask, np.arange(len(tokens)))

    def _fill(self, row: NDArray[np.int64], sample: int) -> tuple[NDArray[np.uint32], list[int]]:
        # Returns the sequences that the tokens come from and the pieces' lengths.
        sequences, first, counts, filled = self.spans.of_sample(sample)
        if filled < len(row):
            row[filled:] = self.pad_id
        if self._mapped is None:
            self._read_pieces(row, sequences, first, counts)
        elif filled >= _TOKENS_WORTH_A_COPY * len(counts):
            self._copy_pieces(self._mapped, row[:filled], sequences, first, counts)
        else:
            self._pick_tokens(self._mapped, row[:filled], sequences, first, counts)
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


def _all_tokens(dataset: IndexedDataset) -> NDArray[Any]:
    size_bytes = dataset.index.token_count * dataset.dtype.itemsize
    return next(dataset.token_blocks(max(1, size_bytes)), np.empty(0, dataset.dtype))
