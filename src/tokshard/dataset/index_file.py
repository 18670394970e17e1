"""Reading and writing of ``.idx`` files in pieces, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tokshard.dataset import layout
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


Pieces = Callable[[], Iterable[NDArray[Any]]]

_MODE = np.dtype("i1")
_LENGTH = np.dtype("<i4")
_OFFSET = np.dtype("<i8")


class SupportsWrite(Protocol):
    """A writable stream."""

    def write(self, buffer: memoryview, /) -> object:
        """Write all of ``buffer``."""


def write_index(
    file: SupportsWrite,
    *,
    dtype: DTypeLike,
    sequence_count: int,
    document_count: int,
    lengths: Pieces,
    sequences_per_document: Pieces,
    modes: Pieces | None = None,
) -> int:
    """Write an ``.idx`` file in constant memory.

    The columns are integer arrays in pieces of any size. They are requested again for each field that is
    derived from them: the lengths twice.

    Args:
        file: The output, written from its current position. On an error it holds an incomplete index: pass
            a file that is published afterwards.
        dtype: The dtype of the tokens.
        sequence_count: The number of sequences.
        document_count: The number of documents; the file stores one more.
        lengths: Returns a new iterator over pieces of the number of tokens of each sequence.
        sequences_per_document: The same for the number of sequences of each document.
        modes: The same for the mode of each sequence, for multimodal datasets.

    Returns:
        The number of tokens; the ``.bin`` file must have this times the item size in bytes.

    Raises:
        IntegrityError: The pieces contradict the counts, or contain values that the format cannot store.
            It is also a ValueError.
        UsageError: The format has no code for the dtype, or a piece is not a flat array of integers.
    """
    header = layout.IndexHeader(np.dtype(dtype), sequence_count, document_count)
    file.write(memoryview(header.to_bytes()))
    token_count = 0
    for piece in _checked(lengths, sequence_count, layout.MAX_LENGTH, "lengths"):
        token_count += int(piece.sum(dtype=np.int64))
        _write_array(file, piece, _LENGTH)
    itemsize = header.dtype.itemsize
    bin_bytes = token_count * itemsize
    if bin_bytes > layout.MAX_POINTER_BYTES:
        raise IntegrityError(f"{token_count:,} tokens of {itemsize} bytes exceed the range of a pointer")
    for ends, sizes in _running(lengths, sequence_count, layout.MAX_LENGTH, itemsize, bin_bytes, "lengths"):
        _write_array(file, ends - sizes, _OFFSET)
    what = "sequences_per_document"
    _write_array(file, np.zeros(1, np.int64), _OFFSET)
    for ends, _ in _running(sequences_per_document, document_count, sequence_count, 1, sequence_count, what):
        _write_array(file, ends, _OFFSET)
    if modes is not None:
        for piece in _checked(modes, sequence_count, 127, "modes", lowest=-128):
            _write_array(file, piece, _MODE)
    return token_count


def _running(
    pieces: Pieces, count: int, highest: int, scale: int, total: int, what: str
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    begin = 0
    for piece in _checked(pieces, count, highest, what):
        sizes = piece.astype(np.int64) * scale
        begin_of_next = begin + int(sizes.sum())
        if begin_of_next > total:
            break
        yield sizes.cumsum() + begin, sizes
        begin = begin_of_next
    else:
        if begin == total:
            return
    raise IntegrityError(f"the {count} entries of {what} must sum to {total // scale}")


def _checked(
    pieces: Pieces, count: int, highest: int, what: str, *, lowest: int = 0
) -> Iterator[NDArray[Any]]:
    seen = 0
    for whole in pieces():
        if whole.ndim != 1 or whole.dtype.kind not in "iu":
            raise UsageError(
                f"{what} must be 1-dimensional integer arrays, got {whole.ndim}-dimensional {whole.dtype}"
            )
        for first in range(0, len(whole), layout.CHUNK_ENTRIES):
            piece = whole[first : first + layout.CHUNK_ENTRIES]
            if int(piece.min()) < lowest or int(piece.max()) > highest:
                at = int(((piece < lowest) | (piece > highest)).argmax())
                raise IntegrityError(
                    f"{what}[{seen + at}] must be from {lowest} to {highest}, got {piece[at]}", field=what
                )
            seen += len(piece)
            if seen <= count:
                yield piece
    if seen != count:
        raise IntegrityError(f"{what} must have {count} entries, got {seen}", field=what)


def _write_array(file: SupportsWrite, values: NDArray[Any], dtype: np.dtype[Any]) -> None:
    if values.size:
        file.write(np.ascontiguousarray(values, dtype=dtype).data.cast("B"))


class FileColumn:
    """A column of an index file."""

    def __init__(self, file: InputFile, dtype: DTypeLike, count: int, offset: int) -> None:
        self._file = file
        self._dtype = np.dtype(dtype)
        self._count = count
        self._offset = offset

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, wanted: slice, /) -> NDArray[Any]:
        """Return the entries of a slice of step 1 as a new array."""
        start, stop, _ = wanted.indices(self._count)
        entries = np.empty(max(0, stop - start), self._dtype)
        if entries.size:
            offset = self._offset + start * self._dtype.itemsize
            self._file.read_into(entries.data.cast("B"), offset)
        return entries

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield all entries in order, a few MB at a time."""
        for first in range(0, self._count, layout.CHUNK_ENTRIES):
            yield self[first : first + layout.CHUNK_ENTRIES]


class IndexColumns:
    """The columns of an ``.idx`` file; only the header and the size are checked.

    Raises:
        IntegrityError: The header is invalid or contradicts the size.
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
        """Check everything that :meth:`tokshard.dataset.layout.IndexTable.from_buffer` checks."""
        path = self._file.path
        layout.check_sequences(self.header, self.sequence_lengths, self.sequence_pointers, bin_bytes, path)
        layout.check_documents(self.header, self.document_indices, path)
        return self

    def sequences_per_document(self) -> Iterator[NDArray[np.int64]]:
        """Yield the number of sequences of each document, a few MB at a time."""
        return differences(self.document_indices, len(self.document_indices))


def differences(column: layout.Column, count: int) -> Iterator[NDArray[Any]]:
    """Yield the differences of neighbors among the ``count`` entries of a column, a few MB at a time."""
    for first in range(0, count - 1, layout.CHUNK_ENTRIES):
        yield np.diff(column[first : first + layout.CHUNK_ENTRIES + 1])


def read_header(file: InputFile) -> layout.IndexHeader:
    """Return the header of an index file, see :func:`tokshard.dataset.layout.read_header`."""
    beginning = bytearray(min(file.size_bytes, layout.HEADER_BYTES))
    file.read_into(memoryview(beginning), 0)
    return layout.read_header(beginning, path=file.path)
