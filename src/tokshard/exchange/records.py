"""Records to export: the documents of a dataset, or samples in training order, as one run of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tokshard.dataset.layout import require_integers
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import InputFile, open_data
from tokshard.errors import InputError
from tokshard.storage.paths import bin_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

BLOCK_BYTES = 1 << 20
"""Bytes of tokens that are read at once: a block stays in the cache while it is checked and hashed."""
CHUNK_RECORDS = 1 << 16
"""Records whose boundaries are computed at once."""
_NEAR_RECORDS = 1 << 11


class Records(Protocol):
    """Documents or samples, numbered from 0, whose tokens follow each other.

    Attributes:
        name: The dataset or other source, for messages.
        noun: ``"document"`` or ``"sample"``.
        count: The number of records.
        tokens: The number of tokens of all records.
        dtype: The dtype of the blocks.
        token_dtype: The dtype of the tokens on disk.
        listener: Called with the number of tokens of each block that was read.
    """

    listener: Callable[[int], None]

    name: str
    noun: str
    count: int
    tokens: int
    dtype: np.dtype[Any]
    token_dtype: np.dtype[Any]

    def ends(self, first: int, stop: int) -> Integers:
        """Return the tokens before the end of each record: int64 of shape (stop - first,)."""

    def blocks(self, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """Yield the tokens of a range in pieces of about 1 MiB, each valid until another is requested."""

    def fill(self, target: NDArray[Any], begin: int) -> None:
        """Read the tokens from ``begin`` on into an array of the records' dtype."""


