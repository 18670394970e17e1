"""An index as it is read from its file piece by piece, so that its size does not matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.dataset import layout
from tokshard.dataset.source import InputFile

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


class FileColumn:
    """A column of an index file.

    Args:
        file: The index.
        dtype: The dtype of the entries.
        count: The number of entries, which lie inside the file.
        offset: The byte offset of the first.
    """

    def __init__(self, file: InputFile, dtype: DTypeLike, count: int, offset: int) -> None:
        self._file = file
        self._dtype = np.dtype(dtype)
        self._count = count
        self._offset = offset

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, wanted: slice, /) -> NDArray[Any]:
        """Return the entries of a slice of step 1 as a new array.

        Raises:
            IntegrityError: The file has been cut short since it was opened.
            StorageError: It cannot be read.
        """
        start, stop, _ = wanted.indices(self._count)
        entries = np.empty(max(0, stop - start), self._dtype)
        if entries.size:
            offset = self._offset + start * self._dtype.itemsize
            self._file.read_into(entries.data.cast("B"), offset)
        return entries

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield all entries in order, some megabytes at a time."""
        for first in range(0, self._count, layout.CHUNK_ENTRIES):
            yield self[first : first + layout.CHUNK_ENTRIES]


class IndexColumns:
    """The index at ``path`` as columns in its file, of which only the header and the size are checked.

    Args:
        path: The ``.idx`` file.
        multimodal: Whether it ends with modes.

    Raises:
        IntegrityError: The header is wrong, or the size does not follow from it.
        StorageError: The file cannot be read.
    """

    def __init__(self, path: str, *, multimodal: bool) -> None:
        self._file = InputFile(path)
        self.header = read_header(self._file)
        layout.check_size(self.header, self._file.size_bytes, multimodal=multimodal, path=path)
        header, sequences = self.header, self.header.sequence_count
        self.sequence_lengths = FileColumn(self._file, "<i4", sequences, layout.HEADER_BYTES)
        self.sequence_pointers = FileColumn(self._file, "<i8", sequences, header.pointers_offset)
        self.document_indices = FileColumn(
            self._file, "<i8", header.document_count + 1, header.documents_offset
        )
        self.sequence_modes = FileColumn(
            self._file, "i1", sequences if multimodal else 0, header.modes_offset
        )

    def checked(self, bin_bytes: int) -> Self:
        """Check everything that :meth:`tokshard.dataset.layout.IndexTable.from_buffer` checks.

        Args:
            bin_bytes: The size of the ``.bin`` file.

        Raises:
            IntegrityError: Something contradicts something else.
        """
        path = self._file.path
        layout.check_sequences(self.header, self.sequence_lengths, self.sequence_pointers, bin_bytes, path)
        layout.check_documents(self.header, self.document_indices, path)
        return self

    def sequences_per_document(self) -> Iterator[NDArray[np.int64]]:
        """Yield how many sequences each document has, some megabytes at a time."""
        for first in range(0, self.header.document_count, layout.CHUNK_ENTRIES):
            yield np.diff(self.document_indices[first : first + layout.CHUNK_ENTRIES + 1])


def read_header(file: InputFile) -> layout.IndexHeader:
    """Return the header of an index file.

    Raises:
        IntegrityError: See :func:`tokshard.dataset.layout.read_header`.
    """
    beginning = bytearray(min(file.size_bytes, layout.HEADER_BYTES))
    file.read_into(memoryview(beginning), 0)
    return layout.read_header(beginning, path=file.path)
