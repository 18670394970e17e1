"""Records to export: the documents of a dataset, or samples in training order, as one run of tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import InputFile, Tokens, open_data
from tokshard.errors import InputError
from tokshard.storage.paths import bin_path

Integers = NDArray[np.int64]

BLOCK_BYTES = 1 << 20
"""Bytes of tokens that are read at once: a block stays in the cache while it is checked and hashed."""
CHUNK_RECORDS = 1 << 16
"""Records whose boundaries are computed at once."""
_NEAR_RECORDS = 1 << 11


class Records(ABC):
    """Documents or samples, numbered from 0, whose tokens follow each other.

    Attributes:
        NOUN: ``"document"`` or ``"sample"``.
        name: The dataset or other source, for messages.
        count: The number of records.
        tokens: The number of tokens of all records.
        dtype: The integer dtype in which tokens are read.
        token_dtype: The dtype of the tokens on disk.
        width: The tokens of each record, or 1 if records have different lengths.
        listener: Called with the number of tokens of each block that was read.
    """

    NOUN: ClassVar[str]

    name: str
    count: int
    tokens: int
    dtype: np.dtype[Any]
    token_dtype: np.dtype[Any]
    width: int = 1
    listener: Callable[[int], object]

    @abstractmethod
    def ends(self, first: int, stop: int) -> Integers:
        """Return the tokens before the end of each record: int64 of shape (stop - first,)."""

    @abstractmethod
    def read(self, target: Tokens, begin: int) -> None:
        """Read the tokens from ``begin`` on into an array of ``dtype``: a multiple of ``width``."""

    def announce(self, begin: int, count: int) -> None:  # noqa: B027 - samples are not fetched ahead
        """Announce that so many tokens from ``begin`` on, or none, are read next."""

    def fill(self, target: Tokens, begin: int) -> None:
        """Read the tokens from ``begin`` on into an array of an unsigned or wider dtype.

        Raises:
            InputError: An id does not fit.
        """
        step = self._block_tokens
        for first in range(0, len(target), step):
            piece = target[first : first + step]
            has_same_width = piece.itemsize == self.dtype.itemsize
            block = piece.view(self.dtype) if has_same_width else np.empty(len(piece), self.dtype)
            self.read(block, begin + first)
            values = self._checked(block, begin + first, target.dtype)
            if not has_same_width:
                piece[...] = values
            self.listener(len(piece))

    def blocks(self, begin: int, end: int, dtype: np.dtype[Any]) -> Iterator[Tokens]:
        """Yield the tokens of a range as :meth:`fill` does, each block valid until the next is requested."""
        step = self._block_tokens
        buffer = np.empty(min(step, end - begin), dtype)
        for first in range(begin, end, step):
            block = buffer[: end - first]
            following = first + step
            self.announce(following, min(step, end - following))
            self.fill(block, first)
            yield block

    def begin(self, record: int) -> int:
        """Return the number of tokens before a record."""
        return int(self.ends(record - 1, record)[0]) if record else 0

    def edges(self, first: int, stop: int) -> Iterator[tuple[int, Integers]]:
        """Yield the edges of records in chunks: the first record, and int64 of shape (records + 1,)."""
        begin = self.begin(first)
        for start in range(first, stop, CHUNK_RECORDS):
            ends = self.ends(start, min(start + CHUNK_RECORDS, stop))
            yield start, np.concatenate(([begin], ends))
            begin = int(ends[-1])

    def first_end_at(self, token: int, *, first: int = 0) -> int:
        """Return the first record, from ``first`` on, that ends at a token or later; else the count."""
        # Most are near: one request for many ends costs hardly more than one for a single end.
        size = _NEAR_RECORDS
        while first < self.count:
            ends = self.ends(first, min(first + size, self.count))
            near = int(np.searchsorted(ends, token))
            first += near
            if near < len(ends):
                break
            size = min(2 * size, CHUNK_RECORDS)
        return first

    def first_end_above(self, token: int, *, first: int = 0) -> int:
        """Return the first record, from ``first`` on, that ends after a token; else the count."""
        return self.first_end_at(token + 1, first=first)

    @property
    def _block_tokens(self) -> int:
        return max(1, BLOCK_BYTES // self.dtype.itemsize // self.width) * self.width

    def _checked(self, block: Tokens, first: int, dtype: np.dtype[Any]) -> Tokens:
        """Return a block, which begins with a token, as unsigned ids that fit a dtype."""
        values = block.view(f"<u{block.itemsize}")
        largest = int(np.iinfo(block.dtype).max)
        limit = min(int(np.iinfo(dtype).max), largest)
        # A negative id is a large unsigned one.
        if (block.dtype.kind == "i" or limit < largest) and int(values.max()) > limit:
            at = int(np.argmax(values > limit))
            record = self.first_end_above(first + at)
            text = f"{self.NOUN} {record} of {self.name} has the token id {block[at]}"
            if block[at] < 0:
                raise InputError(
                    f"{text}; ids must not be negative", hint="verify the dataset with --level deep"
                )
            raise InputError(
                f"{text}, which does not fit {dtype.name}",
                hint="pass a larger --dtype, or the --vocab-size of the tokenizer",
            )
        return values


class DatasetRecords(Records):
    """The documents of a dataset.

    Args:
        prefix: The path prefix or URL of the dataset.

    Raises:
        InputError: It changed while it was opened.
        MissingFileError, IntegrityError, StorageError: See :class:`~tokshard.dataset.reader.IndexedDataset`.
    """

    NOUN = "document"

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
        self.listener = lambda _: None

    def ends(self, first: int, stop: int) -> Integers:
        """Return the tokens before the end of each document: int64 of shape (stop - first,)."""
        sequences = self._table.document_indices[first + 1 : stop + 1]
        pointers = self._table.sequence_pointers
        result = np.full(len(sequences), self.tokens, np.int64)
        inside = sequences < len(pointers)
        result[inside] = pointers[sequences[inside]] // self.dtype.itemsize
        return result

    def read(self, target: Tokens, begin: int) -> None:
        """Read the tokens from ``begin`` on into an array of ``dtype``."""
        self._file.read_into(target.data.cast("B"), begin * self.dtype.itemsize)

    def announce(self, begin: int, count: int) -> None:
        """Fetch tokens of a remote dataset in a thread, which :meth:`read` reads next."""
        if count > 0 and not isinstance(self._file, InputFile):
            self._file.prefetch(begin * self.dtype.itemsize, count * self.dtype.itemsize)
