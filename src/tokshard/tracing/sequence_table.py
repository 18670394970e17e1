"""Lookup of a few sequences and documents in the index file of a dataset, without a pass over all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.layout import HEADER_BYTES, check_size, read_header
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.storage.paths import idx_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


class SequenceTable:
    """Sequences and documents of a dataset, looked up in its mapped ``.idx`` file.

    The header and the size of the file are checked, and each entry that is used; an
    :class:`~tokshard.dataset.reader.IndexedDataset` checks everything, which takes a pass over the file.

    Attributes:
        path: The ``.idx`` file.
        sequence_lengths: The tokens of each sequence: int32 of shape (sequences,), a view of the file.
        sequence_count: The number of sequences.
        document_count: The number of documents.

    Raises:
        IntegrityError: The header is wrong, or the size does not follow from it.
        StorageError: The file cannot be read.
    """

    def __init__(self, path_prefix: str, *, multimodal: bool = False) -> None:
        self.path = idx_path(path_prefix)
        buffer = InputFile(self.path).map()
        header = read_header(buffer, path=self.path)
        check_size(header, len(buffer), multimodal=multimodal, path=self.path)
        self._itemsize = header.dtype.itemsize
        self.sequence_count = header.sequence_count
        self.document_count = header.document_count

        def column(dtype: str, count: int, offset: int) -> NDArray[Any]:
            return np.frombuffer(buffer, dtype, count, offset)

        self.sequence_lengths = column("<i4", header.sequence_count, HEADER_BYTES)
        self._pointers = column("<i8", header.sequence_count, header.pointers_offset)
        self._edges = column("<i8", header.document_count + 1, header.documents_offset)

    def sequences_of(self, documents: Integers) -> tuple[Integers, Integers]:
        """Return the first sequence of each document, and the first after it; the documents must exist.

        Raises:
            IntegrityError: The boundaries of a document contradict each other.
        """
        firsts, stops = self._edges[documents], self._edges[documents + 1]
        if ((firsts < 0) | (stops < firsts) | (stops > self.sequence_count)).any():
            raise self._damaged("document_indices")
        return firsts, stops

    def documents_of(self, sequences: Integers) -> Integers:
        """Return the document of each sequence.

        Raises:
            IntegrityError: There is no such sequence, or it belongs to no document.
        """
        self._check(sequences)
        # By hand: numpy.searchsorted would copy the whole column, which is not aligned.
        low = np.zeros(sequences.shape, np.int64)
        high = np.full(sequences.shape, self.document_count + 1, np.int64)
        while (low < high).any():
            middle = (low + high) // 2
            beyond = self._edges[np.minimum(middle, self.document_count)] > sequences
            low, high = np.where(beyond | (low >= high), low, middle + 1), np.where(beyond, middle, high)
        documents = low - 1
        if (documents < 0).any() or (documents >= self.document_count).any():
            raise self._damaged("document_indices")
        return documents

    def lengths(self, sequences: Integers) -> Integers:
        """Return the tokens of each sequence.

        Raises:
            IntegrityError: There is no such sequence, or its length is negative.
        """
        self._check(sequences)
        lengths = self.sequence_lengths[sequences].astype(np.int64)
        if (lengths < 0).any():
            raise self._damaged("sequence_lengths")
        return lengths

    def tokens_before(self, sequences: Integers, documents: Integers) -> Integers:
        """Return how many tokens of its document precede each sequence."""
        firsts, _ = self.sequences_of(documents)
        begins = self._pointers[np.minimum(firsts, self.sequence_count - 1)]
        tokens: Integers = (self._pointers[sequences] - begins) // self._itemsize
        return tokens

    def tokens_of(self, documents: Integers) -> Integers:
        """Return the tokens of each document."""
        firsts, stops = self.sequences_of(documents)
        tokens = np.zeros(documents.shape, np.int64)
        some = stops > firsts
        last = stops[some] - 1
        tokens[some] = self.tokens_before(last, documents[some]) + self.lengths(last)
        return tokens

    def _check(self, sequences: Integers) -> None:
        if sequences.size and (sequences.min() < 0 or sequences.max() >= self.sequence_count):
            raise IntegrityError(
                f"{self.path} has {self.sequence_count} sequences, and no sequence {sequences.max()}",
                path=self.path,
                hint="the index of samples was built from other data: build it again",
            )

    def _damaged(self, field: str) -> IntegrityError:
        return IntegrityError(
            f"{self.path}: {field} contradicts itself",
            path=self.path,
            field=field,
            hint="run tokshard verify on the dataset",
        )