class DatasetRecords:
    """The documents of a dataset.

    Args:
        prefix: The path prefix or URL of the dataset.

    Raises:
        InputError: It changed meanwhile.
        MissingFileError, IntegrityError, StorageError: See :class:`~tokshard.dataset.reader.IndexedDataset`.
    """

    noun = "document"

    def __init__(self, prefix: str) -> None:
        self.name = prefix
        dataset = IndexedDataset(prefix, mmap=False)
        self._file = open_data(bin_path(prefix))
        if self._file.state() != dataset.bin_state:
            raise InputError(
                f"{prefix} changed while it was opened", hint="run again when no process writes the dataset"
            )
        self._table = dataset.index
        self.dtype = self.token_dtype = dataset.dtype
        self.count = dataset.document_count
        self.tokens = self._table.token_count
        self.listener: Callable[[int], None] = lambda _: None
        self._buffer = np.empty(0, self.dtype)

    def ends(self, first: int, stop: int) -> Integers:
        """Return the tokens before the end of each document: int64 of shape (stop - first,)."""
        sequences = self._table.document_indices[first + 1 : stop + 1]
        pointers = self._table.sequence_pointers
        result = np.full(len(sequences), self.tokens, np.int64)
        inside = sequences < len(pointers)
        result[inside] = pointers[sequences[inside]] // self.dtype.itemsize
        return result

    def blocks(self, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """Yield the tokens of a range in pieces of about 1 MiB, each valid until another is requested."""
        itemsize = self.dtype.itemsize
        step = BLOCK_BYTES // itemsize
        if len(self._buffer) < min(step, end - begin):
            self._buffer = np.empty(step, self.dtype)
        for first in range(begin, end, step):
            block = self._buffer[: min(step, end - first)]
            self._file.read_into(block.data.cast("B"), first * itemsize)
            if first + step < end and not isinstance(self._file, InputFile):
                self._file.prefetch((first + step) * itemsize, min(step, end - first - step) * itemsize)
            yield block

    def fill(self, target: NDArray[Any], begin: int) -> None:
        """Read the tokens from ``begin`` on into an array of the records' dtype."""
        if len(target):
            self._file.read_into(target.data.cast("B"), begin * self.dtype.itemsize)


def fill_from_blocks(target: NDArray[Any], blocks: Iterator[NDArray[Any]]) -> None:
    """Copy blocks into an array of their size."""
    filled = 0
    for block in blocks:
        target[filled : filled + len(block)] = block
        filled += len(block)


def first_end_at(records: Records, value: int, *, first: int = 0) -> int:
    """Return the first record, from ``first`` on, that ends at token ``value`` or later; else the count."""
    # Most are near: one request for many ends costs hardly more than one for a single end.
    low = min(first + _NEAR_RECORDS, records.count)
    high = records.count
    if low > first:
        near = int(np.searchsorted(records.ends(first, low), value))
        if first + near < low:
            return first + near
    while low < high:
        middle = (low + high) // 2
        if int(records.ends(middle, middle + 1)[0]) >= value:
            high = middle
        else:
            low = middle + 1
    return low


def first_end_above(records: Records, value: int, *, first: int = 0) -> int:
    """Return the first record, from ``first`` on, that ends after token ``value``; else the count."""
    return first_end_at(records, value + 1, first=first)


def begin_of(records: Records, record: int) -> int:
    """Return the number of tokens before a record."""
    return int(records.ends(record - 1, record)[0]) if record else 0


def boundaries(records: Records, first: int, stop: int) -> Iterator[tuple[int, Integers]]:
    """Yield the edges of records in chunks: the first record, and int64 of shape (records + 1,)."""
    begin = begin_of(records, first)
    for start in range(first, stop, CHUNK_RECORDS):
        ends = records.ends(start, min(start + CHUNK_RECORDS, stop))
        yield start, np.concatenate(([begin], ends))
        begin = int(ends[-1])


def converter(records: Records, dtype: np.dtype[Any]) -> Callable[[NDArray[Any], int], NDArray[Any]]:
    """Return the conversion of blocks, given with their first token, to an unsigned or wider dtype.

    A block of the same width is returned as it is, without a copy. Ids are checked only if the new dtype
    cannot hold all values of the old one.

    Raises:
        InputError: The records are not of an integer dtype. The conversion raises it for an id that does
            not fit.
    """
    source = records.dtype
    require_integers(source, records.name)
    limit = int(np.iinfo(dtype).max)
    largest = int(np.iinfo(source).max)
    unsigned = np.dtype(f"<u{source.itemsize}")
    is_checked = source.kind == "i" or largest > limit
    bound = min(limit, largest)  # a negative id is a large unsigned one

    def convert(block: NDArray[Any], first: int) -> NDArray[Any]:
        values = block.view(unsigned)
        if is_checked and block.size and int(values.max()) > bound:
            place = int(np.argmax(values > bound))
            raise _wrong_id(records, first + place, int(block[place]), dtype)
        return values.view(dtype) if dtype.itemsize == source.itemsize else values.astype(dtype)

    return convert


def _wrong_id(records: Records, token: int, value: int, dtype: np.dtype[Any]) -> InputError:
    record = first_end_above(records, token)
    where = f"{records.noun} {record} of {records.name} has the token id {value}"
    if value < 0:
        return InputError(f"{where}; ids must not be negative", hint="verify the dataset with --level deep")
    return InputError(
        f"{where}, which does not fit {dtype.name}",
        hint="pass a larger --dtype, or the --vocab-size of the tokenizer",
    )


class Conversion:
    """The tokens of records in the dtype of the output."""

    def __init__(self, records: Records, dtype: np.dtype[Any]) -> None:
        self._records = records
        self._convert = converter(records, dtype)
        self._same_width = records.dtype.itemsize == dtype.itemsize

    def fill(self, target: NDArray[Any], begin: int) -> None:
        """Read the tokens from ``begin`` on into an array of the output's dtype."""
        if self._same_width:
            self._records.fill(target.view(self._records.dtype), begin)
            self._convert(target.view(self._records.dtype), begin)
            self._records.listener(len(target))
        else:
            fill_from_blocks(target, self.blocks(begin, begin + len(target)))

    def blocks(self, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """Yield the tokens of a range, each block valid until another is requested."""
        first = begin
        for block in self._records.blocks(begin, end):
            yield self._convert(block, first)
            first += len(block)
            self._records.listener(len(block))
