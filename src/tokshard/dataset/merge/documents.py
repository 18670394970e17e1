"""Documents in memory: tokens in one buffer, and columns that are sorted without moving the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.keyed_orders import hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

CHUNK_BYTES = 16 << 20
"""Tokens that are copied together before they are written."""

NOT_LOADED = -1
"""Position of a document whose tokens are read from its input when they are written."""

_CHUNK_DOCUMENTS = 1 << 18
# Below this mean size, copying tokens by their numbers is faster than slicing the buffer.
_SHORT_BYTES = 100


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive bytes of the ``.bin`` of an input that are in the buffer.

    Attributes:
        input: The number of the input.
        offset: Their first byte in the file.
        size: Their number.
        position: Their first byte in the buffer.
    """

    input: int
    offset: int
    size: int
    position: int


@dataclass(slots=True, eq=False)
class Documents:
    """Some documents of a merge, in any order.

    Attributes:
        numbers: The number of each in the concatenation of the inputs: int64 of shape (documents,).
        origins: Its number in the order of the units: int64 of shape (documents,).
        counts: Its sequences: int64 of shape (documents,).
        lengths: The tokens of each sequence: int32 of shape (sequences,).
        modes: The mode of each sequence: int8 of shape (sequences,); of shape (0,) for text.
        begins: The position of its tokens in the buffer, or NOT_LOADED: int64 of shape (documents,).
        sizes: The bytes of its tokens: int64 of shape (documents,).
        tokens: The buffer: uint8.
        itemsize: The bytes of a token.
        spans: The bytes of the inputs that are in the buffer, in order; none if it is from scratch files.
    """

    numbers: Integers
    origins: Integers
    counts: Integers
    lengths: NDArray[np.int32]
    modes: NDArray[np.int8]
    begins: Integers
    sizes: Integers
    tokens: NDArray[np.uint8]
    itemsize: int
    spans: tuple[TokenSpan, ...] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def hashes(self, key: int) -> NDArray[np.uint64]:
        """Return the hash of each document, by which documents are sorted; no two are equal."""
        return hashes(np.full(1, key, np.uint64), self.numbers)

    def sort(self, key: int) -> NDArray[np.uint64]:
        """Sort the columns by the hashes of the documents; return the sorted hashes."""
        keys = self.hashes(key)
        order = np.argsort(keys)
        first = np.cumsum(self.counts) - self.counts
        first, counts = first[order], self.counts[order]
        self.lengths = ragged(self.lengths, first, counts)
        if self.modes.size:
            self.modes = ragged(self.modes, first, counts)
        self.counts = counts
        self.numbers, self.origins = self.numbers[order], self.origins[order]
        self.begins, self.sizes = self.begins[order], self.sizes[order]
        return keys[order]

    def release(self) -> None:
        """Free the memory of the tokens."""
        self.tokens = np.empty(0, np.uint8)

    def chunks(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of documents whose tokens fit a chunk; a document that is not loaded is alone."""
        apart = first + np.flatnonzero(self.begins[first:stop] == NOT_LOADED)
        for end in [*apart.tolist(), stop]:
            yield from self._chunks(first, end)
            if end < stop:
                yield end, end + 1
            first = end + 1

    def _chunks(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        ends = np.cumsum(self.sizes[first:stop])
        at, done = 0, 0
        while at < len(ends):
            fitting = int(np.searchsorted(ends, done + CHUNK_BYTES, side="right"))
            upto = min(max(at + 1, fitting), at + _CHUNK_DOCUMENTS)
            yield first + at, first + upto
            at, done = upto, int(ends[upto - 1])

    def gather(self, first: int, stop: int) -> bytes | memoryview:
        """Return the tokens of consecutive documents, all of them loaded."""
        begins, sizes = self.begins[first:stop], self.sizes[first:stop]
        total = int(sizes.sum())
        if total < _SHORT_BYTES * len(sizes):
            items = self.tokens.view(f"u{self.itemsize}")
            gathered = ragged(items, begins // self.itemsize, sizes // self.itemsize)
            return gathered.data.cast("B")
        view = self.tokens.data
        places = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        return b"".join([view[begin:end] for begin, end in places])


def ragged(values: NDArray[Any], first: Integers, counts: Integers) -> NDArray[Any]:
    """Return the concatenation of ``values[first[i] : first[i] + counts[i]]`` for all i."""
    if (counts == 1).all():
        only: NDArray[Any] = values[first]
        return only
    ends = np.cumsum(counts)
    places = np.repeat(first - (ends - counts), counts)
    places += np.arange(places.size)
    gathered: NDArray[Any] = values[places]
    return gathered


def document_sizes(counts: Integers, lengths: NDArray[np.int32], itemsize: int) -> Integers:
    """Return the bytes of the tokens of each document, given the lengths of all their sequences."""
    if (counts == 1).all():
        return lengths.astype(np.int64) * itemsize
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
    ends = np.cumsum(counts)
    sizes: Integers = (before[ends] - before[ends - counts]) * itemsize
    return sizes
