"""The documents of all inputs of a merge as one sequence, read by ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.index_file import FileColumn, IndexColumns
from tokshard.dataset.layout import CHUNK_ENTRIES
from tokshard.dataset.manifest import ORDER_NAME, file_of
from tokshard.dataset.merge.documents import (
    CHUNK_BYTES,
    NOT_LOADED,
    Documents,
    TokenSpan,
    document_sizes,
)
from tokshard.dataset.merge.inputs import MergeInput
from tokshard.dataset.merge.token_stores import BufferPool, LoadedTokens, RandomAccessTokens, TokenStore
from tokshard.dataset.source import InputFile
from tokshard.storage.paths import bin_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class InputRange:
    """Consecutive documents of one input, ``first`` to ``stop - 1`` there."""

    input: int
    first: int
    stop: int


class MergedDocuments:
    """The documents of all inputs, numbered from 0 in the order of the inputs. Threads may share it."""

    def __init__(self, inputs: Sequence[MergeInput], *, multimodal: bool) -> None:
        self._inputs = inputs
        self._multimodal = multimodal
        counts = [dataset.header.document_count for dataset in inputs]
        self.firsts = [0, *accumulate(counts)]
        self._columns = lru_cache(maxsize=4)(self._open)

    @property
    def count(self) -> int:
        """The number of documents."""
        return self.firsts[-1]

    @property
    def itemsize(self) -> int:
        """The bytes of a token."""
        return self._inputs[0].header.dtype.itemsize

    def ranges(self, first: int, stop: int) -> Iterator[InputRange]:
        """Yield the parts of a range of documents by input."""
        number = bisect_right(self.firsts, first) - 1
        while first < stop:
            end = min(stop, self.firsts[number + 1])
            if first < end:
                base = self.firsts[number]
                yield InputRange(number, first - base, end - base)
                first = end
            number += 1

    def sizes(self, part: InputRange) -> tuple[Integers, Integers]:
        """Return the sequences and the bytes of documents; memory does not depend on their sequences."""
        columns = self._columns(part.input)
        bounds = columns.document_indices[part.first : part.stop + 1]
        tokens = np.zeros(len(bounds), np.int64)  # before each bound
        total, last = 0, int(bounds[-1])
        for begin in range(int(bounds[0]), last, CHUNK_ENTRIES):
            lengths = columns.sequence_lengths[begin : min(begin + CHUNK_ENTRIES, last)]
            before = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64))) + total
            low = int(np.searchsorted(bounds, begin, side="left"))
            high = int(np.searchsorted(bounds, begin + len(lengths), side="right"))
            tokens[low:high] = before[bounds[low:high] - begin]
            total = int(before[-1])
        return np.diff(bounds), np.diff(tokens) * self.itemsize

    def load(
        self, first: int, stop: int, apart: Collection[int], pool: BufferPool, capacity: int
    ) -> Documents:
        """Read documents into memory, except the tokens of those whose numbers are in ``apart``.

        Args:
            first: The first document.
            stop: The document after the last one.
            apart: Numbers of documents.
            pool: Lends the memory.
            capacity: The bytes of tokens for which there shall be room.

        Raises:
            IntegrityError: An input is too short.
            StorageError: It cannot be read.
        """
        parts = [self._load(part, apart) for part in self.ranges(first, stop)]
        offsets = np.cumsum([0, *(part.loaded for part in parts)])
        tokens = pool.take(int(offsets[-1]), capacity)
        spans: list[TokenSpan] = []
        for part, offset in zip(parts, offsets.tolist(), strict=False):
            part.begins[part.begins != NOT_LOADED] += offset
            spans += part.read(tokens, offset, bin_path(self._inputs[part.input].prefix))
        return _documents(first, parts, LoadedTokens(tokens, self.itemsize, pool), tuple(spans))

    def locate(self) -> Documents:
        """Return all documents, whose tokens are read from the inputs when they are needed.

        There must be at most MAX_OPEN_INPUTS inputs, which are kept open.
        """
        files = [InputFile(bin_path(dataset.prefix)) for dataset in self._inputs]
        for file in files:
            file.prefetch_all()
        bases = [0, *accumulate(file.size_bytes for file in files)]
        parts = [self._load(part, ()) for part in self.ranges(0, self.count)]
        for part in parts:
            part.begins += bases[part.input]
            part.begins[part.sizes > CHUNK_BYTES] = NOT_LOADED
        return _documents(0, parts, RandomAccessTokens(files))

    def position(self, number: int) -> tuple[str, int]:
        """Return the ``.bin`` that contains a document, and the byte where its tokens begin."""
        (part,) = self.ranges(number, number + 1)
        return bin_path(self._inputs[part.input].prefix), self._first_byte(part)

    def _open(self, number: int) -> IndexColumns:
        return self._inputs[number].columns(multimodal=self._multimodal)

    def _first_byte(self, part: InputRange) -> int:
        columns = self._columns(part.input)
        sequence = int(columns.document_indices[part.first : part.first + 1][0])
        pointers = columns.sequence_pointers[sequence : sequence + 1]
        return int(pointers[0]) if pointers.size else self._inputs[part.input].bin_bytes

    def _load(self, part: InputRange, apart: Collection[int]) -> _Part:
        columns = self._columns(part.input)
        bounds = columns.document_indices[part.first : part.stop + 1]
        sequences = slice(int(bounds[0]), int(bounds[-1]))
        lengths, counts = columns.sequence_lengths[sequences], np.diff(bounds)
        modes = columns.sequence_modes[sequences] if self._multimodal else np.empty(0, np.int8)
        sizes = document_sizes(counts, lengths, self.itemsize)
        base = self.firsts[part.input] + part.first
        loaded = sizes.copy()
        left_out = sorted(number - base for number in apart if base <= number < base + len(sizes))
        loaded[left_out] = 0
        begins = np.cumsum(loaded) - loaded
        begins[left_out] = NOT_LOADED
        return _Part(
            input=part.input,
            origins=self._origins(part),
            counts=counts,
            lengths=lengths,
            modes=modes,
            begins=begins,
            sizes=sizes,
            first_byte=self._first_byte(part),
            loaded=int(loaded.sum()),
        )

    def _origins(self, part: InputRange) -> Integers:
        dataset, base = self._inputs[part.input], self.firsts[part.input]
        if not dataset.is_shuffled:
            return np.arange(base + part.first, base + part.stop, dtype=np.int64)
        file = InputFile(file_of(dataset.prefix, ORDER_NAME))
        order: Integers = FileColumn(file, "<i8", dataset.header.document_count, 0)[part.first : part.stop]
        return order + base


@dataclass(slots=True, eq=False)
class _Part:
    input: int
    origins: Integers
    counts: Integers
    lengths: NDArray[np.int32]
    modes: NDArray[np.int8]
    begins: Integers
    sizes: Integers
    first_byte: int
    loaded: int

    def read(self, tokens: NDArray[np.uint8], position: int, path: str) -> Iterator[TokenSpan]:
        """Fill the buffer from a position on; yield what was read."""
        if not self.loaded:
            return
        file, view = InputFile(path), tokens.data
        offset = self.first_byte
        ends = np.cumsum(self.sizes)
        apart = np.flatnonzero(self.begins == NOT_LOADED)
        gaps = zip((ends - self.sizes)[apart].tolist(), ends[apart].tolist(), strict=True)
        for begin, end in [*gaps, (int(ends[-1]), int(ends[-1]))]:
            size = self.first_byte + begin - offset
            if size:
                file.read_into(view[position : position + size], offset)
                yield TokenSpan(self.input, offset, view[position : position + size])
            position += size
            offset = self.first_byte + end


def _documents(
    first: int, parts: list[_Part], tokens: TokenStore, spans: tuple[TokenSpan, ...] = ()
) -> Documents:
    count = sum(len(part.sizes) for part in parts)
    return Documents(
        numbers=np.arange(first, first + count, dtype=np.int64),
        origins=_joined([part.origins for part in parts], np.int64),
        counts=_joined([part.counts for part in parts], np.int64),
        lengths=_joined([part.lengths for part in parts], np.int32),
        modes=_joined([part.modes for part in parts], np.int8),
        begins=_joined([part.begins for part in parts], np.int64),
        sizes=_joined([part.sizes for part in parts], np.int64),
        tokens=tokens,
        spans=spans,
    )


def _joined(arrays: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, dtype), *arrays])
