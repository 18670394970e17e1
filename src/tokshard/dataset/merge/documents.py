"""Documents of a shuffle: columns that are sorted without moving the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tokshard.core.background import in_order
from tokshard.core.keyed_orders import hashes
from tokshard.dataset.merge.token_stores import TokenStore, ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

CHUNK_BYTES = 4 << 20
"""Tokens that are copied together before they are written."""

NOT_LOADED = -1
"""Position of a document whose tokens are read from its input when they are written."""

_CHUNK_DOCUMENTS = 1 << 18


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive bytes of the ``.bin`` of an input that are in memory.

    Attributes:
        input: The number of the input.
        offset: Their first byte in the file.
        content: The bytes, until the tokens are released.
    """

    input: int
    offset: int
    content: memoryview


@dataclass(slots=True, eq=False)
class Documents:
    """Some documents of a merge, in any order.

    Attributes:
        numbers: The number of each in the concatenation of the inputs: int64 of shape (documents,).
        origins: Its number in the order of the units: int64 of shape (documents,).
        counts: Its sequences: int64 of shape (documents,).
        lengths: The tokens of each sequence: int32 of shape (sequences,).
        modes: The mode of each sequence: int8 of shape (sequences,); of shape (0,) for text.
        begins: The position of its tokens, or NOT_LOADED: int64 of shape (documents,).
        sizes: The bytes of its tokens: int64 of shape (documents,).
        tokens: Their tokens.
        spans: The bytes of the inputs that are in memory, in order.
    """

    numbers: Integers
    origins: Integers
    counts: Integers
    lengths: NDArray[np.int32]
    modes: NDArray[np.int8]
    begins: Integers
    sizes: Integers
    tokens: TokenStore
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

    def part(self, first: int, stop: int) -> Documents:
        """Return consecutive documents, which share the tokens."""
        edges = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.counts)))
        sequences, documents = slice(int(edges[first]), int(edges[stop])), slice(first, stop)
        return Documents(
            numbers=self.numbers[documents],
            origins=self.origins[documents],
            counts=self.counts[documents],
            lengths=self.lengths[sequences],
            modes=self.modes[sequences],
            begins=self.begins[documents],
            sizes=self.sizes[documents],
            tokens=self.tokens,
        )

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

    def gather(self, places: Sequence[tuple[int, int]], threads: int) -> Iterator[bytes | memoryview]:
        """Yield the tokens of ranges of documents; each is valid until another is requested.

        Args:
            places: The first document of each range, and the one after its last; none of them is apart.
            threads: The maximum number of ranges that are in memory at a time.
        """
        # Memory is used again: threads that give it back to the system stop each other while they do.
        rooms = [np.empty(0, np.uint8)] * threads

        def tokens_of(number: int, first: int, stop: int) -> bytes | memoryview:
            sizes = self.sizes[first:stop]
            size, room = int(sizes.sum()), rooms[number % threads]
            if len(room) < size:
                room = rooms[number % threads] = np.empty(max(size, CHUNK_BYTES), np.uint8)
            return self.tokens.gather(self.begins[first:stop], sizes, room[:size])

        # A range is only begun when the one before the last ``threads`` has been used.
        return in_order((partial(tokens_of, i, *place) for i, place in enumerate(places)), threads)


def document_sizes(counts: Integers, lengths: NDArray[np.int32], itemsize: int) -> Integers:
    """Return the bytes of the tokens of each document, given the lengths of all their sequences."""
    if (counts == 1).all():
        return lengths.astype(np.int64) * itemsize
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
    ends = np.cumsum(counts)
    sizes: Integers = (before[ends] - before[ends - counts]) * itemsize
    return sizes
